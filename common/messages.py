"""Speaks to people for the controller: lines on stderr, and mistakes as one message without a traceback."""

from __future__ import annotations

import datetime
import difflib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from common.errors import UserError
from common.files import write_text
from common.retry import denying_owner, is_transient

QUOTE = "  | "
"""Before each line of a log that a message shows."""


class _LastLine:
    """Whether the last line on stderr is a bar, which the next one replaces."""

    drawn = False


def print_message(message: str) -> None:
    """One line to the person at the terminal."""
    end_bar()
    print(message, file=sys.stderr, flush=True)


def show_bar(text: str) -> None:
    """Draws a line on stderr over the bar before it; for a terminal (`is_live`)."""
    columns = shutil.get_terminal_size().columns
    print(f"\r{text[: columns - 1]}\x1b[K", end="", file=sys.stderr, flush=True)
    _LastLine.drawn = True


def end_bar() -> None:
    """Leaves the bar as it is: what follows begins on a line of its own."""
    if _LastLine.drawn:
        print(file=sys.stderr, flush=True)
        _LastLine.drawn = False


def can_redraw(stream: TextIO) -> bool:
    """Whether a stream is a terminal in which lines can be drawn over; a terminal of CI keeps all of them."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")


def colour_wanted() -> bool:
    """Whether stdout is a terminal that shows colour, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` with the known word that looks most like the given one; empty if none does."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]}?)" if found else ""


def join_first(items: Sequence[object], most: int = 10) -> str:
    """`a, b and 3 more`: the first of many items."""
    return ", ".join(map(str, items[:most])) + (f" and {len(items) - most} more" if len(items) > most else "")


def unknown_name(kind: str, got: str, allowed: Iterable[str]) -> str:
    """One sentence that refuses a name, with the nearest known one and the whole list."""
    return f"unknown {kind} {got!r}{did_you_mean(got, allowed)}; known: {', '.join(allowed) or 'none'}"


def short_repr(value: Any) -> str:
    """A value as Python writes it, cut to 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def yaml_repr(value: Any) -> str:
    """A value as YAML's author would know it: a date by its day, not by Python's word for it."""
    if isinstance(value, datetime.date):  # a datetime is one, too
        return f"the date {value}"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return short_repr(value)


def errors_since(folders: Iterable[Path], began: float) -> list[str]:
    """The messages (from `error:` to the end of a log) in all *.log files below folders that are newer than `began`.

    Of another log's lines in them (`QUOTE`), which were shown once, the last is kept: most often it is the reason.
    """
    found = []
    logs = {Path(at, name) for folder in folders for at, _, names in os.walk(folder) for name in names}
    for log in sorted(log for log in logs if log.suffix == ".log"):
        text = ""
        with suppress(FileNotFoundError):  # whatever still runs may remove its files, and their folders
            text = log.read_text(encoding="utf-8", errors="replace") if log.stat().st_mtime >= began else ""
        if error := re.search(r"^error:", text, re.MULTILINE):
            lines = text[error.start() :].strip().splitlines()
            found.append("\n".join([*(line for line in lines[:-1] if not line.startswith(QUOTE)), lines[-1]]))
    return list(dict.fromkeys(found))


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """For the Snakefile: a `UserError` becomes one message and the end of the program.

    As a WorkflowError it would get the Snakefile's line added, to what is the configuration's mistake.
    """
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")


def remedy(error: OSError) -> str:
    """What to do about an error of the file system that may pass."""
    owner = denying_owner(error)
    return "; try again" if owner is None else f"; it belongs to {owner}, who alone may give the right to it"


def _described(error: UserError | OSError) -> str:
    """An error for people: of the file system, which file and what about it, without Python's number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def report_errors(action: Callable[[], None], log: Path | None = None) -> int:
    """Run something; a `UserError` becomes one message on stderr and in the log, and exit code 1.

    So does an error of the file system that passes by itself; any other is a fault of ours, with its traceback.
    """
    try:
        action()
        return 0
    except (UserError, OSError) as error:
        if isinstance(error, OSError) and not is_transient(error):
            raise
        with suppress(OSError):  # In a file with both streams, too, the message stands below what was printed.
            sys.stdout.flush()
        print_message(f"error: {_described(error)}" + (remedy(error) if isinstance(error, OSError) else ""))
        if log is not None:
            # On a full disk the terminal must do.
            with suppress(OSError, UserError):
                write_text(log, f"error: {error}\n")
        return 1


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """A table's lines; the columns named in `right` hold numbers, and one without any content is left out."""
    columns = [column for column in zip(header, *rows, strict=True) if any(column[1:])]
    padded = []
    for column in columns:
        width = max(map(len, column))
        padded.append([cell.rjust(width) if column[0] in right else cell.ljust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
