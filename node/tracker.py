"""Keeps training alive when its tracker dies.

wandb keeps a process of its own (wandb-core). Slurm signals every process of a job, so that one is dead in the very
moment in which the training is to save its checkpoint; and elsewhere it may run out of memory or disk. metrics.jsonl
has every step anyway: a lost tracker is started again, under the same run, and if that fails training goes on without.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Tracker:
    """wandb as transformers' callback and TRL's timers use it, with its failures borne."""

    def __init__(self, trainer: Any) -> None:
        import wandb
        from transformers.integrations import WandbCallback

        self._trainer = trainer
        self._lost = False
        found = [item for item in trainer.callback_handler.callbacks if isinstance(item, WandbCallback)]
        self._callback = found[0] if found else None
        for event in ("on_train_begin", "on_log", "on_save", "on_train_end"):
            if self._callback is not None:
                setattr(self._callback, event, self._bearing(getattr(self._callback, event)))
        # TRL's timers call wandb.log themselves, in the midst of a step: only here all are met.
        original = wandb.Run.log

        def log(run: Any, *args: Any, **named: Any) -> None:
            try:
                original(run, *args, **named)
            except Exception as error:
                self._start_again(error)
                if wandb.run is not None:
                    self._bearing(original)(wandb.run, *args, **named)

        wandb.Run.log = log  # type: ignore[method-assign]

    def finish(self) -> None:
        """Have wandb write all that it holds."""
        import wandb

        if wandb.run is not None:
            self._bearing(wandb.finish)()

    def _start_again(self, error: Exception) -> None:
        import wandb

        if self._lost or self._callback is None:
            return
        print(f"wandb has ended ({type(error).__name__}: {error}); starting it again", flush=True)
        with suppress(Exception):  # it cannot take leave of a process that is gone
            wandb.teardown()
        self._callback._initialized = False
        trainer = self._trainer
        self._bearing(self._callback.setup)(trainer.args, trainer.state, trainer.model)

    def _bearing(self, action: Callable[..., Any]) -> Callable[..., None]:
        def bear(*args: Any, **named: Any) -> None:
            if self._lost:
                return
            try:
                action(*args, **named)
            except Exception as error:
                self._lost = True
                print(f"wandb is lost ({type(error).__name__}: {error}); metrics.jsonl has every step", flush=True)

        return bear
