"""What a bash script does: its commands, their words, and where the script has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Word(NamedTuple):
    """A word of a command after expansion; several words may come from one place (`$ARGS`)."""

    text: str
    raw: str
    """As the script has it."""
    start: int
    """Its place in the script, in bytes of UTF-8."""
    end: int
    line: int
    unknown: tuple[str, ...] = ()
    """Variables and substitutions in it without a known value; the text has them as written."""


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command that the script may run; `words` may be empty for a line of assignments only."""

    words: tuple[Word, ...]
    line: int
    assignments: Mapping[str, Word] = field(default_factory=dict)
    """Variables of this command only (`A=1 python ...`)."""
    context: tuple[str, ...] = ()
    """The functions, loops and conditions around it, the outermost first, such as `if` or `for engine=vllm`."""
    redirects: tuple[str, ...] = ()
    feeds: bool = False
    """Whether its output goes into another command (`| tee log`)."""
    passes_arguments: bool = False
    """Whether it has `"$@"` or `$*`: arguments of the script."""
    end: int = 0
    """Where its last word ends, in bytes: the place for further arguments."""


class Note(NamedTuple):
    """A place that was not understood."""

    line: int
    text: str
    why: str


@dataclass(slots=True)
class Script:
    """What a script does, in order."""

    text: str
    commands: list[ShellCommand] = field(default_factory=list)
    exports: dict[str, Word] = field(default_factory=dict)
    """Exported variables, with their last value."""
    files: dict[str, str] = field(default_factory=dict)
    """Files that it writes from here-documents, by the path as written."""
    notes: list[Note] = field(default_factory=list)
