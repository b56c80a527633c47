"""Computes the least time in which a step's responses can be decoded: a bound by memory and by arithmetic.

Decoding writes one token of every running sequence in each iteration, and each iteration reads all weights once and the
keys and values of every position before the token. The formulas, what they take for granted and where they stand are
in docs/roofline.md. Everything here is an array over steps, and a true lower bound under those terms.
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
    """What bounds one replica of the engine: `tensor_parallel` GPUs that hold the model once, of `replicas` alike.

    `concurrency` is the most sequences that a replica decodes at once (inf where no cap is known), `group` the
    completions of one prompt (inf where unknown). Each may be an array: one roof for every step.
    """

    weight_read_s: Number
    """Seconds in which all weights are read once."""
    position_read_s: Number
    """Seconds in which one position's keys and values are read."""
    token_compute_s: Number
    """Seconds of the matrices' arithmetic for one token."""
    position_compute_s: Number
    """Seconds of one token's attention to one position."""
    replicas: Number
    concurrency: Number = math.inf
    group: Number = math.inf


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

    Keys and values are divided among a replica's GPUs by heads, each of which has one at the least: where there are
    more GPUs than such heads, copies are read. `ValueError` for a model whose matrices are not counted.
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
    """What steps had to decode; arrays over steps, NaN where that is not known.

    A response of L tokens takes ℓ = L - 1 iterations, since its first token comes of reading the prompt. In its j-th
    iteration it reads `prompt` + j positions, ℓ(ℓ+1)/2 of its own in all.
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
    """The work of `len(prompt)` steps, where response i of `lengths` tokens belongs to step `step[i]`.

    Steps without responses, or with one that is no number of tokens, are NaN.
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

    The squares of the lengths sum to the least where all but the longest are equal:
    Σℓ² >= ℓmax² + (Σℓ - ℓmax)² / (N - 1). Where N or the mean is NaN, only the longest counts. Numbers that cannot be
    (a mean above the longest) give NaN.
    """
    longest = maximum - 1
    total = completions * (mean - 1)
    others = np.maximum(completions - 1, 1)
    squares = longest**2 + (total - longest) ** 2 / others
    alone = np.isnan(total)
    own = np.where(alone, longest * (longest + 1) / 2, (squares + total) / 2)
    possible = (longest >= 0) & np.isfinite(longest)
    # A mean is printed with few digits: a thousandth of a token is none.
    possible &= alone | ((mean <= maximum + 1e-3) & (mean >= 1) & (total >= longest - 1e-3 * completions))
    return _where(possible, longest, total, own, prompt)


def _where(known: npt.NDArray[np.bool_], longest: Array, total: Array, own: Array, prompt: Array) -> Work:
    unknown = np.nan
    return Work(
        np.where(known, longest, unknown), np.where(known, total, unknown), np.where(known, own, unknown), prompt
    )


@dataclass(frozen=True, slots=True)
class Floor:
    """Least seconds of decoding; arrays over steps, NaN where the work is unknown.

    `weight_s` and `kv_s` are the reads of the case that binds, `compute_s` its arithmetic, at the same time as the
    reads: `floor_s` is the greater of their sum and it.
    """

    floor_s: Array
    weight_s: Array
    kv_s: Array
    compute_s: Array


def decode_floor_s(roof: Roof, work: Work) -> Floor:
    """The least decode seconds of each step, whichever replica had which responses.

    The slowest replica takes no less than the longest response alone, and no less than the replicas' mean, which is
    that of an even split. Both are worked out, and the greater binds.
    """
    longest_positions = work.prompt * work.longest + work.longest * (work.longest + 1) / 2
    alone = _case(roof, work.longest, work.longest, longest_positions, longest_positions)
    # A sum that was made from a mean is off in its last digits, which is no iteration more.
    iterations = np.fmax(work.longest, np.ceil(np.round(work.total / roof.concurrency, 6)))
    # A group's sequences may read their prompt together, if they run at once: its keys are counted once a group.
    read = work.own_positions + work.prompt * work.total / roof.group
    attended = work.own_positions + work.prompt * work.total
    even = _case(roof, *(values / roof.replicas for values in (iterations, work.total, read, attended)))
    binds = even.floor_s > alone.floor_s
    return Floor(
        *(
            np.where(binds, getattr(even, name), getattr(alone, name))
            for name in ("floor_s", "weight_s", "kv_s", "compute_s")
        )
    )


def _case(roof: Roof, iterations: Array, tokens: Array, read: Array, attended: Array) -> Floor:
    weight_s, kv_s = iterations * roof.weight_read_s, read * roof.position_read_s
    compute_s = tokens * roof.token_compute_s + attended * roof.position_compute_s
    return Floor(np.maximum(weight_s + kv_s, compute_s), weight_s, kv_s, compute_s)
