"""Keeps training alive when wandb fails.

wandb runs in its own process (wandb-core). Slurm's signals end it just when the training saves its checkpoint, and it
may run out of memory or disk. It is restarted once; if that fails, or if it fails again, training continues without
it, since metrics.jsonl has every step. A stack without wandb trains without it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def has_wandb() -> bool:
    """Whether this stack has wandb; an environment as found may lack it."""
    return "wandb" in sys.modules or importlib.util.find_spec("wandb") is not None


class Tracker:
    """Catches wandb's errors in transformers' callback and in TRL's timers."""

    def __init__(self, trainer: Any) -> None:
        if not has_wandb():
            print("wandb is not installed in this stack; metrics.jsonl has every step", flush=True)
            return
        import wandb
        from transformers.integrations import WandbCallback

        self._trainer = trainer
        self._restarted = self._lost = False
        found = [item for item in trainer.callback_handler.callbacks if isinstance(item, WandbCallback)]
        self._callback = found[0] if found else None
        for event in ("on_train_begin", "on_log", "on_save", "on_train_end"):
            if self._callback is not None:
                setattr(self._callback, event, self._ignore_errors(getattr(self._callback, event)))
        # TRL's timers call wandb.log directly, within a step.
        original = wandb.Run.log

        def log(run: Any, *args: Any, **named: Any) -> None:
            if self._lost:
                return
            try:
                original(run, *args, **named)
            except Exception as error:
                self._restart(error)
                if wandb.run is not None:
                    self._ignore_errors(original)(wandb.run, *args, **named)

        wandb.Run.log = log  # type: ignore[method-assign]

    def finish(self) -> None:
        """Make wandb write all its data."""
        if not has_wandb():
            return
        import wandb

        if wandb.run is not None:
            self._ignore_errors(wandb.finish)()

    def _restart(self, error: Exception) -> None:
        import wandb

        if self._lost or self._callback is None:
            return
        if self._restarted:
            self._drop(error)
            return
        self._restarted = True
        print(f"wandb has ended ({type(error).__name__}: {error}); restarting it once", flush=True)
        with suppress(Exception):  # its process has already ended
            wandb.teardown()
        self._callback._initialized = False
        trainer = self._trainer
        self._ignore_errors(self._callback.setup)(trainer.args, trainer.state, trainer.model)

    def _ignore_errors(self, action: Callable[..., Any]) -> Callable[..., None]:
        def call(*args: Any, **named: Any) -> None:
            if self._lost:
                return
            try:
                action(*args, **named)
            except Exception as error:
                self._drop(error)

        return call

    def _drop(self, error: Exception) -> None:
        self._lost = True
        print(f"wandb is lost ({type(error).__name__}: {error}); metrics.jsonl has every step", flush=True)
