"""Simulates two engines of known speed and what they log, to test the estimates and their intervals.

A step decodes responses of random lengths in batches; its time is that of the iterations, each with the weights' read
and a gap of the framework's, of the KV reads, and of the rest of the step, with noise of steps and of runs. Arm B's
lengths drift while its speed does not. The floor that the roofline estimate takes knows neither the gap nor the rest
nor how requests queue: its bias is a real engine's bias.

In `OWN` engine B is faster in the whole step. In `FIXED_REST` the trainer's 35 s are the same for both engines, and
B's generation is as much faster as makes the true ratio of the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.estimates.equal_work import FLOOR, FLOOR_BASIS, GENERATION, LONGEST, STEP
from analysis.pairs import TOKENS

Floats = npt.NDArray[np.float64]

# A dense model of 14e9 parameters in bf16 on two GPUs of 3.35 TB/s, 0.2 MB of KV cache per position.
WEIGHTS_S = 28e9 / 2 / 3.35e12
POSITION_S = 0.2e6 / 2 / 3.35e12
KV_SLOWNESS = 1.3
PROMPT = 200
LONGEST_ALLOWED = 16000
STEP_SD = 0.02


@dataclass(frozen=True)
class Workload:
    """What a step decodes, on what, and what else it does.

    `median` and `spread` are of the lognormal lengths (tokens, standard deviation of the logarithm), `concurrency` is
    of each replica, `memory` the share of a step's machine noise that the next step keeps (AR(1)), `fixed_rest`
    whether the rest of the step is the trainer's and the same for both engines.
    """

    completions: int
    concurrency: int
    median: float
    spread: float
    gap_s: float = 0.002
    rest_s: float = 3.0
    replicas: int = 1
    memory: float = 0.0
    fixed_rest: bool = False


@dataclass(frozen=True)
class Regime:
    """A workload, and how B's lengths differ from A's: from the first step on, or more so towards the last one.

    `scale` and `spread` are the relative changes of the lengths' size and of their (logarithmic) spread.
    """

    name: str
    workload: Workload
    scale: float = 0.0
    spread: float = 0.0
    constant: bool = False

    @property
    def drifts(self) -> bool:
        return bool(self.scale or self.spread)


TAIL = Workload(64, 64, 2000, 0.6)
QUEUE = Workload(256, 32, 2000, 0.6)
RESTED = Workload(256, 64, 330, 1.0, gap_s=0.012, rest_s=35.0, replicas=4, memory=0.7, fixed_rest=True)
OWN = (
    Regime("tail-bound, none", TAIL),
    Regime("tail-bound, B's tail grows", TAIL, spread=0.33),
    Regime("tail-bound, B gets short", TAIL, scale=-0.35, spread=-0.6),
    Regime("queue-bound, none", QUEUE),
    Regime("queue-bound, longer", QUEUE, scale=0.25),
    Regime("queue-bound, short", QUEUE, scale=-0.65),
)
FIXED_REST = (
    Regime("fixed rest, none", RESTED),
    Regime("fixed rest, +30% ramp", RESTED, scale=0.6),
    Regime("fixed rest, +30% constant", RESTED, scale=0.3, constant=True),
    Regime("fixed rest, -30% ramp", RESTED, scale=-0.6),
    Regime("fixed rest, -30% constant", RESTED, scale=-0.3, constant=True),
    Regime("fixed rest, heavier tail", RESTED, spread=0.2, constant=True),
)
REGIMES = (*OWN, *FIXED_REST)


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


def positions_read(decoded: Floats) -> Floats:
    """Positions of KV cache that a step's responses read, summed over the last axis."""
    found: Floats = (PROMPT * decoded + decoded * (decoded + 1) / 2).sum(axis=-1)
    return found


def work_of(draw: np.random.Generator, regime: Regime, steps: int, drifts: bool) -> dict[str, Floats]:
    """One run's lengths as a log has them, with the seconds that engine A generates, free of noise, and the floor."""
    of = regime.workload
    along = drifts * (np.ones(steps) if regime.constant else np.linspace(0, 1, steps))[:, None]
    sizes = np.exp(of.spread * (1 + regime.spread * along) * draw.normal(size=(steps, of.completions)))
    lengths = np.clip(np.round(of.median * sizes * (1 + regime.scale * along)), 2, LONGEST_ALLOWED)
    decoded = lengths - 1
    by_replica = [
        iterations(part, of.concurrency) * (WEIGHTS_S + of.gap_s) + KV_SLOWNESS * POSITION_S * positions_read(part)
        for part in np.split(decoded, of.replicas, axis=1)
    ]
    least = np.maximum(decoded.max(axis=1), np.ceil(decoded.sum(axis=1) / (of.replicas * of.concurrency)))
    return {
        GENERATION: np.max(by_replica, axis=0),
        TOKENS: lengths.sum(axis=1),
        LONGEST: lengths.max(axis=1),
        FLOOR: least * WEIGHTS_S + POSITION_S * positions_read(decoded) / of.replicas,
    }


def machine_noise(draw: np.random.Generator, steps: int, memory: float, run_sd: float) -> Floats:
    """Factors of one run's step times: a common one of the run, and steps of which each keeps a part of the last."""
    fresh = draw.normal(0, STEP_SD, steps)
    found = fresh.copy()
    for i in range(1, steps):
        found[i] = memory * found[i - 1] + (1 - memory**2) ** 0.5 * fresh[i]
    return np.exp(found + draw.normal(0, run_sd))


def generation_speed(runs: Sequence[dict[str, Floats]], workload: Workload, speed: float) -> float:
    """How much faster B generates, so that it takes 1/`speed` of A's time for the responses of both arms together."""
    if not workload.fixed_rest:
        return speed
    generation_s = sum(float(run[GENERATION].sum()) for run in runs)
    rest_s = workload.rest_s * sum(len(run[GENERATION]) for run in runs)
    return generation_s / ((generation_s + rest_s) / speed - rest_s)


def paired_runs(
    draw: np.random.Generator,
    regime: Regime,
    runs: int,
    *,
    speed: float = 1.0,
    steps: int = 40,
    run_sd: float = 0.0,
) -> pd.DataFrame:
    """Paired steps of A and of B, which is `speed` times as fast at equal work, as `paired_steps` gives them."""
    of = regime.workload
    made = {s: [work_of(draw, regime, steps, s == "b" and regime.drifts) for _ in range(runs)] for s in "ab"}
    faster = {"a": 1.0, "b": generation_speed([*made["a"], *made["b"]], of, speed)}
    columns: dict[str, object] = {
        **{f"{FLOOR_BASIS}_{s}": "lengths" for s in "ab"},
        "seed": np.repeat(np.arange(runs), steps),
        "step": np.tile(np.arange(steps) + 1, runs),
    }
    for s, by_run in made.items():
        noise = np.concatenate([machine_noise(draw, steps, of.memory, run_sd) for _ in by_run])
        joined = {name: np.concatenate([run[name] for run in by_run]) for name in by_run[0]}
        generation_s = joined[GENERATION] / faster[s]
        step_s = generation_s + of.rest_s / (1.0 if of.fixed_rest else faster[s])
        # Where the rest is the engine's, no timer tells it from the generation.
        timed_s = generation_s if of.fixed_rest else step_s
        told = joined | {STEP: step_s * noise, GENERATION: timed_s * noise}
        columns |= {f"{name}_{s}": values for name, values in told.items()}
    return pd.DataFrame(columns)
