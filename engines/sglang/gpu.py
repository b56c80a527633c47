"""SGLang on a GPU for a replay: the released offline engine; weights are handed over as tensors. Not run on one yet."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.exit_codes import STOP_SIGNALS

_BUCKET_BYTES = 512 * 2**20
"""Of the weights, so many are on the GPU a second time while they are handed over."""
_HELD = (
    *("dtype", "random_seed", "attention_backend", "sampling_backend", "mem_fraction_static", "max_total_tokens"),
    *("max_running_requests", "chunked_prefill_size", "disable_radix_cache", "disable_cuda_graph", "tp_size"),
)


class SglangOnGpu:
    """`sglang.Engine` in its own processes; `settings` are its arguments."""

    def __init__(self, model: Path, dtype: str, seed: int, settings: Mapping[str, Any]) -> None:
        from sglang.srt.entrypoints.engine import Engine

        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        # Prompts and completions are tokens: no text is made of them.
        words = {"model_path": str(model), "dtype": dtype, "random_seed": seed, "skip_tokenizer_init": True}
        self._engine = Engine(**words, log_level="error", **settings)
        # The first request takes over SIGTERM, with which a job is stopped.
        self.tokens([[0]], [{"max_new_tokens": 1}])
        self._engine.loop.remove_signal_handler(signal.SIGTERM)
        for number, handler in before.items():
            signal.signal(number, handler)

    def tokens(self, prompts: Sequence[Sequence[int]], sampling: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """One completion for each prompt, each by sampling parameters of its own, as tokens."""
        made = self._engine.generate(
            input_ids=[list(ids) for ids in prompts], sampling_params=[dict(one) for one in sampling]
        )
        return [list(one["output_ids"]) for one in made]

    def update_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Give the engine these weights in buckets; what it has cached of the old ones is dropped with the last."""
        waiting: list[tuple[str, Any]] | None = None
        for bucket in buckets(named):
            if waiting is not None:
                self._hand_over(waiting, last=False)
            waiting = bucket
        if waiting is not None:
            self._hand_over(waiting, last=True)

    def _hand_over(self, bucket: list[tuple[str, Any]], *, last: bool) -> None:
        on_gpu = [(name, tensor.detach().to("cuda")) for name, tensor in bucket]
        answer = self._engine.update_weights_from_tensor(on_gpu, flush_cache=last)
        success = answer[0] if isinstance(answer, tuple) else getattr(answer, "success", answer is not False)
        if success is False:
            raise RuntimeError(f"SGLang took no new weights: {answer}")

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
