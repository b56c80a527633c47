"""Fixes vLLM on a CPU: weight updates, and the number of training threads."""

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
    """Make TRL's colocated weight sync use vLLM's `reload_weights`.

    vLLM's CPU build packs linear weights while loading, and packed parameters have no `weight_loader`. TRL 1.16 calls
    `model.load_weights` for every parameter and fails. `reload_weights` unpacks, loads and packs again
    (vllm/v1/worker/gpu_model_runner.py), except an output layer that is tied to the embedding: nothing is loaded under
    its name, so vLLM 0.31 keeps the old packed copy (warning "Failed to load weights") and samples from stale logits.
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
    """Load new weights into an `LLMEngine` of this process, on a CPU."""
    # Its warning, at every step, is about the layer that is repacked below.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
    runner = engine.model_executor.driver_worker.model_runner
    runner.reload_weights(weights_iterator=weights)
    repack_tied_output_layers(runner.get_model())
    # Cached prefixes have keys and values of the old weights.
    engine.reset_prefix_cache()


def repack_tied_output_layers(model: Any) -> None:
    """Repack an output layer that is tied to the embedding: nothing is loaded under its name."""
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
