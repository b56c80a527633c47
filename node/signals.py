"""Stops training when the scheduler wants the node back.

SIGTERM or SIGUSR2 during training: the step under way is finished and logged, a checkpoint is saved, and the job exits
with 75 ("requeue me"). Before the first step there is nothing to save, and it exits with 75 at once.
"""

from __future__ import annotations

import faulthandler
import signal
from types import FrameType

from node.exit_codes import RequeueError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


def show_stacks_on_request() -> None:
    """On SIGUSR1 write the stacks of all threads to the log: what the watchdog asks of a training that hangs."""
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


class StopRequest:
    """Remembers that a stop signal came; outside training it raises `RequeueError` at once."""

    def __init__(self) -> None:
        self.requested = False
        self.training = False

    def install(self) -> None:
        """Take over the stop signals; to be called again after a library may have taken them itself."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        first, self.requested = not self.requested, True
        if not self.training:
            raise RequeueError(f"{name} before the first step")
        if first:
            print(f"{name}: stopping after this step", flush=True)
