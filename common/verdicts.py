"""Defines verdicts, the named lines that the analysis writes about its data, and the file that has them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, TypedDict

# How many findings of one kind are listed before the rest is folded away.
FOLD_AFTER = 4

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Verdict:
    """One named line: `code` names the kind of finding, `text` is for the person.

    `error`: something was left out of the numbers. `warning`: the numbers stand, but read this first.
    `note`: good to know.
    """

    level: Level
    code: str
    text: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class ReportFile(TypedDict):
    """`results/<experiment>/report.json`, written by analysis.report: the numbers of report.html, for dashboards.

    What they amount to is in verdict.json alone.
    """

    experiment: Annotated[str, "the experiment's name"]
    baseline: Annotated[str, "the arm that the others are compared with"]
    arms: Annotated[list[str], "every arm, the baseline too, in the plan's order"]
    warmup_steps: Annotated[int, "the steps of each run that do not count"]
    findings: Annotated[
        list[dict[str, str]],
        "what is wrong with the data, the worst first: `level` (`error`, `warning`, `note`), `code`, `text`",
    ]
    tables: Annotated[dict[str, list[dict[str, Any]]], "by the name that a table has in tables/: its rows (below)"]


def verdict_from(raw: dict[str, str]) -> Verdict:
    """A verdict back from its dictionary."""
    level: Level = "error" if raw["level"] == "error" else "warning" if raw["level"] == "warning" else "note"
    return Verdict(level, raw["code"], raw["text"])


def worst_first(verdicts: list[Verdict]) -> list[Verdict]:
    """Errors first, then warnings, then notes; otherwise in the order found, each once."""
    weight = {"error": 0, "warning": 1, "note": 2}
    return sorted(dict.fromkeys(verdicts), key=lambda v: weight[v.level])


def verdict_groups(verdicts: Iterable[Verdict]) -> list[tuple[Level, str, list[Verdict]]]:
    """(level, code, verdicts) with equal levels and codes together, in the order of their first."""
    groups: dict[tuple[Level, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.level, verdict.code), []).append(verdict)
    return [(level, code, group) for (level, code), group in groups.items()]


def first_of_each_code(told: Iterable[Verdict]) -> Iterator[Verdict]:
    """The first verdict of each code, with how many more lines of its file it is of."""
    kinds: dict[str, list[Verdict]] = {}
    for one in told:
        kinds.setdefault(one.code, []).append(one)
    for one, *more in kinds.values():
        yield replace(one, text=f"{one.text} (so it is with {count_of(len(more), 'more line')})") if more else one


def count_of(number: int, one: str, many: str = "") -> str:
    """`1 step`, `3 steps`: a count and what it counts."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
