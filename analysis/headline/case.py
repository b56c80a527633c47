"""One arm at one factor combination: on which estimates does a claim rest, and which way does it go?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.estimates.arm import FIT_BIAS
from analysis.estimates.equal_work import EQUAL_WORK, Row
from analysis.headline.ratios import NO_SPAN, Span, direction
from analysis.runs import factors_label

# Beyond as many factor combinations the rest is counted.
MOST_PLACES = 4
AT_EQUAL_WORK = "at equal work"
UNITS = {"raw": "per step", "per_token": "per response token"}
BEST_FIRST = (AT_EQUAL_WORK, UNITS["per_token"], UNITS["raw"])
KINDS = (EQUAL_WORK, ("per_token",), ("raw",))
"""What a claim may rest on: the first kind of which anything is known, and of that the first with an interval."""
# Which estimates contradict a claim when all of them point the other way. A difference in lengths moves raw to one side
# of the truth and roofline to the other: one of the two alone may be its bias, both are not (docs/estimates.md).
CONTRADICT = {"standardised": ("raw", "roofline"), "per_token": ("raw",)}


@dataclass(frozen=True)
class ArmAtPoint:
    """One arm at one factor combination."""

    at: str
    """The combination, for people."""
    rows: dict[str, Row]
    claimed: str
    """The estimate that the claim rests on; empty where there is none."""
    verdict: str
    why: str = ""
    """Why the claim is not resolved, where that is no matter of chance."""

    @property
    def row(self) -> Row:
        """The claim's row."""
        return self.rows[self.claimed]

    @property
    def reason(self) -> str:
        """`why`, with the name of the estimate that it is of."""
        return f"{self.claimed.replace('_', ' ')}: {self.why}" if self.why else ""

    @property
    def interval(self) -> Span:
        """The claim's 95% interval over runs: one pair of runs has none."""
        low, high = self.row["low"], self.row["high"]
        return (low, high) if low > 0 and not self.one_pair else NO_SPAN

    def span(self, names: Sequence[str]) -> Span:
        """From the lowest to the highest value of some estimates."""
        values = [self.rows[name]["value"] for name in names if name in self.valued]
        return (min(values), max(values)) if values else NO_SPAN

    @property
    def unit(self) -> str:
        """What the claim is of: one of `BEST_FIRST`."""
        return AT_EQUAL_WORK if self.claimed in EQUAL_WORK else UNITS[self.claimed]

    @property
    def one_step(self) -> bool:
        return bool(self.rows["raw"]["paired_steps"] == 1)

    @property
    def one_pair(self) -> bool:
        return bool(self.rows["raw"]["run_pairs"] == 1)

    @property
    def unmoved(self) -> bool:
        """Whether the claim's value prints as 1.00×, and it has an interval, no wider than the fit's bias may be."""
        narrow = all(end > 0 and abs(round(end, 2) - 1) < FIT_BIAS + 0.005 for end in self.interval)
        return narrow and not direction(self.row["value"])

    @property
    def valued(self) -> list[str]:
        return [name for name, row in self.rows.items() if row["value"] > 0]


def case_of(group: pd.DataFrame) -> ArmAtPoint:
    """The case of one combination's rows of `estimate_table`."""
    records = [{str(name): value for name, value in row.items()} for row in group.to_dict("records")]
    return claim_from(factors_label(str(group["factors"].iloc[0])), {str(row["estimate"]): row for row in records})


def claim_from(at: str, rows: dict[str, Row]) -> ArmAtPoint:
    """The case of one combination's rows by estimate: what is claimed, and why no more."""
    known = next((some for kind in KINDS if (some := [n for n in kind if rows[n]["value"] > 0])), [])
    if not known:
        return ArmAtPoint(at, rows, "", "x", str(rows["raw"]["why"]))
    claimed = next((name for name in known if rows[name]["low"] > 0), known[0])
    side, against = direction(rows[claimed]["value"]), CONTRADICT.get(claimed, ())
    # A difference that the printed digits do not show is none to claim, however sure.
    verdict = rows[claimed]["verdict"] if side else "~"
    if verdict in "+-" and against and all(direction(rows[n]["value"]) == -side for n in against):
        return ArmAtPoint(at, rows, claimed, "~", f"{' and '.join(against).replace('_', ' ')} point to the other arm")
    return ArmAtPoint(at, rows, claimed, verdict, rows[claimed]["why"] if verdict == "~" else "")


def by_unit(told: Sequence[ArmAtPoint]) -> list[list[ArmAtPoint]]:
    """The cases that have a ratio, those of one unit together, what says most of the speed first."""
    groups = [[case for case in told if case.unit == unit] for unit in BEST_FIRST]
    return [group for group in groups if group]


def places(cases: Sequence[ArmAtPoint]) -> str:
    """At which factor combinations, the first few by name."""
    names = [case.at for case in cases]
    if len(names) > MOST_PLACES:
        return f"{', '.join(names[:MOST_PLACES])} and {len(names) - MOST_PLACES} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
