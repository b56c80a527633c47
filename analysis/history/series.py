"""Makes the series of a history, one quantity of one arm over experiments, and finds lasting changes of its level.

After each point, every split of the current level into two parts of at least `LEAST` points is tested by the t
statistic of their difference. The largest is held against `FALSE_MARKS` / n ** 1.5, shared by the splits: summed over
all numbers of points n, that is under `FALSE_MARKS`. So under 5% of the series without a change get any mark, on all
nights on which somebody looks. Points beyond `CLIP` deviations from the median count as that far, so that one slow
night is no change; neighbours that are alike widen the test (docs/history.md; `python -m bench history-marks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr  # type: ignore[import-untyped]

from analysis.factors import factors_key, factors_label
from analysis.history.experiments import FinishedExperiment
from analysis.quantiles import students_t
from common.verdicts import ChangeInHistory, PointInHistory, RunInReport, SeriesInHistory, count_of

FALSE_MARKS = 0.05
LEAST = 3
"""Experiments on each side of a change."""
CLIP = 3.0
"""Median absolute deviations, scaled to the normal distribution's standard deviation."""
_TO_SD = 1.4826
_MOST_ALIKE = 0.9
# Printed numbers may be equal by their rounding.
_LEAST_SD = 0.001
SPEED = "step_s"
QUANTITIES = {
    SPEED: "seconds per step",
    "tokens_per_s": "response tokens per second",
    "per_step": "ratio per step",
    "equal_work": "ratio at equal work",
}
Values = npt.NDArray[np.float64]


class _Key(NamedTuple):
    """What all points of a series have in common; sorted, those of one section of the page are together."""

    workload: str
    workload_text: str
    hardware: str
    factors: str
    arm: str
    side: str
    """Trainer and engine; of a ratio those of the baseline, too."""
    quantity: str = ""


def series_of(experiments: Sequence[FinishedExperiment]) -> list[SeriesInHistory]:
    """All series of these experiments, the oldest point first."""
    found: dict[_Key, list[PointInHistory]] = {}
    for experiment in experiments:
        for key, point in _points(experiment):
            found.setdefault(key, []).append(point)
    order = list(QUANTITIES)
    return [_series(key, found[key]) for key in sorted(found, key=lambda key: (*key[:4], order.index(key[-1]), key))]


def _points(experiment: FinishedExperiment) -> Iterator[tuple[_Key, PointInHistory]]:
    """The points of one experiment, each with its series' key: the geometric means over runs, and the ratios."""
    report = experiment.report
    runs: dict[_Key, list[RunInReport]] = {}
    for run in report["runs"]:
        place = run["workload"], run["workload_text"], run["hardware"], factors_label(factors_key(run["factors"]))
        runs.setdefault(_Key(*place, run["arm"], f"{run['trainer']}, {run['engine']}"), []).append(run)
    for key, own in runs.items():
        for quantity, values in (
            (SPEED, [run["step_s"] for run in own]),
            ("tokens_per_s", [run["tokens_per_s"] or math.nan for run in own]),
        ):
            if math.isfinite(mean := math.exp(math.fsum(map(math.log, values)) / len(own))):
                yield key._replace(quantity=quantity), _point(experiment, own, mean)
    for row in report["tables"]["estimates"]:
        at = factors_label(row["factors"])
        one, two = ([key for key in runs if key[3:5] == (at, arm)] for arm in (row["arm"], report["baseline"]))
        # A ratio of runs on several machines is of none.
        alike = one and two and len({key[:3] for key in (*one, *two)}) == 1
        if alike and row["value"] and row["estimate"] in QUANTITIES:
            side = f"{one[0].side} vs {two[0].arm} ({two[0].side})"
            both = [run for key in (*one, *two) for run in runs[key]]
            yield one[0]._replace(side=side, quantity=row["estimate"]), _point(experiment, both, row["value"])


def _point(experiment: FinishedExperiment, runs: Sequence[RunInReport], value: float) -> PointInHistory:
    releases = {name: release for run in runs for name, release in run["releases"].items()}
    return {
        "experiment": str(experiment.report["experiment"]),
        "folder": str(experiment.folder),
        "time": experiment.time,
        "value": value,
        "runs": len(runs),
        "release": ", ".join(f"{name} {releases[name]}" for name in sorted(releases)),
        "stack": ", ".join(dict.fromkeys(run["stack"] for run in runs if run["stack"])),
    }


def _series(key: _Key, points: list[PointInHistory]) -> SeriesInHistory:
    # How slow a point is: the more seconds, and the less of anything else.
    sign = 1 if key.quantity == SPEED else -1
    slow = sign * np.log([point["value"] for point in points])
    begins = level_begins(slow)
    levels = [_clipped(slow[begin:end]) for begin, end in pairwise([*begins, len(slow)])]
    changes = [_change(at, points, *two) for at, two in zip(begins[1:], pairwise(levels), strict=True)]
    means = [float(level.mean()) for level in levels]
    return {
        **key._asdict(),  # type: ignore[typeddict-item]
        "points": points,
        "levels": [math.exp(sign * mean) for mean in means],
        "changes": changes,
        "slowdown": math.exp(means[-1] - min(means[:-1])) if changes else None,
    }


def _change(at: int, points: Sequence[PointInHistory], before: Values, after: Values) -> ChangeInHistory:
    """How much slower a level is than the one before, with a 95% interval by their common spread, and the cause."""
    freedom = len(before) + len(after) - 2
    squares = sum(float(((level - level.mean()) ** 2).sum()) for level in (before, after))
    reach = students_t(freedom) * (squares / freedom * (1 / len(before) + 1 / len(after))) ** 0.5
    value = float(after.mean() - before.mean())
    slower, low, high = (math.exp(end) for end in (value, value - reach, value + reach))
    changed = [(a, b) for name in ("release", "stack") if (a := points[at - 1][name]) != (b := points[at][name])]
    sides = [side.split(", ") for side in changed[0]] if changed else [[], []]
    own = [", ".join(part for part in a if part not in b) or "unknown" for a, b in (sides, sides[::-1])]
    return {"at": at, "slower": slower, "low": low, "high": high, "cause": " → ".join(own) if changed else ""}


def sentence(one: SeriesInHistory) -> str:
    """The current level, and each change with its interval and its cause."""
    level, count = one["levels"][-1], count_of(len(one["points"]), "experiment")
    number = f"{level:,.{max(0, 3 - math.floor(math.log10(level)))}f}"
    place = f" at {one['factors']}" if one["factors"] else ""
    text = f"{one['arm']}{place}: {QUANTITIES[one['quantity']]} {number} in {count}"
    if len(one["points"]) < 2 * LEAST:
        return f"{text}; {2 * LEAST} are needed to mark a change."
    return f"{text}; {'; '.join(_change_text(one, change) for change in one['changes']) or 'no change'}."


def _change_text(one: SeriesInHistory, change: ChangeInHistory) -> str:
    """`20.1% slower (95% CI 15.0 to 25.0%) since 2026-01-31 (vllm 0.31.0 → 0.32.0)`, or `faster`."""
    ends = (change["slower"], change["low"], change["high"])
    name = "slower" if ends[0] >= 1 else "faster"
    value, *interval = (100 * ((end if name == "slower" else 1 / end) - 1) for end in ends)
    date = datetime.fromtimestamp(one["points"][change["at"]]["time"], UTC).strftime("%Y-%m-%d %H:%M")
    cause = change["cause"] or "releases and stack are equal"
    return f"{value:.1f}% {name} (95% CI {min(interval):.1f} to {max(interval):.1f}%) since {date} ({cause})"


def level_begins(values: Values) -> list[int]:
    """The first points of the levels of a series of logarithms in the order of time; [0] without a change."""
    begins = [0]
    for n in range(2 * LEAST, len(values) + 1):
        if len(begins) > 1:
            # A change is marked a few points after it, when its place is not exact yet.
            begins[-1] = begins[-2] + _largest_split(values[begins[-2] : n])[1]
        if n - begins[-1] >= 2 * LEAST:
            chance, at = _largest_split(values[begins[-1] : n])
            if chance < FALSE_MARKS / n**1.5:
                begins.append(begins[-1] + at)
    return begins


def _clipped(values: Values) -> Values:
    middle = np.median(values)
    reach = CLIP * _TO_SD * np.median(np.abs(values - middle)) or np.inf  # 0: most values are equal
    return np.clip(values, middle - reach, middle + reach)


def _largest_split(values: Values) -> tuple[float, int]:
    """How often chance makes as large a difference of two parts, and the number of points before that split."""
    values, n = _clipped(values), len(values)
    before = np.arange(LEAST, n - LEAST + 1)
    sums = np.cumsum(values)
    a, b = sums[before - 1] / before, (sums[-1] - sums[before - 1]) / (n - before)
    squares = np.maximum((values**2).sum() - before * a**2 - (n - before) * b**2, n * _LEAST_SD**2)
    t = np.abs(a - b) / np.sqrt(squares / (n - 2) * (1 / before + 1 / (n - before)))
    best = int(t.argmax())
    left = values - np.repeat([a[best], b[best]], [before[best], n - before[best]])
    # The correlation of neighbours, corrected for the bias of short series.
    found = float((left[1:] * left[:-1]).sum()) / max(float((left**2).sum()), 1e-300)
    alike = min(max(found + (1 + 3 * found) / n, 0.0), _MOST_ALIKE)
    return 2 * len(before) * float(stdtr(n - 2, -t[best] * ((1 - alike) / (1 + alike)) ** 0.5)), int(before[best])
