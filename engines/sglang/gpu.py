"""Runs SGLang on a GPU: the released offline engine, with weight updates as tensors. Not tested on a GPU yet."""

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

from engines.sglang.colocate import Sglang, require_success, start_resource_tracker
from node.exit_codes import STOP_SIGNALS
from node.hardware import free_port, importing

_BUCKET_BYTES = 512 * 2**20
"""Maximum bytes of weights that are on the GPU twice during an update."""


class SglangOnGpu(Sglang):
    """`sglang.Engine` in its own processes; `settings` are its arguments.

    With `enable_memory_saver` it sleeps; after waking all weights must be loaded again.
    """

    _reported = (*Sglang._reported, "mem_fraction_static")

    def __init__(self, model: Path, dtype: str, seed: int, settings: Mapping[str, Any]) -> None:
        with importing():
            from sglang.srt.entrypoints.engine import Engine
        self.sleeps = bool(settings.get("enable_memory_saver"))
        self._ended = False
        # SGLang 0.4.6 also handles SIGCHLD, and so the ends of this process's other children.
        self._handlers = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGCHLD)}
        others = set(multiprocessing.active_children())
        # Prompts and completions are token ids.
        options = {"model_path": str(model), "dtype": dtype, "random_seed": seed, "skip_tokenizer_init": True}
        # 0.4.6 chooses one of 901 ports and binds it after loading the model, so engines of a node can collide.
        options |= {"dist_init_addr": f"127.0.0.1:{free_port()}", "log_level": "error"}
        start_resource_tracker()
        with _stop_signals_blocked():
            self._engine = Engine(**options, **settings)
        self._children = [child for child in multiprocessing.active_children() if child not in others]
        if not hasattr(self._engine, "loop"):  # 0.4.6 gets it from asyncio each time
            self._engine.loop = asyncio.get_event_loop()
        self._replace_handlers()
        # 0.4.6 does not watch its processes, and a request would wait forever.
        threading.Thread(target=self._watch, daemon=True).start()

    def update_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Load new weights in buckets; the last one flushes the cache."""
        # An update has a begin and an end from 0.5.23 on.
        begin, end = (getattr(self._engine, f"{name}_weight_update", lambda: None) for name in ("begin", "end"))
        with self._request():
            require_success(begin())
            previous: list[tuple[str, Any]] = []
            for bucket in buckets(named):
                if previous:
                    self._send(previous, last=False)
                previous = bucket
            if previous:
                self._send(previous, last=True)
            require_success(end())

    def _send(self, bucket: list[tuple[str, Any]], *, last: bool) -> None:
        # GPUs are sent as CUDA's numbers: SGLang's processes see the same GPUs. SGLang's patch of torch's pickling
        # (srt/utils/patch_torch.py) would send UUIDs, which 0.4.6 does not support.
        on_gpu = [(name, tensor.detach().to("cuda")) for name, tensor in bucket]
        require_success(self._engine.update_weights_from_tensor(on_gpu, flush_cache=last))

    def _processes(self) -> list[Any]:
        return self._children

    def settings(self) -> dict[str, Any]:
        """The engine's final settings, for done.json."""
        settings = self._server_settings()
        return {"name": "sglang", "device": "cuda", **settings, "tensor_parallel_size": settings["tp_size"]}

    def sleep(self) -> None:
        with self._request():
            self._engine.release_memory_occupation()

    def wake(self) -> None:
        with self._request():
            self._engine.resume_memory_occupation()

    def close(self) -> None:
        """End SGLang's processes, and only those; its own `shutdown` ends all children of this process."""
        self._ended = True
        atexit.unregister(self._engine.shutdown)
        for process in self._children:
            process.kill()
            process.join()
        self._engine.send_to_rpc.close(linger=0)


@contextlib.contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """Block the job's stop signals in processes that multiprocessing starts inside, and in their children.

    Slurm sends them to all processes of a job, but the trainer needs its engine to finish the step.
    """
    start = BaseProcess.start

    def start_blocked(process: BaseProcess) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            start(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    BaseProcess.start = start_blocked  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]


def buckets(named: Iterable[tuple[str, Any]], most_bytes: int = _BUCKET_BYTES) -> Iterator[list[tuple[str, Any]]]:
    """The tensors in order, in groups of at most `most_bytes`; a larger tensor is its own group."""
    group: list[tuple[str, Any]] = []
    size = 0
    for name, tensor in named:
        tensor_bytes = tensor.numel() * tensor.element_size()
        if group and size + tensor_bytes > most_bytes:
            yield group
            group, size = [], 0
        group.append((name, tensor))
        size += tensor_bytes
    if group:
        yield group
