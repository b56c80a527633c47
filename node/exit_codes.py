"""Ends a job with an exit code and one line on stderr, so that the launcher and the user know the reason.

SIGTERM or SIGUSR2 during training: the current step is finished and logged, a checkpoint is saved, and the job exits
with 75 ("requeue me"). Before the first step the job exits with 75 at once.
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
from common.redaction import without_secrets
from common.shown import shown_lines

OK = 0
FAILED = 1
USER_ERROR = 2
UNFIT_NODE = 69  # EX_UNAVAILABLE: the node's GPUs fail their check, and another node may do
REQUEUE = 75  # EX_TEMPFAIL of sysexits.h: "try again later"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


class RequeueError(BaseException):
    """The job was stopped before its last step; the next attempt continues.

    A BaseException, so that no library's `except Exception`, for example around an import, catches it.
    """


class UnfitNodeError(UserError):
    """This node cannot train; another one may."""


def one_line(text: object) -> str:
    """A message of several lines as one line."""
    return " ".join(str(text).split())


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, outermost first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def no_space_left(error: BaseException) -> bool:
    """Whether a full disk caused an error. Arrow keeps errno, safetensors only the text; datasets wraps both."""
    return any(
        getattr(link, "errno", None) == errno.ENOSPC or "No space left on device" in str(link) for link in causes(error)
    )


def run(main: Callable[[], None]) -> int:
    """The exit code of a job: 0, 1 (unexpected, with traceback), 2 (user's mistake, one line), 69 (node) or 75."""
    try:
        main()
    except UserError as error:
        message, code = one_line(error), UNFIT_NODE if isinstance(error, UnfitNodeError) else USER_ERROR
    except RequeueError as error:
        print(f"stopped: {one_line(error)}", file=sys.stderr, flush=True)
        return REQUEUE
    except Exception as error:
        if no_space_left(error):
            message, code = "no space left on the disk of the results; free some, or move results to another disk", 2
        else:
            traceback.print_exc()
            message, code = one_line(f"{type(error).__name__}: {error}"), FAILED
    else:
        return OK
    print(f"error: {shown_lines(without_secrets(message))}", file=sys.stderr, flush=True)
    return code


def show_stacks_on_request() -> None:
    """On SIGUSR1, which the watchdog sends to a hanging training, write the stacks of all threads to the log."""
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


class StopRequest:
    """Remembers a stop signal; outside training the signal raises `RequeueError` at once."""

    def __init__(self) -> None:
        self.requested = False
        self.training = False

    def install(self) -> None:
        """Handle the stop signals; call it again after a library may have replaced the handlers."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        first, self.requested = not self.requested, True
        if not self.training:
            raise RequeueError(f"{name} before the first step")
        if first:
            print(f"{name}: stopping after this step", flush=True)
