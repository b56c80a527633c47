"""Reads what an engine's log prints of it at its start, by the engine's own names (`engines/<engine>/printed.py`)."""

from __future__ import annotations

import ast
import mmap
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class PrintedLine(NamedTuple):
    """A line of an engine's start: a plain part of it, what the reader gets of it, and the reader."""

    mark: str
    part: re.Pattern[str]
    read: Callable[[str], Mapping[str, Any]]


def pairs(text: str, names: Iterable[str]) -> dict[str, Any]:
    """The settings of these names in `name=value` or `'name': value`; the first of a name counts."""
    found = {}
    for name in names:
        if match := re.search(rf"(?<![\w.])['\"]?{name}['\"]?(?:=| ?: )('[^']*'|[^\s,)}}]+)", text):
            try:
                found[name] = ast.literal_eval(match[1])
            except (ValueError, SyntaxError):
                found[name] = match[1]
    return found


def printed_in(paths: Iterable[Path], lines: Iterable[PrintedLine]) -> dict[str, Any]:
    """What these logs print of their engines: the first known value of a name, as engines of one run start alike."""
    found: dict[str, Any] = {}
    by_mark = {line.mark.encode(): line for line in lines}
    if not by_mark:
        return found
    marks = re.compile(b"|".join(map(re.escape, by_mark)))
    for path in paths:
        if not path.is_file() or not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            at = 0
            while match := marks.search(text, at):
                begin, end = text.rfind(b"\n", 0, match.start()) + 1, text.find(b"\n", match.end())
                at = len(text) if end < 0 else end
                line = by_mark[match[0]]
                if part := line.part.search(text[begin:at].decode("utf-8", errors="replace")):
                    found |= {name: value for name, value in line.read(part[1]).items() if found.get(name) is None}
    return found
