"""Defines a row of a table of checks: a setting that makes one case impossible, unequal or odd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.findings import Finding, Level
from trainers.cases import Case

if TYPE_CHECKING:
    from trainers.protocol import Variables


@dataclass(frozen=True)
class Rule:
    """A check of one case; in its texts `{got}`, `{version}` and `{engine}` stand for the case's own."""

    code: str
    level: Level
    when: Callable[[Case], Any]
    """What is found; nothing where that is None or false."""
    what: str
    why: str
    source: str
    change: str
    of_imported: bool = True
    """Whether it tells anything of a run that has run elsewhere."""

    def __call__(self, case: Case, variables: Variables) -> Iterator[Finding]:
        """The finding, where there is one."""
        got = self.when(case) if self.of_imported or not case.imported else None
        if got is None or got is False:
            return

        def told(text: str) -> str:
            values = {"got": got, "version": case.version, "engine": case.engine.label}
            for name, value in values.items():
                text = text.replace(f"{{{name}}}", f"{value:g}" if isinstance(value, float) else str(value))
            return text

        yield Finding(self.level, self.code, (case.arm,), *map(told, (self.what, self.why, self.source, self.change)))
