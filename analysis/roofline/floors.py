"""Computes each step's generation time and decode floor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.roofline.decode import (
    Array,
    Roof,
    Work,
    decode_floor_s,
    roof_of,
    work_from_lengths,
    work_from_scalars,
)
from analysis.roofline.setup import DecodeSetup, setup_of
from analysis.runs import Run
from analysis.wide import OWN, numbers_of, threw_away
from common.gpus import gpu_of
from trainers.timers.exclusive import TOLERANCE_S, TOLERANCE_SHARE
from trainers.timers.tree import TimerTree

# A quotient of printed means is a number of responses only if it is this close to a whole number.
_WHOLE_TO = 1e-2
Rows = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Floors:
    """One value for each row of `wide`, also where the floor turns out to be impossible."""

    setups: Mapping[str, DecodeSetup]
    """By run."""
    generation_s: Array
    """Own seconds of the phases of generation; NaN where none is timed."""
    work: Work
    roof: Roof
    floor_s: Array
    common_prompt: Array
    """The shortest prompt, from the source that all arms at these factors have."""
    has_roof: Flags
    """All facts of the run that a floor needs are known."""
    from_lengths: Flags
    """Each response's length is logged, not only their number, mean and longest."""
    completions: Array
    """Responses of the step by its token counts, and as `declared` by the settings; NaN where unknown."""
    declared: Array
    known: Flags
    impossible: Flags
    """The logged lengths are impossible."""
    discarded: Flags
    """Completions were thrown away, so the lengths are not of all that was generated."""
    exceeds: Flags
    """The floor is above the time of generation."""
    refused: Flags
    """A counted step of the arm exceeds its time."""


def floors_of(wide: pd.DataFrame, runs: Sequence[Run]) -> Floors:
    """The floors of all rows of `wide`, by the formulas of decode.py and the facts of setup.py."""
    setups = {run.run_id: setup_of(run) for run in runs}
    places = _places(wide)
    generation = generation_s(wide, runs)
    roof, has_roof = _roofs(wide, setups)
    completions, declared = responses_of(wide, setups)
    of_data = _by_run(wide, {run_id: setup.shortest_prompt or 0 for run_id, setup in setups.items()})
    # The log does not say which prompt had which response, so the shortest prompt counts for all.
    of_step = numbers_of(wide, "prompt_length/min")
    prompt = np.fmax(of_step, of_data)
    # Absurd numbers overflow; a floor that is not finite does not count.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        by_lengths = _lengths(wide, runs, places, prompt)
        mean, longest = numbers_of(wide, "mean_response_length"), numbers_of(wide, "max_response_length")
        by_scalars = work_from_scalars(completions, mean, longest, prompt)
        sampled = np.isfinite(by_lengths.longest)
        work = Work(
            *(np.where(sampled, getattr(by_lengths, f.name), getattr(by_scalars, f.name)) for f in fields(Work))
        )
        floor_s = decode_floor_s(roof, work)
    discarded = threw_away(wide)
    known = has_roof & np.isfinite(floor_s) & (generation > 0) & ~discarded
    allowed = np.maximum(TOLERANCE_S, TOLERANCE_SHARE * generation)
    counted = wide["counted"].to_numpy(bool)
    exceeds = known & counted & (floor_s > generation + allowed)
    arms = wide.groupby(["factors", "arm"], sort=False).ngroup().to_numpy()
    return Floors(
        setups=setups,
        generation_s=generation,
        work=work,
        roof=roof,
        floor_s=floor_s,
        common_prompt=_common_prompt(wide, known & counted, of_step, of_data),
        has_roof=has_roof,
        from_lengths=sampled,
        completions=completions,
        declared=declared,
        known=known,
        impossible=np.isfinite(longest) & ~np.isfinite(work.longest),
        discarded=discarded,
        exceeds=exceeds,
        refused=np.isin(arms, arms[exceeds]),
    )


def equal_floor_s(wide: pd.DataFrame, found: Floors, baseline: str) -> Array:
    """Least seconds of each row's responses on the baseline's hardware at the same factors; inf or NaN where unknown.

    NaN where the baseline's counted steps have no roof or several. Prompts have `common_prompt` tokens.
    """
    own = np.stack([getattr(found.roof, f.name) for f in fields(Roof)])
    theirs = np.full_like(own, np.nan)
    of_baseline = (wide["arm"] == baseline).to_numpy(bool) & wide["counted"].to_numpy(bool)
    for rows in wide.groupby("factors", sort=False).indices.values():
        at = np.asarray(rows, dtype=np.intp)[of_baseline[rows]]
        if len(at) and found.has_roof[at].all() and (own[:, at] == own[:, at[:1]]).all():
            theirs[:, rows] = own[:, at[:1]]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return decode_floor_s(Roof(*theirs), replace(found.work, prompt=found.common_prompt))


def _common_prompt(wide: pd.DataFrame, floored: Flags, of_step: Array, of_data: Array) -> Array:
    """The shortest prompt of the step, of the data, or 0: the first of these that all `floored` rows have."""
    common = np.zeros(len(wide))
    for rows in wide.groupby("factors", sort=False).indices.values():
        at = np.asarray(rows, dtype=np.intp)[floored[rows]]
        if np.isfinite(of_step[at]).all():
            common[rows] = np.fmax(of_step[rows], 0)
        elif (of_data[at] > 0).all():
            common[rows] = np.fmax(of_data[rows], 0)
    return common


def generation_s(wide: pd.DataFrame, runs: Sequence[Run]) -> Array:
    """Own seconds of a step's phases of generation; NaN where none is timed."""
    places, seconds = _places(wide), np.full(len(wide), np.nan)
    paths = [c.removeprefix(OWN) for c in wide.columns if c.startswith(OWN)]
    by_tree: dict[TimerTree, list[Rows]] = {}
    for run in runs:
        if run.run_id in places:
            by_tree.setdefault(run.tree, []).append(places[run.run_id])
    for tree, at in by_tree.items():
        if mine := [path for path in paths if tree.phase(path).category == "generation"]:
            rows = np.concatenate(at)
            summed = wide[[OWN + path for path in mine]].iloc[rows].sum(axis=1, min_count=1)
            seconds[rows] = summed.to_numpy(np.float64)
    return seconds


def _places(wide: pd.DataFrame) -> dict[str, Rows]:
    groups = wide.groupby("run_id", sort=False).indices
    return {str(run_id): np.asarray(at, dtype=np.intp) for run_id, at in groups.items()}


def _by_run(wide: pd.DataFrame, values: Mapping[str, float]) -> Array:
    """Each row's value by its run; NaN for other runs."""
    return np.asarray(wide["run_id"].map(dict(values)), dtype=np.float64)


def _roofs(wide: pd.DataFrame, setups: Mapping[str, DecodeSetup]) -> tuple[Roof, Flags]:
    """Each row's roof, and whether it has one."""
    roofs = {run_id: roof for run_id, setup in setups.items() if (roof := _roof_of_setup(setup)) is not None}
    names = [f.name for f in fields(Roof)]
    values = {name: _by_run(wide, {run_id: getattr(roof, name) for run_id, roof in roofs.items()}) for name in names}
    return Roof(**values), wide["run_id"].isin(list(roofs)).to_numpy(bool)


def _roof_of_setup(setup: DecodeSetup) -> Roof | None:
    """The roof of a setup without unknown facts."""
    gpu = gpu_of(setup.gpu)
    if setup.unknown or gpu is None or setup.facts is None:
        return None
    if not (setup.number_bytes and setup.tensor_parallel and setup.replicas):
        return None
    return roof_of(
        gpu,
        setup.facts,
        setup.number_bytes,
        tensor_parallel=setup.tensor_parallel,
        replicas=setup.replicas,
        concurrency=setup.concurrency or math.inf,
        group=setup.group or math.inf,
    )


def responses_of(wide: pd.DataFrame, setups: Mapping[str, DecodeSetup]) -> tuple[Array, Array]:
    """Responses of a step by its tokens (tokens.py), otherwise by its settings; and those by its settings."""
    declared = _by_run(wide, {run_id: setup.completions or np.nan for run_id, setup in setups.items()})
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        quotient = numbers_of(wide, "response_tokens") / numbers_of(wide, "mean_response_length")
    whole = np.rint(quotient)
    return np.where((whole >= 1) & (np.abs(quotient - whole) < _WHOLE_TO), whole, declared), declared


def _lengths(wide: pd.DataFrame, runs: Sequence[Run], places: Mapping[str, Rows], prompt: Array) -> Work:
    """The work by the lengths of each step's responses; NaN where they are not logged."""
    unknown, steps = np.full(len(wide), np.nan), wide["step"].to_numpy()
    work = Work(unknown, unknown.copy(), unknown.copy(), prompt)
    for run in runs:
        if run.run_id not in places:
            continue
        of_step, lengths = run.lengths
        here = places[run.run_id]
        order = here[np.argsort(steps[here], kind="stable")]
        at = np.minimum(np.searchsorted(steps[order], of_step), len(order) - 1)
        found = work_from_lengths(at, lengths, prompt[order])
        for name in ("longest", "total", "own_positions"):
            getattr(work, name)[order] = getattr(found, name)
    return work
