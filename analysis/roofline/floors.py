"""Adds each step's efficiency, the decode floor's share of its generation, and the floor that the estimate uses.

The floor is the least time in which a step's responses can be decoded, from the bytes that must be read: each iteration
writes one token of every running sequence, and reads all weights once and the keys and values of every token before
them. docs/roofline.md has the formula and its assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.counted import mean_of, steps_per_row
from analysis.planned import at
from analysis.roofline.setup import DecodeSetup, setup_of
from analysis.runs import Run
from analysis.wide import OWN, counted_rows, numbers_of, threw_away
from common.gpus import gpu_of
from common.verdicts import Verdict
from trainers.logs.record import STEPS_LOGGED
from trainers.timers.exclusive import TOLERANCE_S, TOLERANCE_SHARE
from trainers.timers.tree import TimerTree

Array = npt.NDArray[np.float64]
EFFICIENCY = "efficiency"
EQUAL_FLOOR_S = "equal_floor_s"
ROOF = ["weight_read_s", "position_read_s", "replicas", "concurrency", "group"]
"""What bounds decoding: the seconds in which one replica (the GPUs that hold the model once) reads all weights, and one
position's keys and values; the replicas; the most sequences that each decodes at once, and the responses of a prompt,
which may share its keys (inf where unknown)."""


def with_floors(wide: pd.DataFrame, runs: Sequence[Run], baseline: str = "") -> tuple[pd.DataFrame, list[Verdict]]:
    """`wide` (analysis/wide.py) with two columns, and the findings about them.

    `efficiency` is the decode floor divided by the own seconds of the phases of generation. It is NaN where a fact is
    unknown, and in all steps of an arm with a counted step whose floor is above its time: one of its facts is wrong
    then. `equal_floor_s` is the floor on the hardware of the arm `baseline` at the same factors, known where the length
    of each response is logged.
    """
    setups = {run.run_id: setup_of(run) for run in runs}
    roofs = pd.DataFrame.from_dict({key: roof_of(of) for key, of in setups.items()}, orient="index", columns=ROOF)
    # A trainer may log such a scalar.
    kept = wide.drop(columns=[name for name in (EFFICIENCY, EQUAL_FLOOR_S) if name in wide])
    if roofs.isna().all(axis=None):
        return kept.assign(**{EFFICIENCY: np.nan, EQUAL_FLOOR_S: np.nan}), list(_setup_verdicts(setups, runs))
    own = roofs.reindex(wide["run_id"]).set_index(wide.index)
    counted = wide["counted"].to_numpy(bool)
    of_baseline = own[counted & (wide["arm"] == baseline)].groupby(wide["factors"], sort=False).agg(_only)
    prompt, longest = numbers_of(wide, "prompt_length/min"), numbers_of(wide, "max_response_length")
    work = _logged_lengths(wide, runs)
    all_logged = np.isfinite(work[0])
    # Where not each response's length is logged, the longest counts alone.
    work[0] = np.where(all_logged | ~(longest >= 1), work[0], longest - 1)
    # Prompts that one arm alone logs would make its steps look longer.
    in_all = ~pd.Series(counted & np.isnan(prompt)).groupby(wide["factors"].to_numpy()).transform("any").to_numpy(bool)
    # Absurd numbers overflow; a floor that is not finite does not count.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        floor_s = decode_floor_s(own, work, np.fmax(prompt, 0))
        equal_s = decode_floor_s(of_baseline.reindex(wide["factors"]), work, np.where(in_all, np.fmax(prompt, 0), 0))
        seconds = _generation_s(wide, runs)
        share = floor_s / seconds
    known = np.isfinite(floor_s) & (seconds > 0) & ~threw_away(wide)
    above = known & counted & (floor_s > seconds + np.maximum(TOLERANCE_S, TOLERANCE_SHARE * seconds))
    arms = wide["arm"] + wide["factors"].map(at)
    known &= ~arms.isin(arms[above]).to_numpy()
    equal = known & all_logged & np.isfinite(equal_s)
    columns = {EFFICIENCY: np.where(known, share, np.nan), EQUAL_FLOOR_S: np.where(equal, equal_s, np.nan)}
    too_high = wide[above].assign(arm=arms[above], share=share[above], seconds=seconds[above])
    return kept.assign(**columns), [*_setup_verdicts(setups, runs), *_too_high(too_high)]


def _only(values: pd.Series) -> float:
    """The value that all have, else NaN."""
    return float(values.iloc[0]) if values.nunique(dropna=False) == 1 else np.nan


def _generation_s(wide: pd.DataFrame, runs: Sequence[Run]) -> Array:
    """Own seconds of a step's phases of generation; NaN where none is timed."""
    seconds = pd.Series(np.nan, index=wide.index)
    paths = [name.removeprefix(OWN) for name in wide.columns if name.startswith(OWN)]
    of_tree: dict[TimerTree, list[str]] = {}
    for run in runs:
        of_tree.setdefault(run.tree, []).append(run.run_id)
    for tree, run_ids in of_tree.items():
        rows = wide["run_id"].isin(run_ids)
        mine = [OWN + path for path in paths if tree.phase(path).category == "generation"]
        seconds[rows] = wide.loc[rows, mine].sum(axis=1, min_count=1)
    found: Array = np.asarray(seconds, dtype=np.float64)
    return found


def _logged_lengths(wide: pd.DataFrame, runs: Sequence[Run]) -> Array:
    """`work_from_lengths` of each row; NaN where they are not logged, and in means of several steps."""
    work = np.full((3, len(wide)), np.nan)
    places = wide.groupby(wide["run_id"].where(steps_per_row(wide) == 1), sort=False).indices
    for run in runs:
        if run.run_id in places:
            of_step, lengths = run.lengths
            here = places[run.run_id]
            step = pd.Index(wide["step"].to_numpy()[here]).get_indexer(pd.Index(of_step))
            work[:, here] = work_from_lengths(step[step >= 0], lengths[step >= 0], len(here))
    return work


def _too_high(rows: pd.DataFrame) -> Iterator[Verdict]:
    """An error for each arm with a floor above its time, with the worst of these rows."""
    for arm, of in rows.groupby("arm", sort=False):
        worst = of.sort_values("share").iloc[-1]
        text = (
            f"{arm}: the decode floor is above the time of generation (run {worst['run_id']}, step {worst['step']}: "
            f"{worst['share'] * worst['seconds']:.2f} s against {worst['seconds']:.2f} s). That is impossible: its "
            "GPU, model, tensor parallel size or lengths are wrong, and the arm has no efficiency"
        )
        yield Verdict("error", "floor-exceeds-time", text)


def _setup_verdicts(setups: Mapping[str, DecodeSetup], runs: Sequence[Run]) -> Iterator[Verdict]:
    missing: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        setup = setups[run.run_id]
        if setup.contradicted:
            text = (
                f"run {run.run_id}: {'; '.join(setup.contradicted)}. The efficiency, the cost and what may be compared "
                f"depend on such facts: correct arms.{run.arm}.import, or leave them out there"
            )
            yield Verdict("error", "declared-contradicts-run", text)
        if setup.unknown:
            missing.setdefault(setup.unknown, []).append(run.arm)
    for unknown, arms in missing.items():
        text = f"no efficiency for {', '.join(dict.fromkeys(arms))}: not known is {'; nor '.join(unknown)}"
        yield Verdict("note", "no-floor", text)


def efficiencies(wide: pd.DataFrame) -> dict[tuple[str, str], float]:
    """By (factors, arm): the mean over its runs of the mean over their counted steps, where it is known."""
    counted = counted_rows(wide, "run_id", "factors", "arm", STEPS_LOGGED, EFFICIENCY)
    known = counted[counted[EFFICIENCY].notna()] if EFFICIENCY in counted else counted[:0]
    found = {}
    for (factors, arm), rows in known.groupby(["factors", "arm"], sort=False):
        of_runs = [mean_of(of[EFFICIENCY], steps_per_row(of)) for _, of in rows.groupby("run_id")]
        found[str(factors), str(arm)] = float(np.mean(of_runs))
    return found


def roof_of(setup: DecodeSetup) -> list[float]:
    """The numbers of `ROOF` for a dense decoder with full attention; NaN where a fact is unknown.

    A replica's GPUs share keys and values by heads, at least one each: with more GPUs than heads, copies are read.
    """
    gpu, model, parallel = gpu_of(setup.gpu), setup.facts, setup.tensor_parallel
    if setup.unknown or not (gpu and model and model.decode_parameters and setup.number_bytes and parallel):
        return [math.nan] * len(ROOF)
    byte_s = setup.number_bytes / (gpu.bandwidth_tb_s * 1e12)
    weights, position = model.decode_parameters / parallel, model.kv_numbers / min(parallel, model.kv_heads)
    at_once, group = setup.concurrency or math.inf, setup.group or math.inf
    return [weights * byte_s, position * byte_s, setup.replicas or math.nan, at_once, group]


def work_from_lengths(step: npt.NDArray[np.intp], lengths: Array, steps: int) -> Array:
    """The longest, the sum of ℓ and of ℓ(ℓ+1)/2 of each step's responses, each a row of numbers by step.

    Response i has `lengths[i]` tokens and belongs to step `step[i]`. A response of L tokens takes ℓ = L - 1 iterations,
    because the prompt's forward pass gives its first token; its j-th iteration reads j positions of its own. Steps
    without responses, or with an impossible length, are NaN.
    """
    iterations = np.where(lengths >= 1, lengths - 1, np.inf)
    longest = np.full(steps, -np.inf)
    np.maximum.at(longest, step, iterations)
    sums = (np.bincount(step, of, steps) for of in (iterations, iterations * (iterations + 1) / 2))
    return np.where(np.isfinite(longest), np.stack([longest, *sums]), np.nan)


def decode_floor_s(roof: pd.DataFrame, work: Array, prompt: Array) -> Array:
    """The least decode seconds of each step, whose prompts have at least `prompt` tokens; NaN where it is unknown.

    For any distribution of the responses over the replicas the slowest needs at least the time of the longest response
    alone, and at least that of an even split. The greater of the two is the floor.
    """
    read_s, position_s, replicas, at_once, group = (roof[name].to_numpy(np.float64) for name in ROOF)
    longest, total, positions = work
    alone = longest * read_s + (prompt * longest + longest * (longest + 1) / 2) * position_s
    iterations = np.fmax(longest, np.ceil(total / at_once))
    even = (iterations * read_s + (prompt * total / group + positions) * position_s) / replicas
    floor_s: Array = np.where(even > alone, even, alone)
    return floor_s
