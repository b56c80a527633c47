"""Prints a preflight: grouped by level, the worst first, in plain lines of at most 100 columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator

from common.findings import EQUALITIES, LEVELS, Finding, Level
from trainers.cases import Case
from trainers.memory_estimate import MemoryEstimate
from workflow.preflight import PreflightResult
from workflow.preflight.checks.one_case import parts_text

WIDTH = 100
_HEADINGS: dict[Level, str] = {
    "impossible": "it would fail, never end, or be told as what it is not",
    "unequal": "the arms do not meet on equal terms",
    "odd": "it runs, but probably not as meant",
}


def preflight_lines(found: PreflightResult) -> Iterator[str]:
    """All that `rolloutbench preflight` prints."""
    yield from _head(found)
    number = 0
    for level in LEVELS:
        some = [finding for finding in found.findings if finding.level == level]
        yield ""
        if not some:
            yield f"{level}: nothing"
            continue
        yield f"{level} ({len(some)}): {_HEADINGS[level]}"
        for finding in some:
            number += 1
            yield from _finding(number, finding, _what(finding, found))
    yield from _memory(found)
    if found.unverifiable:
        yield ""
        yield "not checked:"
        for one in found.unverifiable:
            yield from _wrapped(one, " - ")
    yield ""
    counts = {verdict: len(found.rows(verdict)) for verdict in EQUALITIES}
    yield "ledger: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    yield from _wrapped(_depth(found), "        ")


def summary_lines(found: PreflightResult) -> list[str]:
    """The short list of what does not stop an experiment: a line for each finding, the unequal first."""
    some = [finding for finding in found.findings if finding.level != "impossible"]
    if not some:
        return []
    lines = [
        f"preflight: {len(some)} finding{'s' * (len(some) != 1)}; rolloutbench preflight tells why and what to change"
    ]
    for number, finding in enumerate(some, start=1):
        lines += _wrapped(f"{finding.level}: {_what(finding, found)}", f" {number:2}. ")
    return lines


def _head(found: PreflightResult) -> Iterator[str]:
    cases = {case.arm: case for case in reversed(found.cases)}
    yield found.experiment
    unknown = {case.arm: case for case in found.unknown}
    width = max(map(len, [*cases, *unknown]), default=0)
    for arm in dict.fromkeys(case.arm for case in found.cases):
        case = cases[arm]
        where = f"{case.gpus} x {case.workload.get('gpu') or 'GPU'}" if case.on_gpu else "CPU"
        if case.on_gpu and case.tensor_parallel > 1:
            where += f", {case.tensor_parallel} per engine"
        where += "; imported" * case.imported
        yield f"  {arm.ljust(width)}  {_system(case)}; {where}"
    for arm, case in unknown.items():
        if arm not in cases:
            yield f"  {arm.ljust(width)}  {_system(case)}; imported, settings not known"


def _system(case: Case) -> str:
    return f"{case.trainer.name} {case.version or 'of a release that is not told'}, {case.engine.label}"


def _what(finding: Finding, found: PreflightResult) -> str:
    """What is found, with its arms where these are not all, and it does not name them itself."""
    every = {case.arm for case in (*found.cases, *found.unknown)}
    named = all(re.search(rf"(?<![\w.-]){re.escape(arm)}(?![\w-]|\.\w)", finding.what) for arm in finding.arms)
    return finding.what if named or every <= set(finding.arms) else f"{', '.join(finding.arms)}: {finding.what}"


def _finding(number: int, finding: Finding, what: str) -> Iterator[str]:
    yield from _wrapped(f"{what}  [{finding.code}]", f"{number:3}. ")
    for name in ("why", "change", "source"):
        yield from _wrapped(getattr(finding, name), f"     {name + ':':8}")


def _memory(found: PreflightResult) -> Iterator[str]:
    if not found.memory:
        return
    yield ""
    yield "memory of one GPU, GiB, by estimate (~ assumed, the rest counted):"
    told_of: dict[tuple[str, str], list[str]] = {}
    for name in ("update", "rollout", "cache"):
        for arm, estimate in found.memory.items():
            if text := _estimate(name, estimate):
                told_of.setdefault((name, text), []).append(arm)
    for (name, text), arms in told_of.items():
        whose = "" if len(arms) == len(found.memory) else f"{', '.join(arms)}: "
        yield from _wrapped(f"{whose}{text}", f"  {name + ':':9}")


def _estimate(name: str, estimate: MemoryEstimate) -> str:
    if name == "cache":
        if estimate.kv_tokens is None:
            return ""
        held = f"what it decodes at once holds {estimate.kv_wanted:,} at full length"
        return f"room for {estimate.kv_tokens:,} tokens in an engine; {held}"
    parts = estimate.update if name == "update" else estimate.rollout
    return f"{MemoryEstimate.sum(parts):.0f} of {estimate.gib:.0f}: {parts_text(parts)}"


def _depth(found: PreflightResult) -> str:
    trained = [case for case in found.cases if not case.imported]
    if not trained:
        return "settings as the runs' sources hold them, or as the experiment and the packaged defaults tell"
    if all(case.settings.composed for case in trained):
        return "settings as the stacks composed them"
    return (
        "settings as far as the packaged defaults and the overrides tell; the stacks compose the "
        "rest when snakemake runs "
        f"(results/{found.experiment}/preflight.json)"
    )


def _wrapped(text: str, first: str) -> Iterable[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
