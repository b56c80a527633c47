"""Makes one row per run and step, and decides which of those rows count."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.roofline.setup import setup_of
from analysis.runs import Run
from analysis.windows import first_steps, join_windows
from common.errors import UserError
from common.messages import join_first
from common.verdicts import Verdict, count_of
from engines import engine_named
from trainers.logs.record import STEPS_LOGGED
from trainers.registry import QUANTITIES, discarded, generation_batches, logged_as, scalars_of, trainer_named
from trainers.timers.exclusive import TOLERANCE_S, TOLERANCE_SHARE

PHASE = "timing_s/"
OWN = "own_s/"
ROUNDING = "rounding/"
REWARD = "reward"
SINGLE_REWARD = "reward-of-"
"""Prefix of the names of the figures of single rewards."""
SAMPLES_S = "outside_step_s/samples"
"""The seconds of taking sample completions before the step."""
KEYS = ["run_id", "arm", "factors", "seed", "attempt", "step", "resumed", "overlap", "counted", "left_out"]

WARMUP = "warm-up"
AFTER_RESUME = "first step after a resume"
OVERRUN = "children exceed their parent"
BAD_TIME = "a time that is no positive number, or above 100 days"
INCOMPLETE = "completions failed, and the step went on without them"
OCCASIONAL = "a validation or a checkpoint within it"
AFTER_SAMPLES = "first step after sample completions"
ELSEWHERE = "left out in another arm"
OTHER_WINDOW = "the mean of other steps than in another arm, some of which no log has"

# Longer "steps" are times of day that were logged as seconds.
ABSURD_S = 100 * 86400.0
# Response lengths are bounded, so steps are too, unless a clock jumps or the machine sleeps.
JUMP = 100.0
JUMPED = f"over {JUMP:.0f} times its run's median step: taken for a clock that jumped, or a process that stood still"


def wide_run(run: Run) -> pd.DataFrame:
    """A run's steps as one row each, with columns `timing_s/<path>`, `own_s/<path>` and the scalars.

    `rounding/<path>` is half a unit of a phase's last printed digit, in seconds, where its source printed it rounded.
    A missing phase is NaN. `steps_logged` is the number of steps, up to its own, of which a row is the mean: 1 where
    its source says nothing. `left_out` says why a step cannot count, judged by its own row. Quantities that trainers
    name differently also have one common name (trainers/registry.py).
    """
    phases, scalars = (run.steps[run.steps["kind"] == kind] for kind in ("phase", "scalar"))
    seconds, own = grids(phases, "value", "exclusive_s")
    facts = run.steps.drop_duplicates("step").set_index("step")[["attempt", "resumed", "overlap"]].sort_index()
    if run.tree.root not in seconds.columns:
        raise UserError(f"none of its steps has the root timer {run.tree.root!r}")
    other = grids(scalars, "value")[0]
    left_out = _left_out(run, phases, seconds, own, other, facts.index)
    # A trainer may log a scalar with the name of one of these columns.
    reserved = {*KEYS, *QUANTITIES}
    other = other.set_axis([f"scalar/{name}" if name in reserved else str(name) for name in other.columns], axis=1)
    for quantity in QUANTITIES:
        if (name := logged_as(quantity, other.columns)) is not None:
            other[quantity] = other[name]
    trainer, engine = trainer_named(run.tree.trainer), engine_named(str(run.spec.get("engine")))
    if "truncated_share" in other and trainer.rollout({}, engine, run.tree).padded:
        other["truncated_share"] = _truncated_share(other, setup_of(run).max_response_length)
    other = other.reindex(facts.index)
    logged = other.get(STEPS_LOGGED, pd.Series(math.nan, facts.index))
    head = pd.DataFrame(
        {"run_id": run.run_id, "arm": run.arm, "factors": run.factors_key, "seed": run.seed}, index=facts.index
    )
    parts: list[pd.DataFrame | pd.Series] = [head, facts, seconds.add_prefix(PHASE), own.add_prefix(OWN)]
    if _is_rounded(phases):
        parts.append(grids(phases, "rounding")[0].dropna(axis=1, how="all").add_prefix(ROUNDING))
    parts += [other.assign(**{STEPS_LOGGED: logged.fillna(1.0)}), left_out]
    return pd.concat(parts, axis=1).reset_index()


def grids(tidy: pd.DataFrame, *columns: str) -> list[pd.DataFrame]:
    """Columns of a tidy table, each as a table by step and name; NaN where there is no row.

    pandas' `pivot` takes three times as long, and a report reads several columns of thousands of runs. `UserError`
    where a name comes twice in a step.
    """
    steps, row = np.unique(tidy["step"].to_numpy(), return_inverse=True)
    names = tidy["name"].astype("category").cat
    codes, column = np.unique(names.codes.to_numpy(), return_inverse=True)
    if len(np.unique(row * max(1, len(codes)) + column)) < len(tidy):
        raise UserError("its steps.parquet holds a value twice; collect the run again")
    index, labels = pd.Index(steps, name="step"), [str(name) for name in names.categories[codes]]
    found = []
    for name in columns:
        filled = np.full((len(steps), len(codes)), np.nan)
        filled[row, column] = tidy[name].to_numpy(dtype=float, na_value=np.nan)
        found.append(pd.DataFrame(filled, index=index, columns=labels))
    return found


def _left_out(
    run: Run, phases: pd.DataFrame, seconds: pd.DataFrame, own: pd.DataFrame, other: pd.DataFrame, steps: pd.Index
) -> pd.Series:
    """Why each step cannot count, judged by its own row; "" where it may count."""
    inner = own[[c for c in own.columns if c in set(phases["parent"].dropna())]]
    allowed = (TOLERANCE_SHARE * seconds[inner.columns].abs()).clip(lower=TOLERANCE_S)
    if _is_rounded(phases):
        allowed = allowed + _own_rounding(phases).reindex_like(allowed).fillna(0.0)
    occasional = [name for name in seconds if (phase := run.tree.declared(str(name))) and phase.occasional]
    value, root_s = phases["value"], seconds[run.tree.root].reindex(steps)
    bad = phases.loc[~np.isfinite(value) | (value < 0) | (value > ABSURD_S), "step"]
    reasons = {
        OCCASIONAL: (seconds[occasional] > 0).any(axis=1),
        INCOMPLETE: other.get("missing_completions", pd.Series(dtype=float)) > 0,
        OVERRUN: (inner < -allowed).any(axis=1),
        JUMPED: root_s > JUMP * root_s.median(),
        BAD_TIME: pd.Series(steps.isin(bad), steps) | ~(root_s > 0),
    }
    left_out = pd.Series("", index=steps, dtype=object, name="left_out")
    for reason, applies in reasons.items():
        left_out[applies.reindex(steps, fill_value=False).to_numpy(dtype=bool)] = reason
    return left_out


def _truncated_share(scalars: pd.DataFrame, limit: int | None) -> pd.Series:
    """The share of truncated responses, from the logged share of the batch's longest; NaN where it is not known.

    These were truncated only where the longest is as long as `limit`, the longest allowed length.
    """
    longest = scalars.get("max_response_length", pd.Series(np.nan, index=scalars.index))
    logged = scalars["truncated_share"]
    share = logged.where(longest == limit)
    return share.mask((longest < limit) & logged.notna(), 0.0) if limit else share


def _is_rounded(phases: pd.DataFrame) -> bool:
    return "rounding" in phases and bool(phases["rounding"].notna().any())


def _own_rounding(phases: pd.DataFrame) -> pd.DataFrame:
    """The largest error of each phase's own seconds by step: its own rounding and its children's."""
    rounding = phases[["step", "name", "parent", "rounding"]].fillna({"rounding": 0.0})
    own = rounding[["step", "name", "rounding"]]
    children = rounding.dropna(subset="parent")[["step", "parent", "rounding"]].rename(columns={"parent": "name"})
    both = pd.concat([own.astype({"name": str}), children.astype({"name": str})])
    return both.groupby(["step", "name"])["rounding"].sum().unstack("name")


def wide_steps(runs: Sequence[Run], warmup_steps: int) -> tuple[pd.DataFrame, list[Verdict]]:
    """All runs' steps with `counted` and `left_out`, and the findings on the steps that do not count.

    These steps are left out of all arms alike, by (factors, seed, step): the warm-up; the first step after a resume or
    after sample completions; steps with a validation or a checkpoint (unless all have one); steps that lost
    completions; rows that are means of other steps than in another arm and cannot be joined (`join_windows`); and steps
    with impossible times: not positive, below the sum of their parts, or over `JUMP` times their run's median. No other
    slow step is left out: outliers count.

    The results of benchmarks have no warm-up, and share no step with a training.
    """
    results = [run for run in runs if trainer_named(run.tree.trainer).step_of != "step"]
    steps = [run for run in runs if run not in results]
    if not results or not steps:
        return _counted_steps(runs, 0 if results else warmup_steps)
    parts = [_counted_steps(steps, warmup_steps), _counted_steps(results, 0)]
    wide = pd.concat([part for part, _ in parts], ignore_index=True)
    return _in_order(wide), [verdict for _, found in parts for verdict in found]


def _in_order(wide: pd.DataFrame) -> pd.DataFrame:
    rest = [c for c in wide.columns if c not in KEYS]
    timed = [c for prefix in (PHASE, OWN, ROUNDING) for c in rest if c.startswith(prefix)]
    return wide[KEYS + timed + sorted(set(rest) - set(timed))]


def _counted_steps(runs: Sequence[Run], warmup_steps: int) -> tuple[pd.DataFrame, list[Verdict]]:
    frames, verdicts = [], []
    for run in runs:
        try:
            frames.append(wide_run(run))
        except UserError as error:
            verdicts.append(Verdict("error", "run-left-out", f"run {run.run_id} is left out: {error}"))
    if not frames:
        empty = pd.DataFrame({name: pd.Series(dtype=object) for name in KEYS})
        return empty.astype({"counted": bool, "resumed": bool}), verdicts
    # Copied, because columns of one run alone fragment the table, and pandas warns of that.
    wide = pd.concat(frames, ignore_index=True).copy()
    wide.loc[wide["left_out"].isin(["", OCCASIONAL]) & wide["resumed"].astype(bool), "left_out"] = AFTER_RESUME
    if SAMPLES_S in wide:
        # Generation returned its memory, so the step has to allocate its own again.
        wide.loc[(wide["left_out"] == "") & (wide[SAMPLES_S] > 0), "left_out"] = AFTER_SAMPLES
    wide, joined, apart = join_windows(wide, (PHASE, OWN, ROUNDING))
    verdicts += joined
    wide.loc[first_steps(wide) <= warmup_steps, "left_out"] = WARMUP
    verdicts += _no_warmup(wide, warmup_steps)
    verdicts += _truncation_unknown(wide)
    verdicts += _occasional(wide, {run.run_id for run in runs if run.imported})
    verdicts += _other_windows(wide, apart)
    verdicts += [v for reason in (OVERRUN, BAD_TIME, JUMPED, INCOMPLETE) for v in _left_out_verdicts(wide, reason)]
    slot = ["factors", "seed", "step"]
    dropped = wide.loc[wide["left_out"] != "", slot].drop_duplicates()
    elsewhere = wide[slot].merge(dropped, on=slot, how="left", indicator=True)["_merge"] == "both"
    wide.loc[elsewhere.to_numpy() & (wide["left_out"] == "").to_numpy(), "left_out"] = ELSEWHERE
    wide["counted"] = wide["left_out"] == ""
    for run_id, rows in wide.groupby("run_id", sort=False):
        if not rows["counted"].any():
            text = f"run {run_id}: none of its {len(rows)} steps counts ({warmup_steps} are warm-up)"
            verdicts.append(Verdict("error", "no-counted-steps", text))
    return _in_order(wide), verdicts


def _no_warmup(wide: pd.DataFrame, warmup_steps: int) -> list[Verdict]:
    """Reports the runs that begin after the warm-up, so that no step of theirs is left out as warm-up."""
    first = first_steps(wide).groupby(wide["run_id"], sort=False).min()
    return [
        Verdict(
            "warning",
            "no-warmup-left-out",
            f"run {run}: its first step is {step}, after the warm-up ({count_of(warmup_steps, 'step')}), so no step of "
            "it is left out as warm-up. If its process began there, that step is slow: raise warmup_steps",
        )
        for run, step in first[first > warmup_steps].items()
        if warmup_steps
    ]


def _truncation_unknown(wide: pd.DataFrame) -> list[Verdict]:
    """Reports the runs for which a share of longest responses does not give the share of truncated ones."""
    unknown = {
        name: wide.loc[wide[name].notna() & wide["truncated_share"].isna(), "run_id"]
        for name in scalars_of("truncated_share")
        if name in wide
    }
    return [
        Verdict(
            "note",
            "truncation-unknown",
            f"run {run}: no share of truncated responses in {count_of(steps, 'step')}: its {name} is the share that is "
            "as long as the longest of the batch. The longest allowed length shows whether those were truncated, but "
            "it "
            "is not known or is below that (for an imported run set import.max_response_length)",
        )
        for name, runs in unknown.items()
        for run, steps in runs.value_counts(sort=False).items()
    ]


def threw_away(rows: pd.DataFrame, side: str = "") -> npt.NDArray[np.bool_]:
    """The steps that threw completions away, so that their tokens and lengths are not of all that was generated.

    `side` is the suffix of the columns' names in `paired_steps`.
    """
    thrown = np.zeros(len(rows), dtype=np.bool_)
    for names, most in ((discarded(), 0), (generation_batches(), 1)):
        for name in (name + side for name in names if name + side in rows):
            thrown |= rows[name].to_numpy(dtype=np.float64) > most
    return thrown


def _other_windows(wide: pd.DataFrame, apart: pd.Index) -> list[Verdict]:
    """Leaves out and reports the rows of windows whose steps not all runs have (`join_windows`)."""
    verdicts = []
    others = wide.loc[apart]
    others = others[others["left_out"] == ""]
    wide.loc[others.index, "left_out"] = OTHER_WINDOW
    for (factors, seed), rows in others.groupby(["factors", "seed"], sort=False):
        steps = sorted(set(rows["step"]))
        same = (wide["factors"] == factors) & (wide["seed"] == seed) & (wide["step"] == steps[-1])
        means = "; ".join(
            f"in {arm} the mean of {first} to {steps[-1]}" if first < steps[-1] else f"in {arm} that step alone"
            for arm, first in zip(wide.loc[same, "arm"], first_steps(wide[same]), strict=True)
        )
        text = (
            f"seed {seed}: the arms' rows are means of different steps, and not every log has all of these, so they "
            f"are left out in all arms: step {join_first(steps)} (step {steps[-1]}: {means}). Logs of every step, or "
            "with the same logging_steps, can be compared"
        )
        verdicts.append(Verdict("error", "windows-differ", text))
    return verdicts


def _occasional(wide: pd.DataFrame, imported: Collection[str]) -> list[Verdict]:
    """Reports the steps with a validation or a checkpoint, and counts them where a run has no other steps.

    `imported` are the runs that were trained elsewhere: their settings cannot be changed.
    """
    verdicts = []
    for (_, seed), rows in wide.groupby(["factors", "seed"], sort=False):
        affected = rows.index[rows["left_out"] == OCCASIONAL]
        if affected.empty:
            continue
        steps = sorted(set(rows.loc[affected, "step"]))
        shown = join_first(steps)
        others = rows[~rows["step"].isin(steps)]
        if all((others.loc[others["run_id"] == run, "left_out"] == "").any() for run in rows["run_id"].unique()):
            text = (
                f"seed {seed}: steps with a validation or a checkpoint within them do not count, in any arm ({shown})"
            )
            verdicts.append(Verdict("note", "occasional-left-out", text))
        else:
            wide.loc[affected, "left_out"] = ""
            run_ids, remedies = set(rows["run_id"]), []
            if run_ids - set(imported):
                remedies.append("raise workload.save_steps and test_steps")
            if run_ids & set(imported):
                remedies.append("import runs that validate and save more rarely, or more of these runs' steps")
            text = (
                f"seed {seed}: every step that could count includes a validation or a checkpoint, and its time "
                f"({shown}). To compare without them, {' and '.join(remedies)}"
            )
            verdicts.append(Verdict("warning", "occasional-counted", text))
    return verdicts


def _left_out_verdicts(wide: pd.DataFrame, reason: str) -> Iterator[Verdict]:
    for run_id, rows in wide[wide["left_out"] == reason].groupby("run_id", sort=False):
        text = f"run {run_id}: left out of every number, in all arms: step {join_first(list(rows['step']))} ({reason})"
        yield Verdict("error", "step-left-out", text)


def samples(runs: Sequence[Run], name: str, wide: pd.DataFrame) -> pd.DataFrame:
    """One row per sample of the counted steps: run_id, arm, factors, step, value."""
    frames = []
    for run in runs:
        rows = run.steps[(run.steps["kind"] == "sample") & (run.steps["name"] == name)]
        if len(rows):
            frame = rows[["step", "value"]].assign(run_id=run.run_id, arm=run.arm, factors=run.factors_key)
            frames.append(frame)
    if not frames:
        return pd.DataFrame({c: pd.Series(dtype=object) for c in ("step", "value", "run_id", "arm", "factors")})
    everything = pd.concat(frames, ignore_index=True)
    counted = wide.loc[wide["counted"], ["run_id", "step"]]
    return everything.merge(counted, on=["run_id", "step"])
