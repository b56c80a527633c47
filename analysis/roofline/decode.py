"""Computes the least time in which a step's responses can be decoded, from the bytes that must be read.

Each iteration of decoding writes one token of every running sequence, and reads all weights once and the keys and
values of every token before them. docs/roofline.md has the formula and its assumptions.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.roofline.setup import DecodeSetup
from common.gpus import gpu_of

Array = npt.NDArray[np.float64]
ROOF = ["weight_read_s", "position_read_s", "replicas", "concurrency", "group"]
"""What bounds decoding: the seconds in which one replica (the GPUs that hold the model once) reads all weights, and one
position's keys and values; the replicas; the most sequences that each decodes at once, and the responses of a prompt,
which may share its keys (inf where unknown)."""


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
