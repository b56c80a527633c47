"""Fixes vLLM on a CPU: weight updates, and the number of training threads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from engines.vllm import hooks


def is_cpu_platform() -> bool:
    """Whether vLLM runs on a CPU here."""
    return bool(hooks.PLATFORM.get().is_cpu())


def reload_weights(engine: Any, weights: Iterable[tuple[str, Any]]) -> None:
    """Load new weights into an `LLMEngine` of this process, on a CPU.

    vLLM's CPU build packs linear weights while loading. Its own reload unpacks, loads and packs again
    (vllm/v1/worker/gpu_model_runner.py), except an output layer that is tied to the embedding: nothing is loaded under
    its name, so vLLM 0.31 keeps the old packed copy (warning "Failed to load weights") and samples from stale logits.
    """
    _reload(model_runner(engine), weights)
    # Cached prefixes have keys and values of the old weights.
    hooks.RESET_PREFIX_CACHE.get(engine)()


def _reload(runner: Any, weights: Iterable[tuple[str, Any]]) -> None:
    # Its warning, at every step, is about the layer that is repacked below.
    logging.getLogger(hooks.START_RELOAD.module).setLevel(logging.ERROR)
    hooks.RELOAD.get(runner)(weights_iterator=weights)
    repack_tied_output_layers(hooks.MODEL_OF.get(runner)())


class FromFile:
    """An extension of a server's workers, for a CPU without NCCL: `POST /collective_rpc` calls its method."""

    def load_from_file(self, path: str) -> None:
        """Load all weights from a safetensors file."""
        from safetensors.torch import load_file

        _reload(hooks.RUNNER.get(self), load_file(path).items())


def model_runner(engine: Any) -> Any:
    """What has the model of an `LLMEngine` of this process."""
    return hooks.RUNNER.get(hooks.DRIVER_WORKER.get(hooks.EXECUTOR.get(engine)))


def repack_tied_output_layers(model: Any) -> None:
    """Repack an output layer that is tied to the embedding: nothing is loaded under its name."""
    output_layer, embedding = hooks.OUTPUT_LAYER.get(), hooks.EMBEDDING.get()
    layers = list(model.modules())
    embeddings = {
        layer.weight.data_ptr()
        for layer in layers
        if isinstance(layer, embedding) and not isinstance(layer, output_layer)
    }
    for layer in layers:
        if isinstance(layer, output_layer) and layer.weight.data_ptr() in embeddings:
            layer.quant_method.process_weights_after_loading(layer)


@contextmanager
def keep_threads(threads: int) -> Iterator[None]:
    """Restore the training's number of threads after an engine was built inside the block.

    vLLM's CPU worker replaces `torch.set_num_threads` with a function that does nothing (vllm/v1/worker/cpu_worker.py).
    """
    import torch

    set_num_threads = torch.set_num_threads
    set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        set_num_threads(threads)
