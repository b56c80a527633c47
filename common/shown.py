"""Shows foreign text, such as a log's names, as text: it cannot steer a terminal, hide, or begin a line of its own."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from common.errors import UserError

# Control characters, marks that turn the direction of text or cannot be seen, ends of lines, halves of a character.
_HIDDEN = {"Cc", "Cf", "Zl", "Zp", "Cs"}
# They join the parts of an emoji, and letters of some scripts.
_HARMLESS = "\u200c\u200d"
_UNUSUAL = re.compile(r"[^\x20-\x7e]")


def shown(text: str) -> str:
    """A text on one line, with escapes such as `\\x1b`, `\\n` and `\\u202e` for characters that cannot be seen."""
    return text if text.isprintable() else _UNUSUAL.sub(_escape, text)


def require_shown(name: str) -> None:
    """`UserError` for a file's name that is not `shown` as it is: a line break would begin a line where it is named."""
    if shown(name) != name:
        raise UserError(f"{shown(name)} has characters in its name that are not seen; rename it")


def shown_lines(text: str) -> str:
    """A text of several lines, with these escapes for all but the ends of lines and tabs."""
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in text.split("\n"))


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if unicodedata.category(char) not in _HIDDEN or char in _HARMLESS:
        return char
    # Those of a C1 control and of half a character are JSON's, so that printed JSON stays JSON.
    return repr(char)[1:-1] if char < " " else json.dumps(char)[1:-1]


class _ShownStream:
    """A stream of which only the program's own colours reach the terminal as they are."""

    def __init__(self, own: TextIO) -> None:
        self.own = own

    def write(self, text: str) -> int:
        self.own.write(shown_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.own, name)


@contextmanager
def shown_output() -> Iterator[None]:
    """Makes all that a program prints pass `shown_lines`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _ShownStream(own_stream(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def own_stream(stream: TextIO) -> TextIO:
    """The stream for texts with our own colours, whose other parts are `shown`."""
    return stream.own if isinstance(stream, _ShownStream) else stream


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines, each of which stays one."""
    for line in lines:
        print(shown(line))
    sys.stdout.flush()
