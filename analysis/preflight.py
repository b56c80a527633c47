"""What did the preflight say of the arms before they ran?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import read_json_object
from common.verdicts import count_of

LEVELS = ("impossible", "unequal", "odd")
VERDICTS = ("different", "unverifiable", "equivalent", "equal")
_MADE_BY = "`rolloutbench preflight`"


@dataclass(frozen=True)
class Finding:
    """One thing that makes the experiment impossible, the comparison unequal, or is merely odd."""

    level: str
    code: str
    arms: tuple[str, ...]
    what: str
    why: str
    source: str
    change: str


@dataclass(frozen=True)
class LedgerRow:
    """One setting: its value in each arm as a text, and whether these come to the same."""

    setting: str
    values: dict[str, str]
    verdict: str
    why: str
    source: str


@dataclass(frozen=True)
class Preflight:
    """The findings, those that forbid a comparison first, and the fairness ledger."""

    findings: tuple[Finding, ...]
    ledger: tuple[LedgerRow, ...]
    unchecked: tuple[str, ...]
    """What could not be checked, and what it would need."""

    def rows(self, verdict: str) -> list[LedgerRow]:
        return [row for row in self.ledger if row.verdict == verdict]

    @property
    def counts(self) -> str:
        """How many settings there are of each verdict, in one line."""
        told = [f"{len(self.rows(v))} {v}" for v in VERDICTS if self.rows(v)]
        return f"{count_of(len(self.ledger), 'setting')}: " + ", ".join(told) if told else "no setting was compared"

    def unequal(self, arms: Sequence[str]) -> int:
        """How many findings say that these arms do not meet on equal terms."""
        return sum(f.level == "unequal" and bool(set(f.arms) & set(arms)) for f in self.findings)


def read_preflight(path: Path, experiment: str) -> Preflight | None:
    """preflight.json; None where there is none. `UserError` when it is no such file, or of another experiment."""
    if not path.is_file():
        return None
    raw = read_json_object(path, _MADE_BY)
    if raw.get("experiment") != experiment:
        raise UserError(f"{path} is of the experiment {raw.get('experiment')!r}, not of {experiment!r}; {_again(path)}")
    try:
        found = [_finding(f) for f in raw["findings"]]
        ledger = [_row(r) for r in raw["ledger"]]
        unchecked = [str(text) for text in raw.get("unverifiable", [])]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path} is not what the preflight writes ({what}); {_again(path)}") from None
    found.sort(key=lambda f: LEVELS.index(f.level))
    return Preflight(tuple(found), tuple(ledger), tuple(unchecked))


def _again(path: Path) -> str:
    return f"delete {path} and start snakemake again, or run {_MADE_BY} for this experiment"


def _finding(raw: dict[str, Any]) -> Finding:
    level = str(raw["level"])
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)} (got {level!r})")
    words = {name: str(raw[name]) for name in ("code", "what", "why", "source", "change")}
    return Finding(level, arms=tuple(str(arm) for arm in raw["arms"]), **words)


def _row(raw: dict[str, Any]) -> LedgerRow:
    verdict = str(raw["verdict"])
    if verdict not in VERDICTS:
        raise ValueError(f"verdict must be one of {', '.join(VERDICTS)} (got {verdict!r})")
    values = {
        str(arm): v if isinstance(v, str) else json.dumps(v, sort_keys=True, ensure_ascii=False)
        for arm, v in raw["values"].items()
    }
    return LedgerRow(str(raw["setting"]), values, verdict, str(raw["why"]), str(raw["source"]))
