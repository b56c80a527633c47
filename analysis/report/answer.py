"""Arranges the answer beside the page's picture: a line for each arm, the worst caveats, and what would resolve it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.verdict.arm_verdict import ArmVerdict
from analysis.verdict.verdict_block import SECTIONS, SYMBOLS, Line, lines_of

SHOWN = 3
"""Caveats in view; the others are folded."""


@dataclass(frozen=True)
class Doubt:
    """A caveat with the arms that it applies to, where not all have it, and the section with its details."""

    symbol: str
    text: str
    arms: str
    section: str


@dataclass(frozen=True)
class PageAnswer:
    """Each arm's verdict with its first lines, then what several arms may share, once."""

    arms: tuple[tuple[ArmVerdict, tuple[str, ...]], ...]
    doubts: tuple[Doubt, ...]
    """The most harmful first."""
    settle: tuple[tuple[str, str], ...]
    """What would resolve it, and the arms, where not all have it."""


def answer_of(verdicts: Sequence[ArmVerdict]) -> PageAnswer:
    """The lines of the verdicts (`lines_of`), those that arms share once."""
    arms: list[tuple[ArmVerdict, tuple[str, ...]]] = []
    caveats: dict[Line, tuple[int, list[str]]] = {}
    settle: dict[str, list[str]] = {}
    for one in verdicts:
        lines = lines_of(one, None)
        arms.append((one, tuple(line.text for line in lines if line.kind in ("answer", "difference", "rests-on"))))
        of_arm = [line for line in lines if line.kind in SYMBOLS]
        for rank, line in enumerate(of_arm):
            caveats.setdefault(line, (rank, []))[1].append(one.arm)
        for line in lines:
            if line.kind == "settle":
                settle.setdefault(line.text, []).append(one.arm)

    def of(names: Sequence[str]) -> str:
        return ", ".join(names) if len(names) < len(arms) else ""

    doubts = [
        Doubt(line.symbol, line.text, of(names), SECTIONS.get(line.kind, ""))
        for line, (_, names) in sorted(caveats.items(), key=lambda item: item[1][0])
    ]
    return PageAnswer(tuple(arms), tuple(doubts), tuple((text, of(names)) for text, names in settle.items()))
