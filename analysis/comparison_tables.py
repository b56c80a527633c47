"""Makes the tables of each arm beside the baseline over the steps that are compared, and the findings about these.

What a phase costs by the response's length is a line through each run's compared steps, so that a run is one number for
each of its parts; nothing outside the lengths that both arms have is said.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.compared import SIZES, Compared, column_of, mean_of_runs, ratio
from analysis.counted import steps_per_row
from analysis.phases import BETWEEN_STEPS, shown_phase
from analysis.planned import at, factors_label
from analysis.quantiles import students_t
from analysis.ratio import RunNumbers, interval, raw
from analysis.wide import OCCASIONAL_S, OWN, PHASE, counted_rows
from common.messages import join_first
from common.verdicts import Verdict, count_of
from trainers.logs.record import STEPS_LOGGED
from trainers.timers.tree import TimerTree, in_order

# Fewer steps of a run, or lengths that vary by less of their mean, give no slope.
LEAST_STEPS, LEAST_VARIATION = 12, 0.02
# The ends of the lengths that both arms have: this share of each arm's steps lies outside at either end.
OUTSIDE = 0.1
# A crossing is looked for at so many lengths; it is printed with two digits.
PLACES = 1001
COST_COLUMNS = ["factors", "arm", "path", "label", "per_1000_s", "low", "high", "from_tokens", "to_tokens"]


@dataclass(frozen=True)
class LengthLines:
    """Seconds against the mean response of a step, one line a run of an arm."""

    slopes: npt.NDArray[np.float64]
    """By run: seconds for each token of the mean response."""
    length: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]
    """The means of the run's steps."""

    def at(self, length: float) -> npt.NDArray[np.float64]:
        """Each run's seconds at a length."""
        found: npt.NDArray[np.float64] = self.seconds + self.slopes * (length - self.length)
        return found


def fitted(side: pd.DataFrame, seconds: pd.Series) -> LengthLines | None:
    """The lines of an arm's seconds; None where they or the lengths of a run say too little."""
    rows = pd.DataFrame({"run": side["run"], "length": side["mean_length"], "seconds": seconds})
    lines = []
    for _, run in rows[(rows["length"] > 0) & np.isfinite(rows["seconds"])].groupby("run"):
        x, y = (run[name].to_numpy(float) for name in ("length", "seconds"))
        if len(run) < LEAST_STEPS or x.std() < LEAST_VARIATION * x.mean():
            return None
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
        lines.append((slope, x.mean(), y.mean()))
    return LengthLines(*np.array(sorted(lines)).T) if lines else None


def cost_lines(wide: pd.DataFrame, every: Sequence[Compared], trees: Sequence[TimerTree]) -> pd.DataFrame:
    """One row per factor combination, arm and phase directly under the step, and the step (columns: `COST_COLUMNS`).

    `per_1000_s`: seconds for each thousand tokens of the step's mean response, with its 95% interval; the longest
    response grows with it. What the line gives at no token is no fixed part: no step had so short responses.
    """
    paths = [name.removeprefix(PHASE) for name in wide.columns if name.startswith(PHASE)]
    shown = [path for path in in_order(paths, trees) if path.count("/") <= 1]
    rows, done = [], set()
    for one in every:
        for side, arm in one.named_sides:
            if (one.factors, arm) not in done and not side.empty:
                done.add((one.factors, arm))
                rows += [(one.factors, arm, *values) for values in _of_phases(wide, side, shown, trees)]
    return pd.DataFrame(rows, columns=COST_COLUMNS)


def _of_phases(
    wide: pd.DataFrame, side: pd.DataFrame, paths: Sequence[str], trees: Sequence[TimerTree]
) -> Iterator[tuple[object, ...]]:
    ends = (float(side["mean_length"].min()), float(side["mean_length"].max()))
    for path in paths:
        lines = fitted(side, column_of(wide, side, PHASE + path))
        if lines is not None:
            runs, slope = len(lines.slopes), 1000 * float(lines.slopes.mean())
            half = math.nan
            if runs > 1:
                half = 1000 * float(lines.slopes.std(ddof=1)) / math.sqrt(runs) * students_t(runs - 1)
            yield path, shown_phase(path, trees).label, slope, slope - half, slope + half, *ends


def crossing(one: Compared) -> str:
    """`sglang above 900 tokens a response, vllm below`, where both are resolved at the ends of the common lengths."""
    baseline, arm = (fitted(side, side["seconds"]) for side in one.sides)
    if baseline is None or arm is None:
        return ""
    lengths = [side["mean_length"].quantile([OUTSIDE, 1 - OUTSIDE]) for side in one.sides]
    low, high = max(of.iloc[0] for of in lengths), min(of.iloc[1] for of in lengths)
    faster = [_faster(one, baseline, arm, length) for length in (low, high)]
    if not low < high or not all(faster) or faster[0] == faster[1]:
        return ""
    # The numbers that decide at both ends cross between them.
    between = np.linspace(low, high, PLACES)
    above = [np.log(baseline.at(length)).mean() > np.log(arm.at(length)).mean() for length in between]
    place = float(between[above.index(not above[0])])
    shown = round(place, 1 - math.floor(math.log10(place)))
    return f"{faster[1]} above {shown:,.0f} tokens a response, {faster[0]} below"


def _faster(one: Compared, baseline: LengthLines, arm: LengthLines, length: float) -> str:
    """The arm that is faster at a length; "" where that is not resolved."""
    seconds = baseline.at(length), arm.at(length)
    if not all((side > 0).all() for side in seconds):
        return ""
    low, high = interval(RunNumbers(np.log(seconds[0]), np.log(seconds[1])))
    return one.arm if low > 1 else one.baseline if high < 1 else ""


# The share of the steps whose time between steps must be known for a ratio by the wall clock.
ENOUGH_KNOWN = 0.9
RATES = ["baseline_step_s", "arm_step_s", "baseline_tokens_per_s", "arm_tokens_per_s"]
RATIOS = ["raw_speedup", "median_speedup", "wall_speedup"]
MOST_LONG = 6
"""Long steps that are named."""
OTHER_STEPS = ["speedup_after_warmup", "speedup_without_long"]
COMPARISON_COLUMNS = [
    *("factors", "baseline", "arm", *SIZES, *RATES, *RATIOS),
    *("tokens_ratio", "rounding", "by_number", "short_runs", "unequal_work", "lengths", "crossing"),
    *("still_falling", "warmup_needed", "speedup_after_warmup", "long_steps", "speedup_without_long"),
]


def _none_counts(arm: str, rows: pd.DataFrame) -> str:
    """The sentence that none of an arm's steps counts, with the reasons, the most common first."""
    reasons = [f"{number} ({reason})" for reason, number in rows["left_out"].value_counts().items()]
    return f". {arm} counts none of its {count_of(len(rows), 'step')}; left out: {', '.join(reasons) or 'none'}"


def why_nothing_in_common(wide: pd.DataFrame, one: Compared) -> str:
    """Why two arms have no step in common, by the factors and the steps of each."""
    counted = counted_rows(wide, "arm", "factors", "run_id", "step")
    rows = {
        name: counted[(counted["arm"] == name) & (counted["factors"] == one.factors)]
        for name in (one.baseline, one.arm)
    }
    if absent := [name for name, mine in rows.items() if mine.empty]:
        sentences = []
        for name in absent:
            keys = counted.loc[counted["arm"] == name, "factors"].unique()
            labels = [factors_label(key) or "no factor" for key in keys[:4]] + ["..."] * (len(keys) > 4)
            only = f". {name} counts steps only at {'; '.join(labels)}: runs of equal factors are compared"
            sentences.append(only if len(keys) else _none_counts(name, wide[wide["arm"] == name]))
        return "".join(sentences)
    spans = [
        f"{run}'s {its.min()} to {its.max()}"
        for mine in rows.values()
        for run, its in mine.groupby("run_id", sort=False)["step"]
    ]
    return f". Steps of equal number are compared, and these are {join_first(spans, 4)}"


def comparison_table(
    wide: pd.DataFrame, every: Sequence[Compared], refused: Collection[tuple[str, str]] = ()
) -> tuple[pd.DataFrame, list[Verdict]]:
    """One row per factor combination and arm but the baseline, over the steps that are compared.

    `baseline_step_s` and `arm_step_s` are the means of the runs' means. raw: the ratio per step (analysis/ratio.py);
    median: of the runs' median steps, which shows whether outliers decide; wall: with the time between steps, where it
    is known. `rounding`: how far the logarithm of the ratio may be off because times are printed rounded. A combination
    without common steps is a finding, not a row, and so are runs that are left out as too short and counters whose
    steps cannot be matched. Arms that are `refused` (comparable.py), by (factors, arm), have no ratio.
    """
    rows, verdicts = [], []
    for one in every:
        if one.is_empty:
            why = why_nothing_in_common(wide, one)
            text = f"{one.baseline} and {one.arm} have no counted step in common{at(one.factors)}{why}"
            verdicts.append(Verdict("error", "no-common-steps", text, (one.arm,)))
            continue
        row, versus = _row(wide, one), f"{one.arm} against {one.baseline}{at(one.factors)}"
        if row["short_runs"]:
            text = f"{versus}: left out, with less than half of the median run's steps: {row['short_runs']}"
            verdicts.append(Verdict("warning", "short-runs", text, (one.arm,)))
        if not row["by_number"]:
            text = (
                f"{versus}: the runs' step counters advance by different gaps, so the first steps of each run are "
                "compared, as many of all, whatever their numbers"
            )
            verdicts.append(Verdict("warning", "steps-not-matched", text, (one.arm,)))
        if (one.factors, one.arm) in refused:
            row |= dict.fromkeys([*RATIOS, *OTHER_STEPS], math.nan)
        rows.append(row)
    return pd.DataFrame(rows, columns=COMPARISON_COLUMNS), verdicts


def _row(wide: pd.DataFrame, one: Compared) -> dict[str, Any]:
    value, steady = math.exp(raw(*one.sides).log_ratio), one.steadiness
    rates, walls = zip(*(_of_side(wide, side) for side in one.sides), strict=True)
    baseline_tokens, arm_tokens = (mean_of_runs(side, side["tokens"]) for side in one.sides)
    discarded = any(side["discarded"].any() for side in one.sides)
    counted = counted_rows(wide, "run_id", STEPS_LOGGED)
    steps = steps_per_row(counted).groupby(counted["run_id"]).sum()
    short = [f"{run} ({count_of(int(steps[run]), 'step')})" for run in sorted(one.steps.short)]
    long = [
        f"{arm}'s step {step} ({of:.0f} times)"
        for (side, arm), times in zip(one.named_sides, steady.long, strict=True)
        for step, of in zip(side.loc[times.index, "step"], times, strict=True)
    ]
    falling = [arm for (_, arm), falls in zip(one.named_sides, steady.falling, strict=True) if falls]
    later, without = one.later, one.without_long
    begins = [((side["step"] - side["n"]) / side["gap"].fillna(1.0)).min() for side in (later.sides if later else ())]
    return {
        "factors": one.factors,
        "baseline": one.baseline,
        "arm": one.arm,
        **one.sizes,
        **dict(zip(RATES[:2], (mean_of_runs(side, side["seconds"]) for side in one.sides), strict=True)),
        **dict(zip(RATES[2:], rates, strict=True)),
        "raw_speedup": value,
        "median_speedup": steady.median_ratio,
        "wall_speedup": value * ratio(*walls),
        "tokens_ratio": math.nan if discarded else ratio(arm_tokens, baseline_tokens),
        "rounding": one.steps.rounding,
        "by_number": one.steps.by_number,
        "short_runs": join_first(short, 4),
        "unequal_work": one.work.differs,
        "lengths": one.work.lengths,
        "crossing": crossing(one),
        "still_falling": " and ".join(falling),
        "warmup_needed": round(min(begins)) if begins else 0,
        "speedup_after_warmup": math.exp(raw(*later.sides).log_ratio) if later else math.nan,
        "long_steps": join_first(long, MOST_LONG),
        "speedup_without_long": math.exp(raw(*without.sides).log_ratio) if without else math.nan,
    }


def _of_side(wide: pd.DataFrame, side: pd.DataFrame) -> tuple[float, float]:
    """Of the compared steps of one arm: response tokens a second, and wall clock over seconds.

    Tokens are NaN unless every step has a positive number and threw no completions away; the wall clock is NaN where
    the time between too many steps is not known.
    """
    n, seconds, tokens_per_s, wall = side["n"], side["seconds"] * side["n"], math.nan, math.nan
    if (side["tokens"] > 0).all() and not side["discarded"].any():
        tokens_per_s = float((side["tokens"] * n).sum() / seconds.sum())
    between = column_of(wide, side, BETWEEN_STEPS) + column_of(wide, side, OCCASIONAL_S).fillna(0.0)
    known = between.notna()
    if n[known].sum() >= ENOUGH_KNOWN * n.sum():
        wall = float(((side["seconds"] + between) * n)[known].sum() / seconds[known].sum())
    return tokens_per_s, wall


def phase_speedups(
    wide: pd.DataFrame,
    every: Sequence[Compared],
    trees: Sequence[TimerTree],
    refused: Collection[tuple[str, str]] = (),
) -> pd.DataFrame:
    """Per factor combination, arm and phase: mean seconds of both over the compared steps, and their ratio.

    NaN where one arm does not time the phase, or the arms are `refused` (comparable.py). A phase includes its
    children; the last row of each block is the residual, the time without a timer.
    """
    paths = in_order([c.removeprefix(PHASE) for c in wide.columns if c.startswith(PHASE)], trees)
    shown = [(path, shown_phase(path, trees).label, PHASE + path) for path in paths]
    shown.append(("(residual)", "Residual", OWN + "step"))
    rows = []
    for one in every:
        for path, label, column in () if one.is_empty else shown:
            seconds = [column_of(wide, side, column) for side in one.sides]
            a, b = (
                mean_of_runs(side, s.fillna(0.0)) if s.notna().any() else math.nan
                for side, s in zip(one.sides, seconds, strict=True)
            )
            if pd.isna(a) and pd.isna(b):
                continue
            gain = (math.nan, math.nan) if (one.factors, one.arm) in refused else (a - b, ratio(a, b))
            rows.append((one.factors, one.baseline, one.arm, path, label, path.count("/"), a, b, *gain))
    names = ["factors", "baseline", "arm", "path", "label", "depth"]
    return pd.DataFrame(rows, columns=[*names, "baseline_mean_s", "arm_mean_s", "saved_s", "speedup"])
