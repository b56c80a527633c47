"""Prints findings by level, the worst first, with their reasons, remedies and sources."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from common.findings import Finding, Level
from common.verdicts import count_of
from trainers.cases import Case
from workflow.preflight import PreflightResult

WIDTH = 100
_HEADINGS: dict[Level, str] = {
    "lacking": "the runs need it, and this site does not have it",
    "impossible": "the run would fail, never end, or be mislabelled",
    "unequal": "the arms do not train under equal terms",
    "odd": "it runs, but probably not as intended",
}


def finding_lines(
    findings: Sequence[Finding], levels: Sequence[Level], found: PreflightResult | None = None
) -> Iterator[str]:
    """The findings of each level under its heading; `found`: of an experiment."""
    numbers = count(1)
    for level in levels:
        some = [finding for finding in findings if finding.level == level]
        yield ""
        yield f"{level} ({len(some)}): {_HEADINGS[level]}" if some else f"{level}: nothing"
        for finding in some:
            what = _what(finding, found) if found else finding.what
            yield from wrapped(f"{what}  [{finding.code}]", f"{next(numbers):3}. ")
            for name in ("why", "change", "source"):
                if text := getattr(finding, name):
                    yield from wrapped(text, f"     {name + ':':8}")


def summary_lines(found: PreflightResult, known: Sequence[Finding] = ()) -> list[str]:
    """One line per new finding that is not impossible, the unequal ones first."""
    findings = [one for one in found.findings if one.level != "impossible" and one not in known]
    if not findings:
        return []
    total = count_of(len(findings), "finding")
    lines = [f"preflight: {total}; rolloutbench check shows why and what to change"]
    for number, finding in enumerate(findings, start=1):
        lines += wrapped(f"{finding.level}: {_what(finding, found)}", f" {number:2}. ")
    return lines


def head_lines(found: PreflightResult) -> Iterator[str]:
    """A line per arm."""
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


def settings_source(found: PreflightResult) -> str:
    trained = [case for case in found.cases if not case.imported]
    if not trained:
        return "settings from the runs' sources, or from the experiment"
    if all(case.settings.composed for case in trained):
        return "settings as the stacks composed them"
    return (
        "settings as the experiment gives them; the stacks compose and validate them when "
        f"snakemake runs (results/{found.experiment}/preflight.json)"
    )


def wrapped(text: str, first: str) -> Iterable[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
