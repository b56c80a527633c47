"""Words the fairness ledger: its findings by weight, and its settings by verdict."""

from __future__ import annotations

from collections.abc import Sequence

from common.findings import EQUALITIES, Finding, LedgerRow, Preflight
from common.verdicts import count_of

# As the preflight says of a setting that no arm lacks (workflow/preflight/checks).
ALIKE = "in all arms"


def alike(finding: Finding) -> bool:
    """Whether a finding is of something that is the same in all arms, though it may cost some of them more."""
    return f" {ALIKE}" in finding.what


def ledger_bridge(preflight: Preflight) -> str:
    """How many findings there are of each weight, and which of the settings that differ they are about."""
    of = {level: [f for f in preflight.findings if f.level == level] for level in ("impossible", "unequal", "odd")}
    said = []
    if of["impossible"]:
        said.append(f"{count_of(len(of['impossible']), 'finding')} forbid{_s(of['impossible'])} the comparison.")
    if unequal := of["unequal"]:
        same = [f for f in unequal if alike(f)]
        parts = [f"{len(unequal) - len(same)} of what differs between the arms"] if len(same) < len(unequal) else []
        parts += [f"{len(same)} of what is the same in all of them, but may cost some more"] if same else []
        said.append(f"{count_of(len(unequal), 'finding')} make{_s(unequal)} the terms unequal: {', and '.join(parts)}.")
    if of["odd"]:
        count = len(of["odd"])
        said.append(
            f"{count_of(count, 'more finding' if said else 'finding')} {'is' if count == 1 else 'are'} merely odd."
        )
    if rows := preflight.rows("different"):
        told = {level: sum(_about(row, of[level]) for row in rows) for level in ("unequal", "odd")}
        words = {"unequal": "among the findings that make the terms unequal", "odd": "among the odd ones"}
        parts = [f"{told[level]} {'is' if told[level] == 1 else 'are'} {words[level]}" for level in told if told[level]]
        if left := len(rows) - sum(told.values()):
            parts.append(f'{left} {"has" if left == 1 else "have"} no finding (the row\'s "why" says why)')
        said.append(
            f"{len(rows)} of {count_of(len(preflight.ledger), 'setting')} differ{_s(rows)}: {', '.join(parts)}."
        )
    return " ".join(said)


def _about(row: LedgerRow, findings: Sequence[Finding]) -> bool:
    """Whether one of the findings is of that setting: both begin with the same words."""
    name = row.setting.split(" (", 1)[0]
    return any(f.what.split(":", 1)[0].split(" (", 1)[0] == name for f in findings)


def _s(things: Sequence[object]) -> str:
    """The verb's ending."""
    return "s" if len(things) == 1 else ""


# Of one setting, and of several.
VERDICT_WORDS = {
    "different": ("differs", "differ"),
    "unverifiable": ("cannot be verified", "cannot be verified"),
    "equivalent": ("comes to the same", "come to the same"),
    "equal": ("is equal", "are equal"),
}


def ledger_tables(preflight: Preflight | None) -> list[tuple[str, str, list[LedgerRow]]]:
    """(verdict, caption, rows) of the fairness ledger's parts, differences first."""
    if preflight is None:
        return []
    tables = [(verdict, preflight.rows(verdict)) for verdict in EQUALITIES]
    return [
        (verdict, f"{len(rows)} setting{'s' * (len(rows) > 1)} that {VERDICT_WORDS[verdict][len(rows) > 1]}", rows)
        for verdict, rows in tables
        if rows
    ]
