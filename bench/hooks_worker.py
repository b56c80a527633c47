"""Runs in a stack: one training, a step each time it is asked, with our timers and logs or without.

    python -m bench.hooks_worker TRAINER ours|plain ATTEMPT GO TOLD

`ours` is the trainer's driver as a job runs it. `plain` is the same trainer, built by the same driver with the same
rewards and the same tracker, and trained without what the driver puts on it afterwards: the timers, the `StepLog`, the
count of tokens, the guard of the tracker. A step lasts from its begin to the next one's: what is done at its end and
as it is logged is in it.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from bench.gate import Gate, cpu_s
from engines.transformers.log_probs import SampledLogProbs
from node import hf_training
from node.attempt import exit_code
from node.mismatch_sums import MismatchSums
from node.phase_clock import PhaseClock
from node.ranks import die_with_parent

CALLS = 20_000
_EVENTS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_log", "generated")
"""What a trainer calls of a `StepLog`."""
_OF_MISMATCH = (
    *((MismatchSums, "add"), (MismatchSums, "taken")),
    *((SampledLogProbs, "__call__"), (SampledLogProbs, "finish"), (SampledLogProbs, "rows")),
)
"""What compares log-probabilities, and what records those of transformers."""


def gated(gate: Gate, figures: dict[str, float]) -> Any:
    """A callback that waits at each step's begin, and tells what the last one took; then it empties `figures`."""
    from transformers import TrainerCallback

    class Gated(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self._began: tuple[float, float] | None = None

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if self._began is not None:
                wall, cpu = time.perf_counter() - self._began[0], cpu_s() - self._began[1]
                gate.tell(wall=wall, cpu=cpu, **figures)
                figures.update({name: 0.0 for name in figures if name != "per_call"})
            gate.wait()
            self._began = time.perf_counter(), cpu_s()

    return Gated()


def with_hooks(gate: Gate) -> Callable[..., None]:
    """The driver's own way to train; of its hooks the calls are counted, and the log's seconds."""

    def train(job: Any, stop: Any, trainer: Any, rewards: Any, hook: Any, **more: Any) -> None:
        figures = {"calls": 0.0, "log_s": 0.0, "mismatch_s": 0.0, "per_call": 0.0}
        for owner, name in _OF_MISMATCH:
            setattr(owner, name, _timed(getattr(owner, name), figures, "mismatch_s"))

        def watched(clock: PhaseClock, log: Any) -> None:
            hook(clock, log)
            figures["per_call"] = per_call()
            opened = clock.open

            def count(name: str) -> None:
                figures["calls"] += 1
                opened(name)

            clock.open = count  # type: ignore[method-assign]
            for event in _EVENTS:
                setattr(log, event, _timed(getattr(log, event), figures, "log_s"))
            trainer.callback_handler.callbacks.insert(0, gated(gate, figures))

        hf_training.train_to_end(job, stop, trainer, rewards, watched, **more)

    return train


def _timed(event: Callable[..., Any], figures: dict[str, float], name: str) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return event(*args, **kwargs)
        finally:
            figures[name] += time.perf_counter() - began

    return timed


def per_call() -> float:
    """Seconds that one timed call costs, in a step's depth, beyond the call itself."""
    from trainers.trl.driver.timers import TrlTimers

    clock, owner = PhaseClock(), SimpleNamespace(plain=lambda: None, timed=lambda: None)
    TrlTimers(clock)._time(owner, "timed", "generate")
    for phase in ("step", "training_step", "prepare_inputs"):
        clock.open(phase)
    seconds = []
    for call in (owner.plain, owner.timed):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        seconds.append(time.perf_counter() - began)
    return (seconds[1] - seconds[0]) / CALLS


def without_hooks(gate: Gate) -> Callable[..., None]:
    """The trainer as it is built, and nothing on it."""

    def train(job: Any, stop: Any, trainer: Any, rewards: Any, hook: Any, **more: Any) -> None:
        from transformers import PrinterCallback

        for reward in rewards:
            reward.ready(trainer.args.device)
        trainer.remove_callback(PrinterCallback)
        trainer.callback_handler.callbacks.insert(0, gated(gate, {}))
        trainer.train()

    return train


def main() -> int:
    die_with_parent()
    name, role, attempt, go, told = sys.argv[1:]
    driver = importlib.import_module(f"trainers.{name}.driver.train")
    gate = Gate(int(go), int(told))
    sys.argv[1:] = [attempt]
    driver.train_to_end = (with_hooks if role == "ours" else without_hooks)(gate)  # type: ignore[attr-defined]
    return exit_code(driver.train)


if __name__ == "__main__":
    sys.exit(main())
