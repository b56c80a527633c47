"""What is a finding of the preflight?"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Level = Literal["impossible", "unequal", "odd"]
LEVELS: tuple[Level, ...] = ("impossible", "unequal", "odd")

# What weighs most among its like.
_FIRST = ("trainers", "trainer-versions", "torch-versions", "settings", "cuda-graphs", "cuda-launch-blocking")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know before a GPU is touched.

    `impossible`: the run would fail, or never end. `unequal`: the arms do not meet on equal terms, so a difference in
    time is not the engine's alone. `odd`: it runs, and all arms alike, but probably not as meant.
    """

    level: Level
    code: str
    arms: tuple[str, ...]
    what: str
    why: str
    source: str
    change: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"arms": list(self.arms)}


def softened(findings: Iterable[Finding], imported: Container[str]) -> list[Finding]:
    """What would be impossible is at most odd in arms that have run already."""
    return [
        replace(one, level="odd", why=f"{one.why}. But it has run: what is said of its settings may not be what it had")
        if one.level == "impossible" and all(arm in imported for arm in one.arms)
        else one
        for one in findings
    ]


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Equal findings of several arms and points as one, the worst first; otherwise in the order found."""
    found: dict[Finding, list[str]] = {}
    for finding in findings:
        arms = found.setdefault(replace(finding, arms=()), [])
        arms += [arm for arm in finding.arms if arm not in arms]
    whole = [replace(finding, arms=tuple(arms)) for finding, arms in found.items()]
    return sorted(whole, key=lambda finding: (LEVELS.index(finding.level), _weight(finding.code)))


def _weight(code: str) -> int:
    return _FIRST.index(code) if code in _FIRST else len(_FIRST)
