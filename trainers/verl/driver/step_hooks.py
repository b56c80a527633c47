"""Logs verl's steps and stops verl early, with hooks in its TaskRunner's process.

verl's fit loops (of 0.4.1, and V1 and legacy of 0.9.1) have no callbacks and end a step in different orders. All of
them have four common functions, which are hooked:

- The trainer's `fit` starts the loop, after the workers.
- `_save_checkpoint` saves on steps that `trainer.save_freq` divides, while the engine's memory is released. A stop
  request sets save_freq to 1, so that the loop saves at its usual place.
- `metric_utils._compute_response_info` computes the lengths of prompts and responses; its first call in a step is for
  the metrics of its data (V1 excludes padding rows there).
- `Tracking.log` is called once per training step, with `training/global_step`, at the end of the step; only counters
  follow. After a stop request its hook raises an exception that the hook of `fit` catches, so that verl's runner ends
  as after its last step.

Requests are files in the attempt's folder, since Ray may place the TaskRunner on any node: `stop`, and `stacks` to dump
the stacks of all threads. `training` exists once `fit` has begun: before that there is nothing to save.
"""

from __future__ import annotations

import faulthandler
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from common.contracts import MetricsLine
from common.retry import append_json_line, keep_watching, present, retry_io
from node.rewards import FAILED
from node.tracker import Guard, finish_wandb, has_wandb
from trainers.verl import hooks
from trainers.verl.driver import checkpoints
from trainers.verl.driver.batches import BatchNumbers
from trainers.verl.driver.engines import report_engine

STOP, STACKS, TRAINING = "stop", "stacks", "training"
_POLL_S = 1.0
_QUEUE_POLL_S = 0.1
"""verl 0.9.1 has no setting for it: with its own 2 s `gen` is rounded up to twos, 6 s and 4.1 s both to 6."""


@dataclass(frozen=True)
class HookSettings:
    """What the attempt's process passes to the TaskRunner's process."""

    folder: Path
    """The attempt's folder, on a file system that all nodes share."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that only this process needs: the tracker's place and run id."""
    rewards: tuple[str, ...] = ()
    """The names of the workload's rewards, as `compute_score` returns them; verl itself logs only their sum."""


class _Stop(BaseException):
    """Ends verl's loop between two steps."""


class StepHooks:
    """Writes metrics.jsonl and a progress line after each training step, and ends training on request."""

    def __init__(self, folder: Path, rewards: Sequence[str] = ()) -> None:
        self._folder = folder
        self._names = tuple(rewards)
        self._rewards: dict[str, float] = {}
        self._trainer: Any = None
        self._lengths: Mapping[str, Any] | None = None
        self._batch = BatchNumbers()
        self._saved: int | None = None
        self._first_step: int | None = None
        self._over = threading.Event()
        self._stopped = False

    def install(self, trainer: type[Any]) -> None:
        """Hook verl in this process; `trainer` is the class whose `fit` will run, or its base."""
        hooks.FIT.wrap(self._fit, trainer)
        hooks.SAVE.wrap(self._save, trainer)
        hooks.LOAD.wrap(checkpoints.load_in_data_order, trainer)
        hooks.LENGTHS.wrap(self._note_lengths)
        self._batch.install()
        if self._names and hooks.METRICS_V1.find(trainer):
            hooks.METRICS_V1.wrap(self._note_rewards, trainer)
        hooks.START_TRACKING.wrap(self._guard_wandb)
        hooks.LOG.wrap(self._log)

    def _fit(self, original: Callable[..., Any], trainer: Any, *args: Any, **named: Any) -> None:
        if self._wanted(STOP):
            return
        self._trainer = trainer
        self._batch.start(trainer)
        if (buffer := hooks.BUFFER_V1.find(trainer)) is not None:
            buffer.poll_interval = _QUEUE_POLL_S
        report_engine(trainer, self._folder)
        retry_io((self._folder / TRAINING).touch, "the attempt's files")
        keep_watching(self._look, self._over, _POLL_S, "requests")
        try:
            original(trainer, *args, **named)
        except _Stop:
            # As verl does after its last step: pending dumps are written.
            if end_dumps := hooks.END_DUMPS_V1.find(trainer):
                end_dumps()
        finally:
            self._over.set()

    def _look(self) -> None:
        """Look for requests while verl works: a step may take many minutes."""
        if self._wanted(STOP):
            self._trainer.config.trainer.save_freq = 1
        if self._wanted(STACKS):
            with suppress(OSError):
                (self._folder / STACKS).unlink(missing_ok=True)
                with (self._folder / "log").open("a", encoding="utf-8") as log:
                    print("\nthe threads of verl's TaskRunner:", file=log, flush=True)
                    faulthandler.dump_traceback(log, all_threads=True)

    def _wanted(self, request: str) -> bool:
        """Whether a request is there; one that cannot be read now is read later. A stop stays."""
        if request != STOP:
            return bool(present(self._folder / request))
        self._stopped = self._stopped or bool(present(self._folder / STOP))
        return self._stopped

    def _save(self, original: Callable[..., Any], trainer: Any, *args: Any, **named: Any) -> Any:
        result = original(trainer, *args, **named)
        self._saved = int(trainer.global_steps)
        return result

    def _note_lengths(self, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        info, batch = original(*args, **named), args[0] if args else named["batch"]
        if self._lengths is None:
            self._lengths = info
            self._batch.note(batch, info["response_length"])
        values = getattr(batch, "non_tensor_batch", {})
        self._rewards = self._rewards or reward_scalars(values, self._names)
        return info

    def _note_rewards(self, original: Callable[..., Any], trainer: Any, batch: Any, *args: Any, **named: Any) -> Any:
        """V1 keeps the other values of each completion's reward in its queue."""
        result = original(trainer, batch, *args, **named)
        try:
            keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
            fields = (
                hooks.QUEUE.get()
                .kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
                .pop("extra_fields")
            )
            infos = [one.get("reward_extra_info") or {} for one in fields.tolist() if isinstance(one, dict)]
            values = {name: [one[name] for one in infos if name in one] for name in set().union(*infos)}
            self._rewards = reward_scalars(values, self._names)
        except Exception as error:  # missing curves must not end a run
            print(f"the single rewards of a step are not logged: {type(error).__name__}: {error}", flush=True)
        return result

    def _guard_wandb(self, original: Callable[..., Any], tracking: Any, *args: Any, **named: Any) -> None:
        original(tracking, *args, **named)
        backends = hooks.BACKENDS.get(tracking)
        if "wandb" in backends:
            backends["wandb"] = GuardedWandb(backends["wandb"])

    def _log(self, original: Callable[..., Any], tracking: Any, *args: Any, **named: Any) -> None:
        given = dict(zip(("data", "step", "backend"), args, strict=False)) | named
        data, step = given["data"], int(given["step"])
        if "training/global_step" not in data:  # validation before the first step
            original(tracking, *args, **named)
            return
        self._first_step = self._first_step or step
        data.update(self._rewards | self._batch.taken())
        self._rewards = {}
        line = step_line(data, step, self._lengths, resumed=step > 1 and step == self._first_step)
        self._lengths = None
        self._report_missing(line)
        append_json_line(self._folder / "metrics.jsonl", line)
        original(tracking, *args, **named)
        steps = int(self._trainer.total_training_steps)
        print(progress(line, steps), flush=True)
        if step < steps and self._wanted(STOP):
            self._save_unless_saved(step)
            raise _Stop

    def _report_missing(self, line: MetricsLine) -> None:
        """0.9.1 continues without completions whose engine or reward has failed: such a step is shorter."""
        config, got = self._trainer.config, len(line["samples"].get("response_length", ()))
        missing = int(config.data.train_batch_size) * int(config.actor_rollout_ref.rollout.n) - got
        if got and missing > 0:
            line["scalars"]["missing_completions"] = missing
            print(f"step {line['step']} lacks {missing} completions, which failed (see above)", flush=True)

    def _save_unless_saved(self, step: int) -> None:
        if self._saved == step:
            return
        # The request came after this step's place to save. Newer versions have already woken the engine.
        manager = hooks.CHECKPOINTS_V1.find(self._trainer)
        if manager is not None:
            manager.sleep_replicas()
        hooks.SAVE.get(self._trainer)()


def step_line(data: Mapping[str, Any], step: int, lengths: Mapping[str, Any] | None, *, resumed: bool) -> MetricsLine:
    """A step's line of metrics.jsonl: verl's numbers under verl's names, token sums, and each response's length."""
    scalars = {name: number for name, value in data.items() if (number := _number(value)) is not None}
    samples: dict[str, list[int]] = {}
    if lengths is not None:
        responses = [int(length) for length in lengths["response_length"].tolist()]
        scalars["prompt_tokens"] = sum(int(length) for length in lengths["prompt_length"].tolist())
        scalars["response_tokens"] = sum(responses)
        samples["response_length"] = responses
    return {
        "step": step,
        "time": time.time(),
        "resumed": resumed,
        "phases": {},  # timers are scalars timing_s/*; each version declares their tree
        "scalars": scalars,
        "samples": samples,
    }


def reward_scalars(values: Mapping[str, Sequence[Any]], names: Sequence[str]) -> dict[str, float]:
    """`rewards/<name>/mean` and `/std` of a step, as in TRL, and `/failed` of a user's function.

    A completion without a value (NaN) counts in neither mean nor sample deviation.
    """
    found = {}
    for name in names:
        known = [float(value) for value in values.get(name, ()) if value is not None and not math.isnan(float(value))]
        if known:
            found[f"rewards/{name}/mean"] = statistics.fmean(known)
        if len(known) > 1:
            found[f"rewards/{name}/std"] = statistics.stdev(known)
        if failed := [float(value) for value in values.get(f"{name}{FAILED}", ())]:
            found[f"rewards/{name}/failed"] = sum(failed)
    return found


def _number(value: Any) -> int | float | None:
    """A plain Python number, also from numpy and torch; None for anything else."""
    size = value.numel() if hasattr(value, "numel") else getattr(value, "size", 0)
    if not isinstance(value, int | float) and size == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isinstance(value, float) else int(value)


def progress(line: Mapping[str, Any], steps: int) -> str:
    """A step's progress line for the log."""
    scalars, step = line["scalars"], line["step"]
    seconds, reward = scalars.get("timing_s/step", float("nan")), scalars.get("critic/score/mean")
    shown = "none" if reward is None else f"{reward:.3f}"
    return f"step {step}/{steps}  {seconds:.2f} s  reward {shown}  ~{(steps - step) * seconds:.0f} s left"


class GuardedWandb:
    """verl's wandb backend that survives failures (node/tracker.py)."""

    def __init__(self, wandb: Any) -> None:
        self._wandb = wandb
        run = wandb.run
        start = {"project": run.project, "name": run.name, "config": dict(run.config)} if run else {}
        self._guard = Guard(wandb, lambda: wandb.init(**start))

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Log a step."""
        self._guard.do(lambda: self._wandb.log(data=data, step=step))

    def finish(self, exit_code: int = 0) -> None:
        """Have wandb write its pending rows."""
        if not self._guard.lost:
            finish_wandb(self._wandb, exit_code)


class TaskRunner:
    """verl's own TaskRunner with our hooks. Ray creates it without arguments, so its settings are a class attribute."""

    settings: ClassVar[HookSettings]

    def run(self, config: Any) -> None:
        """Train to the end, or until a stop request."""
        os.environ.update(self.settings.environment)  # wandb and the file logger read them when they start
        runner, trainer = _task_runner(config)
        StepHooks(self.settings.folder, self.settings.rewards).install(trainer)
        try:
            runner.run(config)
        finally:
            if has_wandb():
                import wandb

                finish_wandb(wandb)


def remote_task_runner(settings: HookSettings) -> Any:
    """The Ray actor class for verl's `run_ppo`. It reserves no CPU: it waits for the workers, which have them all."""
    import ray

    made = type("TaskRunner", (TaskRunner,), {"settings": settings})
    return ray.remote(num_cpus=0)(made)


def _task_runner(config: Any) -> tuple[Any, type[Any]]:
    """verl's TaskRunner for this configuration, without Ray's wrapping, and its trainer class."""
    if _is_v1(config):
        return _unwrapped(hooks.RUNNER_V1.get())(), hooks.TRAINER_V1.get()
    return _unwrapped(hooks.RUNNER_0_4.find() or hooks.RUNNER.get())(), hooks.TRAINER.get()


def _is_v1(config: Any) -> bool:
    from omegaconf import OmegaConf

    return bool(OmegaConf.select(config, "trainer.use_v1", default=False))


def _unwrapped(actor: Any) -> type[Any]:
    kind: type[Any] = actor.__ray_metadata__.modified_class
    return kind
