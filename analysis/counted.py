"""Decides which steps of each run count, and reports the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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
from analysis.windows import first_steps, gaps, join_generations, join_windows, steps_per_row
from common.messages import join_first
from common.verdicts import Verdict, count_of
from trainers.registry import trainer_named

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
