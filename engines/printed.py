"""Reads what an engine's log prints of it at its start, by the engine's own names (`engines/<engine>/engine.json`)."""

from __future__ import annotations

import ast
import mmap
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from common.dotted import frozen


class PrintedLine(NamedTuple):
    """What a line of an engine's start tells: a row of `printed` in its `engine.json`."""

    marks: tuple[str, ...]
    """Plain parts, of which such a line has one."""
    part: re.Pattern[str]
    """Its group has what is read."""
    pairs: tuple[str, ...] = ()
    """Settings that stand there as `name=value`."""
    name: str = ""
    """Else the one setting whose value stands there: a text, a number, or the largest of several."""
    value: str = ""
    """Its value, if the line does not have it."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> PrintedLine:
        """The line of a row."""
        fields = {name: value for name, value in frozen(row).items() if name != "about"}
        return cls(**{**fields, "part": re.compile(row["part"])})

    def read(self, line: str) -> Mapping[str, Any]:
        """The settings in a line with one of its marks."""
        if (found := self.part.search(line)) is None:
            return {}
        if self.pairs:
            return pairs(found[1], self.pairs)
        numbers = found[1].replace(", ", " ").replace(",", "").split()
        whole = bool(numbers) and all(number.isdigit() for number in numbers)
        return {self.name: self.value or (max(map(int, numbers)) if whole else found[1])}


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
    by_mark: dict[bytes, list[PrintedLine]] = {}
    for line in lines:
        for mark in line.marks:
            by_mark.setdefault(mark.encode(), []).append(line)
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
                whole = text[begin:at].decode("utf-8", errors="replace")
                for line in by_mark[match[0]]:
                    found |= {name: value for name, value in line.read(whole).items() if found.get(name) is None}
    return found
