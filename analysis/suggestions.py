"""What is worth trying next? Each suggestion follows from a number of the report's own tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from analysis.phases import RESIDUAL
from analysis.runs import factors_label, rows_of
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

    def tells(self, text: str, quantity: str, value: float, source: str) -> Suggestion:
        return Suggestion(text, quantity, value, source, self.arm, self.factors)


def suggestions(
    stragglers: pd.DataFrame, waterfall: pd.DataFrame, wide: pd.DataFrame, preflight: Preflight | None = None
) -> list[Suggestion]:
    """What to try next, the weightiest first; of each kind and arm one, at the factors where its number is largest.

    `stragglers` of `straggler_table`, `waterfall` of `waterfall_table`, `wide` for the share of truncated responses;
    the preflight tells what an engine was started with. Nothing is suggested without a number.
    """
    found: dict[tuple[str, str], Suggestion] = {}
    blocked: dict[str, _Arm] = {}
    for arm in _arms(stragglers, waterfall, wide, preflight):
        if arm.finding(BLOCKING) and arm.number("generation_s") > 0 and arm.step_s > 0:
            before_it = blocked.get(arm.arm)
            if before_it is None or arm.number("generation_s") > before_it.number("generation_s"):
                blocked[arm.arm] = arm
        for rule in _RULES:
            for one in rule(arm):
                before = found.get((one.arm, one.quantity))
                if before is None or _weight(one) > _weight(before):
                    found[one.arm, one.quantity] = one
    order = {name: n for n, name in enumerate(_ORDER)}
    return sorted([*found.values(), *_blocking(list(blocked.values()))], key=lambda one: order[one.quantity])


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


def _weight(one: Suggestion) -> float:
    """What decides among the combinations of factors: the larger share, or the lower efficiency."""
    return 1 - one.value if one.quantity == "efficiency" else abs(one.value)


def _generation(arm: _Arm) -> Iterator[Suggestion]:
    """Amdahl's ceiling says whether the engine matters."""
    share, ceiling = arm.number("generation_share"), arm.number("amdahl_ceiling")
    if not math.isfinite(ceiling):
        return
    sum_ = f"1 / (1 - {share:.4f}) = {ceiling:.1f}×"
    if share >= GENERATION_MOST:
        text = (
            f"{_name(arm)}: generation is {share:.1%} of the mean step, so the engine decides: one that took no time "
            f"would bring at most {sum_}. Try engine settings and shorter responses before anything in training"
        )
    else:
        timed = {part: s for part, s in arm.parts.items() if part not in _GENERATION and part != RESIDUAL}
        largest = max(timed, key=lambda part: timed[part], default=None)
        rest = f": {largest} is the largest, {arm.share(largest):.1%}" if largest else ""
        text = (
            f"{_name(arm)}: generation is only {share:.1%} of the mean step: an engine that took no time would bring "
            f"at most {sum_}. Look at the other phases first{rest}"
        )
    yield arm.tells(text, "generation share", share, "stragglers: generation_share")


def _efficiency(arm: _Arm) -> Iterator[Suggestion]:
    """How far generation is from what the GPU allows."""
    efficiency = arm.number("efficiency")
    if not math.isfinite(efficiency):
        return
    gap = arm.parts.get("framework_gap", math.nan)
    takes = f"{_name(arm)}: generation takes 1 / {efficiency:.4f} = {1 / efficiency:.2f} times its decode floor"
    if efficiency < EFFICIENCY_LOW:
        text = (
            f"{takes}: {gap:.2f} s of the mean step of {arm.step_s:.2f} s lie above it. Profile one decode iteration: "
            "gaps between kernels mean that the CPU is late; short kernels, that few sequences run at once"
        )
    elif efficiency >= EFFICIENCY_HIGH:
        text = (
            f"{takes}: no engine setting has much left to win. Only less work helps (shorter responses, smaller "
            "weights or keys), or more bandwidth (more GPUs for each engine, faster ones)"
        )
    else:
        return
    yield arm.tells(text, "efficiency", efficiency, "stragglers: efficiency")


def _graphs(arm: _Arm) -> Iterator[Suggestion]:
    """Settings that the ledger names and that cost generation."""
    generation_s = arm.number("generation_s")
    if not generation_s > 0 or not arm.step_s > 0:
        return
    graphs = arm.finding("cuda-graphs")
    if arm.graphs_off():
        how = f": {graphs.change}" if graphs else ""
        text = f"{_name(arm)}: {_generation_size(arm)}, and the ledger has CUDA graphs off: turn them on{how}"
        yield arm.tells(text, "generation without CUDA graphs", generation_s, "stragglers: generation_s")


def _generation_size(arm: _Arm) -> str:
    efficiency = arm.number("efficiency")
    known = f", {1 / efficiency:.2f} times its decode floor" if efficiency > 0 else ""
    return f"generation takes {arm.number('generation_s'):.2f} s of the mean step of {arm.step_s:.2f} s{known}"


def _blocking(arms: list[_Arm]) -> Iterator[Suggestion]:
    """One suggestion for all arms of a finding that blocks kernel launches; its number is the largest."""
    by_finding: dict[Finding, list[_Arm]] = {}
    for arm in arms:
        if finding := arm.finding(BLOCKING):
            by_finding.setdefault(finding, []).append(arm)
    for finding, mine in by_finding.items():
        worst = max(mine, key=lambda arm: arm.number("generation_s"))
        sizes = "; ".join(f"{_name(arm)}: {_generation_size(arm)}" for arm in mine)
        text = f"{sizes}. Each kernel launch waits for its kernel ({finding.what}): {finding.change}"
        yield worst.tells(
            text, "generation with blocking launches", worst.number("generation_s"), "stragglers: generation_s"
        )


def _stragglers(arm: _Arm) -> Iterator[Suggestion]:
    """Waiting for the longest response."""
    bubble, ratio, tail = (arm.number(name) for name in ("length_bubble", "straggler_ratio", "tail_share"))
    if not bubble >= BUBBLE_MUCH:
        return
    still = f"; in {tail:.1%} of the decode iterations at most a tenth of the responses still runs" if tail >= 0 else ""
    text = (
        f"{_name(arm)}: the longest response is {arm.number('max_length'):.0f} / {arm.number('mean_length'):.0f} = "
        f"{ratio:.3f} times the mean, so that 1 - 1 / {ratio:.3f} = {bubble:.1%} of the places in the batch wait for it"
        f"{still}. Try a lower cap on the length, more prompts than are needed (the last are dropped), or partial "
        "rollouts that go on in the next step"
    )
    yield arm.tells(text, "length bubble", bubble, "stragglers: length_bubble")


def _weight_sync(arm: _Arm) -> Iterator[Suggestion]:
    share = arm.share("weight_sync")
    if share > WEIGHT_SYNC_MUCH:
        text = (
            f"{_name(arm)}: weight sync takes {arm.seconds('weight_sync', share)}. Try not to copy through the CPU "
            "(offloading, the sleep level), larger buckets, or fewer GPUs that gather"
        )
        yield arm.tells(text, "weight sync share", share, "waterfall: seconds (weight_sync)")


def _residual(arm: _Arm) -> Iterator[Suggestion]:
    share = arm.share(RESIDUAL)
    if abs(share) > RESIDUAL_MUCH and set(arm.parts) != {RESIDUAL}:
        text = (
            f"{_name(arm)}: no timer covers {arm.seconds(RESIDUAL, share)}. Profile what lies between the phases "
            "(data, logging, a phase without a timer)"
        )
        yield arm.tells(text, "residual share", share, "waterfall: seconds (residual)")


def _training(arm: _Arm) -> Iterator[Suggestion]:
    """Phases beside generation that have become large."""
    for part, advice in _ADVICE.items():
        share = arm.share(part)
        if share > OTHER_MUCH:
            text = (
                f"{_name(arm)}: {part} takes {arm.seconds(part, share)}: without it the step would be "
                f"1 / (1 - {share:.3f}) = {1 / (1 - share):.2f}× as fast. {advice}"
            )
            yield arm.tells(text, f"{part} share", share, f"waterfall: seconds ({part})")


def _truncated(arm: _Arm) -> Iterator[Suggestion]:
    if arm.truncated > TRUNCATED_MUCH:
        longest = arm.number("max_length")
        cap = f" ({longest:.0f} tokens at most)" if math.isfinite(longest) else ""
        text = (
            f"{_name(arm)}: {arm.truncated:.1%} of the responses were cut off at the longest length{cap}. They run to "
            "the end of the step, and most are scored without an answer: raise the cap, or reward shorter answers"
        )
        yield arm.tells(text, "truncated share", arm.truncated, "steps: truncated_share")


def _name(arm: _Arm) -> str:
    return f"{arm.arm} at {factors_label(arm.factors)}" if arm.factors else arm.arm


_GENERATION = ("weight_read", "kv_read", "compute", "framework_gap", "generation")
_ADVICE: Mapping[str, str] = {
    "log-probs": "Try larger micro-batches for it, or one pass for policy and reference where the algorithm allows",
    "loss+backward": "Try larger micro-batches, no offloading where memory allows, no recomputed activations",
    "rewards": "Score in parallel, or while generation still runs",
    "optimizer": "Keep its state on the GPU where memory allows",
    "other": "See in the table of phases which it is",
}
_RULES: tuple[Callable[[_Arm], Iterator[Suggestion]], ...] = (
    *(_generation, _graphs, _efficiency, _stragglers, _weight_sync, _training, _residual, _truncated),
)
_ORDER = (
    *("generation share", "generation without CUDA graphs", "generation with blocking launches", "efficiency"),
    *(
        "length bubble",
        "weight sync share",
        *(f"{part} share" for part in _ADVICE),
        "residual share",
        "truncated share",
    ),
)
