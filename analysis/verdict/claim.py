"""Chooses the estimate that a claim uses, for one arm at one factor combination."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.estimates.estimate_table import EQUAL_WORK, PER_RESPONSE, PER_STEP, Row
from analysis.planned import EQUAL_WITHIN
from analysis.verdict.arm_verdict import NO_SPAN, WIDE, Span, equal_within, is_too_wide

AT_EQUAL_WORK = "at equal work"
# Of fewer steps the public runs that SPREAD is measured on say less.
LEAST_STEPS_FOR_LIKELY = 10
# A claim uses the first estimate that has a value.
UNITS = {EQUAL_WORK: AT_EQUAL_WORK, PER_STEP: "per step"}


@dataclass(frozen=True)
class Claim:
    """One arm at one factor combination: its estimates by name, the claimed estimate, and the claim's verdict."""

    at: str
    rows: dict[str, Row]
    estimate: str
    """"" where no estimate has a value."""
    row: Row
    """The claimed estimate's row; of step times where none has a value."""
    verdict: str
    """`+` faster, `-` slower, `=` equal within a ratio, `~` not resolved, `x` not comparable."""
    why: str
    """Why the claim has no direction or no value, where the reason is not chance."""
    unit: str
    """The unit of the ratio: one of `UNITS`, with what a step is."""
    record: str
    """The noun for one of its steps: a benchmark's is a result."""
    interval: Span
    """The 95% interval over runs; one run has none."""
    too_wide: bool
    """Whether its interval is too wide for a ratio to be printed."""
    runs: tuple[int, int]
    """The runs of the baseline and of the arm."""
    steps: tuple[int, int]
    """The steps of all runs of the baseline, and of the arm."""
    lacking: str
    """Which has a single run, which does not show how much other runs differ: an arm, or `each arm`; otherwise ""."""


def claim_from(at: str, rows: dict[str, Row], step_of: str = "step", until: float = EQUAL_WITHIN) -> Claim:
    """The claim of one factor combination, from its rows of `estimate_table` by estimate.

    `step_of` says what a step is (trainers/protocol.py). Without a direction, arms whose interval is between 1/`until`
    and `until` are equal within it.
    """
    estimate = next((name for name in UNITS if rows[name]["value"] > 0), "")
    row, sizes = rows[estimate or PER_STEP], rows[PER_STEP]
    interval = (row["low"], row["high"]) if row["low"] > 0 else NO_SPAN
    too_wide = bool(estimate) and is_too_wide(row["value"], *interval)
    verdict, why = row["verdict"], str(row["why"] or "")
    # A difference that the printed ratio or its interval does not show is not claimed.
    side = direction(row["value"])
    if too_wide:
        verdict, why = "~", why or WIDE
    elif verdict in "+-" and not side * direction(row["low"] if side > 0 else row["high"]) > 0:
        verdict = "~"
    if verdict == "~" and not too_wide and equal_within(interval, until) and not why.startswith(PER_RESPONSE):
        verdict = "="
    unit = UNITS[estimate or PER_STEP].replace("step", step_of)
    runs, steps = ((int(sizes[f"baseline_{of}"]), int(sizes[f"arm_{of}"])) for of in ("runs", "steps"))
    alone = [str(sizes.get(side, side)) for side, count in zip(("baseline", "arm"), runs, strict=True) if count == 1]
    return Claim(
        at,
        rows,
        estimate,
        row,
        verdict,
        why if verdict in "~x" else "",
        f"{unit} of wall clock" if row.get("by_clock") else unit,
        "step" if step_of == "step" else "result",
        interval,
        too_wide,
        runs,
        steps,
        "each arm" if len(alone) == 2 else "".join(alone),
    )


def direction(value: float) -> int:
    """1 where the arm is faster, -1 where the baseline is, 0 where the ratio is NaN or prints as 1.00."""
    rounded = round(value, 2)
    return (rounded > 1) - (rounded < 1)
