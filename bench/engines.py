"""Two engines of known speed and what they would log: the ground on which the intervals are tried.

A step decodes responses of random lengths in a batch of so many at a time; its time is that of the iterations, each
with the weights' read and a gap of the framework's, of the KV reads, and of the rest of the step, with noise of steps
and of runs. Arm B's lengths may drift over the steps while its speed does not. The floor that the roofline estimate
takes knows neither the gap nor the rest nor how requests really queue: its bias is a real engine's bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.estimates.equal_work import FLOOR, GENERATION, LONGEST, STEP
from analysis.speedup import TOKENS

Floats = npt.NDArray[np.float64]

# A dense model of 14e9 parameters in bf16 on two GPUs of 3.35 TB/s, 0.2 MB of KV cache per position.
WEIGHTS_S = 28e9 / 2 / 3.35e12
POSITION_S = 0.2e6 / 2 / 3.35e12
GAP_S = 0.002
KV_SLOWNESS = 1.3
REST_S = 3.0
PROMPT = 200
MEDIAN_LENGTH, SPREAD, LONGEST_ALLOWED = 2000, 0.6, 16000


@dataclass(frozen=True)
class Regime:
    """Completions of a step and how many run at once, and how B's lengths drift to the last step.

    `scale` and `spread` are the relative changes of the lengths' size and of their (logarithmic) spread.
    """

    name: str
    completions: int
    concurrency: int
    scale: float = 0.0
    spread: float = 0.0

    @property
    def drifts(self) -> bool:
        return bool(self.scale or self.spread)


REGIMES = (
    Regime("tail-bound, none", 64, 64),
    Regime("tail-bound, B's tail grows", 64, 64, spread=0.33),
    Regime("tail-bound, B gets short", 64, 64, scale=-0.35, spread=-0.6),
    Regime("queue-bound, none", 256, 32),
    Regime("queue-bound, longer", 256, 32, scale=0.25),
    Regime("queue-bound, short", 256, 32, scale=-0.65),
)


def iterations(decoded: Floats, concurrency: int) -> Floats:
    """Decode iterations of each step when requests start in order, each as soon as a place is free."""
    steps, completions = decoded.shape
    if completions <= concurrency:
        return np.asarray(decoded.max(axis=1), dtype=np.float64)
    places, every = np.zeros((steps, concurrency)), np.arange(steps)
    for request in range(completions):
        first = places.argmin(axis=1)
        places[every, first] += decoded[:, request]
    return np.asarray(places.max(axis=1), dtype=np.float64)


def engine_steps(
    draw: np.random.Generator, regime: Regime, steps: int, speed: float, drifts: bool, step_sd: float, run_sd: float
) -> dict[str, Floats]:
    """One run's columns; an engine of twice the speed has steps of half the time for the same responses."""
    along = np.linspace(0, 1, steps)[:, None] * drifts
    sizes = np.exp(SPREAD * (1 + regime.spread * along) * draw.normal(size=(steps, regime.completions)))
    lengths = np.clip(np.round(MEDIAN_LENGTH * sizes * (1 + regime.scale * along)), 2, LONGEST_ALLOWED)
    decoded = lengths - 1
    read = (PROMPT * decoded + decoded * (decoded + 1) / 2).sum(axis=1)
    least = np.maximum(decoded.max(axis=1), np.ceil(decoded.sum(axis=1) / regime.concurrency))
    noise = np.exp(draw.normal(0, step_sd, steps) + draw.normal(0, run_sd))
    busy = iterations(decoded, regime.concurrency) * (WEIGHTS_S + GAP_S) + KV_SLOWNESS * POSITION_S * read
    generation = (busy + REST_S) / speed * noise
    return {
        STEP: generation,
        GENERATION: generation,
        TOKENS: lengths.sum(axis=1),
        LONGEST: lengths.max(axis=1),
        FLOOR: least * WEIGHTS_S + POSITION_S * read,
    }


def paired_runs(
    draw: np.random.Generator,
    regime: Regime,
    runs: int,
    *,
    speed: float = 1.0,
    steps: int = 40,
    step_sd: float = 0.02,
    run_sd: float = 0.0,
) -> pd.DataFrame:
    """Paired steps of A and of B, which is `speed` times as fast, as `paired_steps` gives them."""
    frames = []
    for seed in range(runs):
        columns: dict[str, object] = {"seed": seed, "step": np.arange(1, steps + 1)}
        for side, of_arm, drifts in (("a", 1.0, False), ("b", speed, regime.drifts)):
            made = engine_steps(draw, regime, steps, of_arm, drifts, step_sd, run_sd)
            columns |= {f"{name}_{side}": values for name, values in made.items()}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)
