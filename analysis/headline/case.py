"""One arm at one factor combination: on which estimates does a claim rest, and which way does it go?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.estimates.equal_work import EQUAL_WORK, Row
from analysis.headline.ratios import NO_SPAN, Span, direction
from analysis.runs import factors_label

# Beyond as many factor combinations the rest is counted.
MOST_PLACES = 4
AT_EQUAL_WORK = "at equal work"
UNITS = {"raw": "per step", "per_token": "per response token"}
BEST_FIRST = (AT_EQUAL_WORK, UNITS["per_token"], UNITS["raw"])


@dataclass(frozen=True)
class Case:
    """One arm at one factor combination."""

    at: str
    """The combination, for people."""
    rows: dict[str, Row]
    claimed: tuple[str, ...]
    verdict: str

    def span(self, names: Sequence[str], low: str = "value", high: str = "value") -> Span:
        ends = [(self.rows[n][low], self.rows[n][high]) for n in names]
        ends = [(a, b) for a, b in ends if a > 0 and b > 0]
        return (min(a for a, _ in ends), max(b for _, b in ends)) if ends else NO_SPAN

    @property
    def unit(self) -> str:
        """What the claim is of: one of `BEST_FIRST`."""
        return AT_EQUAL_WORK if self.claimed[0] in EQUAL_WORK else UNITS[self.claimed[0]]

    @property
    def certain(self) -> list[str]:
        """Those of the claim that have an interval."""
        return [name for name in self.claimed if self.rows[name]["low"] > 0]

    @property
    def one_step(self) -> bool:
        return bool(self.rows["raw"]["paired_steps"] == 1)

    @property
    def unmoved(self) -> bool:
        """Whether the claim's values and intervals all print as 1.00×."""
        ends = [self.rows[n][end] for n in self.claimed for end in ("value", "low", "high")]
        return not any(direction(value) for value in ends if value > 0)

    @property
    def valued(self) -> list[str]:
        return [name for name, row in self.rows.items() if row["value"] > 0]


def case_of(group: pd.DataFrame) -> Case:
    """The case of one combination's rows of `estimate_table`."""
    at = factors_label(str(group["factors"].iloc[0]))
    records = [{str(name): value for name, value in row.items()} for row in group.to_dict("records")]
    rows: dict[str, Row] = {str(row["estimate"]): row for row in records}
    valued = [name for name, row in rows.items() if row["value"] > 0]
    claimed = tuple(n for n in EQUAL_WORK if n in valued) or tuple(n for n in ("per_token", "raw") if n in valued)[:1]
    if not claimed:
        return Case(at, rows, (), "x")
    verdicts = {rows[name]["verdict"] for name in claimed}
    verdict = verdicts.pop() if len(verdicts) == 1 else "~"
    sides = {direction(rows[name]["value"]) for name in valued}
    # A difference that the printed digits do not show is none to claim, however sure.
    same = not any(direction(rows[name]["value"]) for name in claimed)
    return Case(at, rows, claimed, "~" if {1, -1} <= sides or same else verdict)


def by_unit(told: Sequence[Case]) -> list[list[Case]]:
    """The cases that have a ratio, those of one unit together, what says most of the speed first."""
    groups = [[case for case in told if case.unit == unit] for unit in BEST_FIRST]
    return [group for group in groups if group]


def places(cases: Sequence[Case]) -> str:
    """At which factor combinations, the first few by name."""
    names = [case.at for case in cases]
    if len(names) > MOST_PLACES:
        return f"{', '.join(names[:MOST_PLACES])} and {len(names) - MOST_PLACES} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
