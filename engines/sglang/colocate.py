"""Runs SGLang for a trainer's process: starts it, generates, updates its weights, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing import connection, resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

from node.exit_codes import STOP_SIGNALS
from node.hardware import importing

_SHUTDOWN_S = 20.0
"""Time for the scheduler to end by itself."""
_JOIN_S = 5.0
CPU_SETTINGS = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    # Otherwise its scheduler polls without a pause and occupies a core between two batches.
    "sleep_on_idle": True,
}
"""SGLang's settings for a CPU: no compiled kernels, and no polling."""
_VARIABLES = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # All requests of a batch reach the scheduler together, so that its first iterations are reproducible.
    "SGLANG_ENABLE_COLOCATED_BATCH_GEN": "1",
}


class EngineEnded(RuntimeError):
    """SGLang's scheduler ended unexpectedly."""


class Sglang:
    """An SGLang engine on this machine's CPU, with its scheduler in a separate process.

    `settings` are arguments of `sglang.Engine`; they replace the defaults here.
    """

    sleeps = False
    """Whether it frees its memory between generations; on a CPU it does not."""
    _reported: tuple[str, ...] = (
        *("dtype", "random_seed", "attention_backend", "sampling_backend", "max_total_tokens"),
        *("max_running_requests", "chunked_prefill_size", "disable_radix_cache", "disable_cuda_graph", "tp_size"),
    )
    """The settings that done.json reports."""
    _lost: EngineEnded | None = None
    """Why a request has no answer."""

    def __init__(self, model: Path, dtype: str, seed: int, settings: Mapping[str, Any]) -> None:
        self._ended = False
        self._handlers = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGQUIT)}
        try:
            self._start({**CPU_SETTINGS, "model_path": str(model), "dtype": dtype, "random_seed": seed, **settings})
        except BaseException:
            for child in multiprocessing.active_children():
                child.kill()
            raise

    def _start(self, settings: Mapping[str, Any]) -> None:
        os.environ.update(_VARIABLES)
        start_resource_tracker()
        root = logging.getLogger()
        level, handlers = root.level, list(root.handlers)
        # It logs our SIGQUIT handler as an error.
        logging.getLogger("sglang.srt.entrypoints.engine").setLevel(logging.CRITICAL)
        self._engine = _engine_class()(
            **settings,
            log_level="error",
            # Prompts and completions are token ids.
            skip_tokenizer_init=True,
            custom_sigquit_handler=_ignored,
        )
        self._replace_handlers()
        # SGLang's watchdog ignores a scheduler that ends with status 0, and a request would wait forever.
        self._engine.tokenizer_manager._subprocess_watchdog.stop()
        threading.Thread(target=self._watch, daemon=True).start()
        root.setLevel(level)  # SGLang changed both
        root.handlers[:] = handlers
        self._remove_files()

    def _replace_handlers(self) -> None:
        """Restore the signal handlers that SGLang replaced, and handle SIGQUIT, its signal for a failed process.

        Its first request installs handlers for SIGTERM and for SIGQUIT, which would end this process silently.
        """
        self.tokens([[0]], [{"max_new_tokens": 1}])

        async def remove() -> None:  # uvloop ignores the removal unless it is running
            for number in (signal.SIGTERM, signal.SIGQUIT):
                self._engine.loop.remove_signal_handler(number)

        self._engine.loop.run_until_complete(remove())
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGQUIT, self._on_child_ended)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """One completion for each prompt as token ids, and the log-probabilities of its tokens."""
        with self._request():
            results = self._engine.generate(
                input_ids=[list(ids) for ids in prompts], sampling_params=dict(sampling), return_logprob=True
            )
        rows = [result["meta_info"]["output_token_logprobs"] for result in results]
        return [[token[1] for token in row] for row in rows], [[token[0] for token in row] for row in rows]

    def tokens(self, prompts: Sequence[Sequence[int]], sampling: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """One completion for each prompt as token ids, each with its own sampling parameters."""
        with self._request():
            results = self._engine.generate(
                input_ids=[list(ids) for ids in prompts], sampling_params=[dict(options) for options in sampling]
            )
        return [list(result["output_ids"]) for result in results]

    def update_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Load new weights into the engine, and flush its cache."""
        # Cloned, because sending moves tensors into shared memory.
        copies = [(name, tensor.detach().clone()) for name, tensor in named]
        with self._request():
            require_success(self._engine.begin_weight_update())
            require_success(self._engine.update_weights_from_tensor(copies, flush_cache=True))
            require_success(self._engine.end_weight_update())

    def sleep(self) -> None:
        """Free the memory, including the weights."""
        raise NotImplementedError

    def wake(self) -> None:
        """Allocate the memory again; all weights must be loaded again."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """The engine's final settings, for done.json."""
        from engines.sglang.standins import installed

        return {"name": "sglang", **self._server_settings(), "device": "cpu", "stand_ins": installed()}

    def _server_settings(self) -> dict[str, Any]:
        values = self._engine.server_args
        return {name: getattr(values, name) for name in self._reported if hasattr(values, name)}

    def close(self) -> None:
        """End SGLang's processes, and only those, and delete its files."""
        from sglang.srt.managers.io_struct import ShutdownReq

        self._ended = True
        manager, processes = self._engine.tokenizer_manager, self._processes()
        with contextlib.suppress(Exception):  # it may have ended
            manager._dispatch_to_scheduler(ShutdownReq())
        deadline = time.monotonic() + _SHUTDOWN_S
        for process in processes:
            process.join(max(0.1, deadline - time.monotonic()))
            process.kill()
            process.join()
        for task in manager.asyncio_tasks:
            task.cancel()
        waiting = asyncio.gather(*manager.asyncio_tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            self._engine.loop.run_until_complete(waiting)
        self._engine.send_to_rpc.close(linger=0)
        self._remove_files()
        signal.signal(signal.SIGQUIT, self._handlers[signal.SIGQUIT])

    def _processes(self) -> list[Any]:
        return list(self._engine.tokenizer_manager._subprocess_watchdog._processes)

    def _remove_files(self) -> None:
        """Delete SGLang's files in /dev/shm and in the temporary folder; open files stay usable."""
        from sglang.srt.managers.load_snapshot import shm_path_for

        ports = self._engine.port_args
        files = [str(getattr(ports, name, "")) for name in dir(ports) if name.endswith("_ipc_name")]
        for path in [shm_path_for(ports.instance_id), *(file.removeprefix("ipc://") for file in files)]:
            if path.startswith("/"):
                Path(path).unlink(missing_ok=True)

    def _watch(self) -> None:
        self._reap(None)
        if not self._ended:
            os.kill(os.getpid(), signal.SIGQUIT)

    def _reap(self, timeout_s: float | None) -> None:
        """Wait for a process to end and for its exit status, which comes a moment after the kernel closes its files."""
        processes = {process.sentinel: process for process in self._processes()}
        for sentinel in connection.wait(list(processes), timeout_s):
            processes[sentinel].join(_JOIN_S)

    def _on_child_ended(self, number: int, frame: FrameType | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._reap(0)
        codes = [code for process in self._processes() if (code := process.exitcode) is not None]
        exit_status = f" with {_describe_status(codes[0])}" if codes else ""
        error = EngineEnded(
            f"SGLang's scheduler ended{exit_status} in the middle of the run; see its output above. SIGKILL mostly "
            "means that the node ran out of memory (`dmesg`): give the job more, or lower workload.batch_size"
        )
        if not self._engine.loop.is_running():
            raise error
        # uvloop only prints an exception of a signal handler and continues to wait.
        self._lost = error
        self._engine.loop.stop()

    @contextlib.contextmanager
    def _request(self) -> Iterator[None]:
        """A context for requests, which get no answer after the scheduler ended."""
        try:
            yield
        except RuntimeError:
            if self._lost is not None:
                raise self._lost from None
            raise


def _describe_status(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"status {code}"


def _ignored(number: int, frame: FrameType | None) -> None:
    """Ignore SIGQUIT while the engine starts: SGLang raises the error itself."""


def start_resource_tracker() -> None:
    """Start Python's resource tracker so that it ignores the job's stop signal."""
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    resource_tracker.ensure_running()
    signal.signal(signal.SIGUSR2, before)


def _engine_class() -> Any:
    from engines.sglang import processes  # installs the stand-ins before SGLang is imported

    with importing():
        from sglang.srt.entrypoints.engine import Engine

    class ColocatedEngine(Engine):  # type: ignore[misc]
        run_scheduler_process_func = staticmethod(processes.scheduler)

        @classmethod
        def _launch_detokenizer_subprocesses(cls, *_: Any, **__: Any) -> tuple[list[Any], list[str]]:
            """None: without a tokenizer the scheduler answers this process directly, which saves 10 s of CPU."""
            return [], []

        def shutdown(self) -> None:
            """Nothing at exit: it would end all children of this process, including Python's resource tracker."""

    return ColocatedEngine


def require_success(answer: Any) -> None:
    """Check SGLang's answer: (success, message) or an object, or a list of these for several replicas."""
    for part in answer if isinstance(answer, list) else [answer]:
        success, message = part[:2] if isinstance(part, tuple) else (getattr(part, "success", part), part)
        if success is False:
            raise RuntimeError(f"SGLang rejected the new weights: {message}")
