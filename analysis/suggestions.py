"""Suggests what to try next; each suggestion follows from a number of the report's own tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from analysis.phases import RESIDUAL
from analysis.runs import at, rows_of
from common.findings import Finding, Preflight

# From where on a quantity is worth a suggestion: shares of the step or of the work, as the name says.
GENERATION_MOST = 0.5
EFFICIENCY_LOW, EFFICIENCY_HIGH = 0.6, 0.8
WEIGHT_SYNC_MUCH = 0.05
RESIDUAL_MUCH = 0.05
OTHER_MUCH = 0.15
BUBBLE_MUCH = 0.4
TRUNCATED_MUCH = 0.1
BLOCKING = "cuda-launch-blocking"
GRAPHS_ROW = "CUDA graphs while decoding"


@dataclass(frozen=True)
class Suggestion:
    """One thing to try, and the number that it follows from.

    `source` is the table and the column that hold `value`, with the row's part where it has one; `arm` and `factors`
    say of which row.
    """

    text: str
    quantity: str
    value: float
    source: str
    arm: str
    factors: str = ""


@dataclass(frozen=True)
class _Arm:
    """An arm at one combination of factors, as the tables have it."""

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

    def share(self, *parts: str) -> float:
        """Of the mean step; NaN where none of the parts is timed."""
        found = [self.parts[part] for part in parts if part in self.parts]
        return math.fsum(found) / self.step_s if found and self.step_s > 0 else math.nan

    def seconds(self, part: str, share: float) -> str:
        return f"{self.parts[part]:.2f} s, {share:.1%} of the mean step of {self.step_s:.2f} s"

    def finding(self, code: str) -> Finding | None:
        found = self.preflight.findings if self.preflight else ()
        return next((f for f in found if f.code == code and self.arm in f.arms), None)

    def graphs_off(self) -> bool:
        rows = self.preflight.ledger if self.preflight else ()
        return any(row.setting.startswith(GRAPHS_ROW) and row.values.get(self.arm) == "off" for row in rows)

    @property
    def generation(self) -> str:
        """How long generation takes, in words."""
        efficiency = self.number("efficiency")
        known = f", {1 / efficiency:.2f} times its decode floor" if efficiency > 0 else ""
        return f"generation takes {self.number('generation_s'):.2f} s of the mean step of {self.step_s:.2f} s{known}"

    def tells(self, text: str, quantity: str, value: float, source: str) -> Suggestion:
        return Suggestion(f"{self.name}: {text}", quantity, value, source, self.arm, self.factors)


Rule = Callable[[_Arm], Suggestion | None]


def suggestions(
    stragglers: pd.DataFrame, waterfall: pd.DataFrame, wide: pd.DataFrame, preflight: Preflight | None = None
) -> list[Suggestion]:
    """What to try next, the weightiest first; of each kind and arm one, at the factors where its number is largest.

    `stragglers` of `straggler_table`, `waterfall` of `waterfall_table`, `wide` for the share of truncated responses;
    the preflight tells what an engine was started with. Nothing is suggested without a number.
    """
    arms = list(_arms(stragglers, waterfall, wide, preflight))
    first = [*_best(_generation, arms), *_best(_graphs, arms), *_blocking(arms)]
    return first + [one for rule in _RULES for one in _best(rule, arms)]


def _arms(
    stragglers: pd.DataFrame, waterfall: pd.DataFrame, wide: pd.DataFrame, preflight: Preflight | None
) -> Iterator[_Arm]:
    counted = wide[wide["counted"].astype(bool)]
    truncated = (
        counted.groupby(["factors", "arm"], sort=False)["truncated_share"].mean().to_dict()
        if "truncated_share" in counted
        else {}
    )
    for row in rows_of(stragglers):
        mine = waterfall[(waterfall["factors"] == row.factors) & (waterfall["arm"] == row.arm)]
        parts = dict(zip(mine["part"], mine["seconds"].astype(float), strict=True))
        numbers = {name: getattr(row, name) for name in stragglers.columns if name not in ("factors", "arm")}
        step_s = math.fsum(parts.values())
        short = truncated.get((row.factors, row.arm), math.nan)
        yield _Arm(str(row.arm), str(row.factors), numbers, parts, step_s, float(short), preflight)


def _best(rule: Rule, arms: Sequence[_Arm]) -> list[Suggestion]:
    """A rule's suggestions, of each arm the one at the factors where its number weighs most."""
    best: dict[str, Suggestion] = {}
    for one in filter(None, map(rule, arms)):
        if one.arm not in best or _weight(one) > _weight(best[one.arm]):
            best[one.arm] = one
    return list(best.values())


def _weight(one: Suggestion) -> float:
    """What decides among the combinations of factors: the larger share, or the lower efficiency."""
    return 1 - one.value if one.quantity == "efficiency" else abs(one.value)


def _generation(arm: _Arm) -> Suggestion | None:
    """Amdahl's ceiling says whether the engine matters."""
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
    return arm.tells(text, "generation share", share, "stragglers: generation_share")


def _efficiency(arm: _Arm) -> Suggestion | None:
    """How far generation is from what the GPU allows."""
    efficiency = arm.number("efficiency")
    gap = arm.parts.get("framework_gap", math.nan)
    if efficiency < EFFICIENCY_LOW:
        text = (
            f": {gap:.2f} s of the mean step of {arm.step_s:.2f} s lie above it. Profile one decode iteration: gaps "
            "between kernels mean that the CPU is late; short kernels, that few sequences run at once"
        )
    elif EFFICIENCY_HIGH <= efficiency < math.inf:
        text = (
            ": no engine setting has much left to win. Only less work helps (shorter responses, smaller weights or "
            "keys), or more bandwidth (more GPUs for each engine, faster ones)"
        )
    else:
        return None
    takes = f"generation takes 1 / {efficiency:.4f} = {1 / efficiency:.2f} times its decode floor"
    return arm.tells(takes + text, "efficiency", efficiency, "stragglers: efficiency")


def _graphs(arm: _Arm) -> Suggestion | None:
    """Settings that the ledger names and that cost generation."""
    generation_s = arm.number("generation_s")
    if not (generation_s > 0 and arm.step_s > 0 and arm.graphs_off()):
        return None
    graphs = arm.finding("cuda-graphs")
    text = f"{arm.generation}, and the ledger has CUDA graphs off: turn them on{f': {graphs.change}' if graphs else ''}"
    return arm.tells(text, "generation without CUDA graphs", generation_s, "stragglers: generation_s")


def _blocking(arms: Sequence[_Arm]) -> Iterator[Suggestion]:
    """One suggestion for all arms of a finding that blocks kernel launches; its number is the largest."""

    def generation_s(arm: _Arm) -> float:
        return arm.number("generation_s")

    slowed = [arm for arm in arms if arm.finding(BLOCKING) and generation_s(arm) > 0 and arm.step_s > 0]
    by_finding: dict[Finding, list[_Arm]] = {}
    for name in dict.fromkeys(arm.arm for arm in slowed):
        slowest = max((arm for arm in slowed if arm.arm == name), key=generation_s)
        if finding := slowest.finding(BLOCKING):
            by_finding.setdefault(finding, []).append(slowest)
    for finding, mine in by_finding.items():
        worst = max(mine, key=generation_s)
        sizes = "; ".join(f"{arm.name}: {arm.generation}" for arm in mine)
        text = f"{sizes}. Each kernel launch waits for its kernel ({finding.what}): {finding.change}"
        place = ("stragglers: generation_s", worst.arm, worst.factors)
        yield Suggestion(text, "generation with blocking launches", generation_s(worst), *place)


def _stragglers(arm: _Arm) -> Suggestion | None:
    """Waiting for the longest response."""
    bubble, ratio, tail = (arm.number(name) for name in ("length_bubble", "straggler_ratio", "tail_share"))
    if not bubble >= BUBBLE_MUCH:
        return None
    still = f"; in {tail:.1%} of the decode iterations at most a tenth of the responses still runs" if tail >= 0 else ""
    text = (
        f"the longest response is {arm.number('max_length'):.0f} / {arm.number('mean_length'):.0f} = {ratio:.3f} times "
        f"the mean, so that 1 - 1 / {ratio:.3f} = {bubble:.1%} of the places in the batch wait for it{still}. Try a "
        "lower cap on the length, more prompts than are needed (the last are dropped), or partial rollouts that go on "
        "in the next step"
    )
    return arm.tells(text, "length bubble", bubble, "stragglers: length_bubble")


def _weight_sync(arm: _Arm) -> Suggestion | None:
    share = arm.share("weight_sync")
    if not share > WEIGHT_SYNC_MUCH:
        return None
    text = (
        f"weight sync takes {arm.seconds('weight_sync', share)}. Try not to copy through the CPU (offloading, the "
        "sleep level), larger buckets, or fewer GPUs that gather"
    )
    return arm.tells(text, "weight sync share", share, "waterfall: seconds (weight_sync)")


def _phase(part: str, advice: str, arm: _Arm) -> Suggestion | None:
    """A phase beside generation that has become large."""
    share = arm.share(part)
    if not share > OTHER_MUCH:
        return None
    text = (
        f"{part} takes {arm.seconds(part, share)}: without it the step would be 1 / (1 - {share:.3f}) = "
        f"{1 / (1 - share):.2f}× as fast. {advice}"
    )
    return arm.tells(text, f"{part} share", share, f"waterfall: seconds ({part})")


def _residual(arm: _Arm) -> Suggestion | None:
    share = arm.share(RESIDUAL)
    if not abs(share) > RESIDUAL_MUCH or set(arm.parts) == {RESIDUAL}:
        return None
    text = (
        f"no timer covers {arm.seconds(RESIDUAL, share)}. Profile what lies between the phases (data, logging, a phase "
        "without a timer)"
    )
    return arm.tells(text, "residual share", share, "waterfall: seconds (residual)")


def _truncated(arm: _Arm) -> Suggestion | None:
    if not arm.truncated > TRUNCATED_MUCH:
        return None
    longest = arm.number("max_length")
    cap = f" ({longest:.0f} tokens at most)" if math.isfinite(longest) else ""
    text = (
        f"{arm.truncated:.1%} of the responses were cut off at the longest length{cap}. They run to the end of the "
        "step, and most are scored without an answer: raise the cap, or reward shorter answers"
    )
    return arm.tells(text, "truncated share", arm.truncated, "steps: truncated_share")


_GENERATION = ("weight_read", "kv_read", "compute", "framework_gap", "generation")
_ADVICE: Mapping[str, str] = {
    "log-probs": "Try larger micro-batches for it, or one pass for policy and reference where the algorithm allows",
    "loss+backward": "Try larger micro-batches, no offloading where memory allows, no recomputed activations",
    "rewards": "Score in parallel, or while generation still runs",
    "optimizer": "Keep its state on the GPU where memory allows",
    "other": "See in the table of phases which it is",
}
_PHASES = tuple(partial(_phase, part, advice) for part, advice in _ADVICE.items())
_RULES: tuple[Rule, ...] = (_efficiency, _stragglers, _weight_sync, *_PHASES, _residual, _truncated)
