"""Makes a history of finished experiments: series of one quantity of one arm, and lasting changes of their level.

After each point, every split of the current level into two parts of at least `LEAST` points is tested by the t
statistic of their difference. The largest is held against `FALSE_MARKS` / n ** 1.5, shared by the splits: summed over
all numbers of points n, that is under `FALSE_MARKS`. So under 5% of the series without a change get any mark, on all
nights on which somebody looks. Points beyond `CLIP` deviations from the median count as that far, so that one slow
night is no change; neighbours that are alike widen the test (docs/history.md; `python -m bench history-marks`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr  # type: ignore[import-untyped]

from analysis.planned import factors_key, factors_label
from analysis.quantiles import students_t
from common.contracts import read_file
from common.errors import UserError
from common.messages import join_first
from common.verdicts import (
    REPORT_FORMAT,
    ChangeInHistory,
    PointInHistory,
    ReportFile,
    RunInReport,
    SeriesInHistory,
    count_of,
)

NOT_SEARCHED = ("runs", "tables", "figures", "inputs")
"""Folders of an experiment, in which no other experiment is."""
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


class FinishedExperiment(NamedTuple):
    """One experiment's report, and the start of its first run in seconds since 1970."""

    time: float
    folder: Path
    report: ReportFile


def read_experiments(given: Sequence[Path]) -> tuple[list[FinishedExperiment], list[str]]:
    """The finished experiments in these folders and below them, the oldest first, and what was skipped or is doubted.

    `UserError` for a folder that does not exist, and if no experiment can be read.
    """
    found: dict[str, FinishedExperiment] = {}
    notes = []
    for folder in dict.fromkeys(folder for top in given for folder in _experiment_folders(top)):
        try:
            report = _read(folder)
            # Not by names: finished runs are used again under new ones.
            numbers = json.dumps(sorted([run["step_s"], run["started"] or 0.0] for run in report["runs"]))
            if numbers in found:
                raise UserError(f"it has the same runs as {found[numbers].folder}, which counts")
        except UserError as error:
            notes.append(f"{folder} is skipped: {error}")
            continue
        started = [run["started"] for run in report["runs"] if run["started"] is not None]
        if not started:
            notes.append(f"no run recorded its start in {folder}: the file time of report.json is used")
        time = min(started, default=(folder / "report.json").stat().st_mtime)
        found[numbers] = FinishedExperiment(time, folder, report)
    if not found:
        text = f"; {notes[0]}" if notes else " (a folder of results/)"
        raise UserError(f"no finished experiment in {join_first(given, 3)}{text}")
    return sorted(found.values(), key=lambda one: one[:2]), notes


def _experiment_folders(top: Path) -> Iterator[Path]:
    if not top.is_dir():
        what = "no folder" if top.exists() else "not there"
        raise UserError(f"{top} is {what}; give folders of experiments' results")
    for at, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in NOT_SEARCHED and not name.startswith("."))
        if "report.json" in files or "plan.json" in files:
            folders.clear()
            yield Path(at)


def _read(folder: Path) -> ReportFile:
    """One folder's report; `UserError` says why it cannot be used."""
    if not (folder / "report.json").is_file():
        raise UserError("no report.json: it is not finished")
    report = read_file(ReportFile, folder / "report.json", "the report", ("experiment", "baseline"))
    if (version := report.get("format")) != REPORT_FORMAT:
        raise UserError(f"its report.json has format {version!r}, not {REPORT_FORMAT}: make the report again")
    try:
        for rows, keys in (
            (report["runs"], RunInReport.__annotations__.keys()),
            (report["tables"]["estimates"], {"arm", "factors", "estimate", "value"}),
        ):
            if missing := [key for row in rows for key in keys if key not in row]:
                raise KeyError(missing[0])
        if not all(0 < run["step_s"] < math.inf for run in report["runs"]):
            raise ValueError("step_s")
    except (LookupError, TypeError, ValueError) as error:
        text = f"its report.json is damaged ({type(error).__name__}: {error}); make the report again"
        raise UserError(text) from None
    return report


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
