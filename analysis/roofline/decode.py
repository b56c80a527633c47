"""Computes the least time in which a step's responses can be decoded: a bound by memory and by arithmetic.

Each iteration of decoding writes one token of every running sequence, and reads all weights once and the keys and
values of every position before the token. docs/roofline.md has the formulas, their assumptions and their sources.
Everything here is an array over steps, and a true lower bound under these assumptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.gpus import Gpu
from common.model_facts import ModelFacts

Array = npt.NDArray[np.float64]
Number = float | Array


@dataclass(frozen=True, slots=True)
class Roof:
    """What bounds one replica of the engine, the `tensor_parallel` GPUs that hold one copy of the model.

    Each field may be an array, with one roof for every step.
    """

    weight_read_s: Number
    """Seconds to read all weights once."""
    position_read_s: Number
    """Seconds to read one position's keys and values."""
    token_compute_s: Number
    """Seconds of the matrices' arithmetic for one token."""
    position_compute_s: Number
    """Seconds of one token's attention to one position."""
    replicas: Number
    concurrency: Number = math.inf
    """The most sequences that a replica decodes at once; inf without a known limit."""
    group: Number = math.inf
    """The completions of one prompt; inf where unknown."""


def roof_of(
    gpu: Gpu,
    model: ModelFacts,
    number_bytes: float,
    *,
    tensor_parallel: int,
    replicas: int,
    concurrency: float = math.inf,
    group: float = math.inf,
) -> Roof:
    """The roof of a dense decoder with full attention, `number_bytes` for each parameter and cached number.

    A replica's GPUs share keys and values by heads, at least one each: with more GPUs than heads, copies are read.
    `ValueError` for a model whose matrices are not counted.
    """
    if model.decode_parameters is None:
        raise ValueError(f"the matrices of a {model.architecture} are not counted")
    bandwidth, peak = gpu.bandwidth_tb_s * 1e12, gpu.bf16_tflops * 1e12
    return Roof(
        weight_read_s=model.decode_parameters * number_bytes / tensor_parallel / bandwidth,
        position_read_s=model.kv_numbers * number_bytes / min(tensor_parallel, model.kv_heads) / bandwidth,
        token_compute_s=2 * model.decode_parameters / (tensor_parallel * peak),
        position_compute_s=4 * model.layers * model.heads * model.head_dim / (tensor_parallel * peak),
        replicas=replicas,
        concurrency=concurrency,
        group=group,
    )


@dataclass(frozen=True, slots=True)
class Work:
    """What steps had to decode; arrays over steps, NaN where unknown.

    A response of L tokens takes ℓ = L - 1 iterations, because the prompt's forward pass gives its first token. Its j-th
    iteration reads `prompt` + j positions, so ℓ(ℓ+1)/2 of its own in total.
    """

    longest: Array
    """ℓ of the longest response."""
    total: Array
    """Σℓ; NaN where only the longest is known."""
    own_positions: Array
    """Σ ℓ(ℓ+1)/2, or less."""
    prompt: Array
    """Tokens that every prompt has at the least."""


def work_from_lengths(step: npt.NDArray[np.intp], lengths: Array, prompt: Array) -> Work:
    """The work of `len(prompt)` steps; response i has `lengths[i]` tokens and belongs to step `step[i]`.

    Steps without responses, or with an impossible length, are NaN.
    """
    steps = len(prompt)
    good = np.isfinite(lengths) & (lengths >= 1)
    bad = np.bincount(step[~good], minlength=steps) > 0
    iterations = np.where(good, lengths - 1, 0.0)
    longest = np.full(steps, -np.inf)
    np.maximum.at(longest, step, iterations)
    known = np.isfinite(longest) & ~bad
    total = np.bincount(step, iterations, steps).astype(np.float64)
    own = np.bincount(step, iterations * (iterations + 1) / 2, steps).astype(np.float64)
    return _where(known, longest, total, own, prompt)


def work_from_scalars(completions: Array, mean: Array, maximum: Array, prompt: Array) -> Work:
    """The least work of steps of which only the number of responses, their mean and their longest are known.

    The sum of the squared lengths is least where all but the longest are equal:
    Σℓ² >= ℓmax² + (Σℓ - ℓmax)² / (N - 1). Where N or the mean is NaN, only the longest counts. Impossible numbers (a
    mean above the longest) give NaN.
    """
    longest = maximum - 1
    total = completions * (mean - 1)
    others = np.maximum(completions - 1, 1)
    squares = longest**2 + (total - longest) ** 2 / others
    alone = np.isnan(total)
    own = np.where(alone, longest * (longest + 1) / 2, (squares + total) / 2)
    possible = (longest >= 0) & np.isfinite(longest)
    # A mean is printed with few digits, so a thousandth of a token is allowed.
    possible &= alone | ((mean <= maximum + 1e-3) & (mean >= 1) & (total >= longest - 1e-3 * completions))
    return _where(possible, longest, total, own, prompt)


def _where(known: npt.NDArray[np.bool_], longest: Array, total: Array, own: Array, prompt: Array) -> Work:
    longest, total, own = (np.where(known, values, np.nan) for values in (longest, total, own))
    return Work(longest, total, own, prompt)


def decode_floor_s(roof: Roof, work: Work) -> Array:
    """The least decode seconds of each step, for any distribution of the responses over the replicas.

    The slowest replica needs at least the time of the longest response alone, and at least that of an even split. The
    greater of the two is the floor; NaN where the work is unknown.
    """
    longest_positions = work.prompt * work.longest + work.longest * (work.longest + 1) / 2
    alone = _floor_s(roof, work.longest, work.longest, longest_positions, longest_positions)
    # Rounded, because a sum from a mean is off in its last digits, which must not add an iteration.
    iterations = np.fmax(work.longest, np.ceil(np.round(work.total / roof.concurrency, 6)))
    # A group's sequences that run at once may read their prompt together, so its keys are counted once a group.
    read = work.own_positions + work.prompt * work.total / roof.group
    attended = work.own_positions + work.prompt * work.total
    even = _floor_s(roof, *(values / roof.replicas for values in (iterations, work.total, read, attended)))
    return np.where(even > alone, even, alone)


def _floor_s(roof: Roof, iterations: Array, tokens: Array, read: Array, attended: Array) -> Array:
    """Reads and arithmetic overlap: the floor is the greater of the two."""
    reads_s = iterations * roof.weight_read_s + read * roof.position_read_s
    compute_s = tokens * roof.token_compute_s + attended * roof.position_compute_s
    return np.asarray(np.maximum(reads_s, compute_s), dtype=np.float64)
