"""What the comparison amounts to, in sentences that claim no more than the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.estimates.arm import WITHIN
from analysis.estimates.disagreement import disagreement, has_intervals
from analysis.estimates.equal_work import EQUAL_WORK, Row
from analysis.estimates.gate import LABELS, WORSE_ARM, unjudged
from analysis.estimates.noise import repeated
from analysis.preflight import Preflight
from analysis.rows import rows_of
from analysis.runs import Plan, factors_label
from analysis.speedup import disagrees, outliers_decide

Span = tuple[float, float]
NO_SPAN = (math.nan, math.nan)
# So many factor combinations are named in a sentence; the table has all.
MOST_PLACES = 4
# An interval whose ends differ by more says nothing of the ratio.
TOO_WIDE = 10.0
UNITS = {"raw": "per step", "per_token": "per response token"}


@dataclass(frozen=True)
class Headline:
    """What one arm amounts to against the baseline; spans are over the factor combinations.

    `verdict` is that of the claim: `+` faster, `-` slower, `~` not resolved (or not the same for all factors), `x` not
    comparable. `claimed` are the estimates that it rests on, with the span of their values and of their intervals (NaN
    without one); `everything` spans all the estimates that have a value.
    """

    arm: str
    baseline: str
    sentence: str
    verdict: str
    claimed: tuple[str, ...]
    values: Span
    interval: Span
    everything: Span
    unequal: int = 0
    """Findings that say the two arms do not meet on equal terms."""


@dataclass(frozen=True)
class _Case:
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


def ratio_text(value: float) -> str:
    """A ratio as `2.15×`, with three digits from 10 on."""
    if math.isnan(value):
        return "—"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}×"


def range_text(low: float, high: float) -> str:
    """One ratio, or `1.90× to 2.15×`."""
    a, b = ratio_text(low), ratio_text(high)
    return a if a == b else f"{a} to {b}"


def direction(value: float) -> int:
    """1 where the arm is faster, -1 where the baseline is, 0 where the printed ratio is 1.00."""
    rounded = round(value, 2)
    return (rounded > 1) - (rounded < 1)


def headlines(
    comparison: pd.DataFrame,
    plan: Plan,
    preflight: Preflight | None = None,
    estimates: pd.DataFrame | None = None,
    gate: pd.DataFrame | None = None,
) -> list[Headline]:
    """One for each arm that has steps in common with the baseline, in the plan's order; none for a repetition (A/A).

    The tables are those of speedup.py, estimates.py and gate.py; `preflight` is None where there was none.
    """
    found = []
    for arm in plan.arms:
        rows = comparison[comparison["arm"] == arm]
        mine = estimates[estimates["arm"] == arm] if estimates is not None else rows.head(0)
        cases = [_case(group) for _, group in mine.groupby("factors", sort=False)] if len(rows) else []
        if cases and not repeated(plan, arm):
            of_arm = gate[gate["arm"] == arm] if gate is not None else None
            found.append(_headline(arm, plan, rows, cases, of_arm, preflight))
    return found


def _case(group: pd.DataFrame) -> _Case:
    at = factors_label(str(group["factors"].iloc[0]))
    records = [{str(name): value for name, value in row.items()} for row in group.to_dict("records")]
    rows: dict[str, Row] = {str(row["estimate"]): row for row in records}
    valued = [name for name, row in rows.items() if row["value"] > 0]
    claimed = tuple(n for n in EQUAL_WORK if n in valued) or tuple(n for n in ("per_token", "raw") if n in valued)[:1]
    if not claimed:
        return _Case(at, rows, (), "x")
    verdicts = {rows[name]["verdict"] for name in claimed}
    verdict = verdicts.pop() if len(verdicts) == 1 else "~"
    sides = {direction(rows[name]["value"]) for name in valued}
    # A difference that the printed digits do not show is none to claim, however sure.
    same = not any(direction(rows[name]["value"]) for name in claimed)
    return _Case(at, rows, claimed, "~" if {1, -1} <= sides or same else verdict)


def _headline(
    arm: str,
    plan: Plan,
    comparison: pd.DataFrame,
    cases: list[_Case],
    gate: pd.DataFrame | None,
    preflight: Preflight | None,
) -> Headline:
    base = plan.baseline
    unequal = preflight.unequal((base, arm)) if preflight is not None else 0
    told = [case for case in cases if case.verdict != "x"]
    if not told:
        why = "; ".join(dict.fromkeys(str(case.rows["raw"]["why"]) for case in cases))
        sentence = f"Not comparable, so that there is no ratio of {arm} and {base}: {why}."
        return Headline(arm, base, sentence, "x", (), NO_SPAN, NO_SPAN, NO_SPAN, unequal)
    claimed = tuple(dict.fromkeys(name for case in told for name in case.claimed))
    values = _over([case.span(case.claimed) for case in told])
    certain = _certain(told, claimed)
    ends = [[n for n in case.certain if n in certain] or case.certain for case in told]
    intervals = [case.span(names, "low", "high") for case, names in zip(told, ends, strict=True)]
    interval = NO_SPAN if any(math.isnan(low) for low, _ in intervals) else _over(intervals)
    everything = _over([case.span(case.valued) for case in told])
    verdicts = {case.verdict for case in cases}
    verdict = verdicts.pop() if len(verdicts) == 1 else "~"
    sentences = [
        _claims(arm, base, cases, told, verdict, claimed, values, interval),
        *_limits(cases, told, everything, verdict, _swapped(values), comparison),
    ]
    sentences.append(_terms(unequal, preflight))
    sentences += _doubts(arm, comparison, told, gate, _swapped(values))
    sentences.append(_grounds(comparison, plan, told))
    return Headline(arm, base, " ".join(sentences), verdict, claimed, values, interval, everything, unequal)


def _claims(
    arm: str,
    base: str,
    cases: list[_Case],
    told: list[_Case],
    verdict: str,
    claimed: tuple[str, ...],
    values: Span,
    interval: Span,
) -> str:
    """The claim, and beside it the ratios that it does not rest on."""
    at_equal_work = claimed[0] in EQUAL_WORK
    unit = "at equal work" if at_equal_work else UNITS[claimed[0]]
    claim = _claim(unit, values, arm, base)
    by = f"by {' and '.join(claimed)}" if at_equal_work else ""
    alone = len(cases) == 1 and cases[0].one_step
    known = [case for case in told if case.certain]
    spread = "" if alone else "no interval"
    if interval[1] > TOO_WIDE * interval[0]:
        spread = "too few runs or steps for an interval of use"
    elif 0 < len(known) < len(told):
        here = _over([case.span(case.certain, "low", "high") for case in known])
        spread = f"95% known at {_places(known)} only: {range_text(*(_inverse(here) if _swapped(values) else here))}"
    elif not math.isnan(interval[0]):
        certain = _certain(told, claimed)
        of = "" if len(certain) == len(claimed) else f" by {' and '.join(certain)} alone" if certain else " where known"
        spread = f"95%{of}: {range_text(*(_inverse(interval) if _swapped(values) else interval))}"
    limits = ", ".join(filter(None, (by, spread)))
    claim += f" ({limits})" if limits else ""
    if alone:
        claim = f"one step of one run each: {claim}"
    elif verdict == "~":
        claim = f"{_undecided(arm, cases)}: {claim}"
    others = [
        _claim(UNITS[name], _over([c.span([name]) for c in told if name in c.valued]), arm, base)
        for name in UNITS
        if name not in claimed and any(name in c.valued for c in told)
    ]
    unknown = [] if at_equal_work else ["at equal work"]
    if not at_equal_work and "per_token" not in claimed:
        unknown.append("per response token")
    lacking = f"{' and '.join(unknown)} it is not known" if unknown else ""
    if alone:
        lacking = f"no interval can be given{', and ' if lacking else ''}{lacking}"
    return _capital("; ".join(filter(None, [claim, *others, lacking]))) + "."


def _places(cases: Sequence[_Case]) -> str:
    """At which factor combinations, the first few by name."""
    names = [case.at for case in cases]
    if len(names) > MOST_PLACES:
        return f"{', '.join(names[:MOST_PLACES])} and {len(names) - MOST_PLACES} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _certain(told: list[_Case], claimed: Sequence[str]) -> list[str]:
    """Those of the claim that have an interval wherever they have a value: whose the interval is."""
    return [name for name in claimed if all(name in case.certain for case in told if name in case.claimed)]


def _undecided(arm: str, cases: list[_Case]) -> str:
    if len(cases) == 1:
        return "no difference to be seen" if cases[0].unmoved else "not resolved which is faster"
    words = {"+": "faster", "-": "slower", "~": "not resolved", "x": "not compared"}
    counts = {v: sum(case.verdict == v for case in cases) for v in words}
    parts = [f"{word} in {counts[v]}" for v, word in words.items() if counts[v]]
    return f"of {len(cases)} factor combinations {arm} is {', '.join(parts)}"


def _claim(unit: str, span: Span, arm: str, base: str) -> str:
    if {direction(end) for end in span} == {0}:
        return f"{unit} {arm} and {base} take the same time (1.00×)"
    if _swapped(span):
        return f"{unit} the baseline {base} is {range_text(*_inverse(span))} as fast as {arm}"
    return f"{unit} {arm} is {range_text(*span)} as fast as {base}"


def _swapped(span: Span) -> bool:
    """Whether a claim of this span is one about the baseline, so that its ratios are the other way round."""
    signs = {direction(end) for end in span}
    return signs <= {0, -1} and signs != {0}


def _inverse(span: Span) -> Span:
    return 1 / span[1], 1 / span[0]


def _limits(
    cases: list[_Case], told: list[_Case], everything: Span, verdict: str, swapped: bool, comparison: pd.DataFrame
) -> list[str]:
    """The range over all estimates, in the claim's direction, and what it would take to resolve what is not."""
    found = []
    names = {name for case in told for name in case.valued}
    if len(names) > 1:
        count = {2: "both", 3: "all three", 4: "all four"}[len(names)]
        found.append(f"Over {count} estimates: {range_text(*(_inverse(everything) if swapped else everything))}.")
    if len(cases) > 1:
        found += _unresolved(cases)
    if verdict == "~" and len(cases) == 1:
        rows = [told[0].rows[name] for name in told[0].claimed]
        reasons = dict.fromkeys(
            f"{n.replace('_', ' ')}: {r['why']}" for n, r in zip(told[0].claimed, rows, strict=True) if r["why"]
        )
        if told[0].certain and reasons:
            found.append(f"{_capital('; '.join(reasons))}.")
        more = [r["runs_to_resolve"] for r in rows]
        least = [r["minimum_detectable_ratio"] for r in rows]
        if all(0 < value < TOO_WIDE for value in least) and direction(max(least)):
            found.append(f"These runs would have shown a ratio of {max(least):.2f}×, not less.")
        # What a few outlying steps decide is no spread that more runs are known to tame.
        tame = not any(outliers_decide(r.raw_speedup, r.median_speedup) for r in rows_of(comparison))
        if all(value > 0 for value in more) and tame and not told[0].unmoved:
            found.append(f"{_count(int(max(more)), 'more pair of runs', 'more pairs of runs')} could resolve it.")
    return found


def _unresolved(cases: Sequence[_Case]) -> list[str]:
    """At which factor combinations the claim is not resolved, or not made, and why."""
    reasons: dict[tuple[str, str], list[_Case]] = {}
    for case in cases:
        if case.verdict == "x":
            reasons.setdefault(("Not compared", str(case.rows["raw"]["why"])), []).append(case)
        elif case.verdict == "~":
            whys = [f"{n.replace('_', ' ')}: {r['why']}" for n in case.claimed if (r := case.rows[n])["why"]]
            reasons.setdefault(("Not resolved", "; ".join(whys)), []).append(case)
    return [
        f"{what} at {_places(mine)}{f' ({why})' if why else ''}." for (what, why), mine in reasons.items() if mine[0].at
    ]


def _terms(unequal: int, preflight: Preflight | None) -> str:
    """Whether the ledger allows the claim."""
    if preflight is None:
        return "There is no fairness ledger: what else differs was not checked."
    if unequal:
        return (
            "The comparison is not on equal terms, so the engines alone do not explain this: see "
            f"{_count(unequal, 'finding', 'findings')} in the fairness ledger."
        )
    unknown = [row.setting for row in preflight.rows("unverifiable")]
    if not preflight.ledger:
        return "The fairness ledger is empty: no setting could be compared."
    if not unknown:
        return "The fairness ledger found nothing unequal."
    names = list(dict.fromkeys(unknown))
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return (
        f"The fairness ledger found nothing unequal, but {len(unknown)} of its {len(preflight.ledger)} settings cannot "
        f"be verified: {', '.join(names[:2])}{more}."
    )


def _doubts(
    arm: str, comparison: pd.DataFrame, told: list[_Case], gate: pd.DataFrame | None, swapped: bool
) -> list[str]:
    """What speaks against the claim."""
    found = []
    if gate is not None:
        worse, lacking = gate[gate["verdict"] == WORSE_ARM], unjudged(gate)
        if len(worse):
            found.append(f"The correctness gate fails: {arm} is worse in {_labels(worse)}.")
        if len(lacking):
            found.append(f"The correctness gate cannot judge {_labels(lacking)}: some steps of one arm have no number.")
    if apart := [case for case in told if disagreement(case.rows)]:
        sure = all(has_intervals(case.rows) for case in apart)
        says = "misleads" if sure else "may mislead (or it is chance: there are too few steps to tell)"
        where = f" at {_places(apart)}" if len(apart) < len(told) else ""
        found.append(
            f"Step time and equal work disagree{where}: the responses differ in length, so step time alone {says}."
        )
    elif any(_opposite(case) for case in told):
        found.append("The two disagree on which is faster: the responses differ in length, so neither settles it.")
    rows = list(rows_of(comparison))
    if any(disagrees(r.lowest_seed_speedup, r.highest_seed_speedup) for r in rows):
        found.append("The seeds disagree on which is faster, so this is not settled.")
    if any(disagrees(r.raw_speedup, r.median_speedup) for r in rows):
        found.append("The median steps point the other way: a few outlying steps decide, so do not rely on this.")
    elif any(outliers_decide(r.raw_speedup, r.median_speedup) for r in rows):
        medians = ", ".join(f"{1 / r.median_speedup if swapped else r.median_speedup:.2f}×" for r in rows)
        found.append(f"The median steps say {medians}: a few outlying steps decide how much, so do not rely on this.")
    return found


def _labels(gate: pd.DataFrame) -> str:
    return ", ".join(LABELS[name] for name in dict.fromkeys(gate["quantity"]))


def _opposite(case: _Case) -> bool:
    return {"raw", "per_token"} <= set(case.valued) and disagrees(
        case.rows["raw"]["value"], case.rows["per_token"]["value"]
    )


def _grounds(comparison: pd.DataFrame, plan: Plan, told: list[_Case]) -> str:
    runs = sum(int(case.rows["raw"]["run_pairs"]) for case in told)
    steps = sum(int(case.rows["raw"]["paired_steps"]) for case in told)
    sweep = f" over {len(told)} factor combinations" if len(told) > 1 else ""
    text = (
        f"From {_count(runs, 'pair of runs', 'pairs of runs')} and "
        f"{_count(steps, 'paired step', 'paired steps')}{sweep}"
        f"{_after_warmup(comparison, plan)}."
    )
    if all(case.one_step for case in told):
        return text + " One step says nothing of other steps."
    if any(case.rows["raw"]["scope"] == WITHIN for case in told):
        text += " Within one pair of runs only: what other runs would say is not known."
    return text


def _after_warmup(comparison: pd.DataFrame, plan: Plan) -> str:
    """What was left out as warm-up."""
    fewest = int(comparison["warmup_left_out"].min())
    if fewest >= plan.warmup_steps:
        return f", after {_count(plan.warmup_steps, 'warm-up step', 'warm-up steps')} in each run"
    left = f"only {_count(fewest, 'step was', 'steps were')}" if fewest else "no step was"
    return f"; of some runs {left} left out as warm-up, since they begin later"


def _over(spans: Sequence[Span]) -> Span:
    known = [span for span in spans if not math.isnan(span[0])]
    return (min(a for a, _ in known), max(b for _, b in known)) if known else NO_SPAN


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
