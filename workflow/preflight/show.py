"""Prints a preflight grouped by level, the worst first, in lines of at most 100 columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import count

from common.findings import EQUALITIES, LEVELS, Finding, Level
from common.verdicts import count_of
from trainers.cases import Case
from workflow.preflight import PreflightResult

WIDTH = 100
_HEADINGS: dict[Level, str] = {
    "impossible": "the run would fail, never end, or be mislabelled",
    "unequal": "the arms do not train under equal terms",
    "odd": "it runs, but probably not as intended",
}


def preflight_lines(found: PreflightResult) -> Iterator[str]:
    """The output of `rolloutbench preflight`."""
    yield from _head(found)
    numbers = count(1)
    for level in LEVELS:
        findings = [finding for finding in found.findings if finding.level == level]
        yield ""
        yield f"{level} ({len(findings)}): {_HEADINGS[level]}" if findings else f"{level}: nothing"
        for finding in findings:
            yield from _wrapped(f"{_what(finding, found)}  [{finding.code}]", f"{next(numbers):3}. ")
            for name in ("why", "change", "source"):
                yield from _wrapped(getattr(finding, name), f"     {name + ':':8}")
    if found.unverifiable:
        yield ""
        yield "not checked:"
        for reason in found.unverifiable:
            yield from _wrapped(reason, " - ")
    yield ""
    counts = {verdict: len(found.rows(verdict)) for verdict in EQUALITIES}
    yield "ledger: " + ", ".join(f"{rows} {verdict}" for verdict, rows in counts.items() if rows)
    yield from _wrapped(_settings_source(found), "        ")


def summary_lines(found: PreflightResult) -> list[str]:
    """One line per finding that is not impossible, the unequal ones first."""
    findings = [finding for finding in found.findings if finding.level != "impossible"]
    if not findings:
        return []
    total = count_of(len(findings), "finding")
    lines = [f"preflight: {total}; rolloutbench preflight shows why and what to change"]
    for number, finding in enumerate(findings, start=1):
        lines += _wrapped(f"{finding.level}: {_what(finding, found)}", f" {number:2}. ")
    return lines


def _head(found: PreflightResult) -> Iterator[str]:
    """The experiment's name, and a line per arm."""
    yield found.experiment
    cases = {case.arm: case for case in reversed(found.cases)}
    unknown = {case.arm: case for case in found.unknown if case.arm not in cases}
    width = max(map(len, [*cases, *unknown]), default=0)
    for arm in dict.fromkeys(case.arm for case in found.cases):
        case = cases[arm]
        where = f"{case.gpus} x {case.workload.get('gpu') or 'GPU'}" if case.on_gpu else "CPU"
        if case.on_gpu and case.tensor_parallel > 1:
            where += f", {case.tensor_parallel} per engine"
        yield f"  {arm.ljust(width)}  {_system(case)}; {where}{'; imported' * case.imported}"
    for arm, case in unknown.items():
        yield f"  {arm.ljust(width)}  {_system(case)}; imported, settings unknown"


def _system(case: Case) -> str:
    return f"{case.trainer.name} {case.version or '(unknown release)'}, {case.engine.label}"


def _what(finding: Finding, found: PreflightResult) -> str:
    """What was found, preceded by its arms unless it concerns all arms or names them itself."""
    every = {case.arm for case in (*found.cases, *found.unknown)}
    named = all(re.search(rf"(?<![\w.-]){re.escape(arm)}(?![\w-]|\.\w)", finding.what) for arm in finding.arms)
    return finding.what if named or every <= set(finding.arms) else f"{', '.join(finding.arms)}: {finding.what}"


def _settings_source(found: PreflightResult) -> str:
    trained = [case for case in found.cases if not case.imported]
    if not trained:
        return "settings from the runs' sources, or from the experiment and the packaged defaults"
    if all(case.settings.composed for case in trained):
        return "settings as the stacks composed them"
    return (
        "settings from the packaged defaults and the overrides; the stacks compose the rest when snakemake runs "
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
