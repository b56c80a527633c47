"""Defines preflight.json: the preflight's findings and the fairness ledger."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from common.dotted import as_text
from common.errors import UserError
from common.files import read_json_object
from common.verdicts import count_of

Level = Literal["lacking", "impossible", "unequal", "odd"]
LEVELS: tuple[Level, ...] = get_args(Level)
Equality = Literal["mixed", "different", "unverifiable", "equivalent", "equal"]
EQUALITIES: tuple[Equality, ...] = get_args(Equality)

# The most important codes of a level.
_FIRST = ("trainers", "trainer-versions", "torch-versions", "settings", "cuda-graphs", "cuda-launch-blocking")
_MADE_BY = "snakemake"
_MAY_LACK = ("scope", "settle")
# In the ledger: between values of one arm's factor combinations; for an unknown value; for an absent setting.
SEVERAL, UNKNOWN, NONE = " | ", "unknown", "none"
# An option that a start command lacks: the trainer's default, which no log says.
NOT_GIVEN = "not given"
# Why a setting that names the engine differs: no term of the comparison.
COMPARED = "it is what is compared"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a check.

    `lacking`: this site does not have what the runs need. `impossible`: the run would fail or never end. `unequal`: the
    arms differ, so a time difference is not only the engine's. `odd`: the runs work and are equal, but probably not as
    intended.
    """

    level: Annotated[Level, "how serious it is"]
    code: Annotated[str, "the kind of finding"]
    arms: Annotated[tuple[str, ...], "the affected arms"]
    what: Annotated[str, "what was found"]
    why: Annotated[str, "why it matters"]
    source: Annotated[str, "the source of the fact"]
    change: Annotated[str, "what to change"]
    scope: Annotated[str, "the only conditions under which a ratio of these arms is valid; may be absent"] = ""
    settle: Annotated[str, "what would resolve the question, if no setting can; may be absent"] = ""
    sides: Annotated[
        tuple[tuple[str, ...], ...], "groups of equal arms, if more than two arms differ; may be absent"
    ] = ()

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self) | {"arms": list(self.arms), "sides": [list(side) for side in self.sides]}
        return {name: value for name, value in fields.items() if value or name not in (*_MAY_LACK, "sides")}

    def concerns(self, arms: Sequence[str]) -> bool:
        """Whether it applies to these arms; with `sides`, whether these arms are on different sides."""
        sides = [{place for place, side in enumerate(self.sides) if arm in side} for arm in arms]
        # An arm on no side is unknown.
        return len(set().union(*sides)) > 1 if all(sides) else bool(set(self.arms) & set(arms))


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One term: its value in each arm, and whether the values are equal."""

    setting: Annotated[str, "the term's name: a setting, or a fact that the runs report"]
    values: Annotated[dict[str, str], "its value in each arm, as text; with the runs where an arm's runs differ"]
    verdict: Annotated[Equality, "whether the values are equal; `mixed` if runs of one arm differ"]
    why: Annotated[str, "the reason for the verdict"]
    source: Annotated[str, "the source of the fact"]
    mixed: Annotated[tuple[str, ...], "the arms whose runs differ in it; may be absent"] = ()

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        return fields | {"mixed": list(self.mixed)} if fields.pop("mixed") else fields


@dataclass(frozen=True)
class Preflight:
    """The content of preflight.json."""

    findings: Annotated[tuple[Finding, ...], "the most serious first"]
    ledger: Annotated[tuple[LedgerRow, ...], "the fairness ledger"]
    unverifiable: Annotated[tuple[str, ...], "what could not be checked, and what a check needs"] = ()
    experiment: Annotated[str, "the experiment's name"] = ""

    def as_json(self) -> dict[str, Any]:
        """The object that is written."""
        return {
            "experiment": self.experiment,
            "findings": [finding.as_dict() for finding in self.findings],
            "ledger": [row.as_dict() for row in self.ledger],
            "unverifiable": list(self.unverifiable),
        }

    def rows(self, verdict: str) -> list[LedgerRow]:
        return [row for row in self.ledger if row.verdict == verdict]

    @property
    def counts(self) -> str:
        """The number of settings of each verdict, in one line."""
        counts = [f"{len(self.rows(v))} {v}" for v in EQUALITIES if self.rows(v)]
        return f"{count_of(len(self.ledger), 'setting')}: " + ", ".join(counts) if counts else "no setting was compared"

    def unequal(self, arms: Sequence[str]) -> list[Finding]:
        """The findings that make these arms unequal."""
        return [f for f in self.findings if f.level == "unequal" and f.concerns(arms)]

    def between(self, arms: Sequence[str]) -> Preflight:
        """A copy with the ledger of these arms only; settings in which only other arms differ become equal."""
        rows = (_between(row, arms) for row in self.ledger)
        return replace(self, ledger=tuple(row for row in rows if row is not None))


def _between(row: LedgerRow, arms: Sequence[str]) -> LedgerRow | None:
    """A row with only these arms; None if none of them has the setting."""
    values = {arm: value for arm, value in row.values.items() if arm in arms}
    if mixed := tuple(arm for arm in row.mixed if arm in arms):
        return replace(row, values=values, mixed=mixed)
    if row.mixed:
        row = replace(row, verdict="different", why="the values differ", mixed=())
    if len(values) == len(row.values) or len(set(row.values.values())) == 1:
        return replace(row, values=values)
    if set(values.values()) == {NONE}:
        return None
    # Equal lists over factor combinations may still differ in each combination.
    same = len(set(values.values())) == 1 and not any(SEVERAL in value or value == UNKNOWN for value in values.values())
    row = replace(row, values=values)
    return replace(row, verdict="equal", why="the same in these arms") if same else row


def read_preflight(path: Path, experiment: str) -> Preflight | None:
    """Read preflight.json; None if absent. `UserError` if it is damaged or of another experiment."""
    if not path.is_file():
        return None
    raw = read_json_object(path, _MADE_BY)
    again = f"delete {path} and start snakemake again"
    if raw.get("experiment") != experiment:
        raise UserError(f"{path} belongs to the experiment {raw.get('experiment')!r}, not to {experiment!r}; {again}")
    try:
        findings = sorted(map(_finding, raw["findings"]), key=lambda f: LEVELS.index(f.level))
        ledger = tuple(map(_row, raw["ledger"]))
        unverifiable = tuple(str(text) for text in raw.get("unverifiable", []))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path} is damaged ({what}); {again}") from None
    return Preflight(tuple(findings), ledger, unverifiable, experiment)


def _finding(raw: Mapping[str, Any]) -> Finding:
    texts = {name: str(raw[name]) for name in ("code", "what", "why", "source", "change")}
    texts |= {name: str(raw.get(name, "")) for name in _MAY_LACK}
    level: Level = _one_of(LEVELS, "level", raw)
    sides = tuple(tuple(str(arm) for arm in side) for side in raw.get("sides", ()))
    return Finding(level, arms=tuple(str(arm) for arm in raw["arms"]), sides=sides, **texts)


def _row(raw: Mapping[str, Any]) -> LedgerRow:
    verdict: Equality = _one_of(EQUALITIES, "verdict", raw)
    values = {str(arm): as_text(value) for arm, value in raw["values"].items()}
    mixed = tuple(map(str, raw.get("mixed", ())))
    return LedgerRow(str(raw["setting"]), values, verdict, str(raw["why"]), str(raw["source"]), mixed)


def _one_of(allowed: Sequence[str], key: str, raw: Mapping[str, Any]) -> Any:
    if raw[key] not in allowed:
        raise ValueError(f"{key} must be one of {', '.join(allowed)} (got {raw[key]!r})")
    return raw[key]


def downgrade_imported(findings: Iterable[Finding], imported: Container[str]) -> list[Finding]:
    """`impossible` findings about imported arms become `odd`: these arms have already run."""
    return [
        replace(f, level="odd", why=f"{f.why}. But it has run: its declared settings may be wrong")
        if f.level == "impossible" and f.arms and all(arm in imported for arm in f.arms)
        else f
        for f in findings
    ]


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Merge equal findings of several arms; the most serious first, else in the given order."""
    arms_of: dict[Finding, list[str]] = {}
    for finding in findings:
        arms = arms_of.setdefault(replace(finding, arms=()), [])
        arms += [arm for arm in finding.arms if arm not in arms]
    order = (*_FIRST, "")
    merged = [replace(finding, arms=tuple(arms)) for finding, arms in arms_of.items()]
    return sorted(merged, key=lambda f: (LEVELS.index(f.level), order.index(f.code if f.code in _FIRST else "")))
