"""Defines a row of a trainer's behaviours: what each release and engine makes of a setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from common.findings import Level
from trainers.cases import Case

Tell = Callable[[Case], str | None]


@dataclass(frozen=True, slots=True)
class Does:
    """What one engine does, in a few words (None: it cannot be told), and where that was read."""

    tell: Tell
    source: str


@dataclass(frozen=True, eq=False, slots=True)
class Behaviour:
    """A confounder: a name, the settings that it answers to, and what each version and engine does."""

    code: str
    name: str
    keys: tuple[str, ...]
    why: str
    does: Mapping[str, Does] = field(default_factory=dict)
    change: Callable[[Sequence[Case]], str] = field(default=lambda cases: "")
    level: Level | None = "unequal"
    """None: in the ledger only."""
    moot: Callable[[Sequence[Case]], str] = field(default=lambda cases: "")
    """Why a difference cannot matter here; empty if it can."""
    effect_known: bool = True
    """Whether it is known what a difference does; if not, the ledger calls it unverifiable."""
    equal_if_moot: bool = True
    """Whether the ledger calls a difference that cannot matter equivalent: another meaning of one number stays one."""

    def of(self, case: Case) -> str | None:
        """What a case's engine does; None where that is not known."""
        does = self.does.get(case.place)
        return does.tell(case) if does else None
