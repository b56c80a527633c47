"""Defines preflight.json: the findings of the preflight, and the fairness ledger."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from common.dotted import as_text
from common.errors import UserError
from common.files import read_json_object
from common.verdicts import count_of

Level = Literal["impossible", "unequal", "odd"]
LEVELS: tuple[Level, ...] = get_args(Level)
Equality = Literal["different", "unverifiable", "equivalent", "equal"]
EQUALITIES: tuple[Equality, ...] = get_args(Equality)

# What weighs most among its like.
_FIRST = ("trainers", "trainer-versions", "torch-versions", "settings", "cuda-graphs", "cuda-launch-blocking")
_MADE_BY = "`rolloutbench preflight`"
_MAY_LACK = ("scope", "settle")
# What the ledger writes between the values of one arm's factor combinations, for what nobody says, for no such setting.
SEVERAL, UNKNOWN, NONE = " | ", "unknown", "none"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know before a GPU is touched.

    `impossible`: the run would fail, or never end. `unequal`: the arms do not meet on equal terms, so a difference in
    time is not the engine's alone. `odd`: it runs, and all arms alike, but probably not as meant.
    """

    level: Annotated[Level, "how much it weighs"]
    code: Annotated[str, "names the kind of finding"]
    arms: Annotated[tuple[str, ...], "the arms that it is about"]
    what: Annotated[str, "what was found"]
    why: Annotated[str, "why it matters"]
    source: Annotated[str, "where that is known from"]
    change: Annotated[str, "what to change"]
    scope: Annotated[str, "where alone a ratio of these arms holds, for the verdict; else not there"] = ""
    settle: Annotated[str, "what would settle the question then, as no setting can; else not there"] = ""
    sides: Annotated[
        tuple[tuple[str, ...], ...], "the arms that are alike in it, where some of more than two are; else not there"
    ] = ()

    def as_dict(self) -> dict[str, Any]:
        held = asdict(self) | {"arms": list(self.arms), "sides": [list(side) for side in self.sides]}
        return {name: value for name, value in held.items() if value or name not in (*_MAY_LACK, "sides")}

    def concerns(self, arms: Sequence[str]) -> bool:
        """Whether it is about these arms: of what differs between arms, whether it differs between these."""
        on = [{place for place, side in enumerate(self.sides) if arm in side} for arm in arms]
        # Of an arm on no side it is not known.
        return len(set().union(*on)) > 1 if all(on) else bool(set(self.arms) & set(arms))


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One setting: each arm's value, whether these come to the same, and why."""

    setting: Annotated[str, "the setting's name"]
    values: Annotated[dict[str, str], "its value in each arm, as a text"]
    verdict: Annotated[Equality, "whether the values come to the same"]
    why: Annotated[str, "the reason for the verdict"]
    source: Annotated[str, "where that is known from"]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Preflight:
    """The content of preflight.json."""

    findings: Annotated[tuple[Finding, ...], "the worst first"]
    ledger: Annotated[tuple[LedgerRow, ...], "the fairness ledger"]
    unverifiable: Annotated[tuple[str, ...], "what could not be checked, and what it would need"] = ()
    experiment: Annotated[str, "whose preflight it is"] = ""
    memory: Annotated[dict[str, Any], "each arm's estimate of a GPU's memory; the report ignores it"] = field(
        default_factory=dict
    )

    def as_json(self) -> dict[str, Any]:
        """The object that is written."""
        return {
            "experiment": self.experiment,
            "findings": [finding.as_dict() for finding in self.findings],
            "ledger": [row.as_dict() for row in self.ledger],
            "memory": {arm: estimate.as_dict() for arm, estimate in self.memory.items()},
            "unverifiable": list(self.unverifiable),
        }

    def rows(self, verdict: str) -> list[LedgerRow]:
        return [row for row in self.ledger if row.verdict == verdict]

    @property
    def counts(self) -> str:
        """How many settings there are of each verdict, in one line."""
        told = [f"{len(self.rows(v))} {v}" for v in EQUALITIES if self.rows(v)]
        return f"{count_of(len(self.ledger), 'setting')}: " + ", ".join(told) if told else "no setting was compared"

    def unequal(self, arms: Sequence[str]) -> list[Finding]:
        """The findings by which these arms do not meet on equal terms."""
        return [f for f in self.findings if f.level == "unequal" and f.concerns(arms)]

    def between(self, arms: Sequence[str]) -> Preflight:
        """The same with the ledger of these arms alone: what only others differ in is equal between them."""
        rows = (_between(row, arms) for row in self.ledger)
        return replace(self, ledger=tuple(row for row in rows if row is not None))


def _between(row: LedgerRow, arms: Sequence[str]) -> LedgerRow | None:
    """A row of these arms alone; None where none of them has the setting."""
    values = {arm: value for arm, value in row.values.items() if arm in arms}
    if len(values) == len(row.values) or len(set(row.values.values())) == 1:
        return replace(row, values=values)
    if set(values.values()) == {NONE}:
        return None
    # Values of several factor combinations may be the same and meet in another order.
    same = len(set(values.values())) == 1 and not any(SEVERAL in one or one == UNKNOWN for one in values.values())
    row = replace(row, values=values)
    return replace(row, verdict="equal", why="the same in these arms") if same else row


def read_preflight(path: Path, experiment: str) -> Preflight | None:
    """preflight.json; None where there is none. `UserError` when it is no such file, or of another experiment."""
    if not path.is_file():
        return None
    raw = read_json_object(path, _MADE_BY)
    again = f"delete {path} and start snakemake again, or run {_MADE_BY} for this experiment"
    if raw.get("experiment") != experiment:
        raise UserError(f"{path} is of the experiment {raw.get('experiment')!r}, not of {experiment!r}; {again}")
    try:
        found = [_finding(f) for f in raw["findings"]]
        ledger = tuple(_row(r) for r in raw["ledger"])
        unverifiable = tuple(str(text) for text in raw.get("unverifiable", []))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path} is not what the preflight writes ({what}); {again}") from None
    found.sort(key=lambda f: LEVELS.index(f.level))
    return Preflight(tuple(found), ledger, unverifiable, experiment)


def _finding(raw: Mapping[str, Any]) -> Finding:
    words = {name: str(raw[name]) for name in ("code", "what", "why", "source", "change")}
    words |= {name: str(raw.get(name, "")) for name in _MAY_LACK}
    level: Level = _one_of(LEVELS, "level", raw)
    sides = tuple(tuple(str(arm) for arm in side) for side in raw.get("sides", ()))
    return Finding(level, arms=tuple(str(arm) for arm in raw["arms"]), sides=sides, **words)


def _row(raw: Mapping[str, Any]) -> LedgerRow:
    verdict: Equality = _one_of(EQUALITIES, "verdict", raw)
    values = {str(arm): as_text(value) for arm, value in raw["values"].items()}
    return LedgerRow(str(raw["setting"]), values, verdict, str(raw["why"]), str(raw["source"]))


def _one_of(allowed: Sequence[str], key: str, raw: Mapping[str, Any]) -> Any:
    if raw[key] not in allowed:
        raise ValueError(f"{key} must be one of {', '.join(allowed)} (got {raw[key]!r})")
    return raw[key]


def downgrade_imported(findings: Iterable[Finding], imported: Container[str]) -> list[Finding]:
    """What would be impossible is at most odd in arms that have run already."""
    return [
        replace(one, level="odd", why=f"{one.why}. But it has run: what is said of its settings may not be what it had")
        if one.level == "impossible" and all(arm in imported for arm in one.arms)
        else one
        for one in findings
    ]


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Equal findings of several arms and points as one, the worst first; otherwise in the order found."""
    found: dict[Finding, list[str]] = {}
    for finding in findings:
        arms = found.setdefault(replace(finding, arms=()), [])
        arms += [arm for arm in finding.arms if arm not in arms]
    whole = [replace(finding, arms=tuple(arms)) for finding, arms in found.items()]
    return sorted(whole, key=lambda finding: (LEVELS.index(finding.level), _weight(finding.code)))


def _weight(code: str) -> int:
    return _FIRST.index(code) if code in _FIRST else len(_FIRST)
