"""Reads the lines of logs, JSON and console output, and the numbers printed in them with their precision."""

from __future__ import annotations

import codecs
import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from common.dotted import is_bounded
from common.errors import UserError
from common.verdicts import Verdict

# Colours, cursor movements and terminal titles.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# Ray's prefix of every line: (TaskRunner pid=123), (WorkerDict pid=123, ip=10.0.0.1). A time (Kubernetes, with
# `stdout F`) or a rank (Slurm) may precede it.
_ACTOR = re.compile(
    r"(?:\S{0,20}\d\S{0,20}\s+){0,2}(?:std(?:out|err) [FP] )?\s*\((?P<actor>[^()]*\bpid=\d+[^()]*)\)\s?"
)
_ZEROS = re.compile(r"\0+")
# A row without its end: of transformers' Trainer, of OpenRLHF, of slime.
_BEGUN_ROW = re.compile(r"(?:\{'loss': |\b(?:Global step|perf|rollout) \d{1,18}(?: \[[^\]]*\])?: \{')[^}]*\Z")
_PAIR_BEGINS = re.compile(r"\s*'[^']+': ")


@dataclass(frozen=True)
class Printout:
    """The text between two line ends or carriage returns, without colours and Ray's prefix.

    `line` counts from 1 in the file. `actor` is the content of Ray's prefix, or empty. `ended` is false at a file's end
    without a line end: the text may be truncated. `line_chars` is the length of the whole line.
    """

    line: int
    actor: str
    text: str
    ended: bool
    line_chars: int


def require_utf8(path: Path, head: bytes) -> None:
    """`UserError` with the command that converts it, if a file's first bytes are those of UTF-16."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        here, there = (shlex.quote(str(p)) for p in (path, path.with_stem(f"{path.stem}-utf8")))
        raise UserError(
            f"{path} is UTF-16 text, as some programs on Windows write it. Convert it first: "
            f"iconv -f UTF-16 -t UTF-8 {here} > {there}"
        )


def printouts(path: Path) -> Iterator[Printout]:
    """The parts of a console log in order; `UserError` for UTF-16."""
    with path.open("rb") as lines:
        yield from printouts_in(lines, path)


def printouts_in(lines: Iterable[bytes], path: Path) -> Iterator[Printout]:
    """The parts in a console log's lines.

    A progress bar redraws itself with carriage returns, so it shares its line with the next output. A row that a
    terminal wrapped into several lines is one part.
    """
    broken: list[Printout] = []
    for part in _parts(lines, path):
        if broken and not _continues(broken, part):
            yield from broken
            broken = []
        if not broken and ("{'" not in part.text or _BEGUN_ROW.search(part.text) is None):
            yield part
            continue
        broken.append(part)
        if "}" in part.text and len(broken) > 1:
            width = max(one.line_chars for one in broken)
            rows = (one.text + " " * (width - one.line_chars) for one in broken)
            yield replace(broken[0], text="".join(rows).rstrip(), ended=part.ended)
            broken = []
    yield from broken


def _continues(broken: Sequence[Printout], part: Printout) -> bool:
    """Whether a line must continue a wrapped row: wrapped by a terminal, which may drop a space at a line's end, or by
    hand before a pair."""
    width = broken[0].line_chars
    full = part.line_chars <= width + 1 if "}" in part.text else abs(part.line_chars - width) <= 1
    return (
        (full or _PAIR_BEGINS.match(part.text) is not None)
        and part.line == broken[-1].line + 1
        and "{" not in part.text
    )


def _parts(lines: Iterable[bytes], path: Path) -> Iterator[Printout]:
    for number, raw in enumerate(lines, start=1):
        if number == 1:
            require_utf8(path, raw)
            raw = raw.removeprefix(codecs.BOM_UTF8)
        ended = raw.endswith(b"\n")
        line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
        if "\0" in line:
            # A crashed node's file system leaves zeros where data was never written: the line is truncated.
            line = _ZEROS.sub("\r\0", line)
        parts = line.split("\r")
        for index, part in enumerate(parts):
            whole = ended if index + 1 == len(parts) else not parts[index + 1].startswith("\0")
            part = part.removeprefix("\0")
            text = _ANSI.sub("", part) if "\x1b" in part else part
            actor = ""
            while "pid=" in text and (prefix := _ACTOR.match(text)) is not None:
                actor, text = prefix["actor"], text[prefix.end() :]
            yield Printout(number, actor, text, whole, len(line))


T = TypeVar("T")


def parse_json(raw: bytes | str) -> Any:
    """Parse JSON; `ValueError` if it is invalid, nested too deeply, or has too long keys or lone surrogates."""
    try:
        found = json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(found, dict | list) and not is_bounded(found):
        raise ValueError("it is nested too deeply, or has too long keys")
    if (b"\\u" if isinstance(raw, bytes) else "\\u") in raw:  # type: ignore[operator]
        require_characters(found)
    return found


def require_characters(found: Any) -> None:
    """`ValueError` for a lone surrogate (half a character): only JSON can represent it."""
    json.dumps(found, ensure_ascii=False).encode()


def json_lines(
    path: Path, shown_as: str, read_row: Callable[[Any, int], T | None], verdicts: list[Verdict]
) -> Iterator[T]:
    """The results of `read_row` for each line's content and number, without None.

    A line that is no JSON, or for which `read_row` raises ValueError, TypeError, KeyError or OverflowError, gives a
    verdict with its number. An unreadable last line without a newline was truncated by a kill; it is skipped silently.
    """
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            if not raw.strip():
                continue
            try:
                found = read_row(parse_json(raw), number)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                if raw.endswith(b"\n"):
                    reason = " ".join(str(error).split()) or type(error).__name__
                    text = f"{shown_as}:{number} cannot be read and was skipped ({reason})"
                    verdicts.append(Verdict("warning", "corrupt-line", text))
                continue
            if found is not None:
                yield found


def json_objects(path: Path) -> Iterator[Mapping[str, Any]]:
    """The objects of a JSON document, or of JSON lines."""
    with path.open("rb") as file:
        text = file.read().decode("utf-8-sig", errors="replace")
    try:
        whole = parse_json(text)
        rows: list[Any] = whole if isinstance(whole, list) else [whole]
    except ValueError as error:
        rows = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                rows += [parse_json(line)] if line.strip() else []
            except ValueError as of_line:
                where, why = (f"{path}:{number}", of_line) if rows else (path, error)
                raise UserError(f"{where} is no complete JSON ({why}); copy the file again") from None
    yield from (row for row in rows if isinstance(row, Mapping))


# numpy 2 and torch print a number with its type around it: np.float64(0.5), tensor(0.5, device='cuda:0').
_TYPED = re.compile(r"(?:(?:np|numpy|torch)\.\w+|tensor|array)\((?P<inner>[^(),]*)(?:,[^()]*)?\)")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.(?P<decimals>\d*))?|\.(?P<bare>\d+))(?P<exponent>[eE][-+]?\d+)?")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}


class PrintedNumber(NamedTuple):
    """A printed number: its value and its digits after the point.

    `decimals` is None where it does not show the lost precision: for a whole number, a number with an exponent or
    inside numpy's type, and not-a-number.
    """

    value: float
    decimals: int | None
    trailing_zero: bool = False
    in_full: bool = False
    """Whether Python printed the number in full; a fixed number of decimals prints no such text."""


def parse_number(text: str) -> PrintedNumber | None:
    """The number that a text is; None for any other text (a word, None, null, True)."""
    text, typed = text.strip(), None
    match = _NUMBER.fullmatch(text)
    if match is None:
        if (typed := _TYPED.fullmatch(text)) is not None:
            text = typed["inner"].strip()
        value = _NON_FINITE.get(text.lstrip("+-").lower())
        if value is not None:
            return PrintedNumber(-value if text.startswith("-") else value, None)
        match = _NUMBER.fullmatch(text) if typed is not None else None
    if match is None:
        return None
    decimals, bare, exponent = match.groups()
    digits = decimals or bare
    if typed is not None or exponent:
        return PrintedNumber(float(text), None, in_full=True)
    if digits is None:
        return PrintedNumber(float(text), None)
    return PrintedNumber(float(text), len(digits), trailing_zero=len(digits) > 1 and digits.endswith("0"))


def leading_number(text: str) -> str:
    """The number at the start of a text that other output follows; empty if there is none."""
    match = _TYPED.match(text) or _NUMBER.match(text)
    return match[0] if match else ""


def fixed_decimals(numbers: Collection[PrintedNumber]) -> bool:
    """Whether numbers of one line were printed with a fixed number of decimals (a format like `.3f`).

    Python prints a number in full with as many digits as it needs and no zeros at its end. A trailing zero, or the same
    two or more decimals in all numbers, therefore shows a fixed format.
    """
    decimals = {n.decimals for n in numbers if n.decimals is not None}
    if any(n.in_full for n in numbers) or not decimals:
        return False
    return any(n.trailing_zero for n in numbers) or (len(decimals) == 1 and min(decimals) > 1)


def half_digit(decimals: int) -> float:
    """Half a unit of the last decimal."""
    return 0.5 * 10.0**-decimals


def half_significant(value: float, digits: int) -> float:
    """Half a unit of a value's last significant digit."""
    if value == 0.0 or not math.isfinite(value):
        return 0.0
    return half_digit(digits - 1 - math.floor(math.log10(abs(value))))
