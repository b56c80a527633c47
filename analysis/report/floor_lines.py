"""Writes the sentences under the stragglers table: what each arm's decode floor assumes, and its sum."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pandas as pd

from analysis.factors import at
from analysis.report.cells import fixed
from analysis.report.content import Content
from analysis.roofline.floors import completions_of
from analysis.roofline.setup import DecodeSetup, setup_of
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
from common.gpus import gpu_of
from common.messages import join_first
from common.verdicts import count_of

# The tables have the numbers of more arms and factor combinations.
MOST_LINES = 8
# The verdicts that explain why an arm has no floor.
NO_FLOOR_CODES = ("no-floor", "no-lengths-for-floor", "floor-exceeds-time")
BASIS_TEXTS = {
    LENGTHS: "from the length of each response",
    SCALARS: "from the logged mean and longest length alone",
    LONGEST: "from the longest response alone, since their number or mean is unknown",
}


def floor_lines(content: Content) -> list[str]:
    """The assumptions, once for all arms that share them; each arm's sum; and why an arm has no floor."""
    wide = content.tables["steps"]
    floored = wide["counted"].astype(bool) & wide[FLOOR_S].notna() if FLOOR_S in wide else pd.Series(dtype=bool)
    if not floored.any():
        return []
    setups = {run.run_id: setup_of(run) for run in content.runs}
    responses = pd.Series(completions_of(wide, setups)[0], index=wide.index)
    assumptions: dict[str, list[str]] = defaultdict(list)
    sums = []
    used = ["run_id", "factors", "arm", FLOOR_BASIS, FLOOR_S, WEIGHT_S, KV_S, COMPUTE_S, GENERATION_S]
    for (factors, arm), rows in wide[used][floored].groupby(["factors", "arm"], sort=False):
        name = f"{arm}{at(str(factors))}"
        setup = setups[str(rows["run_id"].iloc[0])]
        parts = [*_setup_texts(setup), _responses_text(rows, responses[rows.index]), *setup.assumed]
        assumptions["; ".join(parts)].append(name)
        sums.append(f"{name}: {_sum_text(rows)}")
    lines = [
        f"The decode floor of {join_first(names, MOST_LINES)} assumes: {text}; dense attention to the whole sequence "
        "in every layer; no speculative decoding, so each iteration generates one token of every running sequence."
        for text, names in list(assumptions.items())[:MOST_LINES]
    ]
    lines += sums[:MOST_LINES]
    if len(sums) > MOST_LINES:
        lines.append(f"And {len(sums) - MOST_LINES} more; tables/stragglers.csv and tables/waterfall.csv have all.")
    return lines + [f"{v.text}." for v in content.verdicts if v.code in NO_FLOOR_CODES][:MOST_LINES]


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


def _sum_text(rows: pd.DataFrame) -> str:
    """The mean floor as a sum, and the mean generation of the same steps."""
    weight_s, kv_s, compute_s, floor_s, generation_s = (
        math.fsum(rows[name].astype(float)) / len(rows) for name in (WEIGHT_S, KV_S, COMPUTE_S, FLOOR_S, GENERATION_S)
    )
    by_arithmetic = int((rows[COMPUTE_S] > rows[WEIGHT_S] + rows[KV_S]).sum())
    if by_arithmetic == 0:
        terms = f"weights {fixed(weight_s, 2)} s + keys and values {fixed(kv_s, 2)} s = {fixed(floor_s, 2)} s"
    elif by_arithmetic == len(rows):
        reads = f"weights, keys and values {fixed(weight_s + kv_s, 2)} s"
        terms = f"arithmetic is the bound, {fixed(compute_s, 2)} s ({reads})"
    else:
        steps = count_of(len(rows), "step")
        terms = f"{fixed(floor_s, 2)} s (arithmetic is the bound in {by_arithmetic} of {steps})"
    share = f", {100 * floor_s / generation_s:.1f} %" if generation_s > 0 else ""
    mean = "" if len(rows) == 1 else f" (means of {count_of(len(rows), 'step')})"
    return f"{terms} of {fixed(generation_s, 2)} s of generation{share}{mean}."
