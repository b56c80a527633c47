"""Corrects the vLLM that ms-swift builds inside the trainer, so that all engines have equal conditions.

Source: ms-swift 4.6.0 infer_engine/vllm_engine.py and rlhf_trainers/rollout_mixin.py.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engines.vllm.cpu import is_cpu_platform, keep_threads, reload_weights
from engines.vllm.settings import engine_settings
from node.hardware import importing
from node.hf_training import number_format
from node.seeds import engine_seed
from trainers.swift import hooks


def is_colocated(arguments: Any) -> bool:
    """Whether vLLM runs in the training process."""
    return bool(arguments.use_vllm) and arguments.vllm_mode == "colocate"


@contextmanager
def corrected(arguments: Any, seed: int, resumed_from: int, threads: int) -> Iterator[None]:
    """The context in which the trainer is built; without a colocated vLLM it does nothing."""
    if not is_colocated(arguments):
        yield
        return
    _pass_seed_and_dtype(seed, resumed_from, number_format(arguments.bf16, arguments.fp16))
    if not is_cpu_platform():
        yield
        return
    _sync_through_reload()
    _copy_adapters()
    with keep_threads(threads):
        yield


def settings(trainer: Any) -> dict[str, Any]:
    """The engine's final settings, for done.json; `UserError` if its number format is not the workload's."""
    final = engine_settings(hooks.VLLM_ENGINE.get(trainer.engine), number_format(trainer.args.bf16, trainer.args.fp16))
    return final | {"adapter_only_sync": bool(hooks.ADAPTER_ONLY.get(trainer))}


def vary_seeds(trainer: Any, seed: int) -> None:
    """Make the request seeds of a tensor parallel engine depend on the run's seed and on the generation.

    An engine's processes must draw the same numbers, so swift seeds each request by its place in the batch
    (rollout_mixin.py, `_get_request_config`): all steps and all runs would have the same random numbers. The added
    number is the same in all processes.
    """
    calls = itertools.count()

    def request_config(original: Callable[[], Any]) -> Any:
        config = original()
        if config.seed is not None:
            config.seed += random.Random(f"{seed} {trainer.state.global_step} {next(calls)}").getrandbits(48)
        return config

    hooks.REQUEST.wrap(request_config, trainer)


def _pass_seed_and_dtype(seed: int, resumed_from: int, dtype: str) -> None:
    """Make ms-swift build its vLLM with the run's seed and the workload's number format.

    swift's seed is `rank // tensor_parallel_size`, the engine's process. swift's dtype is that of the optimizer's
    weights (float32), although passes may be in bfloat16. swift disables vLLM's own all-reduce, which TRL leaves on.
    """

    def change(engine_args: Any) -> None:
        engine_args.seed = engine_seed(seed, resumed_from, int(engine_args.seed or 0))
        engine_args.dtype = dtype
        engine_args.disable_custom_all_reduce = False

    change_engine_args(change)


def change_engine_args(change: Callable[[Any], None]) -> None:
    """Change the engine arguments that ms-swift prepares for its vLLM."""

    def prepare(original: Callable[..., None], engine: Any, *args: Any, **kwargs: Any) -> None:
        original(engine, *args, **kwargs)
        change(hooks.ENGINE_ARGUMENTS.get(engine))

    with importing():
        hooks.PREPARE_ENGINE.wrap(prepare, hooks.GRPO_ENGINE.get())


def _sync_through_reload() -> None:
    """Make ms-swift's weight sync use vLLM's own `reload_weights`, as for TRL on a CPU (engines/vllm/cpu.py).

    It packs the weights for the CPU's kernels, so swift's own last step must not pack them again. If only an adapter is
    sent, vLLM keeps the base's weights that it loaded from the model's folder.
    """

    def load(trainer: Any, weights: Mapping[str, Any]) -> None:
        if not hooks.ADAPTER_ONLY.get(trainer):
            detached = ((name, weight.detach()) for name, weight in weights.items())
            reload_weights(hooks.VLLM_ENGINE.get(trainer.engine), detached)

    with importing():
        hooks.LOAD.replace(load)
    hooks.FINISH_LOADING.replace(lambda *args, **kwargs: None)


def _copy_adapters() -> None:
    """Make ms-swift send vLLM a copy of an adapter instead of the trainer's own tensors.

    vLLM 0.31 moves them to the CPU (no copy here) and multiplies B by alpha / rank in place
    (vllm/lora/lora_weights.py, `optimize`): each sync would change the policy itself.
    """
    original = hooks.ADAPTER_REQUEST.get()

    def request(lora_tensors: Mapping[str, Any], **others: Any) -> Any:
        return original(lora_tensors={name: one.clone() for name, one in lora_tensors.items()}, **others)

    hooks.ADAPTER_REQUEST.replace(request)
