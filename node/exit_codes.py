"""Ends a job so that its launcher and its user know why: by exit code, and one line on stderr.

SIGTERM or SIGUSR2 during training: the step under way is finished and logged, a checkpoint is saved, and the job exits
with 75 ("requeue me"). Before the first step there is nothing to save, and it exits with 75 at once.
"""

from __future__ import annotations

import errno
import faulthandler
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

from common.errors import UserError

OK = 0
FAILED = 1
USER_ERROR = 2
REQUEUE = 75  # EX_TEMPFAIL of sysexits.h: "try again later", which is what a stopped job asks for
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


class RequeueError(BaseException):
    """The node was taken away before the job had done all its steps; it goes on in its next attempt.

    Raised wherever the signal comes: no library's handler of errors, around an import say, may take it for one.
    """


def one_line(text: object) -> str:
    """A message of several lines as one."""
    return " ".join(str(text).split())


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that it was raised from, outermost first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def no_space_left(error: BaseException) -> bool:
    """Whether a full disk is the root of an error.

    Arrow keeps errno, safetensors only the words, and datasets wraps either in its own exception.
    """
    return any(
        getattr(link, "errno", None) == errno.ENOSPC or "No space left on device" in str(link) for link in causes(error)
    )


def run(main: Callable[[], None]) -> int:
    """The exit code of a job: 0, 1 (unforeseen, traceback on stderr), 2 (user's mistake, one line) or 75 (requeue)."""
    try:
        main()
    except UserError as error:
        return _say(error, USER_ERROR)
    except RequeueError as error:
        print(f"stopped: {one_line(error)}", file=sys.stderr, flush=True)
        return REQUEUE
    except Exception as error:
        if no_space_left(error):
            return _say("no space left on the disk that is written to; free some, or put results on another disk", 2)
        traceback.print_exc()
        return _say(f"{type(error).__name__}: {error}", FAILED)
    return OK


def _say(message: object, code: int) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr, flush=True)
    return code


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
