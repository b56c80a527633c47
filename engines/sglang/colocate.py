"""SGLang as the rollout engine of a trainer's process: starts it, asks it, gives it new weights, and ends it."""

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

_PATIENCE_S = 20.0
"""How long the scheduler has to end by itself."""
_REAPED_S = 5.0
CPU_SETTINGS = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    # Its scheduler polls without a pause: between two batches it would keep a core from the trainer.
    "sleep_on_idle": True,
}
"""SGLang's settings for a CPU: what needs no compiled kernel, and leaves the cores to the trainer."""
_VARIABLES = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # The requests of a batch reach the scheduler together: else its first iterations depend on chance.
    "SGLANG_ENABLE_COLOCATED_BATCH_GEN": "1",
}


class EngineEnded(RuntimeError):
    """SGLang's scheduler has ended while it was needed."""


class Sglang:
    """A SGLang engine on this machine's CPU; its scheduler is a process of its own.

    `settings` are those of `sglang.Engine`; they replace the ones chosen here.
    """

    sleeps = False
    """Whether it gives its memory back between generations; on a CPU there is nobody to take it."""
    _lost: EngineEnded | None = None
    """Why a request has had no answer."""

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
        # It logs our handler of SIGQUIT as an error.
        logging.getLogger("sglang.srt.entrypoints.engine").setLevel(logging.CRITICAL)
        self._engine = _engine_class()(
            **settings,
            log_level="error",
            # Prompts and completions are tokens: no text is made of them.
            skip_tokenizer_init=True,
            custom_sigquit_handler=_ignored,
        )
        # SGLang's first request takes over SIGTERM, and SIGQUIT, with which it would end this process without a word.
        self.generate([[0]], {"max_new_tokens": 1})
        take_back_signals(self._engine.loop)
        for number in STOP_SIGNALS:
            signal.signal(number, self._handlers[number])
        signal.signal(signal.SIGQUIT, self._on_child_ended)
        # SGLang's own passes over a scheduler that ends with status 0, and a request would wait for ever.
        self._engine.tokenizer_manager._subprocess_watchdog.stop()
        threading.Thread(target=self._watch, daemon=True).start()
        root.setLevel(level)  # SGLang sets both to its own
        root.handlers[:] = handlers
        self._remove_files()

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """One completion for each prompt, as tokens, and the log-probabilities that they were drawn with."""
        with self._asked():
            made = self._engine.generate(
                input_ids=[list(ids) for ids in prompts], sampling_params=dict(sampling), return_logprob=True
            )
        drawn = [one["meta_info"]["output_token_logprobs"] for one in made]
        return [[token[1] for token in one] for one in drawn], [[token[0] for token in one] for one in drawn]

    def tokens(self, prompts: Sequence[Sequence[int]], sampling: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """One completion for each prompt, each by sampling parameters of its own, as tokens alone."""
        with self._asked():
            made = self._engine.generate(
                input_ids=[list(ids) for ids in prompts], sampling_params=[dict(one) for one in sampling]
            )
        return [list(one["output_ids"]) for one in made]

    def update_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Give the engine these weights; what it has cached of the old ones is dropped."""
        # Cloned: what is sent moves into shared memory, and the trainer's own storages would.
        copies = [(name, tensor.detach().clone()) for name, tensor in named]
        with self._asked():
            require_success(self._engine.begin_weight_update())
            require_success(self._engine.update_weights_from_tensor(copies, flush_cache=True))
            require_success(self._engine.end_weight_update())

    def sleep(self) -> None:
        """Give memory back, the weights, too."""
        raise NotImplementedError

    def wake(self) -> None:
        """Take it again; it needs all weights anew."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """What the engine finally holds, for done.json."""
        from engines.sglang.standins import installed

        held = self._engine.server_args
        names = (
            *("dtype", "random_seed", "attention_backend", "sampling_backend", "max_total_tokens"),
            *("max_running_requests", "chunked_prefill_size", "disable_radix_cache", "disable_cuda_graph", "tp_size"),
        )
        return {
            "name": "sglang",
            **{name: getattr(held, name) for name in names if hasattr(held, name)},
            "device": "cpu",
            "stand_ins": installed(),
        }

    def close(self) -> None:
        """End SGLang's processes, and only those, and take its files away."""
        from sglang.srt.managers.io_struct import ShutdownReq

        self._ended = True
        manager, processes = self._engine.tokenizer_manager, self._processes()
        with contextlib.suppress(Exception):  # it may be dead
            manager._dispatch_to_scheduler(ShutdownReq())
        deadline = time.monotonic() + _PATIENCE_S
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
        """SGLang leaves a file in /dev/shm and some in the temporary folder; those in use stay open."""
        from sglang.srt.managers.load_snapshot import shm_path_for

        ports = self._engine.port_args
        files = [str(getattr(ports, name, "")) for name in dir(ports) if name.endswith("_ipc_name")]
        for path in [shm_path_for(ports.instance_id), *(one.removeprefix("ipc://") for one in files)]:
            if path.startswith("/"):
                Path(path).unlink(missing_ok=True)

    def _watch(self) -> None:
        self._reap(None)
        if not self._ended:
            os.kill(os.getpid(), signal.SIGQUIT)

    def _reap(self, timeout_s: float | None) -> None:
        """Wait for a process to end, and for its status: the kernel closes its files a moment before that is there."""
        processes = {process.sentinel: process for process in self._processes()}
        for sentinel in connection.wait(list(processes), timeout_s):
            processes[sentinel].join(_REAPED_S)

    def _on_child_ended(self, number: int, frame: FrameType | None) -> None:
        """SIGQUIT: one of SGLang's processes has ended, or has sent it because it failed."""
        if self._ended:
            return
        self._ended = True
        self._reap(0)
        ended = [code for process in self._processes() if (code := process.exitcode) is not None]
        how = "" if not ended else f" with {_exit(ended[0])}"
        error = EngineEnded(
            f"SGLang's scheduler ended{how} in the middle of the run; what it said is above. SIGKILL is mostly the "
            "kernel's, for want of memory (`dmesg`): give the job more, or lower workload.batch_size"
        )
        if not self._engine.loop.is_running():
            raise error
        # uvloop prints what is raised in it by a signal, and waits on for an answer.
        self._lost = error
        self._engine.loop.stop()

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Around a request, which ends without an answer where the scheduler does."""
        try:
            yield
        except RuntimeError:
            if self._lost is not None:
                raise self._lost from None
            raise


def take_back_signals(loop: Any) -> None:
    """Remove SGLang's handlers from its loop, while that runs: at any other time uvloop keeps them and says nothing."""

    async def remove() -> None:
        for number in (signal.SIGTERM, signal.SIGQUIT):
            loop.remove_signal_handler(number)

    loop.run_until_complete(remove())


def _exit(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"status {code}"


def _ignored(number: int, frame: FrameType | None) -> None:
    """While the engine starts, SGLang itself raises what ended it."""


def start_resource_tracker() -> None:
    """Python's own helper, deaf to a stop signal that all processes of the job get."""
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    resource_tracker.ensure_running()
    signal.signal(signal.SIGUSR2, before)


def _engine_class() -> Any:
    from engines.sglang import processes  # with its stand-ins, before SGLang

    with importing():
        from sglang.srt.entrypoints.engine import Engine

    class ColocatedEngine(Engine):  # type: ignore[misc]
        run_scheduler_process_func = staticmethod(processes.scheduler)

        @classmethod
        def _launch_detokenizer_subprocesses(cls, *_: Any, **__: Any) -> tuple[list[Any], list[str]]:
            """None: without a tokenizer the scheduler answers this process itself; one takes 10 s of CPU to start."""
            return [], []

        def shutdown(self) -> None:
            """Nothing at exit: it would end all children of this process, Python's resource tracker, too."""

    return ColocatedEngine


def require_success(answer: Any) -> None:
    """SGLang answers (whether it worked, what it says), or with an object; of several parts or replicas with a list."""
    for one in answer if isinstance(answer, list) else [answer]:
        success = one[0] if isinstance(one, tuple) else getattr(one, "success", one is not False)
        if success is False:
            raise RuntimeError(f"SGLang took no new weights: {one[1] if isinstance(one, tuple) else one}")
