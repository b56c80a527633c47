"""How does the controller speak to people? Lines on stderr, and mistakes as one message without a traceback."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from analysis.errors import UserError
from workflow.files import write_text


def say(message: str) -> None:
    """One line to the person at the terminal."""
    print(message, file=sys.stderr, flush=True)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` with the known word that looks most like the given one; empty if none does."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]}?)" if found else ""


def unknown_name(kind: str, got: str, allowed: Iterable[str]) -> str:
    """One sentence that refuses a name, with the nearest known one and the whole list."""
    return f"unknown {kind} {got!r}{did_you_mean(got, allowed)}; known: {', '.join(allowed) or 'none'}"


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
