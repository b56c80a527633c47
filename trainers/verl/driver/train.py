"""One attempt of a run with verl's GRPO: `python -m trainers.verl.driver.train <attempt.json>`.

This process trains nothing itself: it prepares, has verl's TaskRunner work in the Ray cluster that RAY_ADDRESS names,
and waits. Exit codes: 0 done, 1 unforeseen (traceback in the log), 2 a user's mistake (one line), 75 stopped and to be
requeued.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from common.errors import UserError
from node.attempt import Inputs, read_attempt, read_spec, require_working_gpus, write_done
from node.exit_codes import STOP_SIGNALS, RequeueError, one_line, run
from node.hardware import THREAD_VARIABLES, hardware, told_environment, tracker_environment
from node.records import write_json
from node.rewards import name_of, reward_functions
from trainers.verl.driver import checkpoints as verl_checkpoints
from trainers.verl.driver import hooks as verl_run
from trainers.verl.driver import reward as verl_reward

_PACKAGES = (
    *("torch", "verl", "vllm", "sglang", "sgl-kernel", "sglang-kernel", "flash-attn", "flashinfer-python", "ray"),
    *("transformers", "tensordict", "TransferQueue", "datasets", "peft", "numpy", "wandb", "math-verify"),
)
_SHARDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}
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
        if self._name is None or (self._folder / verl_run.STOP).exists():
            return
        (self._folder / verl_run.STOP).touch()
        if not (self._folder / verl_run.TRAINING).exists():
            raise RequeueError(f"{self._name} before the first step")
        print(f"{self._name}: stopping after this step", flush=True)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._name = self._name or signal.Signals(number).name

    def _on_stacks(self, number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(all_threads=True)
        (self._folder / verl_run.STACKS).touch()


def train(attempt: dict[str, Any], stop: Stop) -> None:
    """Train one attempt to its end, and write done.json; `RequeueError` if it was stopped before."""
    from trainers.verl.driver.composed import flat

    started = time.time()
    spec, inputs = read_spec(attempt), Inputs(attempt)
    version = str(spec["trainer_args"]["version"])
    folder = Path(attempt["attempt_dir"])
    if not os.environ.get("RAY_ADDRESS"):
        raise UserError("RAY_ADDRESS is not set: the job on the node starts a Ray cluster and says where it is")
    for function in reward_functions(spec["workload"]["rewards"], spec["workload"].get("max_response_length")):
        function.close()  # wrong names are told
    inputs.require_unchanged()
    require_working_gpus(attempt, str(spec["stack"]))
    os.environ.update(tracker_environment(os.environ, attempt, str(spec["experiment"])))
    composed = _composed(version, spec, inputs, attempt)
    _require_rows(inputs, int(composed["data"]["train_batch_size"]))
    gpus = int(composed["trainer"]["n_gpus_per_node"])
    resumed_from = _prepared_checkpoints(attempt, composed, gpus * int(composed["trainer"]["nnodes"]))
    steps = int(composed["trainer"]["total_training_steps"])
    environment = _environment(attempt, gpus)
    stop.look()
    if (resumed_from or 0) < steps:
        if resumed_from:
            print(f"resuming from step {resumed_from}", flush=True)
        _run_verl(_config(composed, resumed_from), attempt, environment, stop)
    first, last = _steps_done(folder)
    if first is None and (folder / verl_run.STOP).exists():
        raise RequeueError("before the first step")
    last = last or resumed_from or 0
    if last < steps and (folder / verl_run.STOP).exists():
        raise RequeueError(f"after step {last} of {steps}, with a checkpoint")
    if last < steps:
        raise RuntimeError(f"verl ended after step {last} of {steps} and did not say why")
    write_done(
        attempt,
        inputs,
        started=started,
        first_step=first,
        last_step=last,
        packages=_PACKAGES,
        hardware=hardware(
            int(attempt["cpus"]),
            int(os.environ.get("OMP_NUM_THREADS", attempt["cpus"])),
            sorted(os.sched_getaffinity(0)),
        ),
        resolved={
            "trainer": flat(composed),
            "engine": _engine(composed),
            "environment": told_environment(os.environ),
        },
    )


def _composed(version: str, spec: Mapping[str, Any], inputs: Inputs, attempt: Mapping[str, Any]) -> dict[str, Any]:
    """verl's whole configuration: the plan's settings, and what only this node knows."""
    from trainers.verl.driver.composed import check, compose, job_overrides

    workload = spec["workload"]
    mine = job_overrides(
        version,
        train_files=str(inputs.data),
        val_files=str(inputs.test or inputs.data),
        model=str(inputs.model),
        checkpoints=str(attempt["checkpoint_dir"]),
        project=str(os.environ["WANDB_PROJECT"]),
        run_id=str(attempt["run_id"]),
        reward_file=str(Path(verl_reward.__file__).resolve()),
        reward_kwargs={
            **_rewards_told(workload["rewards"], inputs, attempt),
            "tokenizer": str(inputs.model),
            "max_response_length": workload.get("max_response_length"),
        },
    )
    composed = compose(version, [*spec["trainer_args"]["overrides"], *mine])
    check(version, composed)
    return composed


def _rewards_told(rewards: Sequence[Mapping[str, Any]], inputs: Inputs, attempt: Mapping[str, Any]) -> dict[str, Any]:
    """A workload's rewards for `compute_score`; where some are the user's own, in a file of the attempt's folder."""
    if any("code" in reward for reward in rewards):
        file = Path(attempt["attempt_dir"]) / "rewards.json"
        write_json(file, {"rewards": rewards, "data": [str(path) for path in (inputs.data, inputs.test) if path]})
        return {"rewards_file": str(file)}
    keys = (
        {"name": one["name"], "weight": one.get("weight", 1.0), "options": one.get("options") or {}} for one in rewards
    )
    return {"rewards": list(keys)}


def _require_rows(inputs: Inputs, prompts: int) -> None:
    """`UserError` where the data is smaller than one step; 0.9.1 divides by zero, when the engine is up."""
    rows = inputs.told["data"].get("rows")
    if rows is not None and rows < prompts:
        raise UserError(
            f"a step takes {prompts} prompts (workload.batch_size / num_generations), and the data has {rows} rows; "
            "verl makes no step of fewer: lower batch_size, or give more rows"
        )


def _config(composed: dict[str, Any], resumed_from: int | None) -> Any:
    """The configuration as Hydra would hand it over."""
    from omegaconf import OmegaConf

    config = OmegaConf.create(composed)
    OmegaConf.set_struct(config, True)
    if resumed_from:
        config.trainer.val_before_train = False  # it belongs to the run's beginning
    return config


def _prepared_checkpoints(attempt: Mapping[str, Any], composed: Mapping[str, Any], world_size: int) -> int | None:
    actor = composed["actor_rollout_ref"]["actor"]
    if actor["strategy"] not in ("fsdp", "fsdp2"):
        raise UserError(
            f"actor_rollout_ref.actor.strategy is {actor['strategy']!r}; which of its checkpoints are complete is not "
            "known here: use fsdp or fsdp2"
        )
    contents = [_SHARDS[name] for name in actor["checkpoint"]["load_contents"] if name in _SHARDS]
    return verl_checkpoints.prepare(Path(attempt["checkpoint_dir"]), world_size, contents)


def _environment(attempt: Mapping[str, Any], gpus: int) -> dict[str, str]:
    """What all of this job's processes in Ray need beside what their node's Ray was started with; and this process.

    Each GPU has a worker, and all of a node's would take all of its CPUs' threads. They are not pinned: engines and
    trainer take turns, with processes of their own. What the arm sets itself is there already, and stays.
    """
    threads = str(max(1, int(attempt["cpus"]) // max(1, gpus)))
    ours = {
        **dict.fromkeys(THREAD_VARIABLES, threads),
        "HF_HUB_OFFLINE": "1",  # the inputs are on the disk by now
        "VLLM_NO_USAGE_STATS": "1",
    }
    told = {name: value for name, value in ours.items() if name not in attempt.get("env", {})}
    os.environ.update(told)
    return told


def _run_verl(config: Any, attempt: Mapping[str, Any], environment: Mapping[str, str], stop: Stop) -> None:
    """Have verl train in the Ray cluster of this job, and return when it has ended."""
    import ray

    start = _verls_start(config, _order(attempt))
    runtime = dict(_asked_of_ray(start).get("runtime_env") or {})
    verls = {name: value for name, value in runtime.get("env_vars", {}).items() if name not in attempt.get("env", {})}
    runtime["env_vars"] = {**verls, **environment}
    os.environ.update(runtime["env_vars"])
    # Of what verl would ask for, CPUs and the like are for a Ray of its own; this one is there.
    ray.init(address=os.environ["RAY_ADDRESS"], runtime_env=runtime)
    stop.install()  # Ray took SIGTERM
    require_cpus(config, float(ray.cluster_resources().get("CPU", 0)))
    _wait(start, stop)
    ray.shutdown()


def require_cpus(config: Any, cpus: float) -> None:
    """`UserError` where Ray has fewer CPUs than verl's actors reserve: it would wait for them without a word, for ever.

    0.4.1: one for the TaskRunner, one with each GPU (RayResourcePool of ray_trainer.py). 0.9.1: three with each GPU
    (ResourcePoolManager of single_controller/ray/base.py) and one for its TaskRunner, or with V1 for the controller and
    for each storage unit of the transfer queue.
    """
    from omegaconf import OmegaConf

    gpus = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
    with_gpu = 1 if OmegaConf.select(config, "trainer.use_v1", default=None) is None else 3
    units = 0
    if OmegaConf.select(config, "trainer.use_v1", default=False):
        units = int(OmegaConf.select(config, "transfer_queue.backend.SimpleStorage.num_data_storage_units", default=0))
    if (needed := 1 + units + with_gpu * gpus) > cpus:
        queue = f", {units} for transfer_queue.backend.SimpleStorage.num_data_storage_units" if units else ""
        raise UserError(
            f"verl reserves {needed} CPUs in Ray (1{queue}, {with_gpu} with each of {gpus} GPUs), and the job's nodes "
            f"have {cpus:.0f}, so that it would wait for ever; raise cpus in the profile"
        )


def _order(attempt: Mapping[str, Any]) -> verl_run.HookOrder:
    folder = Path(attempt["attempt_dir"])
    environment = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    # verl empties its file when it starts: one for each attempt.
    environment["VERL_FILE_LOGGER_PATH"] = str(folder / "verl.jsonl")
    workload = read_spec(attempt)["workload"]
    rewards = tuple(name_of(reward) for reward in workload["rewards"])
    return verl_run.HookOrder(folder, environment, rewards, int(workload.get("samples") or 0))


def _verls_start(config: Any, order: verl_run.HookOrder) -> Callable[[], None]:
    """verl's own start of Ray and of its TaskRunner, with ours in that one's place."""
    from verl.trainer import main_ppo

    runner = verl_run.remote_task_runner(order, config)
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


def _steps_done(folder: Path) -> tuple[int | None, int | None]:
    """The first and the last step in an attempt's metrics.jsonl; None where there is none."""
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None, None
    steps = [int(json.loads(line)["step"]) for line in lines]
    return (steps[0], steps[-1]) if steps else (None, None)


def _engine(composed: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's settings as verl was given them; what the engine makes of them, it does not tell."""
    rollout = composed["actor_rollout_ref"]["rollout"]
    return {name: value for name, value in rollout.items() if isinstance(value, bool | int | float | str)}


def main() -> None:
    """Read the order on the command line and train it."""
    attempt = read_attempt(sys.argv[1:])
    Path(attempt["attempt_dir"]).mkdir(parents=True, exist_ok=True)
    stop = Stop(Path(attempt["attempt_dir"]))
    stop.install()
    train(attempt, stop)


if __name__ == "__main__":
    code = run(main)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by sys.exit: a thread may still wait for Ray, which then aborts this process with another code.
    os._exit(code)
