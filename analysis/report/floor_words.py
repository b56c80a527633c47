"""Says in words on what each arm's decode floor rests, and how large it is."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.report.cells import fixed
from analysis.report.content import Content
from analysis.roofline.floors import floors_of
from analysis.roofline.setup import DecodeSetup
from analysis.roofline.work import (
    COMPUTE_S,
    FLOOR_BASIS,
    FLOOR_S,
    GENERATION_S,
    KV_S,
    LENGTHS,
    LONGEST,
    SCALARS,
    WEIGHT_S,
)
from analysis.runs import at
from common.gpus import gpu_of
from common.verdicts import count_of

# Of more arms and factor combinations the tables have the numbers.
MOST_LINES = 8
# Verdicts that say why an arm has no floor.
WITHOUT = ("no-floor", "no-lengths-for-floor", "floor-exceeds-time")


def floor_lines(content: Content) -> list[str]:
    """What the floors assume, once for all arms of which it is the same; each arm's sum; and why an arm has none."""
    wide = content.tables["steps"]
    if FLOOR_S not in wide or not (wide["counted"].astype(bool) & wide[FLOOR_S].notna()).any():
        return []
    found = floors_of(wide, content.runs)
    floored = wide["counted"].astype(bool) & wide[FLOOR_S].notna()
    responses = pd.Series(found.completions, index=wide.index)
    assumed: dict[str, list[str]] = {}
    sums = []
    for (factors, arm), rows in wide[floored].groupby(["factors", "arm"], sort=False):
        name = f"{arm}{at(str(factors))}"
        setup = found.setups[str(rows["run_id"].iloc[0])]
        text = "; ".join([*_setup_words(setup), _work_words(rows, responses[rows.index]), *setup.assumed])
        assumed.setdefault(text, []).append(name)
        sums.append(f"{name}: {_sum_words(rows)}")
    lines = [
        f"The decode floor of {', '.join(names[:MOST_LINES])}{', …' * (len(names) > MOST_LINES)} assumes: {text};"
        " dense attention to the whole sequence in every layer; no speculative decoding, so that each iteration writes"
        " one token of every running sequence."
        for text, names in list(assumed.items())[:MOST_LINES]
    ]
    lines += sums[:MOST_LINES]
    if len(sums) > MOST_LINES:
        lines.append(f"And {len(sums) - MOST_LINES} more; tables/stragglers.csv and tables/waterfall.csv have all.")
    return lines + [f"{v.text}." for v in content.verdicts if v.code in WITHOUT][:MOST_LINES]


def _setup_words(setup: DecodeSetup) -> list[str]:
    gpu, facts = gpu_of(setup.gpu), setup.facts
    if gpu is None or facts is None or not setup.number_bytes or not facts.decode_parameters:
        return []
    read = facts.decode_parameters * setup.number_bytes
    by_sheet = (
        f"{setup.gpus} × {setup.gpu}, by the data sheet {gpu.bandwidth_tb_s:g} TB/s and "
        f"{gpu.bf16_tflops:g} TFLOP/s (bf16, dense) each"
    )
    return [
        by_sheet if math.isfinite(gpu.bf16_tflops) else f"a {setup.gpu}, no bound by arithmetic",
        f"tensor parallel size {setup.tensor_parallel}, so {count_of(setup.replicas or 0, 'replica')}",
        f"{setup.model} at {count_of(setup.number_bytes, 'byte')} a weight: each iteration of a replica reads the "
        f"{facts.decode_parameters / 1e9:.2f} billion weights that a token needs ({read / 1e9:.2f} GB) once, and "
        f"{facts.kv_numbers * setup.number_bytes:,} bytes of keys and values for every position before each token",
    ]


def _work_words(rows: pd.DataFrame, responses: pd.Series) -> str:
    """How many responses there are, and how their lengths are known."""
    how = {
        LENGTHS: "from the length of each response",
        SCALARS: "from the logged mean and longest length alone",
        LONGEST: "from the longest response alone, since their number or mean is not known",
    }
    bases = [how[str(basis)] for basis in rows[FLOOR_BASIS].unique()]
    known = responses[np.isfinite(responses)]
    count = f"{known.mean():,.6g} responses a step" if len(known) else "the responses of a step"
    if len(known) and known.nunique() > 1:
        count = f"on average {count}"
    return f"{count}, {', in other steps '.join(bases)}"


def _sum_words(rows: pd.DataFrame) -> str:
    """The mean floor as a sum, beside the mean generation of the same steps."""
    weight_s, kv_s, compute_s, floor_s, generation_s = (
        math.fsum(rows[name].astype(float)) / len(rows) for name in (WEIGHT_S, KV_S, COMPUTE_S, FLOOR_S, GENERATION_S)
    )
    by_arithmetic = int((rows[COMPUTE_S] > rows[WEIGHT_S] + rows[KV_S]).sum())
    if by_arithmetic == 0:
        what = f"weights {fixed(weight_s, 2)} s + keys and values {fixed(kv_s, 2)} s = {fixed(floor_s, 2)} s"
    elif by_arithmetic == len(rows):
        what = f"the arithmetic binds, {fixed(compute_s, 2)} s (weights, keys and values {fixed(weight_s + kv_s, 2)} s)"
    else:
        what = f"{fixed(floor_s, 2)} s (the arithmetic binds in {by_arithmetic} of {count_of(len(rows), 'step')})"
    share = f", {100 * floor_s / generation_s:.1f} %" if generation_s > 0 else ""
    mean = "" if len(rows) == 1 else f" (means of {count_of(len(rows), 'step')})"
    return f"{what} of {fixed(generation_s, 2)} s of generation{share}{mean}."
