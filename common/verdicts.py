"""Defines `Verdict`, a coded message about the data, and verdict.json, report.json and history.json; reads looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypedDict

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Verdict:
    """A message about the data: `code` names its kind, `text` is one sentence.

    `error`: data is excluded from the numbers. `warning`: the numbers need a caveat. `note`: information. Errors and
    warnings are caveats of the answers of the arms that they are about (analysis/verdict/caveats.py).
    """

    level: Level
    code: str
    text: str
    about: tuple[str, ...] = ()
    """The runs or arms that it concerns; empty: all."""

    def as_dict(self) -> dict[str, str]:
        return {"level": self.level, "code": self.code, "text": self.text}


class RatioInFile(TypedDict):
    """A ratio in verdict.json: seconds of the baseline over seconds of the arm; above 1 the arm is faster."""

    unit: Annotated[str, "`at equal work` or `per step`"]
    at: Annotated[list[str], "the factor combinations that the ratio covers"]
    value: Annotated[list[float], "lowest and highest ratio, as in tables/estimates"]
    interval: Annotated[list[float | None], "lowest and highest end of the 95% intervals over runs, or nulls"]
    seconds: Annotated[list[float | None], "of a step of the baseline and of the arm, in this unit; nulls with a sweep"]
    too_wide: Annotated[bool, "its interval reaches farther than a factor of 3: the ratio is printed nowhere"]


class CaveatInFile(TypedDict):
    """A caveat in verdict.json."""

    kind: Annotated[str, "`terms`, `gate`, `spread` (of runs), `estimates` or `data`"]
    text: Annotated[str, "what speaks against relying on the answer"]


class ArmInVerdict(TypedDict):
    """An arm in verdict.json."""

    arm: Annotated[str, "the arm"]
    baseline: Annotated[str, "the arm that it is compared with"]
    verdict: Annotated[
        str,
        "`+` faster, `-` slower, `=` equal within the ratio in `words`, `~` not resolved, or not at every factor, "
        "`x` not comparable",
    ]
    words: Annotated[str, "the verdict in words"]
    sentence: Annotated[str, "the answer in one line, with its seconds"]
    difference: Annotated[str, "in which parts of the step the difference lies; empty where that is not known"]
    ratios: Annotated[list[RatioInFile], "most informative first; [] if nothing is comparable"]
    per_gpu: Annotated[list[str], "of loops on unlike splits of GPUs: what the GPUs of both did, a sentence each"]
    runs: Annotated[list[int], "runs of the baseline and of the arm, over all factor combinations"]
    steps: Annotated[list[int], "their steps that are compared"]
    basis: Annotated[str, "terms, runs, and steps with those that are left out, as a sentence"]
    caveats: Annotated[list[CaveatInFile], "all, the most harmful first"]
    settle: Annotated[list[str], "what would resolve the verdict"]


class VerdictFile(TypedDict):
    """`results/<experiment>/verdict.json`, written by analysis.report: the claims of the comparison."""

    experiment: Annotated[str, "the experiment's name"]
    baseline: Annotated[str, "the arm that the others are compared with"]
    arms: Annotated[list[ArmInVerdict], "a verdict for each arm that shares steps with the baseline"]
    no_comparison: Annotated[str, "why there is no verdict; empty if there is one"]


class RunInReport(TypedDict):
    """A run in report.json: what a history of experiments compares (`rolloutbench history`)."""

    run_id: Annotated[str, "the run's id"]
    arm: Annotated[str, "the run's arm"]
    factors: Annotated[dict[str, Any], "the run's value of each factor, by dotted path"]
    trainer: Annotated[str, "the trainer"]
    engine: Annotated[str, "the engine"]
    releases: Annotated[dict[str, str], "releases of trainer and engine, by package, where they are known"]
    stack: Annotated[str, "the stack and its lock; empty for an imported run"]
    workload: Annotated[str, "hash that runs of equal work share, 12 hex digits"]
    workload_text: Annotated[str, "the workload in words"]
    hardware: Annotated[str, "the machine in words; empty where no file has it"]
    started: Annotated[float | None, "seconds since 1970"]
    steps: Annotated[int, "counted steps"]
    step_s: Annotated[float, "mean seconds of a counted step"]
    tokens_per_s: Annotated[float | None, "response tokens of the counted steps over their seconds"]


class ReportFile(TypedDict):
    """`results/<experiment>/report.json`, written by analysis.report: the numbers of report.html, for dashboards.

    The conclusion is in verdict.json only.
    """

    format: Annotated[int, "1; missing in older reports, which lack `runs`"]
    experiment: Annotated[str, "the experiment's name"]
    baseline: Annotated[str, "the arm that the others are compared with"]
    arms: Annotated[list[str], "all arms with the baseline, in the plan's order"]
    warmup_steps: Annotated[int, "first steps of each run that are not counted"]
    findings: Annotated[
        list[dict[str, str]],
        "problems of the data, most serious first: `level` (`error`, `warning`, `note`), `code`, `text`",
    ]
    runs: Annotated[list[RunInReport], "the runs with counted steps"]
    tables: Annotated[dict[str, list[dict[str, Any]]], "rows of each table, by the table's name in tables/"]


class PointInHistory(TypedDict):
    """A point of a series in history.json: one experiment."""

    experiment: Annotated[str, "the experiment's name"]
    folder: Annotated[str, "its folder, as it was found"]
    time: Annotated[float, "start of its first run, seconds since 1970; else the time of report.json"]
    value: Annotated[float, "the quantity: the runs' geometric mean, or the report's ratio"]
    runs: Annotated[int, "runs that it comes from"]
    release: Annotated[str, "releases of trainer and engine"]
    stack: Annotated[str, "the stacks with their locks"]


class ChangeInHistory(TypedDict):
    """A marked change of a series in history.json."""

    at: Annotated[int, "the first point of the new level, from 0"]
    slower: Annotated[float, "how many times as slow the new level is as the one before; below 1 it is faster"]
    low: Annotated[float, "lower end of its 95% interval"]
    high: Annotated[float, "its upper end"]
    cause: Annotated[str, "the releases, or else the stack, that changed there; empty if neither did"]


class SeriesInHistory(TypedDict):
    """A series in history.json: one quantity of one arm, workload, hardware and factor combination."""

    quantity: Annotated[str, "`step_s`, `tokens_per_s`, or the ratio `per_step` or at `equal_work`"]
    workload: Annotated[str, "the workload's hash, as in report.json"]
    workload_text: Annotated[str, "the workload in words"]
    hardware: Annotated[str, "the machine in words; empty where no file has it"]
    arm: Annotated[str, "the arm"]
    side: Annotated[str, "its trainer and engine; of a ratio also the baseline"]
    factors: Annotated[str, "the factor combination in words"]
    points: Annotated[list[PointInHistory], "an experiment each, the oldest first: value, time, releases"]
    levels: Annotated[list[float], "the geometric mean of each level, outliers clipped, the oldest first"]
    changes: Annotated[list[ChangeInHistory], "the first point `at` the new level, how much `slower` it is, the cause"]
    slowdown: Annotated[float | None, "how many times as slow the last level is as the fastest before; null without"]


class HistoryFile(TypedDict):
    """`history.json`, written by `rolloutbench history`."""

    format: Annotated[int, "1"]
    series: Annotated[list[SeriesInHistory], "series of one workload, hardware and factor combination together"]
    notes: Annotated[list[str], "what was skipped, and doubts"]


REPORT_FORMAT = 1
"""Raised when report.json changes so that `rolloutbench history` would misread it."""


FIRST_LOOK = 2
"""The pairs of runs at the first look at a verdict: one pair does not show how much other runs differ."""


def looks_so_far(
    look: Callable[[int], Mapping[str, Any]], until: float, most: int
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The looks that were made for this question, the first one first: pairs of runs, and the look's file.

    `look` gives the content of a file (contracts.LookFile), empty without one. The last pair is followed by the report,
    which needs no look.
    """
    for pairs in range(FIRST_LOOK, most):
        found = look(pairs)
        if (found.get("until"), found.get("most")) != (until, most):
            return  # not looked at yet, or for another question
        yield pairs, found


def resolving_look(
    look: Callable[[int], Mapping[str, Any]], until: float, most: int
) -> tuple[int, Mapping[str, Any]] | None:
    """The first of `looks_so_far` after which no pair of runs is wanted; None while there is none."""
    return next((made for made in looks_so_far(look, until, most) if not made[1]["more"]), None)


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
