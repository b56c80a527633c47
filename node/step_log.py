"""Writes down each training step, and stops training early on request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import rewrite_logs

from common.contracts import MetricsLine
from node.exit_codes import StopRequest
from node.over_ranks import BETWEEN, WHO, RankStep, gather_ranks, leaf_phases, merge_ranks
from node.phase_clock import ROOT, StepClock
from node.records import append_json_line

WANDB_PREFIX = "timing_s/"


class StepLog(TrainerCallback):  # type: ignore[misc]
    """Times each step's root phase, and writes a line of metrics.jsonl, a line of progress and wandb's timings.

    Of several processes each has one: they bring their steps together, and rank 0 writes. A stop that one of them was
    asked for ends all after the same step.

    The Trainer ends a step with on_step_end and then logs it; the line is written at the log, which has the scalars.
    That time belongs to no step, and is the next one's `between_steps_s`.
    """

    def __init__(
        self,
        clock: StepClock,
        trainer: Any,
        path: Path,
        resumed_from: int,
        stop: StopRequest,
    ) -> None:
        self._clock = clock
        self._trainer = trainer
        self._path = path
        self._resumed_from = resumed_from
        self._stop = stop
        self._prompt_lengths: list[int] = []
        self._response_lengths: list[int] = []
        self._line: MetricsLine | None = None
        self.first_step: int | None = None
        self.last_step = resumed_from

    def generated(self, prompts: Iterable[int], responses: Iterable[int]) -> None:
        """Count the tokens of prompts and of their completions as they are made: trainers log means only."""
        self._prompt_lengths += prompts
        self._response_lengths += responses

    def outside_step(self, name: str) -> AbstractContextManager[None]:
        """Time what is done between two steps and belongs to neither, as the next one's `outside_step_s/<name>`."""
        return self._clock.outside_step(name)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.begin_step()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.open("optimizer_step")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.close()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        mine = RankStep(*self._clock.end_step(), self._prompt_lengths, self._response_lengths, self._stop.requested)
        self._prompt_lengths, self._response_lengths = [], []
        whole = merge_ranks(gather_ranks(mine, self._trainer.accelerator.num_processes))
        self.first_step = self.first_step or state.global_step
        self.last_step = state.global_step
        self._line = {
            "step": state.global_step,
            "time": time.time(),
            "resumed": self._resumed_from > 0 and state.global_step == self.first_step,
            "phases": dict(sorted(whole.phases.items())),
            "scalars": {
                "prompt_tokens": sum(whole.prompts),
                "response_tokens": sum(whole.responses),
                **whole.scalars,
            },
            "samples": {"response_length": whole.responses},
        }
        control.should_log = True
        if whole.stop and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True
        if state.is_world_process_zero:
            self._to_wandb(whole.phases)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        line, self._line = self._line, None
        if line is None:  # the summary at the end is no step
            return
        named = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float | None)}
        line["scalars"] = {**rewrite_logs(named), **line["scalars"]}
        if state.is_world_process_zero:
            append_json_line(self._path, line)
            self._print_progress(line, state.max_steps)

    def _to_wandb(self, phases: Mapping[str, float]) -> None:
        import wandb

        if wandb.run is not None:
            # Not committed: it joins the row that transformers is about to log with train/global_step.
            wandb.log({WANDB_PREFIX + path: seconds for path, seconds in phases.items()}, commit=False)

    def _print_progress(self, line: MetricsLine, steps: int) -> None:
        seconds, step = line["phases"][ROOT], line["step"]
        reward = line["scalars"].get("train/reward")
        shown = "none" if reward is None else f"{reward:.3f}"
        left = (steps - step) * (seconds + line["scalars"].get("between_steps_s", 0.0))
        lags = _who_lags(line["scalars"])
        print(f"step {step}/{steps}  {seconds:.2f} s  reward {shown}  ~{left:.0f} s left{lags}", flush=True)


def _who_lags(scalars: Mapping[str, Any]) -> str:
    """Of several processes the one that lags most, and by how much in which phase; else nothing."""
    if WHO not in scalars:
        return ""
    apart = {name: value for name, value in scalars.items() if name.startswith(f"{BETWEEN}/")}
    widest = max(leaf_phases(apart), key=apart.__getitem__)
    return f"  rank {scalars[WHO]:.0f} +{apart[widest]:.2f} s in {widest.rpartition('/')[2]}"
