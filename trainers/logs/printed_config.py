"""Reads the configurations that a console log has as pretty-printed Python dictionaries, each from its step on.

Lines of other programs may stand between a dictionary's lines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.verdicts import Verdict
from trainers.logs.log_files import Printout
from trainers.logs.record import LaterConfiguration, StepRecord

_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])"
_FRAGMENT = re.compile(rf"(?:\s+|{_STRING}|[\[\]{{}}(),:]|{_NUMBER}|(?:None|True|False)\b)*")
_STRINGS = re.compile(_STRING)
# Where a line of pprint may end.
_ENDS = tuple(",:[]{}()'\"")
# A setting among other text, and what may be left of one behind a fragment.
_SETTING, _QUOTE = re.compile(r"': |^\s+'"), re.compile("'")
# pprint ends no line so: it breaks strings behind white space.
_CUT = re.compile(r"(?:[\[({:]|(?<!\\n)(?<!\s)['\"])$")
# A longer dictionary is something else.
_MOST_LINES = 5000


@dataclass
class _Open:
    """A dictionary that one actor prints: its first line, its lines so far, and a line that may hide a setting."""

    begins: int
    lines: list[str] = field(default_factory=list)
    depth: int = 0
    hidden: int | None = None


@dataclass(frozen=True)
class _Printed:
    """A configuration that was read, its last line, and a line of it in which a setting stands among other text."""

    value: dict[str, Any]
    line: int
    hidden: int | None


class PrintedConfigs:
    """The configurations of a trainer in one log; `sections` are keys that each of them has."""

    def __init__(self, label: str, sections: Sequence[str]) -> None:
        self._label, self._sections, self._mark = label, sections, f"'{sections[0]}'"
        self._read: list[_Printed] = []
        self._open: dict[str, _Open] = {}
        """By actor."""
        self._unread: int | None = None
        """The line of the first configuration that could not be read."""
        self._first_key = "{'"

    def feed(self, part: Printout) -> None:
        """Take up a line that is not a step."""
        begins = part.text.startswith(self._first_key)
        # Most lines of a log are outside of any dictionary.
        if not (begins or part.actor in self._open):
            return
        text, depth = _fragment(part.text)
        if begins and depth > 0:
            self._give_up(part.actor)
            self._open[part.actor] = _Open(part.line)
        elif begins:
            if not text and self._mark in part.text:
                self._unread = self._unread or part.line
            elif text and depth == 0 and part.actor not in self._open:
                self._close(_Open(part.line, [text]), part.line)
            if part.actor not in self._open or depth == 0:
                return
        current = self._open[part.actor]
        if (_SETTING if not text else _QUOTE).search(part.text, len(text)):
            current.hidden = part.line
        if not text:
            return
        current.lines.append(text)
        if _CUT.search(text):
            current.hidden = part.line
        current.depth += depth
        if current.depth <= 0:
            del self._open[part.actor]
            self._close(current, part.line)
        elif len(current.lines) > _MOST_LINES:
            self._give_up(part.actor)

    def _close(self, current: _Open, line: int) -> None:
        text = "\n".join(current.lines)
        if self._mark not in text:
            return
        # pprint indents every line but the first; a list of another program may look like one.
        indented = "\n".join(current.lines[:1] + [line for line in current.lines[1:] if line[:1].isspace()])
        for tried in dict.fromkeys((text, indented)):
            try:
                read = ast.literal_eval(tried)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            if isinstance(read, dict) and all(name in read for name in self._sections):
                # Later ones begin alike: responses may print dictionaries, too.
                self._first_key = "{" + repr(next(iter(read))) + ":"
                self._read.append(_Printed(read, line, current.hidden))
                return
        self._unread = self._unread or current.begins

    def _give_up(self, actor: str) -> None:
        current = self._open.pop(actor, None)
        if current is not None and any(self._mark in line for line in current.lines):
            self._unread = self._unread or current.begins

    def by_step(self, records: Sequence[StepRecord]) -> tuple[dict[str, Any], list[LaterConfiguration]]:
        """The configuration of the first steps, {} if there is none, and the others, each from its first step on.

        `records` are the log's steps in file order. Of several configurations before one step the last counts, and one
        without a step after it counts for none.
        """
        first: dict[str, Any] = {}
        later: list[LaterConfiguration] = []
        for printed in self._read:
            at = next((n for n, record in enumerate(records) if record.line > printed.line), len(records))
            if at == 0:
                first = printed.value
            elif at < len(records):
                step = records[at].step
                later = [one for one in later if one.from_step != step]
                later.append(LaterConfiguration(step, printed.value))
        return first, later

    def verdicts(self, path: Path) -> list[Verdict]:
        """A warning if a configuration began and was not read, or not as a whole."""
        for actor in list(self._open):
            self._give_up(actor)
        hidden = next((one.hidden for one in self._read if one.hidden is not None), None)
        if hidden is not None:
            text = (
                f"{path}:{hidden}: other text covers a setting of {self._label}'s printed configuration, which is read "
                "without it"
            )
        elif self._unread is not None and not self._read:
            text = (
                f"{path}:{self._unread}: {self._label}'s configuration begins here and cannot be read, so it shows "
                "neither the loop nor the settings. Give the loop as import.mode"
            )
        else:
            return []
        return [Verdict("warning", "configuration-unread", text)]


def _fragment(line: str) -> tuple[str, int]:
    """The part of a dictionary that a line begins with, and the brackets that it opens less those that it closes.

    Empty for a line of another program. Text after a complete fragment is left out.
    """
    match = _FRAGMENT.match(line)
    found = match.group().rstrip() if match else ""
    whole = len(found) == len(line.rstrip())
    if not found.endswith(_ENDS) or not (whole or _STRINGS.search(found)):
        return "", 0
    bare = _STRINGS.sub("", found)
    return found, sum(map(bare.count, "{[(")) - sum(map(bare.count, "}])"))
