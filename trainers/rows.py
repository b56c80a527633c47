"""Defines the rows of a trainer's preflight tables: what its engines make of a setting, and rules for a single case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.findings import Finding, Level
from trainers.cases import Case, Variables

Describe = Callable[[Case], str | None]
Advice = str | Callable[[Sequence[Case]], str]
"""What to change: one text, or a text by the compared cases."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one engine makes of a setting, in a few words (None where unknown), and its source."""

    value: str | Describe
    source: str

    def describe(self, case: Case) -> str | None:
        """The effect in one case; None where unknown."""
        return self.value if isinstance(self.value, str) else self.value(case)


@dataclass(frozen=True, eq=False, slots=True)
class Behaviour:
    """A confounder: its name, the settings that control it, and what each release and engine makes of them."""

    code: str
    name: str
    keys: tuple[str, ...]
    why: str
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """By `Case.place`."""
    change: Advice = ""
    level: Level | None = "unequal"
    """None: in the ledger only."""
    no_effect: Callable[[Sequence[Case]], str] = field(default=lambda cases: "")
    """Why a difference cannot matter in these cases; empty if it can."""
    effect_known: bool = True
    """Whether the effect of a difference is known; if not, the ledger calls it unverifiable."""
    equal_without_effect: bool = True
    """Whether the ledger calls a difference without effect equivalent, not different."""

    def describe(self, case: Case) -> str | None:
        """What a case's engine does; None where unknown."""
        effect = self.effects.get(case.place)
        return effect.describe(case) if effect else None

    def advice(self, cases: Sequence[Case]) -> str:
        """What to change in these cases."""
        return self.change if isinstance(self.change, str) else self.change(cases)


@dataclass(frozen=True)
class Rule:
    """A check of one case. In its texts `{got}`, `{version}` and `{engine}` are replaced by the case's own."""

    code: str
    level: Level
    when: Callable[[Case], Any]
    """What the check finds; None or false where it finds nothing."""
    what: str
    why: str
    source: str
    change: str
    on_imported: bool = True
    """Whether it also checks runs that were trained elsewhere."""

    def __call__(self, case: Case, variables: Variables) -> Iterator[Finding]:
        """The finding, if there is one."""
        got = self.when(case) if self.on_imported or not case.imported else None
        if got is None or got is False:
            return
        values = {"got": got, "version": case.version, "engine": case.engine.label}

        def filled(text: str) -> str:
            for name, value in values.items():
                text = text.replace(f"{{{name}}}", f"{value:g}" if isinstance(value, float) else str(value))
            return text

        what, why, source, change = map(filled, (self.what, self.why, self.source, self.change))
        yield Finding(self.level, self.code, (case.arm,), what, why, source, change)
