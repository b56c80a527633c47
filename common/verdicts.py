"""Defines verdicts, the named lines that the analysis writes about its data, and how their lists are worded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

# How many findings of one kind are listed before the rest is folded away.
FOLD_AFTER = 4

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Verdict:
    """One named line: `code` names the kind of finding, `text` is for the person.

    `error`: something was left out of the numbers. `warning`: the numbers stand, but read this first.
    `note`: good to know.
    """

    level: Level
    code: str
    text: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def verdict_from(raw: dict[str, str]) -> Verdict:
    """A verdict back from its dictionary."""
    level: Level = "error" if raw["level"] == "error" else "warning" if raw["level"] == "warning" else "note"
    return Verdict(level, raw["code"], raw["text"])


def by_weight(verdicts: list[Verdict]) -> list[Verdict]:
    """Errors first, then warnings, then notes; otherwise in the order found, each once."""
    weight = {"error": 0, "warning": 1, "note": 2}
    return sorted(dict.fromkeys(verdicts), key=lambda v: weight[v.level])


def verdict_groups(verdicts: Iterable[Verdict]) -> list[tuple[Level, str, list[Verdict]]]:
    """(level, code, verdicts) with equal levels and codes together, in the order of their first."""
    groups: dict[tuple[Level, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.level, verdict.code), []).append(verdict)
    return [(level, code, group) for (level, code), group in groups.items()]


def count_of(number: int, one: str, many: str = "") -> str:
    """`1 step`, `3 steps`: a count and what it counts."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def first_few(items: Sequence[object], most: int = 10) -> str:
    """`1, 2, 3, …`: the first of many items."""
    return ", ".join(map(str, items[:most])) + (", …" if len(items) > most else "")
