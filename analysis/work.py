"""How long did a step generate, and in how little time could its responses have been decoded?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.gpus import gpu_of
from analysis.roofline import Array, Floor, Roof, Work, decode_floor_s, roof_of, work_from_lengths, work_from_scalars
from analysis.runs import Run, factors_label
from analysis.setup import Setup, setup_of
from analysis.timers import TimerTree
from analysis.timers.exclusive import TOLERANCE_S, TOLERANCE_SHARE
from analysis.verdicts import Verdict
from analysis.wide import OWN

GENERATION_S = "generation_s"
FLOOR_S = "floor_s"
FLOOR_BASIS = "floor_basis"
WEIGHT_S, KV_S, COMPUTE_S = "weight_floor_s", "kv_floor_s", "compute_floor_s"
LENGTHS, SCALARS = "lengths", "scalars"
# A quotient of printed means is a whole number of responses only if it is this near to one.
_WHOLE_TO = 1e-2
Rows = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


def with_work(wide: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """`wide` (analysis/wide.py) with the seconds of generation and the least that they could have been.

    `generation_s`: own seconds of the phases of category generation, NaN where none is timed. `floor_s`: the decode
    floor (analysis/roofline.py), with the case that binds: `weight_floor_s` + `kv_floor_s`, or `compute_floor_s`
    where that is more. NaN where a fact is unknown (`work_verdicts` says which) and in all steps of an arm for which a
    floor came out above the time: one of its facts is wrong then. `floor_basis` is `lengths`, `scalars`, or "".
    """
    found = _found(wide, runs)
    known = found.known & ~found.refused
    floor = found.floor
    parts = {FLOOR_S: floor.floor_s, WEIGHT_S: floor.weight_s, KV_S: floor.kv_s, COMPUTE_S: floor.compute_s}
    columns = {GENERATION_S: found.generation_s} | {n: np.where(known, v, np.nan) for n, v in parts.items()}
    basis = np.where(known, np.where(found.from_lengths, LENGTHS, SCALARS), "")
    return wide.drop(columns=[c for c in (*columns, FLOOR_BASIS) if c in wide]).assign(
        **columns, **{FLOOR_BASIS: basis}
    )


def work_verdicts(wide: pd.DataFrame, runs: Sequence[Run]) -> list[Verdict]:
    """Why arms or steps have no decode floor, what their floors take for granted, and facts that cannot be."""
    found = _found(wide, runs)
    verdicts = _unknown_verdicts(found.setups, runs)
    counted = wide["counted"].to_numpy(bool)
    for key, rows in wide.groupby(["factors", "arm"], sort=False).indices.items():
        factors, arm = cast(tuple[str, str], key)
        at = np.asarray(rows, dtype=np.intp)[counted[np.asarray(rows, dtype=np.intp)]]
        name = f"{arm} at {factors_label(factors)}" if factors else arm
        verdicts += _arm_verdicts(found, wide, at, name) if len(at) else []
    return verdicts


def _arm_verdicts(found: _Found, wide: pd.DataFrame, at: Rows, name: str) -> list[Verdict]:
    """Of one arm at one combination of factors; `at` are its counted rows."""
    verdicts = []
    if found.refused[at].any():
        over = at[found.exceeds[at]]
        worst = over[np.argmax(found.floor.floor_s[over] / found.generation_s[over])]
        where = f"run {wide['run_id'].iloc[worst]}, step {wide['step'].iloc[worst]}"
        text = (
            f"{name}: in {len(over)} of {len(at)} counted steps the decode floor is above the time of generation "
            f"({where}: {found.floor.floor_s[worst]:.2f} s against {found.generation_s[worst]:.2f} s). That cannot be: "
            "its GPU, model, tensor parallel size or number of responses is not as said, and the arm has no floor here"
        )
        verdicts.append(Verdict("error", "floor-exceeds-time", text))
    without = found.has_roof[at] & ~found.known[at]
    impossible = without & found.impossible[at]
    if impossible.any():
        steps = [str(step) for step in wide["step"].iloc[at[impossible]]]
        text = (
            f"{name}: no floor for step {', '.join(steps[:10])}{', …' if len(steps) > 10 else ''}: the logged response "
            "lengths cannot be (a mean above the longest, or less than a token)"
        )
        verdicts.append(Verdict("error", "impossible-lengths", text))
    if missing := int((without & ~impossible).sum()):
        timed = np.isfinite(found.generation_s[at][without & ~impossible]).all()
        what = "neither each response's length nor the longest is logged" if timed else "generation is not timed"
        text = f"{name}: {missing} of {len(at)} counted steps have no decode floor: {what}"
        verdicts.append(Verdict("note", "no-lengths-for-floor", text))
    by_scalars = found.known[at] & ~found.from_lengths[at] & np.isfinite(found.declared[at])
    other = at[by_scalars & (found.declared[at] != found.completions[at])]
    if len(other):
        text = (
            f"{name}: the token counts say {found.completions[other[0]]:.0f} responses a step, the settings "
            f"{found.declared[other[0]]:.0f}; the floor is of the former"
        )
        verdicts.append(Verdict("warning", "completions-differ", text))
    return verdicts


@dataclass(frozen=True, slots=True)
class _Found:
    """Everything by row of `wide`, before anything is refused."""

    setups: Mapping[str, Setup]
    generation_s: Array
    floor: Floor
    has_roof: Flags
    from_lengths: Flags
    completions: Array
    declared: Array
    known: Flags
    impossible: Flags
    """Lengths are logged, and are none."""
    exceeds: Flags
    refused: Flags
    """Of an arm with a counted step whose floor is above its time."""


def _found(wide: pd.DataFrame, runs: Sequence[Run]) -> _Found:
    setups = {run.run_id: setup_of(run) for run in runs}
    places = {
        str(run_id): np.asarray(at, dtype=np.intp) for run_id, at in wide.groupby("run_id", sort=False).indices.items()
    }
    generation = _generation_s(wide, runs, places)
    roof, has_roof = _roofs(len(wide), setups, places)
    declared = np.full(len(wide), np.nan)
    prompt = np.full(len(wide), np.nan)
    for run_id, setup in setups.items():
        at = places.get(run_id, np.array([], dtype=np.intp))
        declared[at] = setup.completions or np.nan
        prompt[at] = setup.shortest_prompt or 0
    # Which prompt had which response is not logged: the shortest counts for all.
    prompt = np.fmax(_column(wide, "prompt_length/min"), prompt)
    completions = _completions(wide, declared)
    by_lengths = _lengths(wide, runs, places, prompt)
    mean, longest = _column(wide, "mean_response_length"), _column(wide, "max_response_length")
    by_scalars = work_from_scalars(completions, mean, longest, prompt)
    sampled = np.isfinite(by_lengths.longest)
    work = Work(*(np.where(sampled, getattr(by_lengths, f.name), getattr(by_scalars, f.name)) for f in fields(Work)))
    floor = decode_floor_s(roof, work)
    known = has_roof & np.isfinite(floor.floor_s) & (generation > 0)
    allowed = np.maximum(TOLERANCE_S, TOLERANCE_SHARE * generation)
    exceeds = known & wide["counted"].to_numpy(bool) & (floor.floor_s > generation + allowed)
    arms = wide.groupby(["factors", "arm"], sort=False).ngroup().to_numpy()
    return _Found(
        setups=setups,
        generation_s=generation,
        floor=floor,
        has_roof=has_roof,
        from_lengths=sampled,
        completions=completions,
        declared=declared,
        known=known,
        impossible=np.isfinite(longest) & ~np.isfinite(work.longest),
        exceeds=exceeds,
        refused=np.isin(arms, arms[exceeds]),
    )


def _column(wide: pd.DataFrame, name: str) -> Array:
    return wide[name].to_numpy(np.float64) if name in wide else np.full(len(wide), np.nan)


def _generation_s(wide: pd.DataFrame, runs: Sequence[Run], places: Mapping[str, Rows]) -> Array:
    generation = np.full(len(wide), np.nan)
    paths = [c.removeprefix(OWN) for c in wide.columns if c.startswith(OWN)]
    by_tree: dict[TimerTree, list[Rows]] = {}
    for run in runs:
        if run.run_id in places:
            by_tree.setdefault(run.tree, []).append(places[run.run_id])
    for tree, at in by_tree.items():
        rows = np.concatenate(at)
        columns = [OWN + path for path in paths if tree.phase(path).category == "generation"]
        generation[rows] = wide[columns].iloc[rows].sum(axis=1, min_count=1).to_numpy(np.float64) if columns else np.nan
    return generation


def _roofs(rows: int, setups: Mapping[str, Setup], places: Mapping[str, Rows]) -> tuple[Roof, Flags]:
    """Each row's roof, and whether there is one."""
    names = [f.name for f in fields(Roof)]
    values = {name: np.full(rows, np.nan) for name in names}
    has_roof = np.zeros(rows, dtype=np.bool_)
    for run_id, setup in setups.items():
        if run_id in places and (roof := setup_roof(setup)) is not None:
            for name in names:
                values[name][places[run_id]] = getattr(roof, name)
            has_roof[places[run_id]] = True
    return Roof(**values), has_roof


def setup_roof(setup: Setup) -> Roof | None:
    """The roof of a setup of which everything needed is known."""
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


def _completions(wide: pd.DataFrame, declared: Array) -> Array:
    """Responses of a step as its token counts give them, else as its settings do."""
    mean = _column(wide, "mean_response_length")
    with np.errstate(divide="ignore", invalid="ignore"):
        by_all = _column(wide, "perf/total_num_tokens") / (mean + _column(wide, "prompt_length/mean"))
        by_responses = _column(wide, "response_tokens") / mean
    found = declared
    for counted in (by_responses, by_all):
        whole = np.rint(counted)
        found = np.where((whole >= 1) & (np.abs(counted - whole) < _WHOLE_TO), whole, found)
    return found


def _lengths(wide: pd.DataFrame, runs: Sequence[Run], places: Mapping[str, Rows], prompt: Array) -> Work:
    """The work by the lengths of each step's responses; NaN where they are not logged."""
    at: list[Rows] = [np.array([], dtype=np.intp)]
    lengths: list[Array] = [np.array([], dtype=np.float64)]
    steps = wide["step"].to_numpy()
    for run in runs:
        rows = run.steps[(run.steps["name"] == "response_length") & (run.steps["kind"] == "sample")]
        if rows.empty or run.run_id not in places:
            continue
        here = places[run.run_id]
        order = here[np.argsort(steps[here], kind="stable")]
        found = np.searchsorted(steps[order], rows["step"].to_numpy())
        at.append(order[np.minimum(found, len(order) - 1)])
        lengths.append(rows["value"].to_numpy(np.float64))
    return work_from_lengths(np.concatenate(at), np.concatenate(lengths), prompt)


def _unknown_verdicts(setups: Mapping[str, Setup], runs: Sequence[Run]) -> list[Verdict]:
    missing: dict[tuple[str, ...], dict[str, int]] = {}
    granted: dict[str, dict[str, int]] = {}
    for run in runs:
        setup = setups[run.run_id]
        if setup.unknown:
            arms = missing.setdefault(setup.unknown, {})
            arms[run.arm] = arms.get(run.arm, 0) + 1
        for text in setup.assumed if not setup.unknown else ():
            granted.setdefault(text, {})[run.arm] = 1
    verdicts = [
        Verdict("note", "no-floor", f"no decode floor for {', '.join(arms)}: not known is {'; nor '.join(unknown)}")
        for unknown, arms in missing.items()
    ]
    return verdicts + [
        Verdict("note", "floor-assumes", f"the decode floor of {', '.join(arms)} takes for granted {text}")
        for text, arms in granted.items()
    ]
