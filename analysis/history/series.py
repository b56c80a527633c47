"""Makes the series of a history: one quantity of one arm, workload and hardware over experiments, and its sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from analysis.factors import factors_key, factors_label
from analysis.history.changes import LEAST, Difference, Level, difference, levels_of
from analysis.history.experiments import FinishedExperiment
from analysis.quantiles import students_t
from common.verdicts import HistoryFile, RunInReport, SeriesInHistory, count_of

LEAST_POINTS = 2 * LEAST
# A lasting change of so many standard deviations is marked within five experiments in four of five series of ten
# points or more (`python -m bench history-marks`).
DETECTED_SD, ENOUGH_FOR_THAT = 4.0, 10


class Quantity(NamedTuple):
    """A quantity of a series."""

    name: str
    unit: str
    more_is_slower: bool = False


QUANTITIES = {
    "step_s": Quantity("seconds per step", "s", True),
    "tokens_per_s": Quantity("response tokens per second", "tokens/s"),
    "ratio": Quantity("ratio per step", "×"),
    "ratio_equal_work": Quantity("ratio at equal work", "×"),
}
SPEED = "step_s"


@dataclass(frozen=True)
class Point:
    """One experiment in a series; `low` and `high` are the 95% interval over its runs, NaN where it has one run."""

    experiment: FinishedExperiment
    value: float
    low: float
    high: float
    runs: int
    release: str
    stack: str

    @property
    def date(self) -> str:
        return datetime.fromtimestamp(self.experiment.time, UTC).strftime("%Y-%m-%d %H:%M")


class Change(NamedTuple):
    """A marked change: the first point of the new level, and how many times as slow it is, with its 95% interval."""

    at: Point
    before: Point
    slower: Difference

    @property
    def cause(self) -> str:
        """The releases or the stack that changed at this point; empty if neither did."""
        for name in ("release", "stack"):
            sides = [getattr(point, name).split(", ") for point in (self.before, self.at)]
            if sides[0] != sides[1]:
                own = [", ".join(part for part in a if part not in b) for a, b in (sides, sides[::-1])]
                return " → ".join(text or "unknown" for text in own)
        return ""


class OfRelease(NamedTuple):
    """Consecutive points of one release; `slower` compares them with the release before."""

    release: str
    points: list[Point]
    mean: float
    slower: Difference | None


@dataclass(frozen=True)
class Series:
    """One quantity of one arm, workload, hardware and factor combination, the oldest point first."""

    quantity: str
    workload: str
    workload_text: str
    hardware: str
    arm: str
    side: str
    """Trainer and engine; of a ratio those of the baseline, too."""
    factors: str
    points: list[Point]
    levels: list[Level]

    @property
    def group(self) -> tuple[str, str, str]:
        """What the series of one section of the page have in common."""
        return self.workload, self.hardware, self.factors

    def slower(self, a: Level, b: Level) -> Difference:
        """How much slower level `b` is than level `a`, as a logarithm."""
        found = difference(a, b)
        if QUANTITIES[self.quantity].more_is_slower:
            return found
        return Difference(-found.value, -found.high, -found.low)

    @property
    def changes(self) -> list[Change]:
        return [
            Change(self.points[b.begin], self.points[b.begin - 1], self.slower(a, b)) for a, b in pairwise(self.levels)
        ]

    @property
    def slowdown(self) -> Difference | None:
        """How much slower the current level is than the fastest before it, as a logarithm; None without a change."""
        *before, current = self.levels
        return max((self.slower(level, current) for level in before), key=lambda one: one.value, default=None)

    @property
    def detectable(self) -> float:
        """The lasting change, as a share, that five more experiments would probably show; NaN with too few points."""
        level = self.levels[-1]
        enough = len(self.points) >= ENOUGH_FOR_THAT and level.points > 1
        return math.expm1(DETECTED_SD * level.sd) if enough else math.nan

    def by_release(self) -> list[OfRelease]:
        """Consecutive points of equal release, with simultaneous 95% intervals of all changes."""
        groups = [list(points) for _, points in groupby(self.points, key=lambda point: point.release)]
        logs = [np.log([point.value for point in points]) for points in groups]
        freedom = len(self.points) - len(groups)
        squares = sum(float(((one - one.mean()) ** 2).sum()) for one in logs)
        reach = students_t(freedom, 1 - 0.025 / max(1, len(groups) - 1)) if freedom > 0 else math.inf
        sign = 1 if QUANTITIES[self.quantity].more_is_slower else -1
        found = []
        for i, (points, own) in enumerate(zip(groups, logs, strict=True)):
            slower = None
            if i:
                value = sign * float(own.mean() - logs[i - 1].mean())
                error = (squares / freedom * (1 / len(own) + 1 / len(logs[i - 1]))) ** 0.5 if freedom > 0 else 1.0
                slower = Difference(value, value - reach * error, value + reach * error)
            found.append(OfRelease(points[0].release, points, math.exp(float(own.mean())), slower))
        return found

    def as_json(self) -> SeriesInHistory:
        """The series in history.json."""
        slowdown = self.slowdown
        return {
            "quantity": self.quantity,
            "workload": self.workload,
            "workload_text": self.workload_text,
            "hardware": self.hardware,
            "arm": self.arm,
            "side": self.side,
            "factors": self.factors,
            "points": [
                {
                    "experiment": point.experiment.name,
                    "folder": str(point.experiment.folder),
                    "time": point.experiment.time,
                    "time_recorded": point.experiment.has_time,
                    "value": point.value,
                    "low": _known(point.low),
                    "high": _known(point.high),
                    "runs": point.runs,
                    "release": point.release,
                    "stack": point.stack,
                }
                for point in self.points
            ],
            "levels": [
                {
                    "first": level.begin,
                    "last": level.end - 1,
                    "mean": math.exp(level.mean),
                    "sd": _known(level.sd),
                }
                for level in self.levels
            ],
            "changes": [
                {
                    "at": level.begin,
                    "slower": math.exp(change.slower.value),
                    "low": math.exp(change.slower.low),
                    "high": math.exp(change.slower.high),
                    "cause": change.cause,
                }
                for level, change in zip(self.levels[1:], self.changes, strict=True)
            ],
            "slowdown": math.exp(slowdown.value) if slowdown else None,
            "detectable": _known(self.detectable),
        }


def sentence(series: Series) -> str:
    """The current level, the last change with its interval, and how much could be seen."""
    quantity, level = QUANTITIES[series.quantity], series.levels[-1]
    count = len(series.points)
    place = f" at {series.factors}" if series.factors else ""
    text = f"{series.arm}{place}: {quantity.name} {number_text(math.exp(level.mean))}"
    if changes := series.changes:
        last = changes[-1]
        text += f", {percent_text(last.slower)} since {last.at.date}"
        text += f" ({last.cause})" if last.cause else " (releases and stack are equal)"
        return f"{text}. {count_of(len(changes), 'change')} in {count_of(count, 'experiment')}."
    if count < LEAST_POINTS:
        return f"{text} in {count_of(count, 'experiment')}; {LEAST_POINTS} are needed to mark a change."
    text += f", no change in {count_of(count, 'experiment')}."
    if not math.isnan(series.detectable):
        text += f" Five more would probably show a lasting one of {100 * series.detectable:.2g}%."
    return text


def percent_text(slower: Difference) -> str:
    """`6.1% slower (95% CI 4.0 to 8.3%)`, or `faster`; without an interval only the number."""
    name, sign = ("slower", 1) if slower.value >= 0 else ("faster", -1)
    low, high = sorted(sign * _percent(end) for end in (slower.low, slower.high))
    interval = f" (95% CI {low:.1f} to {high:.1f}%)" if math.isfinite(slower.low) else " (no interval)"
    return f"{sign * _percent(slower.value):.1f}% {name}{interval}"


def number_text(value: float) -> str:
    """A number with four digits."""
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def _percent(log: float) -> float:
    return 100 * math.expm1(min(log, 50.0))


def history_file(series: Sequence[Series], notes: Sequence[str]) -> HistoryFile:
    """The content of history.json."""
    return {"format": 1, "series": [one.as_json() for one in series], "notes": list(notes)}


def series_of(experiments: Sequence[FinishedExperiment]) -> list[Series]:
    """All series of these experiments, the oldest first; those with the most points first, speed before ratios."""
    found: dict[tuple[str, ...], tuple[RunInReport, list[Point]]] = {}
    for experiment in experiments:
        for key, run, point in _points(experiment):
            found.setdefault(key, (run, []))[1].append(point)
    every = []
    for (quantity, workload, hardware, arm, side, factors), (run, points) in found.items():
        levels = levels_of(np.log([point.value for point in points]))
        text = run["workload_text"]
        every.append(Series(quantity, workload, text, hardware, arm, side, factors, points, levels))
    sizes: dict[tuple[str, str, str], int] = {}
    for one in every:
        sizes[one.group] = max(sizes.get(one.group, 0), len(one.points))
    return sorted(every, key=lambda one: (-sizes[one.group], one.group, list(QUANTITIES).index(one.quantity)))


def _points(experiment: FinishedExperiment) -> Iterator[tuple[tuple[str, ...], RunInReport, Point]]:
    """The points of one experiment, with the keys of their series."""
    runs: dict[tuple[str, ...], list[RunInReport]] = {}
    for run in experiment.runs:
        runs.setdefault((*_place(run), run["arm"], _side(run), _factors(run["factors"])), []).append(run)
    for key, own in runs.items():
        for quantity, values in (
            (SPEED, [run["step_s"] for run in own]),
            ("tokens_per_s", [run["tokens_per_s"] for run in own]),
        ):
            known = [value for value in values if value]
            if len(known) == len(own):
                value, low, high = _mean(known)
                yield (quantity, *key), own[0], _point(experiment, own, value, low, high)
    for ratio in experiment.ratios:
        factors = _factors(ratio.factors)
        both = {
            arm: [run for run in experiment.runs if run["arm"] == arm and _factors(run["factors"]) == factors]
            for arm in (ratio.arm, experiment.baseline)
        }
        own, others = both.values()
        # On several machines the ratio is of none.
        if own and others and len({_place(run) for run in (*own, *others)}) == 1:
            side = f"{_side(own[0])} vs {experiment.baseline} ({_side(others[0])})"
            point = _point(experiment, [*own, *others], ratio.value, ratio.low, ratio.high)
            yield (ratio.quantity, *_place(own[0]), ratio.arm, side, factors), own[0], point


def _place(run: RunInReport) -> tuple[str, str]:
    return run["workload"], run["hardware"]


def _side(run: RunInReport) -> str:
    return f"{run['trainer']}, {run['engine']}"


def _factors(factors: Mapping[str, Any]) -> str:
    return factors_label(factors_key(factors))


def _point(experiment: FinishedExperiment, runs: Sequence[RunInReport], value: float, low: float, high: float) -> Point:
    releases = {name: release for run in runs for name, release in run["releases"].items()}
    release = ", ".join(f"{name} {releases[name]}" for name in sorted(releases))
    stacks = ", ".join(dict.fromkeys(run["stack"] for run in runs if run["stack"]))
    return Point(experiment, value, low, high, len(runs), release, stacks)


def _mean(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean over runs with its 95% interval; NaN for that of one run."""
    logs = np.log(values)
    mean = float(logs.mean())
    if len(logs) == 1:
        return math.exp(mean), math.nan, math.nan
    reach = students_t(len(logs) - 1) * float(logs.std(ddof=1)) / len(logs) ** 0.5
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
