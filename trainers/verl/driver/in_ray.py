"""Runs verl's TaskRunner in the Ray cluster that RAY_ADDRESS names, and waits for it."""

from __future__ import annotations

import faulthandler
import inspect
import os
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from common.errors import UserError
from node.exit_codes import STOP_SIGNALS, RequeueError, one_line
from node.hardware import importing
from trainers.verl.driver import hooks
from trainers.verl.driver.hooks import HookOrder

_LOOK_S = 0.5


class Stop:
    """What signals ask of verl; they are passed on as files, since its TaskRunner may be on another node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name: str | None = None

    def install(self) -> None:
        """Take over the signals; to be called again after Ray has taken SIGTERM itself."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGUSR1, self._on_stacks)

    def look(self) -> None:
        """Pass on what was asked; `RequeueError` before the first step, when there is nothing to save yet."""
        if self._name is None or (self._folder / hooks.STOP).exists():
            return
        (self._folder / hooks.STOP).touch()
        if not (self._folder / hooks.TRAINING).exists():
            raise RequeueError(f"{self._name} before the first step")
        print(f"{self._name}: stopping after this step", flush=True)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._name = self._name or signal.Signals(number).name

    def _on_stacks(self, number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(all_threads=True)
        (self._folder / hooks.STACKS).touch()


def run_verl(
    config: Any,
    order: HookOrder,
    environment: Mapping[str, str],
    kept: Collection[str],
    stop: Stop,
    once_joined: Callable[[], None],
) -> None:
    """Have verl train in the Ray cluster of this job, and return when it has ended.

    Its processes have the `environment`, and of what verl wants there all but the variables that are `kept` as they
    are. `once_joined` is called when this process has joined the cluster, before verl begins.
    """
    import ray

    start = _verls_start(config, order)
    runtime = dict(_asked_of_ray(start).get("runtime_env") or {})
    verls = {name: value for name, value in runtime.get("env_vars", {}).items() if name not in kept}
    runtime["env_vars"] = {**verls, **environment}
    os.environ.update(runtime["env_vars"])
    # Of what verl would ask for, CPUs and the like are for a Ray of its own; this one is there.
    ray.init(address=os.environ["RAY_ADDRESS"], runtime_env=runtime)
    stop.install()  # Ray took SIGTERM
    once_joined()
    require_cpus(config, float(ray.cluster_resources().get("CPU", 0)))
    _wait(start, stop)
    ray.shutdown()


def require_cpus(config: Any, cpus: float) -> None:
    """`UserError` where Ray has fewer CPUs than verl's actors reserve: it would wait for them without a word, for ever.

    0.4.1: one for the TaskRunner, one with each GPU (RayResourcePool of ray_trainer.py), and one to place the actor in
    which workers meet (register_center/ray.py); rank 0 waits five minutes for it. 0.9.1: three with each GPU
    (ResourcePoolManager of single_controller/ray/base.py) and one for its TaskRunner, or with V1 for the controller and
    for each storage unit of the transfer queue.
    """
    from omegaconf import OmegaConf

    gpus = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
    without_gpu, with_gpu = (2, 1) if OmegaConf.select(config, "trainer.use_v1", default=None) is None else (1, 3)
    units = 0
    if OmegaConf.select(config, "trainer.use_v1", default=False):
        units = int(OmegaConf.select(config, "transfer_queue.backend.SimpleStorage.num_data_storage_units", default=0))
    if (needed := without_gpu + units + with_gpu * gpus) > cpus:
        queue = f", {units} for transfer_queue.backend.SimpleStorage.num_data_storage_units" if units else ""
        raise UserError(
            f"verl reserves {needed} CPUs in Ray ({without_gpu}{queue}, {with_gpu} with each of {gpus} GPUs), and the "
            f"job's nodes have {cpus:.0f}, so that it would wait for ever; raise cpus in the profile"
        )


def _verls_start(config: Any, order: HookOrder) -> Callable[[], None]:
    """verl's own start of Ray and of its TaskRunner, with ours in that one's place."""
    with importing():
        from verl.trainer import main_ppo

    runner = hooks.remote_task_runner(order, config)
    if "task_runner_class" in inspect.signature(main_ppo.run_ppo).parameters:
        # As its main does before.
        main_ppo.auto_set_device(config)
        try:
            main_ppo.validate_config(
                config=config,
                use_reference_policy=main_ppo.need_reference_policy(config),
                use_critic=main_ppo.need_critic(config),
            )
        except (ValueError, AssertionError, NotImplementedError) as error:
            raise UserError(f"verl refuses the settings: {one_line(error)}") from error
        return lambda: main_ppo.run_ppo(config, task_runner_class=runner)
    main_ppo.TaskRunner = runner  # 0.4.1 takes the one of its module
    return lambda: main_ppo.run_ppo(config)


class _Asked(Exception):
    """Carries what verl wants of Ray."""


def _asked_of_ray(start: Callable[[], None]) -> dict[str, Any]:
    """What verl would call ray.init with: the environment of its workers is in there, in each version another."""
    import ray

    def init(**settings: Any) -> None:
        raise _Asked(settings)

    own = ray.init
    ray.init = init
    try:
        start()
    except _Asked as asked:
        settings: dict[str, Any] = asked.args[0]
        return settings
    finally:
        ray.init = own
    raise RuntimeError("verl did not ask for Ray; this version of it is not known here")


def _wait(start: Callable[[], None], stop: Stop) -> None:
    """Wait in a thread, since Ray swallows what a signal's handler raises while it waits itself."""
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
        thread.join(_LOOK_S)
        stop.look()
    if not failed:
        return
    cause: BaseException = failed[0]
    while isinstance(cause, RayTaskError):  # its text is all of the remote traceback
        cause = cause.cause
    if isinstance(cause, UserError):
        raise UserError(str(cause))
    raise RuntimeError(f"verl failed: {type(cause).__name__}: {cause}") from failed[0]
