"""Mends vLLM on a CPU: how new weights reach it, and how many threads the training keeps."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def is_cpu_platform() -> bool:
    """Whether vLLM runs on a CPU here."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def sync_through_reload() -> None:
    """Make TRL's colocated weight sync go through vLLM's own `reload_weights`.

    vLLM's CPU build packs linear weights for its kernels as it loads them, and the packed parameter has no
    `weight_loader`: TRL 1.16, which calls `model.load_weights` for every parameter, fails there. `reload_weights`
    unpacks, loads and packs again (vllm/v1/worker/gpu_model_runner.py), except for an output layer that is tied to
    the embedding: nothing is loaded under its name, so vLLM 0.31 keeps its old packed copy (with a warning "Failed to
    load weights"), and every token would be drawn with stale logits.
    """
    from trl.generation.vllm_generation import VLLMGeneration

    original = VLLMGeneration.sync_weights

    def sync_weights(generation: Any) -> None:
        if generation.mode != "colocate":
            original(generation)
            return
        reload_weights(generation.llm.llm_engine, generation._iter_named_params())

    VLLMGeneration.sync_weights = sync_weights


def reload_weights(engine: Any, weights: Iterable[tuple[str, Any]]) -> None:
    """Give an `LLMEngine` in this process new weights, by name, on a CPU."""
    # Its warning is about the layer that is mended below, and would come at every step.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
    runner = engine.model_executor.driver_worker.model_runner
    runner.reload_weights(weights_iterator=weights)
    repack_tied_output_layers(runner.get_model())
    # Cached prefixes hold keys and values of the old weights.
    engine.reset_prefix_cache()


def repack_tied_output_layers(model: Any) -> None:
    """Pack an output layer that is tied to the embedding again: nothing is loaded under its own name."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    layers = list(model.modules())
    embeddings = {
        layer.weight.data_ptr()
        for layer in layers
        if isinstance(layer, VocabParallelEmbedding) and not isinstance(layer, ParallelLMHead)
    }
    for layer in layers:
        if isinstance(layer, ParallelLMHead) and layer.weight.data_ptr() in embeddings:
            layer.quant_method.process_weights_after_loading(layer)


@contextmanager
def keep_threads(threads: int) -> Iterator[None]:
    """Training's threads as they were before an engine was built inside the block.

    vLLM's CPU worker replaces `torch.set_num_threads` by a function that does nothing (vllm/v1/worker/cpu_worker.py),
    so that nobody can change the count after it; the real one is put back, and the count set again.
    """
    import torch

    set_num_threads = torch.set_num_threads
    set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        set_num_threads(threads)
