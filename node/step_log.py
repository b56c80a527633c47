"""Logs each training step, and stops training on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import rewrite_logs

from common.contracts import MetricsLine
from common.retry import append_json_line
from node.exit_codes import StopRequest
from node.over_ranks import BETWEEN, WHO, RankStep, gather_ranks, leaf_phases, merge_ranks
from node.phase_clock import ROOT, StepClock
from node.samples import StepSamples
from node.tracker import has_wandb

WANDB_PREFIX = "timing_s/"


class StepLog(TrainerCallback):  # type: ignore[misc]
    """Measures each step, and writes a line of metrics.jsonl, a line of progress and wandb's timings.

    Each process has one; rank 0 writes the merged steps. A stop request of one process ends all after the same step.

    The Trainer calls on_step_end and then on_log, which has the scalars and writes the line. The time between both is
    part of the next step's `between_steps_s`.
    """

    def __init__(
        self,
        clock: StepClock,
        trainer: Any,
        path: Path,
        resumed_from: int,
        stop: StopRequest,
        samples: StepSamples | None = None,
    ) -> None:
        self._clock, self._trainer, self._path, self._samples = clock, trainer, path, samples
        self._resumed_from, self._stop = resumed_from, stop
        self._prompt_lengths: list[int] = []
        self._response_lengths: list[int] = []
        self._counts: dict[str, float] = {}
        self._at_end: list[Callable[[], Mapping[str, float]]] = []
        self._line: MetricsLine | None = None
        self.first_step: int | None = None
        self.last_step = resumed_from

    def generated(self, prompts: Iterable[int], responses: Iterable[int]) -> None:
        """Record the token counts of prompts and completions: trainers log only means."""
        self._prompt_lengths += prompts
        self._response_lengths += responses

    def count(self, name: str, number: int) -> None:
        """Add to a scalar of this step, if there is something to add."""
        if number:
            self._counts[name] = self._counts.get(name, 0.0) + number

    def at_step_end(self, measured: Callable[[], Mapping[str, float]]) -> None:
        """Add the scalars that a function returns after each step, outside its time."""
        self._at_end.append(measured)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.begin_step()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.open("optimizer_step")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.close()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        phases, scalars = self._clock.end_step()
        for measured in self._at_end:
            scalars |= measured()
        lengths = self._prompt_lengths, self._response_lengths
        samples = self._samples.of_step(state.global_step, state.max_steps) if self._samples else []
        mine = RankStep(phases, scalars | self._counts, *lengths, self._stop.requested, samples)
        self._prompt_lengths, self._response_lengths, self._counts = [], [], {}
        step = merge_ranks(gather_ranks(mine, self._trainer.accelerator.num_processes))
        self.first_step = self.first_step or state.global_step
        self.last_step = state.global_step
        self._line = {
            "step": state.global_step,
            "time": time.time(),
            "resumed": self._resumed_from > 0 and state.global_step == self.first_step,
            "phases": dict(sorted(step.phases.items())),
            "scalars": {"prompt_tokens": sum(step.prompts), "response_tokens": sum(step.responses), **step.scalars},
            "samples": {"response_length": step.responses},
        }
        control.should_log = True
        if step.stop and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True
        if state.is_world_process_zero:
            self._to_wandb(step.phases)
            if self._samples and step.samples:
                self._samples.write(state.global_step, state.max_steps, step.samples)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        line, self._line = self._line, None
        if line is None:  # the summary at the end is not a step
            return
        named = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float | None)}
        line["scalars"] = {**rewrite_logs(named), **line["scalars"]}
        if state.is_world_process_zero:
            append_json_line(self._path, line)
            self._print_progress(line, state.max_steps)

    def _to_wandb(self, phases: Mapping[str, float]) -> None:
        if not has_wandb():
            return
        import wandb

        if wandb.run is not None:
            # Not committed: transformers logs the same row next, with train/global_step.
            wandb.log({WANDB_PREFIX + path: seconds for path, seconds in phases.items()}, commit=False)

    def _print_progress(self, line: MetricsLine, steps: int) -> None:
        seconds, step = line["phases"][ROOT], line["step"]
        reward = line["scalars"].get("train/reward")
        shown = "none" if reward is None else f"{reward:.3f}"
        left = (steps - step) * (seconds + line["scalars"].get("between_steps_s", 0.0))
        slowest = _slowest_rank(line["scalars"])
        print(f"step {step}/{steps}  {seconds:.2f} s  reward {shown}  ~{left:.0f} s left{slowest}", flush=True)


def _slowest_rank(scalars: Mapping[str, Any]) -> str:
    if WHO not in scalars:
        return ""
    spread = {name: value for name, value in scalars.items() if name.startswith(f"{BETWEEN}/")}
    widest = max(leaf_phases(spread), key=spread.__getitem__)
    return f"  rank {scalars[WHO]:.0f} +{spread[widest]:.2f} s in {widest.rpartition('/')[2]}"
