"""Says which steps each row of a run stands for, decides which rows count, and reports the others.

A row stands for the steps (`step` - `steps_logged`, `step`] and has their means. Rows of one number that stand for
other steps are other work: they are compared only once they are joined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.planned import at
from analysis.runs import Run
from analysis.wide import (
    BAD_TIME,
    INCOMPLETE,
    JUMPED,
    OVERRUN,
    OWN,
    PHASE,
    ROUNDING,
    SAMPLES_S,
    UNTIMED,
    all_rows,
    columns_in_order,
)
from common.messages import join_first
from common.verdicts import Verdict, count_of
from trainers.logs.hf_work import SHARED_GENERATION
from trainers.logs.record import STEPS_LOGGED
from trainers.registry import trainer_named

PART_OF_GENERATION = "a part of the steps that share a generation of responses"


def steps_per_row(wide: pd.DataFrame) -> pd.Series:
    """The number of steps of which each row has the means."""
    return wide[STEPS_LOGGED].astype(int) if STEPS_LOGGED in wide else pd.Series(1, index=wide.index)


def first_steps(wide: pd.DataFrame) -> pd.Series:
    """The first step that each row stands for."""
    return wide["step"] - steps_per_row(wide) + 1


def gaps(run: pd.Series, step: pd.Series, n: pd.Series) -> pd.Series:
    """How far each run's counter goes for a step, by its id; NaN for a run of one row. The rows are in order."""
    # The smallest difference: steps that are left out make others larger.
    found: pd.Series = (step.groupby(run).diff() / n).groupby(run).min()
    return found


def missing_before(rows: pd.DataFrame) -> pd.Series:
    """How many steps are in no row between each row of a run, in order, and the row before it; at first: from 0 on."""
    steps, counter = steps_per_row(rows), rows["step"].astype(float)
    # A counter of responses goes further than by 1 for a step.
    gap = float((counter.diff() / steps).min())
    found: pd.Series = ((counter - counter.shift(fill_value=0.0)) / gap - steps).clip(lower=0.0).round()
    return found


def mean_of(values: pd.Series, weights: pd.Series | npt.NDArray[np.float64]) -> float:
    """The mean over steps of the known values of rows; NaN without any."""
    weights = pd.Series(np.asarray(weights, dtype=np.float64), index=values.index)
    if (weights == 1.0).all():
        return float(values.mean())
    known = values.notna()
    total = float(weights[known].sum())
    return float((values * weights)[known].sum()) / total if total else float("nan")


def median_of(values: pd.Series, weights: pd.Series | npt.NDArray[np.float64]) -> float:
    """The median over steps of the known values of rows; NaN without any."""
    counts = np.asarray(weights, dtype=np.int64)
    return float(pd.Series(np.repeat(values.to_numpy(dtype=np.float64), counts)).median())


def join_generations(wide: pd.DataFrame, timers: tuple[str, ...]) -> pd.DataFrame:
    """The rows with those that share a generation joined to one row of their means: they count together or not at all.

    A part of a generation, at an end of the log or of a life of the run, is left out.
    """
    if SHARED_GENERATION not in wide or not (shared := wide[wide[SHARED_GENERATION].notna()]).size:
        return wide
    of_run = [shared["run_id"], shared[SHARED_GENERATION]]
    steps = steps_per_row(shared).groupby(of_run, sort=False).transform("sum")
    part = steps < steps.groupby(shared["run_id"], sort=False).transform("max")
    shared.loc[part & (shared["left_out"] == ""), "left_out"] = PART_OF_GENERATION
    joined = _joined(shared, shared[SHARED_GENERATION], timers, every_row=False)
    return pd.concat([wide.drop(index=shared.index), joined]).sort_index()


def join_windows(wide: pd.DataFrame, timers: tuple[str, ...]) -> tuple[pd.DataFrame, list[Verdict], pd.Index]:
    """The rows with those of one factor combination joined where its runs' rows stand for different numbers of steps.

    A common window is the shortest span of steps that no row of any run crosses. Where each run's rows fill it, they
    become one row of their means, which is left out if one of them is. Columns that begin with `timers` count 0 where
    a row has none; other columns need every row. The last result has the rows that cannot be joined, because a run has
    not all steps of their window.
    """
    joined, apart, verdicts = [], [], []
    every = wide[["factors", "run_id", "step", STEPS_LOGGED]]
    one_size = every[STEPS_LOGGED].nunique() <= 1
    for factors, rows in () if one_size else every.groupby("factors", sort=False):
        if _alike(rows):
            continue
        window = _windows(rows)
        of_run = steps_per_row(rows).groupby([window, rows["run_id"]]).agg(["sum", "size"]).groupby(level=0)
        spans = rows["step"].groupby(window).max() - first_steps(rows).groupby(window).min() + 1
        complete = (of_run["sum"].min() == spans) & (of_run["sum"].max() == spans)
        # A window of one run alone, or with one equal row of each, stays as it is.
        changes = (of_run.size() > 1) & ~(complete & (of_run["size"].max() == 1))
        here = rows[window.map(changes & complete)]
        apart.append(rows.index[window.map(changes & ~complete)])
        if len(here):
            joined.append((here.index, _joined(wide.loc[here.index], window[here.index], timers)))
            ends = list(here["step"].groupby(window[here.index]).max())
            text = (
                f"the runs' rows{at(str(factors))} stand for different numbers of steps, and are compared by their "
                f"means over {count_of(len(ends), 'common window')} (to step {join_first(ends)})"
            )
            verdicts.append(Verdict("note", "windows-joined", text))
    if joined:
        kept = wide.drop(index=pd.Index([row for index, _ in joined for row in index]))
        wide = pd.concat([kept, *(rows for _, rows in joined)]).sort_index()
    return wide, verdicts, pd.Index([row for index in apart for row in index])


def _alike(rows: pd.DataFrame) -> bool:
    """Whether rows of one number stand for the same steps in all runs, as far as the sizes show."""
    same = rows.groupby("step")[STEPS_LOGGED].nunique().max() <= 1
    return bool(same) and rows.groupby("run_id")[STEPS_LOGGED].max().nunique() == 1


def _windows(rows: pd.DataFrame) -> pd.Series:
    """The number of each row's common window."""
    ordered = rows[["step"]].assign(first=first_steps(rows)).sort_values(["first", "step"])
    # A window ends where every earlier row has ended.
    ends = ordered["step"].cummax().shift(fill_value=-1)
    return (ordered["first"] > ends).cumsum().reindex(rows.index)


def _joined(rows: pd.DataFrame, window: pd.Series, timers: tuple[str, ...], every_row: bool = True) -> pd.DataFrame:
    """One row for each run and window, with the index of its last row.

    A column without `timers` needs a value in every row, or else has the mean of those that have one.
    """
    key = [rows["run_id"], window]
    weights = steps_per_row(rows)
    steps = weights.groupby(key, sort=False).transform("sum")
    last = rows.index.isin(rows["step"].groupby(key, sort=False).idxmax())
    found = rows[last].copy()
    for name in rows.columns:
        values = rows[name]
        if name == STEPS_LOGGED or not pd.api.types.is_float_dtype(values):
            continue
        shares = (values * weights / steps).groupby(key, sort=False)
        sums = shares.transform("sum", min_count=1)
        if not name.startswith(timers) and every_row:
            sums = sums.mask(values.isna().groupby(key, sort=False).transform("any"))
        elif not name.startswith(timers):
            sums = sums * steps / weights.where(values.notna(), 0).groupby(key, sort=False).transform("sum")
        found[name] = sums[last]
    found[STEPS_LOGGED] = steps[last].astype(float)
    for name in ("resumed", "overlap"):
        found[name] = rows[name].astype(bool).groupby(key, sort=False).transform("any")[last]
    reasons = rows["left_out"].where(rows["left_out"] != "").groupby(key, sort=False).transform("first")
    found["left_out"] = reasons[last].fillna("")
    return found


WARMUP = "warm-up"
AFTER_RESUME = "first after a resume"
AFTER_SAMPLES = "first after sample completions"
OTHER_WINDOW = "the mean of other steps than in another run, some of which no log has"


def wide_steps(runs: Sequence[Run], warmup_steps: int) -> tuple[pd.DataFrame, list[Verdict]]:
    """All runs' steps with `counted` and `left_out`, and the findings on the steps that do not count.

    These steps do not count: the warm-up; the first step after a resume or after sample completions; steps with an
    evaluation that no timer covers; steps that lost completions; rows that are means of other steps
    than in another run and cannot be joined (`join_windows`); and steps with impossible times: not positive, below the
    sum of their parts, or over `JUMP` times their run's median. No other slow step is left out: outliers count. Arms
    are compared over the steps that count in all of their runs (analysis/compared.py).

    The results of benchmarks have no warm-up, and share no step with a training.
    """
    results = [run for run in runs if trainer_named(run.tree.trainer).step_of != "step"]
    steps = [run for run in runs if run not in results]
    if not results or not steps:
        return _counted(runs, 0 if results else warmup_steps)
    parts = [_counted(steps, warmup_steps), _counted(results, 0)]
    wide = pd.concat([part for part, _ in parts], ignore_index=True)
    return wide[columns_in_order(map(str, wide.columns))], [verdict for _, found in parts for verdict in found]


def _counted(runs: Sequence[Run], warmup_steps: int) -> tuple[pd.DataFrame, list[Verdict]]:
    wide, verdicts = all_rows(runs)
    if not len(wide):
        return wide, verdicts
    wide.loc[(wide["left_out"] == "") & wide["resumed"].astype(bool), "left_out"] = AFTER_RESUME
    if SAMPLES_S in wide:
        # Generation returned its memory, so the step has to allocate its own again.
        wide.loc[(wide["left_out"] == "") & (wide[SAMPLES_S] > 0), "left_out"] = AFTER_SAMPLES
    wide = join_generations(wide, (PHASE, OWN, ROUNDING))
    wide, joined, apart = join_windows(wide, (PHASE, OWN, ROUNDING))
    verdicts += joined
    # A counter may advance by more than one for each step.
    gap = gaps(wide["run_id"], wide["step"], steps_per_row(wide)).fillna(1.0)
    wide.loc[first_steps(wide) <= wide["run_id"].map(warmup_steps * gap), "left_out"] = WARMUP
    verdicts += _no_warmup(wide, warmup_steps, gap, runs)
    verdicts += _other_windows(wide, apart)
    verdicts += [
        v for reason in (UNTIMED, OVERRUN, BAD_TIME, JUMPED, INCOMPLETE) for v in _left_out_verdicts(wide, reason)
    ]
    wide["counted"] = wide["left_out"] == ""
    for run_id, counted in wide.groupby("run_id", sort=False)["counted"]:
        if not counted.any():
            text = f"run {run_id}: none of its {len(counted)} steps counts ({warmup_steps} are warm-up)"
            verdicts.append(Verdict("error", "no-counted-steps", text, (str(run_id),)))
    return wide, verdicts


def _no_warmup(wide: pd.DataFrame, warmup_steps: int, gap: pd.Series, runs: Sequence[Run]) -> Iterator[Verdict]:
    """Reports the runs that begin after the warm-up, so that no step of theirs is left out as warm-up.

    `gap` is how far each run's counter advances in a step. A log may have earlier rows, without a time: what reads it
    says so.
    """
    first = first_steps(wide).groupby(wide["run_id"], sort=False).min()
    logged = pd.Series({run.run_id: run.done["first_step"] for run in runs if run.imported}, dtype=float)
    first = first.combine(logged.reindex(first.index, fill_value=math.inf), min).astype(int)
    # Without a warm-up, too, one arm begins with its first step and another later.
    ends = max(warmup_steps, 1) * gap
    arms = wide.groupby("run_id", sort=False)["arm"].first()
    for run, step in first[first > ends[first.index]].items():
        earlier = arms[(first < step) & (first <= ends[first.index])]
        own = arms[str(run)]
        if len(earlier) and own not in set(earlier):
            yield Verdict("warning", "begins-later", _begins_later(str(run), step, own, earlier.iloc[0]), (str(run),))
        elif warmup_steps:
            text = (
                f"run {run}: its first step is {step}, after the warm-up ({count_of(warmup_steps, 'step')}), so no "
                "step of it is left out as warm-up. If its process began there, that step is slow: raise warmup_steps"
            )
            yield Verdict("warning", "no-warmup-left-out", text, (str(run),))


def _begins_later(run: str, step: int, own: str, other: str) -> str:
    return (
        f"run {run} begins with step {step}, and {other} with its first: the log of {own} lacks the steps before, or "
        f"it went on from a checkpoint of another arm, whose weights it then has: give all logs of {own}, or train it "
        "in a folder of its own"
    )


def _other_windows(wide: pd.DataFrame, apart: pd.Index) -> list[Verdict]:
    """Leaves out and reports the rows of windows whose steps not all runs have (`join_windows`)."""
    verdicts = []
    others = wide.loc[apart, ["factors", "step", "left_out"]]
    others = others[others["left_out"] == ""]
    wide.loc[others.index, "left_out"] = OTHER_WINDOW
    for factors, rows in others.groupby("factors", sort=False):
        steps = sorted(set(rows["step"]))
        same = wide[(wide["factors"] == factors) & (wide["step"] == steps[-1])].drop_duplicates("arm")
        means = "; ".join(
            f"in {arm} the mean of {first} to {steps[-1]}" if first < steps[-1] else f"in {arm} that step alone"
            for arm, first in zip(same["arm"], first_steps(same), strict=True)
        )
        text = (
            f"the runs' rows{at(str(factors))} are means of different steps, and not every log has all of these, so "
            f"they are left out in all runs: step {join_first(steps)} (step {steps[-1]}: {means}). Logs of every step, "
            "or with the same logging_steps, can be compared"
        )
        verdicts.append(Verdict("error", "windows-differ", text, tuple(same["arm"])))
    return verdicts


def _left_out_verdicts(wide: pd.DataFrame, reason: str) -> Iterator[Verdict]:
    left_out = wide.loc[wide["left_out"] == reason, ["run_id", "step"]]
    for run_id, steps in left_out.groupby("run_id", sort=False)["step"]:
        text = f"run {run_id}: left out of every number: step {join_first(list(steps))} ({reason})"
        yield Verdict("error", "step-jumped" if reason == JUMPED else "step-left-out", text, (str(run_id),))
