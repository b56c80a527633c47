"""Weighs rows by the training steps that they stand for, and joins the rows of several runs to common windows.

A row stands for the steps (`step` - `steps_logged`, `step`] and has their means. Rows of one number that stand for
other steps are other work: they are compared only once they are joined.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.planned import at
from common.messages import join_first
from common.verdicts import Verdict, count_of
from trainers.logs.hf_work import SHARED_GENERATION
from trainers.logs.record import STEPS_LOGGED

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
