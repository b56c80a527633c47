"""Runs verl's TaskRunner in the Ray cluster of RAY_ADDRESS, and waits for it."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from common.errors import UserError
from common.retry import exists
from node.exit_codes import STOP_SIGNALS, RequeueError
from node.hardware import importing
from trainers.verl import hooks
from trainers.verl.driver import step_hooks
from trainers.verl.driver.step_hooks import HookSettings, remote_task_runner

_POLL_S = 0.5


class Stop:
    """Passes signals on to verl as files, since its TaskRunner may be on another node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name: str | None = None
        self._passed_on = False

    def install(self) -> None:
        """Install the signal handlers. Ray replaces none of them: it starts in another thread."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGUSR1, self._on_stacks)

    def check(self) -> None:
        """Pass a stop signal on; `RequeueError` before the first step, when there is nothing to save."""
        if self._name is None or self._passed_on:
            return
        try:
            (self._folder / step_hooks.STOP).touch()
            training = exists(self._folder / step_hooks.TRAINING)
        except OSError:  # the next check tries again
            return
        self._passed_on = True
        if not training:
            raise RequeueError(f"{self._name} before the first step")
        print(f"{self._name}: stopping after this step", flush=True)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._name = self._name or signal.Signals(number).name

    def _on_stacks(self, number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(all_threads=True)
        with suppress(OSError):
            (self._folder / step_hooks.STACKS).touch()


def run_verl(
    config: Any,
    settings: HookSettings,
    environment: Mapping[str, str],
    kept: Collection[str],
    stop: Stop,
    least_cpus: int,
    once_joined: Callable[[], None],
) -> None:
    """Train with verl in this job's Ray cluster, and return at its end.

    verl's processes get `environment`, and verl's own variables except those in `kept`. `least_cpus` are those that its
    actors reserve. `once_joined` is called after verl has joined the cluster, before it starts its TaskRunner.
    """
    import ray

    with importing():
        run_ppo = hooks.RUN.get()
    connect, runner = ray.init, remote_task_runner(settings)

    def join(**verls: Any) -> None:
        # verl's other arguments, such as CPUs, are for starting a Ray cluster; this one already runs.
        runtime = dict(verls.get("runtime_env") or {})
        own = {name: value for name, value in runtime.get("env_vars", {}).items() if name not in kept}
        runtime["env_vars"] = {**own, **environment}
        os.environ.update(runtime["env_vars"])
        connect(address=os.environ["RAY_ADDRESS"], runtime_env=runtime)
        once_joined()
        require_cpus(least_cpus, float(ray.cluster_resources().get("CPU", 0)))

    ray.init = join
    if hooks.RUNNER_0_4.find() is not None:
        hooks.RUNNER_0_4.replace(runner)  # 0.4.1 uses its module's class
        _wait(partial(run_ppo, config), stop)
    else:
        _wait(partial(run_ppo, config, task_runner_class=runner), stop)
    ray.shutdown()


def require_cpus(needed: int, cpus: float) -> None:
    """`UserError` if Ray has fewer CPUs than verl's actors reserve: verl would wait silently and forever."""
    if needed > cpus:
        raise UserError(
            f"verl reserves {needed} CPUs in Ray, and the job's nodes have {cpus:.0f}, so that it would wait forever; "
            "raise cpus in the profile"
        )


def _wait(start: Callable[[], None], stop: Stop) -> None:
    """Run verl in a thread, since Ray swallows exceptions of signal handlers while it waits."""
    from ray.exceptions import RayTaskError

    failed: list[Exception] = []

    def work() -> None:
        try:
            start()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="verl", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
        stop.check()
    if not failed:
        return
    cause: BaseException = failed[0]
    while isinstance(cause, RayTaskError):  # its text is the complete remote traceback
        cause = cause.cause
    if isinstance(cause, RequeueError):
        raise cause
    if isinstance(cause, UserError):
        raise UserError(str(cause))
    raise RuntimeError(f"verl failed: {type(cause).__name__}: {cause}") from failed[0]
