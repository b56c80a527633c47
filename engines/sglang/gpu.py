"""SGLang on a GPU: the released offline engine, to which weights are handed over as tensors. Not run on one yet."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from engines.sglang.colocate import Sglang, require_success, start_resource_tracker, take_back_signals
from node.exit_codes import STOP_SIGNALS
from node.hardware import free_port, importing

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
        self.sleeps = bool(settings.get("enable_memory_saver"))
        self._ended = False
        # SGLang 0.4.6 takes SIGCHLD, too, and with it the ends of this process's other children.
        before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGCHLD)}
        others = set(multiprocessing.active_children())
        # Prompts and completions are tokens: no text is made of them.
        words = {"model_path": str(model), "dtype": dtype, "random_seed": seed, "skip_tokenizer_init": True}
        # 0.4.6 draws one of 901 ports and binds it when the model is loaded: engines of a node met at the same.
        words |= {"dist_init_addr": f"127.0.0.1:{free_port()}", "log_level": "error"}
        start_resource_tracker()
        with _deaf_children():
            self._engine = Engine(**words, **settings)
        self._children = [one for one in multiprocessing.active_children() if one not in others]
        if not hasattr(self._engine, "loop"):  # 0.4.6 asks asyncio for it each time
            self._engine.loop = asyncio.get_event_loop()
        # The first request takes over SIGTERM, with which a job is stopped.
        self.tokens([[0]], [{"max_new_tokens": 1}])
        take_back_signals(self._engine.loop)
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGQUIT, self._on_child_ended)
        # 0.4.6 watches none of its processes, and a request would wait for ever.
        threading.Thread(target=self._watch, daemon=True).start()

    def update_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Give the engine these weights in buckets; what it has cached of the old ones is dropped with the last."""
        # From 0.5.23 on an update has a begin and an end.
        begin, end = (getattr(self._engine, f"{word}_weight_update", _nothing) for word in ("begin", "end"))
        with self._asked():
            require_success(begin())
            waiting: list[tuple[str, Any]] | None = None
            for bucket in buckets(named):
                if waiting is not None:
                    self._hand_over(waiting, last=False)
                waiting = bucket
            if waiting is not None:
                self._hand_over(waiting, last=True)
            require_success(end())

    def _hand_over(self, bucket: list[tuple[str, Any]], *, last: bool) -> None:
        # By CUDA's own numbers: SGLang's processes see the GPUs that this one sees. SGLang's patch of torch's pickling
        # (srt/utils/patch_torch.py) would send UUIDs, which 0.4.6 does not receive.
        on_gpu = [(name, tensor.detach().to("cuda")) for name, tensor in bucket]
        require_success(self._engine.update_weights_from_tensor(on_gpu, flush_cache=last))

    def _processes(self) -> list[Any]:
        return self._children

    def settings(self) -> dict[str, Any]:
        """What the engine finally holds, for done.json."""
        held = self._engine.server_args
        found = {name: getattr(held, name) for name in _HELD if hasattr(held, name)}
        return {"name": "sglang", "device": "cuda", **found, "tensor_parallel_size": held.tp_size}

    def sleep(self) -> None:
        with self._asked():
            self._engine.release_memory_occupation()

    def wake(self) -> None:
        with self._asked():
            self._engine.resume_memory_occupation()

    def close(self) -> None:
        """End SGLang's processes, and only those: its own `shutdown` ends all of this one, the tracker's, too."""
        self._ended = True
        atexit.unregister(self._engine.shutdown)
        for process in self._children:
            process.kill()
            process.join()
        self._engine.send_to_rpc.close(linger=0)


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """What multiprocessing starts within, and what that starts, is deaf to the job's stop signals.

    Slurm sends them to all processes of a job, and the trainer finishes its step with its engine.
    """
    start = BaseProcess.start

    def deaf(process: BaseProcess) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            start(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    BaseProcess.start = deaf  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]


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
