"""Adds the decode floors to the steps, and reports arms and steps without one, and what the floors assume."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import pandas as pd

from analysis.factors import at
from analysis.roofline.floors import Floors, Rows, equal_floor_s, floors_of, responses_of
from analysis.roofline.setup import DecodeSetup, setup_of
from analysis.runs import Run
from analysis.wide import counted_rows
from analysis.windows import steps_per_row
from common.gpus import gpu_of
from common.messages import join_first
from common.verdicts import Verdict, count_of
from trainers.logs.record import STEPS_LOGGED

GENERATION_S = "generation_s"
EFFICIENCY = "efficiency"
EQUAL_FLOOR_S = "equal_floor_s"
FLOOR_BASIS = "floor_basis"
BY_LENGTHS, BY_SCALARS, BY_LONGEST = "lengths", "scalars", "longest"
# The tables have the numbers of more arms and factor combinations.
MOST_LINES = 8
BASIS_TEXTS = {
    BY_LENGTHS: "from the length of each response",
    BY_SCALARS: "from the logged mean and longest length alone",
    BY_LONGEST: "from the longest response alone, since their number or mean is unknown",
}


def with_floors(wide: pd.DataFrame, runs: Sequence[Run], baseline: str = "") -> tuple[pd.DataFrame, list[Verdict]]:
    """`wide` (analysis/wide.py) with the seconds of generation and their lower bound, and the findings about it.

    `generation_s`: own seconds of the phases of category generation, NaN where none is timed. `efficiency`: the decode
    floor (analysis/roofline/decode.py) divided by these. It is NaN where a fact is unknown, and in all steps of an arm
    with a floor above the time: one of its facts is wrong then. `floor_basis` is the data of the floor: `lengths` of
    all responses, `scalars` (their number, mean and longest), `longest` alone, or "". `equal_floor_s`: the floor of the
    same responses on the hardware of the arm `baseline` at the same factors, where the step has its own floor.
    """
    found = floors_of(wide, runs)
    known = found.known & ~found.refused
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        share = found.floor_s / found.generation_s
    columns = {GENERATION_S: found.generation_s, EFFICIENCY: np.where(known, share, np.nan)}
    equal = equal_floor_s(wide, found, baseline)
    columns[EQUAL_FLOOR_S] = np.where(known & np.isfinite(equal), equal, np.nan)
    by_scalars = np.where(np.isfinite(found.work.total), BY_SCALARS, BY_LONGEST)
    basis = np.where(known, np.where(found.from_lengths, BY_LENGTHS, by_scalars), "")
    # A trainer may log scalars with these names.
    kept = wide.drop(columns=[c for c in (*columns, FLOOR_BASIS) if c in wide])
    return kept.assign(**columns, **{FLOOR_BASIS: basis}), list(_verdicts(wide, runs, found))


def _verdicts(wide: pd.DataFrame, runs: Sequence[Run], found: Floors) -> Iterator[Verdict]:
    """Reports arms and steps without a decode floor, the floors' assumptions, and contradictory facts."""
    yield from _setup_verdicts(found.setups, runs)
    counted = wide["counted"].to_numpy(bool)
    for key, rows in wide.groupby(["factors", "arm"], sort=False).indices.items():
        factors, arm = cast(tuple[str, str], key)
        places = np.asarray(rows, dtype=np.intp)
        if counted[places].any():
            yield from _arm_verdicts(found, wide, places[counted[places]], arm + at(factors))


def _arm_verdicts(found: Floors, wide: pd.DataFrame, rows: Rows, name: str) -> Iterator[Verdict]:
    """For one arm at one combination of factors; `rows` are its counted rows."""
    if found.refused[rows].any():
        over = rows[found.exceeds[rows]]
        worst = over[np.argmax(found.floor_s[over] / found.generation_s[over])]
        where = f"run {wide['run_id'].iloc[worst]}, step {wide['step'].iloc[worst]}"
        text = (
            f"{name}: in {len(over)} of {len(rows)} counted steps the decode floor is above the time of generation "
            f"({where}: {found.floor_s[worst]:.2f} s against {found.generation_s[worst]:.2f} s). That is "
            "impossible: its GPU, model, tensor parallel size or number of responses is wrong, and the arm has no "
            "floor here"
        )
        yield Verdict("error", "floor-exceeds-time", text)
    without = found.has_roof[rows] & ~found.known[rows]
    impossible = without & found.impossible[rows]
    if impossible.any():
        steps = [str(step) for step in wide["step"].iloc[rows[impossible]]]
        text = (
            f"{name}: no floor for step {join_first(steps)}: the logged response lengths are impossible (a mean above "
            "the longest, or less than a token)"
        )
        yield Verdict("error", "impossible-lengths", text)
    without &= ~impossible
    if thrown_away := int((without & found.discarded[rows]).sum()):
        text = (
            f"{name}: no decode floor in {thrown_away} of {len(rows)} counted steps: completions were thrown away, and "
            "the logged lengths are of the rest"
        )
        yield Verdict("note", "no-lengths-for-floor", text)
    without &= ~found.discarded[rows]
    if missing := int(without.sum()):
        timed = np.isfinite(found.generation_s[rows][without]).all()
        what = "neither each response's length nor the longest is logged" if timed else "generation is not timed"
        text = f"{name}: no decode floor in {missing} of {len(rows)} counted steps: {what}"
        yield Verdict("note", "no-lengths-for-floor", text)
    by_scalars = found.known[rows] & ~found.from_lengths[rows] & np.isfinite(found.declared[rows])
    other = rows[by_scalars & (found.declared[rows] != found.completions[rows])]
    if len(other):
        text = (
            f"{name}: the token counts give {found.completions[other[0]]:.0f} responses a step, the settings "
            f"{found.declared[other[0]]:.0f}; the floor uses the token counts"
        )
        yield Verdict("warning", "completions-differ", text)


def _setup_verdicts(setups: Mapping[str, DecodeSetup], runs: Sequence[Run]) -> Iterator[Verdict]:
    missing: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        setup = setups[run.run_id]
        if setup.contradicted:
            text = (
                f"run {run.run_id}: {'; '.join(setup.contradicted)}. The floor, the cost and what may be compared "
                f"depend on such facts: correct arms.{run.arm}.import, or leave them out there"
            )
            yield Verdict("error", "declared-contradicts-run", text)
        if setup.unknown:
            missing.setdefault(setup.unknown, []).append(run.arm)
    for unknown, arms in missing.items():
        text = f"no decode floor for {', '.join(dict.fromkeys(arms))}: not known is {'; nor '.join(unknown)}"
        yield Verdict("note", "no-floor", text)


def floor_lines(wide: pd.DataFrame, runs: Sequence[Run]) -> list[str]:
    """Each arm's efficiency, and what its decode floor assumes, once for all arms that share it."""
    counted = counted_rows(wide, "run_id", "factors", "arm", STEPS_LOGGED, GENERATION_S, EFFICIENCY, FLOOR_BASIS)
    floored = counted[counted[EFFICIENCY].notna()] if EFFICIENCY in counted else counted[:0]
    if floored.empty:
        return []
    setups = {run.run_id: setup_of(run) for run in runs}
    responses = pd.Series(responses_of(wide, setups)[0], index=wide.index)
    shares, assumptions = [], defaultdict[str, list[str]](list)
    for (factors, arm), rows in floored.groupby(["factors", "arm"], sort=False):
        name, setup = f"{arm}{at(str(factors))}", setups[str(rows["run_id"].iloc[0])]
        seconds = rows[GENERATION_S] * steps_per_row(rows)
        shares.append(f"{name} {100 * (rows[EFFICIENCY] * seconds).sum() / seconds.sum():.1f} %")
        parts = [*_setup_texts(setup), _responses_text(rows, responses[rows.index]), *setup.assumed]
        assumptions["; ".join(parts)].append(name)
    assumed = [
        f"The decode floor of {join_first(names, MOST_LINES)} assumes: {text}; dense attention to the whole sequence "
        "in every layer; no speculative decoding, so each iteration generates one token of every running sequence."
        for text, names in list(assumptions.items())[:MOST_LINES]
    ]
    return [f"Efficiency (decode floor / seconds of generation): {join_first(shares, MOST_LINES)}.", *assumed]


def _setup_texts(setup: DecodeSetup) -> list[str]:
    gpu, facts = gpu_of(setup.gpu), setup.facts
    if gpu is None or facts is None or not setup.number_bytes or not facts.decode_parameters:
        return []
    by_sheet = (
        f"{setup.gpus} × {setup.gpu}, by the data sheet {gpu.bandwidth_tb_s:g} TB/s and "
        f"{gpu.bf16_tflops:g} TFLOP/s (bf16, dense) each"
    )
    return [
        by_sheet if math.isfinite(gpu.bf16_tflops) else f"a {setup.gpu}, no bound by arithmetic",
        f"tensor parallel size {setup.tensor_parallel}, so {count_of(setup.replicas or 0, 'replica')}",
        f"{setup.model} at {count_of(setup.number_bytes, 'byte')} a weight: each iteration of a replica reads the "
        f"{facts.decode_parameters / 1e9:.2f} billion weights of a token "
        f"({facts.decode_parameters * setup.number_bytes / 1e9:.2f} GB) once, and "
        f"{facts.kv_numbers * setup.number_bytes:,} bytes of keys and values for every position before each token",
    ]


def _responses_text(rows: pd.DataFrame, responses: pd.Series) -> str:
    """The number of responses, and the source of their lengths."""
    bases = [BASIS_TEXTS[str(basis)] for basis in rows[FLOOR_BASIS].unique()]
    known = responses[np.isfinite(responses)]
    count = f"{known.mean():,.6g} responses a step" if len(known) else "the responses of a step"
    if known.nunique() > 1:
        count = f"on average {count}"
    return f"{count}, {', in other steps '.join(bases)}"
