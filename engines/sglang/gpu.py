"""SGLang on a GPU: the released offline engine, to which weights are handed over as tensors. Not run on one yet."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from engines.sglang.colocate import EngineEnded, Sglang, require_taken, take_back_signals
from node.exit_codes import STOP_SIGNALS
from node.hardware import importing

_BUCKET_BYTES = 512 * 2**20
"""Of the weights, so many are on the GPU a second time while they are handed over."""
_HELD = (
    *("dtype", "random_seed", "attention_backend", "sampling_backend", "mem_fraction_static", "max_total_tokens"),
    *("max_running_requests", "chunked_prefill_size", "disable_radix_cache", "disable_cuda_graph", "tp_size"),
)


class SglangOnGpu(Sglang):
    """`sglang.Engine` in its own processes; `settings` are its arguments.

    It sleeps with `enable_memory_saver`: what it gives back is empty when it wakes, and needs all weights again.
    """

    def __init__(self, model: Path, dtype: str, seed: int, settings: Mapping[str, Any]) -> None:
        with importing():
            from sglang.srt.entrypoints.engine import Engine
            from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

        # By CUDA's own numbering a tensor would arrive on another GPU where the processes see others.
        monkey_patch_torch_reductions()
        self.sleeps = bool(settings.get("enable_memory_saver"))
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        # Prompts and completions are tokens: no text is made of them.
        words = {"model_path": str(model), "dtype": dtype, "random_seed": seed, "skip_tokenizer_init": True}
        self._engine = Engine(**words, log_level="error", **settings)
        # The first request takes over SIGTERM, with which a job is stopped.
        self.tokens([[0]], [{"max_new_tokens": 1}])
        take_back_signals(self._engine.loop)
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGQUIT, self._on_child_ended)

    def update_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Give the engine these weights in buckets; what it has cached of the old ones is dropped with the last."""
        # From 0.5.23 on an update has a begin and an end.
        begin, end = (getattr(self._engine, f"{word}_weight_update", _nothing) for word in ("begin", "end"))
        require_taken(begin())
        waiting: list[tuple[str, Any]] | None = None
        for bucket in buckets(named):
            if waiting is not None:
                self._hand_over(waiting, last=False)
            waiting = bucket
        if waiting is not None:
            self._hand_over(waiting, last=True)
        require_taken(end())

    def _hand_over(self, bucket: list[tuple[str, Any]], *, last: bool) -> None:
        on_gpu = [(name, tensor.detach().to("cuda")) for name, tensor in bucket]
        require_taken(self._engine.update_weights_from_tensor(on_gpu, flush_cache=last))

    def _on_child_ended(self, number: int, frame: FrameType | None) -> None:
        """SIGQUIT: SGLang sends it where one of its processes has failed."""
        self._lost = EngineEnded("one of SGLang's processes ended in the middle of the run; what it said is above")
        if not self._engine.loop.is_running():
            raise self._lost
        self._engine.loop.stop()

    def settings(self) -> dict[str, Any]:
        """What the engine finally holds, for done.json."""
        held = self._engine.server_args
        found = {name: getattr(held, name) for name in _HELD if hasattr(held, name)}
        return {"name": "sglang", "device": "cuda", **found, "tensor_parallel_size": held.tp_size}

    def sleep(self) -> None:
        self._engine.release_memory_occupation()

    def wake(self) -> None:
        self._engine.resume_memory_occupation()

    def close(self) -> None:
        self._engine.shutdown()


def _nothing() -> None:
    """What a release does that has no such call."""


def buckets(named: Iterable[tuple[str, Any]], most_bytes: int = _BUCKET_BYTES) -> Iterator[list[tuple[str, Any]]]:
    """The tensors in their order, in groups of at most so many bytes; a larger one is a group of its own."""
    group: list[tuple[str, Any]] = []
    size = 0
    for name, tensor in named:
        more = tensor.numel() * tensor.element_size()
        if group and size + more > most_bytes:
            yield group
            group, size = [], 0
        group.append((name, tensor))
        size += more
    if group:
        yield group
