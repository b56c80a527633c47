"""Prints the controller's messages to stderr, and formats values, lists and tables for them."""

from __future__ import annotations

import datetime
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from common.errors import UserError
from common.files import write_text
from common.redaction import without_secrets
from common.retry import denying_owner, is_transient
from common.shown import shown_lines, shown_output

QUOTE = "  | "
"""Prefix of each log line that a message quotes."""


def print_message(message: str) -> None:
    """Print one line to stderr."""
    print(shown_lines(message), file=sys.stderr, flush=True)


def can_redraw(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can redraw a line; CI terminals cannot."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")


def colour_wanted() -> bool:
    """Whether stdout is a colour terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """` (did you mean X?)` with the closest known word; empty if none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]}?)" if close else ""


def join_first(items: Sequence[object], most: int = 10) -> str:
    """`a, b and 3 more`: the first `most` items."""
    return ", ".join(map(str, items[:most])) + (f" and {len(items) - most} more" if len(items) > most else "")


def unknown_name(kind: str, got: str, allowed: Iterable[str]) -> str:
    """The message for an unknown name, with the closest known name and all known names."""
    return f"unknown {kind} {got!r}{did_you_mean(got, allowed)}; known: {', '.join(allowed) or 'none'}"


def shortened(text: str, most: int) -> str:
    """A text, cut to so many characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def short_repr(value: Any) -> str:
    """`repr` of a value, cut to 80 characters."""
    try:
        return shortened(repr(value), 80)
    except ValueError:  # Python does not print integers of more than 4300 digits
        return "a number of thousands of digits"


def yaml_repr(value: Any) -> str:
    """A value as the author of a YAML file writes it, for error messages."""
    if isinstance(value, datetime.date):  # also a datetime
        return f"the date {value}"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return short_repr(value)


def errors_since(folders: Iterable[Path], began: float) -> list[str]:
    """The messages (from `error:` to the end) in all *.log files below folders that are newer than `began`.

    Quoted lines (`QUOTE`) were printed before and are dropped, except a last line, which is usually the reason.
    """
    messages = []
    logs = {Path(at, name) for folder in folders for at, _, names in os.walk(folder) for name in names}
    for log in sorted(log for log in logs if log.suffix == ".log"):
        text = ""
        with suppress(FileNotFoundError):  # running jobs may remove files and folders
            text = log.read_text(encoding="utf-8", errors="replace") if log.stat().st_mtime >= began else ""
        if error := re.search(r"^error:", text, re.MULTILINE):
            lines = text[error.start() :].strip().splitlines()
            messages.append("\n".join([*(line for line in lines[:-1] if not line.startswith(QUOTE)), lines[-1]]))
    return list(dict.fromkeys(messages))


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """For the Snakefile: a `UserError` ends the program with one message.

    Snakemake would add the Snakefile's line to a WorkflowError, although the mistake is in the configuration.
    """
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {shown_lines(without_secrets(str(error)))}")


def remedy(error: OSError) -> str:
    """The remedy for a file system error that may be temporary."""
    owner = denying_owner(error)
    return "; try again" if owner is None else f"; it belongs to {owner}: ask them for access"


_TOO_MUCH: dict[type[Exception], str] = {
    RecursionError: "what was read has hundreds of brackets or commands within one another; simplify it",
    MemoryError: "this machine has not enough memory for what was read; give less, or use a machine with more",
}


def report_errors(action: Callable[[], None], log: Path | None = None) -> int:
    """Run an action; a `UserError` or a temporary file system error becomes one message and exit code 1.

    What it prints is `shown_output`. The message goes to stderr and to the log. Other OSErrors are raised.
    """
    try:
        with shown_output():
            action()
        return 0
    except (UserError, OSError, RecursionError, MemoryError) as error:
        message = _TOO_MUCH.get(type(error), "") or without_secrets(str(error))
        if isinstance(error, OSError):
            if not is_transient(error):
                raise
            if error.filename is not None and error.strerror:
                message = f"{error.filename}: {error.strerror}"
            message += remedy(error)
        with suppress(OSError):  # keeps the order in a file with both streams
            sys.stdout.flush()
        print_message(f"error: {message}")
        if log is not None:
            # On a full disk only the terminal shows the message.
            with suppress(OSError, UserError):
                write_text(log, f"error: {message}\n")
        return 1


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """The lines of a text table; columns in `right` are right-aligned, empty columns are dropped."""
    columns = [column for column in zip(header, *rows, strict=True) if any(column[1:])]
    padded = []
    for column in columns:
        width = max(map(len, column))
        padded.append([cell.rjust(width) if column[0] in right else cell.ljust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
