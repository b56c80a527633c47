"""Suggests what to try next; each suggestion follows from a number of the report's own tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from analysis.factors import at
from analysis.phases import RESIDUAL
from analysis.runs import rows_of
from analysis.wide import counted_rows
from analysis.windows import mean_of, steps_per_row
from common.findings import Finding, Preflight
from trainers.logs.record import STEPS_LOGGED

# The least value that is worth a suggestion: a share of the step or of the work.
GENERATION_MOST = 0.5
EFFICIENCY_LOW, EFFICIENCY_HIGH = 0.6, 0.8
BUBBLE_MUCH = 0.4
TRUNCATED_MUCH = 0.1
OTHER = "other"
BLOCKING = "cuda-launch-blocking"
GRAPHS_ROW = "CUDA graphs while decoding"
_GENERATION = ("weight_read", "kv_read", "compute", "framework_gap", "generation")
_PHASE = "{part} takes {seconds}: without it the step would be 1 / (1 - {share:.3f}) = {speedup:.2f}× as fast. "
# Each part of the step: the least share that is worth a suggestion, the quantity's name, and the text.
_SHARES = (
    (
        *("weight_sync", 0.05, "weight sync share"),
        "weight sync takes {seconds}. Try to avoid copies through the CPU (offloading, the sleep level), larger "
        "buckets, or fewer GPUs that gather",
    ),
    (
        *("log-probs", 0.15, "log-probs share"),
        _PHASE + "Try larger micro-batches for it, or one pass for policy and reference where the algorithm allows it",
    ),
    (
        *("loss+backward", 0.15, "loss+backward share"),
        _PHASE + "Try larger micro-batches, no offloading where memory allows it, no recomputed activations",
    ),
    ("rewards", 0.15, "rewards share", _PHASE + "Score in parallel, or while generation still runs"),
    ("optimizer", 0.15, "optimizer share", _PHASE + "Keep its state on the GPU where memory allows it"),
    (OTHER, 0.15, "other share", _PHASE + "The table of phases shows which phases these are"),
    (
        *(RESIDUAL, 0.05, "residual share"),
        "no timer covers {seconds}. Profile the time between the phases (data, logging, a phase without a timer)",
    ),
)


@dataclass(frozen=True)
class Suggestion:
    """One thing to try, and its number.

    `source` is the table and the column of `value`, with the row's part where it has one; `arm` and `factors` name the
    row.
    """

    text: str
    quantity: str
    value: float
    source: str
    arm: str
    factors: str = ""


@dataclass(frozen=True)
class _Arm:
    """An arm at one factor combination, with its rows of the tables."""

    arm: str
    factors: str
    stragglers: Mapping[str, float]
    parts: Mapping[str, float]
    step_s: float
    truncated: float
    preflight: Preflight | None

    @property
    def name(self) -> str:
        return self.arm + at(self.factors)

    def number(self, name: str) -> float:
        return float(self.stragglers.get(name, math.nan))

    def share(self, part: str) -> float:
        """A part's share of the mean step; NaN without a timer of it."""
        return self.parts[part] / self.step_s if part in self.parts and self.step_s > 0 else math.nan

    def finding(self, code: str) -> Finding | None:
        findings = self.preflight.findings if self.preflight else ()
        return next((f for f in findings if f.code == code and self.arm in f.arms), None)

    @property
    def generation(self) -> str:
        """The time of generation as a clause."""
        efficiency = self.number("efficiency")
        known = f", {1 / efficiency:.2f} times its decode floor" if efficiency > 0 else ""
        return f"generation takes {self.number('generation_s'):.2f} s of the mean step of {self.step_s:.2f} s{known}"

    def suggestion(self, text: str, quantity: str, value: float, source: str) -> Suggestion:
        return Suggestion(f"{self.name}: {text}", quantity, value, source, self.arm, self.factors)


Rule = Callable[[_Arm], Suggestion | None]


def suggestions(
    stragglers: pd.DataFrame, waterfall: pd.DataFrame, wide: pd.DataFrame, preflight: Preflight | None = None
) -> list[Suggestion]:
    """What to try next, the most important first; one of each kind and arm, at the factors with its largest number.

    `stragglers` is from `straggler_table`, `waterfall` from `waterfall_table`, `wide` has the share of truncated
    responses, and the preflight has the engines' settings. Every suggestion has a number.
    """
    arms = list(_arms(stragglers, waterfall, wide, preflight))
    first = [*_best(_generation, arms), *_best(_graphs, arms), *_blocking(arms)]
    rules: tuple[Rule, ...] = (_efficiency, _stragglers, *(partial(_share, *row) for row in _SHARES), _truncated)
    return first + [suggestion for rule in rules for suggestion in _best(rule, arms)]


def _arms(
    stragglers: pd.DataFrame, waterfall: pd.DataFrame, wide: pd.DataFrame, preflight: Preflight | None
) -> Iterator[_Arm]:
    counted = counted_rows(wide, "factors", "arm", STEPS_LOGGED, "truncated_share")
    truncated = {}
    if "truncated_share" in counted:
        truncated = {
            key: mean_of(rows["truncated_share"], steps_per_row(rows))
            for key, rows in counted.groupby(["factors", "arm"], sort=False)
        }
    for row in rows_of(stragglers):
        of_arm = waterfall[(waterfall["factors"] == row.factors) & (waterfall["arm"] == row.arm)]
        parts = dict(zip(of_arm["part"], of_arm["seconds"].astype(float), strict=True))
        numbers = {name: getattr(row, name) for name in stragglers.columns if name not in ("factors", "arm")}
        share = float(truncated.get((row.factors, row.arm), math.nan))
        yield _Arm(str(row.arm), str(row.factors), numbers, parts, math.fsum(parts.values()), share, preflight)


def _best(rule: Rule, arms: Sequence[_Arm]) -> list[Suggestion]:
    """A rule's suggestions: each arm's at the factors with the largest number, or the lowest efficiency."""
    best: dict[str, Suggestion] = {}

    def weight(one: Suggestion) -> float:
        return 1 - one.value if one.quantity == "efficiency" else abs(one.value)

    for one in filter(None, map(rule, arms)):
        if one.arm not in best or weight(one) > weight(best[one.arm]):
            best[one.arm] = one
    return list(best.values())


def _generation(arm: _Arm) -> Suggestion | None:
    share, ceiling = arm.number("generation_share"), arm.number("amdahl_ceiling")
    if not math.isfinite(ceiling):
        return None
    sum_ = f"1 / (1 - {share:.4f}) = {ceiling:.1f}×"
    if share >= GENERATION_MOST:
        text = (
            f"generation is {share:.1%} of the mean step. Try engine settings and shorter responses first: without "
            f"generation the step is {sum_} as fast"
        )
    else:
        timed = {part: s for part, s in arm.parts.items() if part not in _GENERATION and part != RESIDUAL}
        largest = max(timed, key=lambda part: timed[part], default=None)
        rest = f": {largest} is the largest, {arm.share(largest):.1%}" if largest else ""
        text = (
            f"generation is only {share:.1%} of the mean step: without it the step is {sum_} as fast. Try the other "
            f"phases first{rest}"
        )
    return arm.suggestion(text, "generation share", share, "stragglers: generation_share")


def _efficiency(arm: _Arm) -> Suggestion | None:
    """How close generation is to the limit of the GPU."""
    efficiency = arm.number("efficiency")
    gap = arm.parts.get("framework_gap", math.nan)
    if efficiency < EFFICIENCY_LOW:
        text = (
            f": {gap:.2f} s of the mean step of {arm.step_s:.2f} s are above the floor. Profile one decode iteration: "
            "gaps between kernels mean that the CPU is late; short kernels mean that few sequences run at once"
        )
    elif EFFICIENCY_HIGH <= efficiency < math.inf:
        text = (
            ": no engine setting has much left to win. Only less work helps (shorter responses, smaller weights or "
            "keys), or more bandwidth (more GPUs for each engine, faster ones)"
        )
    else:
        return None
    takes = f"generation takes 1 / {efficiency:.4f} = {1 / efficiency:.2f} times its decode floor"
    return arm.suggestion(takes + text, "efficiency", efficiency, "stragglers: efficiency")


def _graphs(arm: _Arm) -> Suggestion | None:
    generation_s = arm.number("generation_s")
    ledger = arm.preflight.ledger if arm.preflight else ()
    off = any(row.setting.startswith(GRAPHS_ROW) and row.values.get(arm.arm) == "off" for row in ledger)
    if not (off and generation_s > 0 and arm.step_s > 0):
        return None
    finding = arm.finding("cuda-graphs")
    how = f": {finding.change}" if finding else ""
    text = f"{arm.generation}, and the ledger has CUDA graphs off: turn them on{how}"
    return arm.suggestion(text, "generation without CUDA graphs", generation_s, "stragglers: generation_s")


def _blocking(arms: Sequence[_Arm]) -> Iterator[Suggestion]:
    """One suggestion for all arms of a finding on blocking kernel launches; its number is the largest."""
    by_finding: dict[Finding, dict[str, _Arm]] = {}
    timed = [arm for arm in arms if arm.number("generation_s") > 0 and arm.step_s > 0]
    for arm in sorted(timed, key=lambda arm: -arm.number("generation_s")):
        if finding := arm.finding(BLOCKING):
            by_finding.setdefault(finding, {}).setdefault(arm.arm, arm)
    for finding, slowest in by_finding.items():
        worst = next(iter(slowest.values()))
        sizes = "; ".join(f"{arm.name}: {arm.generation}" for arm in slowest.values())
        text = f"{sizes}. Each kernel launch waits for its kernel ({finding.what}): {finding.change}"
        row = ("stragglers: generation_s", worst.arm, worst.factors)
        yield Suggestion(text, "generation with blocking launches", worst.number("generation_s"), *row)


def _stragglers(arm: _Arm) -> Suggestion | None:
    bubble, ratio, tail = (arm.number(name) for name in ("length_bubble", "straggler_ratio", "tail_share"))
    if not bubble >= BUBBLE_MUCH:
        return None
    still = f"; in {tail:.1%} of the decode iterations at most a tenth of the responses still runs" if tail >= 0 else ""
    text = (
        f"the longest response is {arm.number('max_length'):.0f} / {arm.number('mean_length'):.0f} = {ratio:.3f} times "
        f"the mean, so 1 - 1 / {ratio:.3f} = {bubble:.1%} of the places in the batch wait for it{still}. Try a lower "
        "cap on the length, more prompts than needed (the last are dropped), or partial rollouts that continue in the "
        "next step"
    )
    return arm.suggestion(text, "length bubble", bubble, "stragglers: length_bubble")


def _share(part: str, least: float, quantity: str, text: str, arm: _Arm) -> Suggestion | None:
    share = arm.share(part)
    size = abs(share) if part == RESIDUAL else share
    # A table without categories has all its phases in one part, whose share says nothing.
    if not size > least or set(arm.parts) == {RESIDUAL} or set(arm.parts) - {RESIDUAL} == {OTHER}:
        return None
    seconds = f"{abs(arm.parts[part]):.2f} s, {size:.1%} of the mean step of {arm.step_s:.2f} s"
    if share < 0:
        text = "the timers sum to more than the step, by {seconds}. Check which phases overlap or are timed twice"
    speedup = 1 / (1 - share) if share < 1 else math.inf
    text = text.format(part=part, seconds=seconds, share=share, speedup=speedup)
    return arm.suggestion(text, quantity, share, f"waterfall: seconds ({part})")


def _truncated(arm: _Arm) -> Suggestion | None:
    if not arm.truncated > TRUNCATED_MUCH:
        return None
    longest = arm.number("max_length")
    cap = f" ({longest:.0f} tokens at most)" if math.isfinite(longest) else ""
    text = (
        f"{arm.truncated:.1%} of the responses were cut off at the longest length{cap}. Such a response "
        "may be scored without its answer: raise the cap, or reward shorter answers"
    )
    return arm.suggestion(text, "truncated share", arm.truncated, "steps: truncated_share")
