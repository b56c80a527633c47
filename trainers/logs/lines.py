"""What did the program itself print, in a console log as the world has them?"""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError

# Colours and cursor movements; and the titles that some terminals are sent.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# Ray puts the actor before every line: (TaskRunner pid=123), (WorkerDict pid=123, ip=10.0.0.1).
_ACTOR = re.compile(r"\s*\((?P<actor>[^()]*\bpid=\d+[^()]*)\)\s?")


@dataclass(frozen=True)
class Printout:
    """What stands between two line ends or carriage returns, without colours and Ray's prefix.

    `line` counts from 1 in the file. `actor` is what Ray's prefix held, empty without one. `ended` is false for the
    end of a file that has no line end there: it may have been cut off. `line_chars` is the length of the whole line.
    """

    line: int
    actor: str
    text: str
    ended: bool
    line_chars: int


def require_utf8(path: Path, head: bytes) -> None:
    """`UserError` with the command that converts a file whose first bytes are those of UTF-16."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        here, there = (shlex.quote(str(p)) for p in (path, path.with_stem(f"{path.stem}-utf8")))
        raise UserError(
            f"{path} is UTF-16 text, as some programs on Windows write it. Convert it first: "
            f"iconv -f UTF-16 -t UTF-8 {here} > {there}"
        )


def printouts(path: Path) -> Iterator[Printout]:
    """The parts of a console log in their order; `UserError` for a file that is no text.

    A progress bar redraws itself by a carriage return, so that it shares its line with what was printed next.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if number == 1:
                require_utf8(path, raw)
                raw = raw.removeprefix(codecs.BOM_UTF8)
            ended = raw.endswith(b"\n")
            line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
            parts = line.split("\r")
            for index, part in enumerate(parts):
                text = _ANSI.sub("", part) if "\x1b" in part else part
                actor = ""
                while "pid=" in text and (prefix := _ACTOR.match(text)) is not None:
                    actor, text = prefix["actor"], text[prefix.end() :]
                yield Printout(number, actor, text, ended or index < len(parts) - 1, len(line))
