"""Simulates two engines of known speed and what they log, to test the estimates and their intervals.

A step decodes responses of random lengths in batches; its time is that of the iterations, each with the weights' read
and a gap of the framework's, of the KV reads, and of the rest of the step, with noise of steps and of runs. Arm B's
lengths drift while its speed does not. The floor knows neither the gap nor the rest nor how requests queue.

In `OWN` engine B is faster in the whole step. In `FIXED_REST` the trainer's 35 s are the same for both engines, and
B's generation is as much faster as makes the true ratio of the whole step. In `SHAPES` a step is a number of seconds:
what differs is how many runs and steps there are, and how these vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.compared import ABORTED, MEAN_LENGTH, PROMPTS, RESPONSES, TOOLS, TURNS, Compared, common_of
from analysis.ratio import FLOOR, LENGTHS

SECONDS = "seconds"
LONGEST, TOKENS = LENGTHS
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
        SECONDS: np.max(by_replica, axis=0),
        TOKENS: lengths.sum(axis=1),
        LONGEST: lengths.max(axis=1),
        FLOOR: least * WEIGHTS_S + POSITION_S * positions_read(decoded) / of.replicas,
    }


def machine_noise(
    draw: np.random.Generator, steps: int, memory: float, run_sd: float, step_sd: float = STEP_SD
) -> Floats:
    """Factors of one run's step times: a common one of the run, and steps of which each keeps a part of the last."""
    fresh = draw.normal(0, step_sd, steps)
    found = fresh.copy()
    for i in range(1, steps):
        found[i] = memory * found[i - 1] + (1 - memory**2) ** 0.5 * fresh[i]
    return np.exp(found + draw.normal(0, run_sd))


def generation_speed(runs: Sequence[dict[str, Floats]], workload: Workload, speed: float) -> float:
    """How much faster B generates, so that it takes 1/`speed` of A's time for the responses of both arms together."""
    if not workload.fixed_rest:
        return speed
    generation_s = sum(float(run[SECONDS].sum()) for run in runs)
    rest_s = workload.rest_s * sum(len(run[SECONDS]) for run in runs)
    return generation_s / ((generation_s + rest_s) / speed - rest_s)


def compared_runs(
    draw: np.random.Generator, regime: Regime, runs: int, *, speed: float = 1.0, steps: int = 40, run_sd: float = 0.0
) -> Compared:
    """Runs of A and of B, which is `speed` times as fast at equal work."""
    of = regime.workload
    made = {s: [work_of(draw, regime, steps, s == "b" and regime.drifts) for _ in range(runs)] for s in "ab"}
    faster = {"a": 1.0, "b": generation_speed([*made["a"], *made["b"]], of, speed)}
    sides = []
    for s, by_run in made.items():
        for work in by_run:
            generation_s = work[SECONDS] / faster[s]
            step_s = generation_s + of.rest_s / (1.0 if of.fixed_rest else faster[s])
            work[SECONDS] = step_s * machine_noise(draw, steps, of.memory, run_sd)
        sides.append(side_of(s, by_run))
    return Compared("", "a", "b", common_of(*sides))


def side_of(arm: str, runs: Sequence[dict[str, Floats]]) -> pd.DataFrame:
    """The steps of an arm's runs as `compared` gives them, from their columns."""
    sizes = [len(run[SECONDS]) for run in runs]
    joined = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
    return pd.DataFrame(
        {
            "run": np.repeat([f"{arm}{number}" for number in range(len(runs))], sizes),
            "step": np.concatenate([np.arange(size) + 1 for size in sizes]),
            "n": 1,
            "gap": 1.0,
            **{name: joined.get(name, np.full(sum(sizes), np.nan)) for name in (SECONDS, *LENGTHS, FLOOR)},
            # As many responses of as long prompts in every step.
            RESPONSES: 1.0,
            PROMPTS: float(PROMPT),
            TURNS: np.nan,
            TOOLS: np.nan,
            ABORTED: np.nan,
            MEAN_LENGTH: np.nan,
            "discarded": False,
            "off_s": 0.0,
            "by_clock": False,
        }
    )


@dataclass(frozen=True)
class Shape:
    """How many steps each run of A and of B has, and how their seconds vary."""

    name: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    run_sds: tuple[float, float] = (0.02, 0.02)
    growth: float = 0.0
    """How much longer each step is than the one before."""
    tail: float = 0.0
    """How much longer the first step is than a later one; it falls by a fifth with each step."""
    memory: float = 0.0
    step_sd: float = STEP_SD


SHAPES = (
    Shape("unequal lengths, growing", (60, 55, 40), (45, 38, 30), growth=0.01),
    Shape("unequal lengths, warm-up's tail", (60, 55, 40, 40), (45, 38, 30, 30), tail=0.5),
    Shape("one run still short, growing", (60, 60, 60), (60, 60, 20), growth=0.01),
    Shape("5 runs against 2", (20,) * 5, (20,) * 2),
    Shape("2 runs against 10", (20,) * 2, (20,) * 10),
    Shape("one arm spreads 20 times as much", (20,) * 3, (20,) * 3, run_sds=(0.002, 0.04)),
    Shape("one arm of 5 spreads 20 times as much", (20,) * 5, (20,) * 5, run_sds=(0.002, 0.04)),
    Shape("autocorrelated steps", (40,) * 3, (40,) * 3, run_sds=(0.0, 0.0), memory=0.9, step_sd=0.1),
)


def shaped_runs(draw: np.random.Generator, shape: Shape) -> Compared:
    """Runs of two identical engines."""
    sides = []
    for arm, lengths, run_sd in zip("ab", (shape.a, shape.b), shape.run_sds, strict=True):
        runs: list[dict[str, Floats]] = []
        for steps in lengths:
            along = np.arange(steps)
            step_s = 100 * (1 + shape.growth * along) * (1 + shape.tail * 0.8**along)
            runs.append({SECONDS: step_s * machine_noise(draw, steps, shape.memory, run_sd, shape.step_sd)})
        sides.append(side_of(arm, runs))
    return Compared("", "a", "b", common_of(*sides))
