"""Reads the configuration that verl's main_ppo.py pretty-prints, also between lines of other programs."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.verdicts import Verdict
from trainers.logs.log_files import Printout

# Its first key.
_KEY = "'actor_rollout_ref'"
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


@dataclass
class PrintedConfig:
    """The configuration, {} until it is read."""

    value: dict[str, Any] = field(default_factory=dict)
    _open: dict[str, _Open] = field(default_factory=dict)
    """By actor."""
    _unread: int | None = None
    """The line of the first configuration that could not be read."""
    _hidden: int | None = None
    """A line of the configuration that was read, in which a setting stands among other text."""

    def feed(self, part: Printout) -> None:
        """Take up a line that is not a step."""
        begins = part.text.startswith("{'")
        # Most lines of a log are outside of any dictionary.
        if self.value or not (begins or part.actor in self._open):
            return
        text, depth = _fragment(part.text)
        if begins and depth > 0:
            self._give_up(part.actor)
            self._open[part.actor] = _Open(part.line)
        elif begins:
            if not text and _KEY in part.text:
                self._unread = self._unread or part.line
            elif text and depth == 0 and part.actor not in self._open:
                self._close(_Open(part.line, [text]))
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
            self._close(current)
        elif len(current.lines) > _MOST_LINES:
            self._give_up(part.actor)

    def _close(self, current: _Open) -> None:
        text = "\n".join(current.lines)
        if _KEY not in text:
            return
        # pprint indents every line but the first; a list of another program may look like one.
        indented = "\n".join(current.lines[:1] + [line for line in current.lines[1:] if line[:1].isspace()])
        for tried in dict.fromkeys((text, indented)):
            try:
                read = ast.literal_eval(tried)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            if isinstance(read, dict) and "actor_rollout_ref" in read and "trainer" in read:
                self.value, self._hidden = read, current.hidden
                return
        self._unread = self._unread or current.begins

    def _give_up(self, actor: str) -> None:
        current = self._open.pop(actor, None)
        if current is not None and any(_KEY in line for line in current.lines):
            self._unread = self._unread or current.begins

    def verdicts(self, path: Path) -> list[Verdict]:
        """A warning if a configuration began and was not read, or not as a whole."""
        for actor in list(self._open):
            self._give_up(actor)
        if (self.value and self._hidden is None) or (not self.value and self._unread is None):
            return []
        if self.value:
            text = (
                f"{path}:{self._hidden}: other text covers a setting of verl's printed configuration, which is read "
                "without it"
            )
        else:
            text = (
                f"{path}:{self._unread}: verl's configuration begins here and cannot be read, so it shows neither the "
                "loop nor the settings. Give the loop as import.mode"
            )
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
