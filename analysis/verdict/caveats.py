"""Has the table of caveats: what limits a verdict, and what would remove it, in order of harm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import pandas as pd

from analysis.compared import disagrees, outliers_decide
from analysis.estimates.estimate_table import EQUAL_WORK, PER_STEP, disagreement, what_differs
from analysis.estimates.gate import LABELS, UNKNOWN, missing_numbers, worse_arms
from analysis.runs import rows_of
from analysis.verdict.arm_verdict import WIDE, Caveat, Kind, ratio_text
from analysis.verdict.claim import Claim
from common.findings import Finding, Preflight
from common.messages import join_first
from common.verdicts import Verdict, count_of, verdict_groups

# The ratio of the two speed-ups from which the wall clock is a caveat.
WALL_CLOCK_FROM = 1.1
# From this logarithm on the rounding of printed times is a caveat.
ROUNDING_FROM = 0.01
MOST_NAMES = 4
# From this logarithm on another choice of steps is another ratio.
CHANGES_FROM = 0.02
# Of a longer difference the first words are shown; the page has the rest.
MOST_SHOWN = 160
# The code of a finding that no setting removes: the arms have different trainers, which work differently.
WHOLE = "trainers"

# Findings of reading (common/verdicts.py) after which a number may be of something else, ...
MISREAD = (
    *("run-left-out", "same-rows", "unit-unsaid", "configuration-changed", "declared-contradicts-run"),
    *("batch-size-contradicted", "clock-jumped", "clock-jump", "no-counted-steps"),
    *("requests-failed", "client-set-the-rate", "children-exceed-parent"),
)
# ... that may change a ratio, ...
MAY_CHANGE = (
    *("steps-not-matched", "short-runs", "windows-differ", "evaluation-in-window", "no-warmup-left-out"),
    *("generations-unclear", "times-from-bars", "bars-too-coarse", "times-from-average", "step-no-clock"),
    *("time-in-no-step", "missing-steps"),
    *("incomplete-history", "began-anew", "counter-fell", "timings-missing", "models-unknown", "gpu-count-unknown"),
    *("equal-arms-differ", "release-by-data", "release-undeclared", "mode-unknown"),
)
# ... and that the sentence, another row or the number of steps left out says already.
SAID = (
    *("tokens-unknown", "throughput-only", "overlapping-phases", "completions-discarded", "no-common-steps"),
    *("raw-and-equal-work-disagree", "step-left-out", "tables-over-other-steps"),
    *("gpus-differ", "processors-differ", "gpu-counts-differ", "node-counts-differ", "models-differ", "columns-differ"),
)


@dataclass(frozen=True)
class JudgedPlace:
    """One arm at one factor combination: what the rows of the table test."""

    arms: tuple[str, str]
    """The baseline and the arm."""
    claim: Claim
    comparison: Any
    """Its row of `comparison_table`; of NaN where nothing is compared, and for a benchmark's results: their loads
    differ by intent."""
    gate: pd.DataFrame
    preflight: Preflight | None
    """Of the two arms."""
    unequal: Sequence[Finding]
    read: Sequence[Verdict]
    """Errors and warnings of reading about the two arms."""
    alone: bool
    """Whether it is the arm's only factor combination."""

    @property
    def printed(self) -> bool:
        """Whether a ratio of it is printed."""
        return bool(self.claim.estimate) and not self.claim.too_wide


Values = dict[str, str]


@dataclass(frozen=True)
class Row:
    """A caveat: `test` yields the values of its text for each time that it applies to a place.

    Places with equal values share one caveat, in which `{at}` names them where others do not have it. `settle` says
    what would remove it; a row may have no other text.
    """

    kind: Kind
    text: str
    test: Callable[[JudgedPlace], Iterable[Values]]
    settle: str = ""


def caveats_of(places: Sequence[JudgedPlace]) -> tuple[tuple[Caveat, ...], tuple[str, ...]]:
    """The caveats of one arm from all its factor combinations, in the table's order, and what would remove them."""
    caveats, settle = [], []
    for row in ROWS:
        groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for place in places:
            for values in row.test(place):
                groups.setdefault(tuple(values.items()), []).append(place.claim.at)
        for items, found_at in groups.items():
            where = f" at {join_first(found_at, MOST_NAMES)}" if len(found_at) < len(places) else ""
            values = {**dict(items), "at": where}
            caveats.append(Caveat(row.kind, row.text.format_map(values)))
            settle.append(row.settle.format_map(values))
    return tuple(dict.fromkeys(one for one in caveats if one.text)), tuple(dict.fromkeys(filter(None, settle)))


def when(applies: object, **values: str) -> Iterator[Values]:
    """The values of a row's text, if it applies."""
    if applies:
        yield values


def _read(*codes: str) -> Callable[[JudgedPlace], Iterator[Values]]:
    """Tests for findings of reading, in the order of these codes; without a code for those that are in no row."""

    def test(place: JudgedPlace) -> Iterator[Values]:
        placed = codes or (*MISREAD, *MAY_CHANGE, *SAID)
        found = [one for one in place.read if (one.code in placed) is bool(codes)]
        groups = verdict_groups(sorted(found, key=lambda one: codes.index(one.code) if codes else 0))
        for _, _, (first, *more) in groups:
            yield {"text": first.text.rstrip(".") + (f" (and {len(more)} more like it)" if more else "")}

    return test


def _gate_fails(place: JudgedPlace) -> Iterator[Values]:
    for arm, quantity, own, other in worse_arms(place.gate, *place.arms):
        # The numbers of a sweep are many.
        yield {"arm": arm, "what": LABELS[quantity] + (f" ({own:.3g} against {other:.3g})" if place.alone else "")}


def _gate_cannot_judge(place: JudgedPlace) -> Iterator[Values]:
    rows = rows_of(missing_numbers(place.gate[place.gate["verdict"] == UNKNOWN]))
    names = ", ".join(LABELS[row.quantity] for row in rows)
    return when(names, names=names)


def _scoped(place: JudgedPlace) -> Iterator[Values]:
    for finding in place.unequal:
        yield from when(finding.scope, what=finding.what, why=finding.why, settle=finding.settle)


def _unequal(place: JudgedPlace) -> Iterator[Values]:
    found = [finding for finding in place.unequal if not finding.scope]
    codes = list(dict.fromkeys(finding.code for finding in found))
    settings = [code for code in codes if code != WHOLE]
    remedies = ["one trainer in both arms"] * (WHOLE in codes)
    # The caveat names more of them.
    remedies += [f"runs on equal terms ({join_first(settings, 2)})"] if settings else []
    effect = "the ratio compares whole systems" if WHOLE in codes else "the engines alone do not explain the ratio"
    what = join_first(codes, MOST_NAMES)
    if len(codes) == 1:
        what = shorten(found[0].what, MOST_SHOWN, placeholder=" ...")
    return when(codes, what=what, effect=effect, settle="; ".join(remedies))


def _not_resolved(place: JudgedPlace) -> Iterator[Values]:
    """Where in a sweep; without one the sentence says it."""
    claim = place.claim
    return when(claim.verdict == "~" and not (place.alone or claim.lacking or claim.too_wide))


def _more_runs(place: JudgedPlace) -> Iterator[Values]:
    """What runs would resolve the claim, where chance is why it is open."""
    claim, row = place.claim, place.comparison
    if not place.alone or claim.verdict != "~" or (claim.lacking and claim.record != "step"):
        return
    more, few = claim.row["runs_to_resolve"], "more runs of each arm" if claim.too_wide else ""
    # More runs are not known to reduce a spread that a few outlying steps decide.
    if outliers_decide(row.raw_speedup, row.median_speedup):
        few = few and "runs on a machine without other work"
    elif more > 0:
        number = count_of(int(more), "more run")
        few = f"{'at least' if claim.lacking else 'about'} {number} of {claim.lacking or 'each arm'}"
    yield {"settle": few}


def _disagreement(place: JudgedPlace) -> Iterator[Values]:
    """Step time and equal work say different things."""
    claim = place.claim
    if claim.estimate and disagreement(claim.rows):
        number = f" (per step {ratio_text(claim.rows[PER_STEP]['value'])})" if place.alone and place.printed else ""
        has_intervals = all(claim.rows[name]["low"] > 0 for name in (PER_STEP, EQUAL_WORK))
        yield {"number": number, "why": what_differs(place.comparison.tokens_ratio, has_intervals)}


def _falling(place: JudgedPlace) -> Iterator[Values]:
    """Steps that still become faster after the warm-up, where a longer one gives another ratio."""
    row = place.comparison
    later, now = row.speedup_after_warmup, row.raw_speedup
    applies = place.printed and later > 0 and now > 0 and abs(math.log(later / now)) > CHANGES_FROM
    texts = {"arms": str(row.still_falling), "warmup": f"{row.warmup_needed}", "later": ratio_text(later)}
    return when(applies, now=ratio_text(now), **texts)


def _long_steps(place: JudgedPlace) -> Iterator[Values]:
    """Steps many times as long as their run's median, and the ratio without them where they decide it."""
    row = place.comparison
    without, now, steps = row.speedup_without_long, row.raw_speedup, str(row.long_steps)
    decide = without > 0 and now > 0 and (abs(math.log(without / now)) > CHANGES_FROM or disagrees(without, now))
    shown = place.printed and decide
    effect = f". They decide: without them {ratio_text(without)} per step, not {ratio_text(now)}" if shown else ""
    return when(isinstance(row.long_steps, str) and steps, steps=steps, effect=effect)


def _outliers(place: JudgedPlace) -> Iterator[Values]:
    """Median steps with another ratio though none is long: two kinds of steps."""
    step, median = place.comparison.raw_speedup, place.comparison.median_speedup
    numbers = f": {ratio_text(median)} (per step {ratio_text(step)})" if place.printed else ""
    what = "point to the other arm" if disagrees(step, median) else "have another ratio"
    return when(outliers_decide(step, median) and place.comparison.long_steps == "", what=what, numbers=numbers)


def _rounded(place: JudgedPlace) -> Iterator[Values]:
    row = place.comparison
    return when(row.raw_speedup > 0 and row.rounding > max(ROUNDING_FROM, abs(math.log(row.raw_speedup))))


def _wall_clock(place: JudgedPlace) -> Iterator[Values]:
    """The ratio by wall clock, where it differs from that of the steps."""
    step, wall = place.comparison.raw_speedup, place.comparison.wall_speedup
    numbers = f"{ratio_text(wall)} (per step {ratio_text(step)})"
    return when(place.printed and max(step / wall, wall / step) > WALL_CLOCK_FROM, numbers=numbers)


def _unequal_work(place: JudgedPlace) -> Iterator[Values]:
    """What differs in the steps' work but lengths, which the estimate takes out."""
    why = place.comparison.unequal_work
    return when(isinstance(why, str) and why, why=why)


def _no_equal_work(place: JudgedPlace) -> Iterator[Values]:
    row, said = place.claim.rows[EQUAL_WORK], place.comparison.unequal_work
    return when(place.claim.lacks_equal_work and row["why"] != said, why=row["why"], settle=row["settle"])


def _unverified(place: JudgedPlace) -> Iterator[Values]:
    rows = place.preflight.rows("unverifiable") if place.preflight is not None else ()
    unknown = list(dict.fromkeys(row.setting for row in rows))
    total = len(place.preflight.ledger) if place.preflight is not None else 0
    return when(unknown, count=f"{len(unknown)} of {total}", names=join_first(unknown, 2))


ROUNDED = "The times are printed with so few digits that rounding alone could explain the difference."
# In order of harm: the first ones are shown everywhere.
ROWS: tuple[Row, ...] = (
    Row("gate", "The correctness gate fails{at}: {arm} is worse in {what}.", _gate_fails),
    Row("terms", "A step is other work in the two arms{at}: {why}.", _unequal_work),
    Row("data", "{text}.", _read(*MISREAD)),
    Row("terms", "{what}: {why}.", _scoped, "{settle}"),
    Row("terms", "Unequal terms ({what}): {effect}.", _unequal, "{settle}"),
    Row(
        "terms",
        "The settings are not compared: there is no preflight.",
        lambda place: when(place.preflight is None),
        "a preflight, which compares the settings",
    ),
    Row(
        "terms",
        "The settings are not compared: the fairness ledger is empty.",
        lambda place: when(place.preflight is not None and not place.preflight.ledger),
    ),
    Row("spread", f"No ratio{{at}}: {WIDE} (too few runs or steps).", lambda place: when(place.claim.too_wide)),
    Row("spread", "Not resolved{at}.", _not_resolved),
    Row("spread", "", lambda place: when(place.claim.estimate and place.claim.steps == (1, 1)), "more steps"),
    Row("spread", "", _more_runs, "{settle}"),
    Row("data", "{text}.", _read(*MAY_CHANGE)),
    Row("estimates", "Step time{number} and equal work disagree{at}: {why}.", _disagreement),
    Row(
        "estimates",
        "The steps of {arms}{at} still become faster: --warmup {warmup} gives {later} per step, not {now}.",
        _falling,
    ),
    Row("estimates", "Steps many times as long as their run's median{at}: {steps}{effect}.", _long_steps),
    Row("estimates", "The median steps {what}{at}{numbers}. A few outlying steps may decide.", _outliers),
    Row("estimates", ROUNDED, _rounded),
    Row("estimates", "By wall clock, which includes the time between steps{at}: {numbers}.", _wall_clock),
    Row("gate", "The gate cannot judge {names}{at}: some steps have numbers in one arm only.", _gate_cannot_judge),
    Row(
        "data",
        "Not compared{at}: {why}.",
        lambda place: when(not (place.claim.estimate or place.alone), why=place.claim.why),
    ),
    Row("data", "Speed at equal work is unknown{at}: {why}.", _no_equal_work, "{settle}"),
    Row("data", "{text}.", _read()),
    Row("data", "{count} settings cannot be verified ({names}).", _unverified),
)
