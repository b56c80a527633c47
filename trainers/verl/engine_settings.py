"""Reads what a case sets for its engine; the releases' effects are written with these functions and words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.gpus import gpu_of
from trainers.cases import Case, Describe
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
ANY_GPU = math.inf


def rollout(case: Case, name: str) -> object:
    """A setting of `actor_rollout_ref.rollout`."""
    return case.settings.get(f"{ROLLOUT}.{name}")


def engine_option(case: Case, name: str) -> object:
    """One of the engine's own options (`engine_kwargs`)."""
    return case.settings.get(f"{ROLLOUT}.engine_kwargs.{case.engine.name}.{name}")


def switch(value: object, no: str = "off", yes: str = "on") -> str | None:
    """A switch in words; None if it is not set."""
    return None if not isinstance(value, bool) else yes if value else no


def graphs(case: Case) -> str | None:
    """CUDA graphs by verl's own setting."""
    return switch(rollout(case, "enforce_eager"), "on", "off")


def attention_name(backend: str) -> str:
    """The kernels of an attention backend."""
    plain = backend.lower().replace("_", "").replace("-", "")
    if plain.startswith("flashinfer"):
        return "flashinfer"
    return "FlashAttention" if plain.startswith(("flashattn", "fa3", "fa2", "flashattention")) else backend


def all_reduce(case: Case) -> str:
    """The engine's own all-reduce; both engines turn it off if an engine spans nodes."""
    return "off" if case.tensor_parallel > case.settings.int("trainer.n_gpus_per_node", case.tensor_parallel) else "on"


def share(of: str, option: str = "", tokens_each: int = 1) -> Describe:
    """Describes the cache: a share of some memory, or a number of tokens by one of the engine's own options."""

    def describe(case: Case) -> str | None:
        given = engine_option(case, option) if option else None
        if isinstance(given, int):
            return f"a cache of {given * tokens_each} tokens"
        part = rollout(case, "gpu_memory_utilization")
        return None if part is None else f"{part} of {of}"

    return describe


def by_memory(case: Case, steps: Sequence[tuple[float, int]]) -> str | None:
    """What an engine chooses by the GPU's memory: the number of the first step (below so many GiB) that fits it."""
    gpu = gpu_of(case.workload.get("gpu"))
    return None if gpu is None else str(next(number for below, number in steps if gpu.memory_gib < below))


def limit(option: str, setting: str) -> Describe:
    """Describes a limit: the engine's own option, else verl's setting; None if an incomplete configuration has none."""

    def describe(case: Case) -> str | None:
        given = engine_option(case, option) or rollout(case, setting)
        return str(given) if given else None

    return describe


prefill_limit = limit("max_num_batched_tokens", "max_num_batched_tokens")
"""vLLM's limit of tokens in one pass."""


def end_token(case: Case) -> str | None:
    """What the engine does at the end token, where verl passes ignore_eos on."""
    return switch(rollout(case, "ignore_eos"), STOPS, GOES_ON)


def with_adapter(case: Case) -> bool:
    """Whether the engine serves an adapter beside the base model's weights."""
    return bool(case.lora) and not case.settings.true(f"{MODEL}.lora.merge")
