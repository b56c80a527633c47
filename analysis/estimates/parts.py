"""Divides the logarithm of two trained arms' raw ratio among engine, lengths, weight sync, and the rest of the step.

The engine's factor comes from replays: the engines alone, on completions of equal lengths. The effect of a phase's
factor on the step follows from logarithmic means (the LMDI method: Ang 2005, "The LMDI approach to decomposition
analysis: a practical guide"), so the factors multiply to the raw ratio exactly, in any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimates.bootstrap import Floats
from analysis.estimates.equal_work import GENERATION, STEP, Paired, log_estimate, log_side
from analysis.estimates.replays import StepSample
from analysis.windows import pair_weights

RAW, ENGINE, LENGTHS, SYNC, REST = "raw", "engine", "lengths", "weight_sync", "rest"
IN_TRAINING, OTHER_PHASES = "rest/generation", "rest/step"
FACTORS = (ENGINE, LENGTHS, SYNC, REST)
"""Their product is the raw ratio."""
LABELS = {
    RAW: "raw: seconds of a step",
    ENGINE: "engine at equal work",
    LENGTHS: "lengths of the responses",
    SYNC: "weight sync",
    REST: "rest",
    IN_TRAINING: "of it, generation in training",
    OTHER_PHASES: "of it, the other phases",
}
EQUAL = "equal"
TAKEN_OUT_BY = {
    EQUAL: "lengths equal in all paired steps",
    "standardised": "fit of generation's seconds to the longest response and the tokens",
    "roofline": "decode floors of the lengths",
}
SYNC_S = "sync_s"
SPLIT = (STEP, SYNC_S)


@dataclass(frozen=True)
class Decomposition:
    """The data of one arm against the baseline at one factor combination."""

    trained: StepSample
    steps: Paired
    by: str
    """How the effect of lengths is computed (`TAKEN_OUT_BY`); "" where it is unknown."""
    timed_sync: bool
    replay: StepSample | None
    chain: tuple[str, ...]

    def logs(self, trained: Floats, replay: Floats | None) -> dict[str, Floats]:
        """Each part's logarithm, from sums over steps; a part without data is absent."""
        width = len(self.steps.columns[0])
        split = {name: trained[..., width + at] for at, name in enumerate(sided(SPLIT))}
        gen = {s: np.exp(log_side("raw", self.steps.fitted, trained, s)) for s in "ab"}
        step = log_mean(split[f"{STEP}_a"], split[f"{STEP}_b"])
        weight = log_mean(gen["a"], gen["b"]) / step
        generation = (gen["a"] - gen["b"]) / step
        whole = np.log(split[f"{STEP}_a"] / split[f"{STEP}_b"])
        found: dict[str, Floats] = {}
        if replay is not None:
            links = np.log(replay[..., :-1] / replay[..., 1:])
            found[ENGINE] = weight * links.sum(axis=-1)
            if len(self.chain) > 2:
                found |= {link(self.chain, at): weight * links[..., at] for at in range(len(self.chain) - 1)}
        if self.by:
            found[LENGTHS] = weight * self._log_lengths(trained)
        sync = (split[f"{SYNC_S}_a"] - split[f"{SYNC_S}_b"]) / step
        if self.timed_sync:
            found[SYNC] = sync
        known = sum((found[name] for name in (ENGINE, LENGTHS) if name in found), np.zeros_like(step))
        found[IN_TRAINING] = generation - known
        found[OTHER_PHASES] = whole - generation - (sync if self.timed_sync else 0.0)
        found[REST] = found[IN_TRAINING] + found[OTHER_PHASES]
        return found

    def _log_lengths(self, trained: Floats) -> Floats:
        raw = log_estimate("raw", self.steps.fitted, trained)
        if self.by == EQUAL:
            return np.zeros_like(raw)
        found: Floats = raw - log_estimate(self.by, self.steps.fitted, trained)
        return found

    def weight(self) -> float:
        """The effect of a logarithmic ratio of generation's seconds on that of the step."""
        whole, width = self.trained.columns.sum(axis=0), len(self.steps.columns[0])
        a, b = (float(np.exp(log_side("raw", self.steps.fitted, whole, s))) for s in "ab")
        return float(log_mean(np.float64(a), np.float64(b)) / log_mean(whole[width], whole[width + 1]))


def log_mean(a: Any, b: Any) -> Any:
    """The logarithmic mean (a - b) / ln(a / b) of positive numbers; of equal numbers, that number."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        # The quotient of nearly equal numbers has lost the digits that log1p takes from their difference.
        return np.where(low == high, low, (high - low) / np.log1p((high - low) / low))


def link(chain: Sequence[str], at: int) -> str:
    """The part from one replay of a chain to the next."""
    return f"{ENGINE}/{chain[at + 1]} vs {chain[at]}"


def sided(names: Sequence[str]) -> list[str]:
    return [f"{name}_{side}" for name in names for side in "ab"]


def phase_ratios(
    data: Decomposition, whole: Mapping[str, Floats], weight: float, pairs: pd.DataFrame
) -> dict[str, float]:
    """The ratio of each part's own seconds, before the rest of the step dilutes it."""
    of_generation = (ENGINE, LENGTHS, IN_TRAINING)
    found = {
        part: math.exp(float(value) / weight)
        for part, value in whole.items()
        if part in of_generation or part.startswith(f"{ENGINE}/")
    }
    pairs = pairs[[name for name in sided([STEP, GENERATION, SYNC_S]) if name in pairs]].mul(
        pair_weights(pairs), axis=0
    )
    if data.timed_sync:
        a, b = (float(pairs[f"{SYNC_S}_{side}"].sum()) for side in "ab")
        found[SYNC] = a / b if a > 0 and b > 0 else math.nan
    rest = [
        float((pairs[f"{STEP}_{s}"] - pairs[f"{GENERATION}_{s}"]).sum())
        - (float(pairs[f"{SYNC_S}_{s}"].sum()) if data.timed_sync else 0.0)
        for s in "ab"
    ]
    found[OTHER_PHASES] = rest[0] / rest[1] if min(rest) > 0 else math.nan
    return found


def estimator(part: str, data: Decomposition) -> str:
    """The source of a part's value; for a rest, also the factors without data that it includes."""
    if part == LENGTHS:
        return TAKEN_OUT_BY[data.by]
    if part == ENGINE:
        return f"replays of equal lengths: {' to '.join(data.chain)}"
    if part.startswith(f"{ENGINE}/"):
        return "the two replays"
    if part == SYNC:
        return "its own timers in training"
    of_rest = {IN_TRAINING: (ENGINE, LENGTHS), OTHER_PHASES: (SYNC,), REST: (ENGINE, LENGTHS, SYNC)}[part]
    known = {ENGINE: data.replay is not None, LENGTHS: bool(data.by), SYNC: data.timed_sync}
    unknown = [LABELS[name] for name in of_rest if not known[name]]
    return "what is left" + (f", including the unknown: {', '.join(unknown)}" if unknown else "")
