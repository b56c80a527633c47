"""Chooses the estimate that a claim rests on, for one arm at one factor combination."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.estimates.arm import FIT_BIAS
from analysis.estimates.equal_work import EQUAL_WORK, Row
from analysis.verdict.arm_verdict import NO_SPAN, Span

AT_EQUAL_WORK = "at equal work"
# The first kind that has a value is claimed, and of that the first estimate that has an interval.
KINDS = {AT_EQUAL_WORK: EQUAL_WORK, "per response token": ("per_token",), "per step": ("raw",)}
# Estimates that contradict a claim when all of them point the other way. A difference in lengths moves raw to one side
# of the truth and roofline to the other: one of the two alone may be its bias, both are not (docs/estimates.md).
CONTRADICT = {"standardised": ("raw", "roofline"), "per_token": ("raw",)}


@dataclass(frozen=True)
class Claim:
    """One arm at one factor combination: its estimates by name, the one that is claimed, and the claim's verdict."""

    at: str
    rows: dict[str, Row]
    estimate: str
    """"" where no estimate has a value."""
    verdict: str
    """`+` faster, `-` slower, `~` not resolved, `x` not comparable."""
    why: str = ""
    """Why there is no direction, or no value, where chance is not the reason."""
    contradicted: bool = False

    @property
    def row(self) -> Row:
        """The claimed estimate's row."""
        return self.rows[self.estimate]

    @property
    def unit(self) -> str:
        """What the ratio is of: a key of `KINDS`."""
        return next(unit for unit, names in KINDS.items() if self.estimate in names)

    @property
    def interval(self) -> Span:
        """The 95% interval over runs: one pair of runs has none."""
        low, high = self.row["low"], self.row["high"]
        return (low, high) if low > 0 and not self.one_pair else NO_SPAN

    @property
    def one_step(self) -> bool:
        return bool(self.rows["raw"]["paired_steps"] == 1)

    @property
    def one_pair(self) -> bool:
        return bool(self.rows["raw"]["run_pairs"] == 1)

    @property
    def unmoved(self) -> bool:
        """Whether the ratio prints as 1.00× and its interval is no wider than the fit's bias may be."""
        narrow = all(end > 0 and abs(round(end, 2) - 1) < FIT_BIAS + 0.005 for end in self.interval)
        return narrow and not direction(self.row["value"])

    def value(self, estimate: str) -> float:
        """An estimate's ratio; NaN without one."""
        found: float = self.rows[estimate]["value"]
        return found if found > 0 else math.nan


def claim_from(at: str, rows: dict[str, Row]) -> Claim:
    """The claim of one factor combination's rows of `estimate_table`, by estimate."""
    known = next((some for kind in KINDS.values() if (some := [n for n in kind if rows[n]["value"] > 0])), [])
    if not known:
        return Claim(at, rows, "", "x", str(rows["raw"]["why"]))
    claimed = next((name for name in known if rows[name]["low"] > 0), known[0])
    side, against = direction(rows[claimed]["value"]), CONTRADICT.get(claimed, ())
    # A difference that the printed digits do not show is not claimed, however sure.
    verdict = rows[claimed]["verdict"] if side else "~"
    if verdict in "+-" and against and all(direction(rows[n]["value"]) == -side for n in against):
        why = f"{' and '.join(against).replace('_', ' ')} point to the other arm"
        return Claim(at, rows, claimed, "~", why, contradicted=True)
    return Claim(at, rows, claimed, verdict, str(rows[claimed]["why"] or "") if verdict == "~" else "")


def direction(value: float) -> int:
    """1 where the arm is faster, -1 where the baseline is, 0 where the printed ratio is 1.00, or there is none."""
    rounded = round(value, 2)
    return (rounded > 1) - (rounded < 1)
