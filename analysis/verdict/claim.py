"""Chooses the estimate that a claim uses, for one arm at one factor combination."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from analysis.estimates.estimate_table import EQUAL_WORK, PER_STEP, Row
from analysis.planned import EQUAL_WITHIN
from analysis.verdict.arm_verdict import NO_SPAN, WIDE, Span, is_too_wide

AT_EQUAL_WORK = "at equal work"
# A claim uses the first estimate that has a value.
UNITS = {EQUAL_WORK: AT_EQUAL_WORK, PER_STEP: "per step"}


@dataclass(frozen=True)
class Claim:
    """One arm at one factor combination: its estimates by name, the claimed estimate, and the claim's verdict."""

    at: str
    rows: dict[str, Row]
    estimate: str
    """"" where no estimate has a value."""
    verdict: str
    """`+` faster, `-` slower, `=` equal within a ratio, `~` not resolved, `x` not comparable."""
    why: str = ""
    """Why the claim has no direction or no value, where the reason is not chance."""
    step_of: str = "step"
    """What one of its steps is (trainers/protocol.py)."""

    @property
    def valued(self) -> bool:
        """Whether an estimate has a value."""
        return bool(self.estimate)

    @property
    def row(self) -> Row:
        """The claimed estimate's row."""
        return self.rows[self.estimate]

    @property
    def unit(self) -> str:
        """The unit of the ratio: one of `UNITS`, with what a step is."""
        unit = UNITS[self.estimate].replace("step", self.step_of)
        return f"{unit} of wall clock" if self.row["by_clock"] else unit

    @property
    def arm(self) -> str:
        """The arm's name."""
        return str(self.rows[PER_STEP]["arm"])

    @property
    def baseline(self) -> str:
        """The baseline's name."""
        return str(self.rows[PER_STEP]["baseline"])

    @property
    def record(self) -> str:
        """The noun for one of its steps: a benchmark's is a result."""
        return "step" if self.step_of == "step" else "result"

    @property
    def interval(self) -> Span:
        """The 95% interval over runs; one run has none."""
        low, high = self.row["low"], self.row["high"]
        return (low, high) if low > 0 else NO_SPAN

    @property
    def seconds(self) -> Span:
        """The baseline's and the arm's seconds of a step, in the claim's unit."""
        return self.row["baseline_s"], self.row["arm_s"]

    @property
    def runs(self) -> tuple[int, int]:
        """The runs of the baseline and of the arm."""
        row = self.rows[PER_STEP]
        return int(row["baseline_runs"]), int(row["arm_runs"])

    @property
    def steps(self) -> tuple[int, int]:
        """The steps of all runs of the baseline, and of the arm."""
        row = self.rows[PER_STEP]
        return int(row["baseline_steps"]), int(row["arm_steps"])

    @property
    def one_step(self) -> bool:
        return self.steps == (1, 1)

    @property
    def one_run(self) -> str:
        """That an arm has a single run, which does not show how much other runs differ; otherwise ""."""
        return "one run an arm" if set(self.runs) == {1} else f"one run of {self.lacking}" if self.lacking else ""

    @property
    def lacking(self) -> str:
        """The arm that has a single run while the other has several; otherwise ""."""
        if min(self.runs) != 1 or self.runs == (1, 1):
            return ""
        return str(self.rows[PER_STEP]["baseline" if self.runs[0] == 1 else "arm"])

    @property
    def too_wide(self) -> bool:
        """Whether its interval is too wide for a ratio to be printed."""
        return self.valued and is_too_wide(self.row["value"], *self.interval)

    @property
    def lacks_equal_work(self) -> bool:
        """Whether a ratio at equal work is missing; a benchmark's requests, which all clients choose, need none."""
        return self.valued and self.record == "step" and self.estimate != EQUAL_WORK

    def value(self, estimate: str) -> float:
        """An estimate's ratio; NaN where it has none."""
        ratio: float = self.rows[estimate]["value"]
        return ratio if ratio > 0 else math.nan


def claim_from(at: str, rows: dict[str, Row], step_of: str = "step", until: float = EQUAL_WITHIN) -> Claim:
    """The claim of one factor combination, from its rows of `estimate_table` by estimate.

    Without a direction, arms whose interval is between 1/`until` and `until` are equal within it.
    """
    claimed = next((name for name in UNITS if rows[name]["value"] > 0), "")
    if not claimed:
        return Claim(at, rows, "", "x", str(rows[PER_STEP]["why"]), step_of=step_of)
    row = rows[claimed]
    if (wide := Claim(at, rows, claimed, "~", str(row["why"] or WIDE), step_of=step_of)).too_wide:
        return wide
    # A difference that the printed ratio or its interval does not show is not claimed.
    side = direction(row["value"])
    nearer = row["low"] if side > 0 else row["high"]
    verdict = row["verdict"] if side and direction(nearer) == side else "~"
    claim = Claim(at, rows, claimed, verdict, str(row["why"] or "") if verdict == "~" else "", step_of=step_of)
    return replace(claim, verdict="=", why="") if verdict == "~" and equal_within(claim.interval, until) else claim


def equal_within(interval: Span, until: float) -> bool:
    """Whether an interval lies between 1/`until` and `until`."""
    return 1 / until < interval[0] and interval[1] < until


def direction(value: float) -> int:
    """1 where the arm is faster, -1 where the baseline is, 0 where the ratio is NaN or prints as 1.00."""
    rounded = round(value, 2)
    return (rounded > 1) - (rounded < 1)
