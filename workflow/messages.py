"""How does the controller speak to people? Lines on stderr, and mistakes as one message without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from analysis.errors import UserError
from workflow.files import write_text


def say(message: str) -> None:
    """One line to the person at the terminal."""
    print(message, file=sys.stderr, flush=True)


def reporting_errors(action: Callable[[], None], log: Path | None = None) -> int:
    """Run something; a `UserError` becomes one message on stderr and in the log, and exit code 1."""
    try:
        action()
        return 0
    except UserError as error:
        say(f"error: {error}")
        if log is not None:
            write_text(log, f"error: {error}\n")
        return 1
