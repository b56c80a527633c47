"""Reads what a case gives its engine: the words that the releases' behaviours are told in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from common.gpus import gpu_of
from trainers.cases import Case
from trainers.rows import Describe
from trainers.verl.driver.overrides import MODEL, ROLLOUT

# SGLang's own way to a fixed length; read in its code, not tried on a GPU.
PREFERRED = f"+{ROLLOUT}.engine_kwargs.sglang.preferred_sampling_params: {{ignore_eos: true}}"
SAME_KERNEL = (
    f"+{ROLLOUT}.engine_kwargs.<engine>.attention_backend: the same kernel in all arms (FLASHINFER and flashinfer)"
)
STOPS = "stops at the end token"
GOES_ON = "goes on to the full length"
DROPPED = "weights and cache dropped"
COPIED = "cache dropped, weights copied to the CPU and back"
WEIGHTS_STAY = "cache dropped, weights stay"


def always(text: str) -> Callable[[Any], str]:
    """The same words of every case."""
    return lambda case: text


def rollout(case: Case, name: str) -> object:
    """A setting of the rollout."""
    return case.settings.get(f"{ROLLOUT}.{name}")


def engine_kwarg(case: Case, name: str) -> object:
    """An option of the engine's own."""
    return case.settings.get(f"{ROLLOUT}.engine_kwargs.{case.engine.name}.{name}")


def first_told(*values: object) -> str | None:
    """The first of some numbers that is there; None where none is, as in a configuration that is not whole."""
    return next((str(value) for value in values if value), None)


def switch(value: object, no: str = "off", yes: str = "on") -> str | None:
    """A switch in words; None where it is not there."""
    return None if not isinstance(value, bool) else yes if value else no


def graphs(case: Case) -> str | None:
    """CUDA graphs by verl's own setting."""
    return switch(rollout(case, "enforce_eager"), "on", "off")


def attention_name(backend: str) -> str:
    """An attention backend by the name of its kernels."""
    plain = backend.lower().replace("_", "").replace("-", "")
    if plain.startswith("flashinfer"):
        return "flashinfer"
    return "FlashAttention" if plain.startswith(("flashattn", "fa3", "fa2", "flashattention")) else backend


def spans_nodes(case: Case) -> bool:
    """Whether an engine spans nodes; both engines leave their own all-reduce out then."""
    return case.tensor_parallel > case.settings.int("trainer.n_gpus_per_node", case.tensor_parallel)


def share(of: str, option: str = "", tokens_each: int = 1) -> Describe:
    """The memory for keys and values: a share of something, or a number of tokens by an option of the engine's own."""

    def describe(case: Case) -> str | None:
        given = engine_kwarg(case, option) if option else None
        if isinstance(given, int):
            return f"a cache of {given * tokens_each} tokens"
        part = rollout(case, "gpu_memory_utilization")
        return None if part is None else f"{part} of {of}"

    return describe


def by_memory(case: Case, steps: Sequence[tuple[float, int]]) -> str | None:
    """What an engine chooses by the GPU's memory: the number of the first step (below so many GiB) that holds it."""
    gpu = gpu_of(case.workload.get("gpu"))
    return None if gpu is None else str(next(number for below, number in steps if gpu.memory_gib < below))


ANY_GPU = math.inf


def prefill_limit(case: Case) -> str | None:
    """vLLM's limit of a pass."""
    return first_told(engine_kwarg(case, "max_num_batched_tokens"), rollout(case, "max_num_batched_tokens"))


def end_token(case: Case) -> str | None:
    """What comes after the end token, where verl passes ignore_eos on."""
    return switch(rollout(case, "ignore_eos"), STOPS, GOES_ON)


def with_adapter(case: Case) -> bool:
    """Whether the engine serves an adapter beside the base model's weights."""
    return bool(case.lora) and not case.settings.true(f"{MODEL}.lora.merge")
