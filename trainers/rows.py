"""Defines the rows of a trainer's tables: what its engines make of a setting, and what makes a case worth a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from common.findings import Finding, Level
from trainers.cases import Case

if TYPE_CHECKING:
    from trainers.protocol import Variables

Describe = Callable[[Case], str | None]


@dataclass(frozen=True, slots=True)
class Effect:
    """What one engine makes of a setting, in a few words (None where unknown), and its source."""

    describe: Describe
    source: str


@dataclass(frozen=True, eq=False, slots=True)
class Behaviour:
    """A confounder: a name, the settings that it answers to, and what each version and engine does."""

    code: str
    name: str
    keys: tuple[str, ...]
    why: str
    effects: Mapping[str, Effect] = field(default_factory=dict)
    change: Callable[[Sequence[Case]], str] = field(default=lambda cases: "")
    level: Level | None = "unequal"
    """None: in the ledger only."""
    no_effect: Callable[[Sequence[Case]], str] = field(default=lambda cases: "")
    """Why a difference cannot matter here; empty if it can."""
    effect_known: bool = True
    """Whether it is known what a difference does; if not, the ledger calls it unverifiable."""
    equal_without_effect: bool = True
    """Whether the ledger calls a difference that cannot matter equivalent: another meaning of one number stays one."""

    def describe(self, case: Case) -> str | None:
        """What a case's engine does; None where unknown."""
        effect = self.effects.get(case.place)
        return effect.describe(case) if effect else None


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
    on_imported: bool = True
    """Whether it tells anything of a run that has run elsewhere."""

    def __call__(self, case: Case, variables: Variables) -> Iterator[Finding]:
        """The finding, where there is one."""
        got = self.when(case) if self.on_imported or not case.imported else None
        if got is None or got is False:
            return

        def told(text: str) -> str:
            values = {"got": got, "version": case.version, "engine": case.engine.label}
            for name, value in values.items():
                text = text.replace(f"{{{name}}}", f"{value:g}" if isinstance(value, float) else str(value))
            return text

        what, why, source, change = map(told, (self.what, self.why, self.source, self.change))
        yield Finding(self.level, self.code, (case.arm,), what, why, source, change)
