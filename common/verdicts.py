"""Defines `Verdict`, a coded message about the data, and report.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, TypedDict

# Findings of one code that are listed before the rest is folded.
FOLD_AFTER = 4

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Verdict:
    """A message about the data: `code` names its kind, `text` is one sentence.

    `error`: data is excluded from the numbers. `warning`: the numbers need a caveat. `note`: information.
    """

    level: Level
    code: str
    text: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class ReportFile(TypedDict):
    """`results/<experiment>/report.json`, written by analysis.report: the numbers of report.html, for dashboards.

    The conclusion is in verdict.json only.
    """

    experiment: Annotated[str, "the experiment's name"]
    baseline: Annotated[str, "the arm that the others are compared with"]
    arms: Annotated[list[str], "all arms with the baseline, in the plan's order"]
    warmup_steps: Annotated[int, "first steps of each run that are not counted"]
    findings: Annotated[
        list[dict[str, str]],
        "problems of the data, most serious first: `level` (`error`, `warning`, `note`), `code`, `text`",
    ]
    tables: Annotated[dict[str, list[dict[str, Any]]], "rows of each table, by the table's name in tables/"]


def worst_first(verdicts: list[Verdict]) -> list[Verdict]:
    """Errors, then warnings, then notes, else in the given order; without duplicates."""
    weight = {"error": 0, "warning": 1, "note": 2}
    return sorted(dict.fromkeys(verdicts), key=lambda v: weight[v.level])


def verdict_groups(verdicts: Iterable[Verdict]) -> list[tuple[Level, str, list[Verdict]]]:
    """(level, code, verdicts), grouped by level and code, in the order of first appearance."""
    groups: dict[tuple[Level, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.level, verdict.code), []).append(verdict)
    return [(level, code, group) for (level, code), group in groups.items()]


def first_of_each_code(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """The first verdict of each code, with the number of further lines."""
    for _, _, (first, *more) in verdict_groups(verdicts):
        yield replace(first, text=f"{first.text} (also in {count_of(len(more), 'more line')})") if more else first


def count_of(number: int, one: str, many: str = "") -> str:
    """`1 step`, `3 steps`: a count with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
