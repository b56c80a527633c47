"""Measures how often a claimed direction is right, an interval holds the truth, and how wide it is.

`python -m bench coverage` simulates engines of known speed (tests/simulated) and prints the tables that
docs/estimates.md sums up; the seeds are fixed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from analysis.estimates.estimate_table import EQUAL_WORK, ESTIMATES, PER_STEP
from bench.measure import Line
from tests.simulated.engines import REGIMES, SHAPES
from tests.simulated.experiments import Found, experiments, shaped

RUN_SD = 0.02
RUNS, STEPS = (3, 5), (20, 60)
MORE_RUNS = (2, *RUNS, 10)
EXPERIMENTS = 2000
"""Of identical engines, for each regime: a quarter at each number of runs and of steps."""
MOST_DIFFERENT, LEAST_CLAIMED, MOST_WIDER = 0.06, 0.80, 1.02
# So few experiments may exceed a bound by chance: it is broken beyond what a rate at the bound gives in 95% of benches.
CHANCE = 0.95

RECORDED = Path(__file__).with_name("recorded_widths.json")
"""By regime, runs, steps and speed: the widths and claims of the estimates before the present ones."""

Place = tuple[int, int]
"""Numbers of runs and of their steps."""


def bias_table(alike: Sequence[Found]) -> list[list[str]]:
    """Mean of estimate / truth - 1, with the standard deviation of one experiment."""
    rows = [["regime, drift in B", *(name.replace("_", " ") for name in ESTIMATES), "has equal work", "warned"]]
    return rows + [
        [
            one.name,
            *(f"{100 * one.bias(n):+.1f} ± {100 * one.spread(n):.1f}%" for n in ESTIMATES),
            percent(float(np.mean([case.estimate == EQUAL_WORK for case in one.cases]))),
            percent(one.warnings),
        ]
        for one in alike
    ]


def claims_table(equal: Sequence[Found], faster: Sequence[dict[Place, Found]]) -> list[list[str]]:
    """By regime: identical engines called different, a true 1.1 claimed and reversed, coverage."""
    places = list(faster[0])
    rows = [["regime, drift in B", "called different at 1.0", *(f"1.1 claimed, {r} × {s}" for r, s in places)]]
    rows[0] += ["reversed", "coverage", "of per step"]
    for same, by_place in zip(equal, faster, strict=True):
        fast = pooled(list(by_place.values()))
        rows.append(
            [
                same.name,
                with_error(same.claimed("+-"), len(same.told)),
                *(percent(one.claimed("+")) for one in by_place.values()),
                percent(fast.claimed("-")),
                with_error(same.coverage(), len(same.told)),
                percent(same.coverage(PER_STEP)),
            ]
        )
    return rows


def runs_table(equal: Sequence[dict[Place, Found]], faster: Sequence[dict[Place, Found]]) -> list[list[str]]:
    """By the number of runs, over all regimes: coverage, claims, and the widths beside the recorded ones."""
    rows = [["runs", "coverage", "lowest of a regime", "different at 1.0", "1.1 claimed", "width, before", "widest"]]
    for runs in MORE_RUNS:
        at = [[found for (r, _), found in by_place.items() if r == runs] for by_place in equal]
        fast = [found for by_place in faster for (r, _), found in by_place.items() if r == runs]
        held = [pooled(cells).coverage() for cells in at]
        wider = widths(equal, runs)
        now, before = (float(np.nanmean(side)) for side in zip(*wider, strict=True))
        shares = [percent(float(np.nanmean(held))), percent(float(np.nanmin(held)))]
        shares.append(percent(float(np.nanmean([found.claimed("+-") for cells in at for found in cells]))))
        shares.append(percent(float(np.nanmean([found.claimed("+") for found in fast]))))
        rows.append([str(runs), *shares, f"{now:.3f}, {before:.3f}", f"{np.nanmax([a / b for a, b in wider]):.3f}"])
    return rows


def width(found: Found) -> float:
    """The median width of the verdict's interval: its upper end over its lower one."""
    low, high = np.array([case.interval for case in found.told]).reshape(-1, 2).T
    return float(np.nanmedian(high / low))


def widths(equal: Sequence[dict[Place, Found]], runs: int) -> list[tuple[float, float]]:
    """The median widths of each regime and number of steps with so many runs, and the recorded ones."""
    recorded = {(r["regime"], r["runs"], r["steps"]): r["width"] for r in recorded_widths() if r["speed"] == 1.0}
    return [
        (width(found), recorded[found.name, runs, steps])
        for by_place in equal
        for (r, steps), found in by_place.items()
        if r == runs
    ]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def show(what: str, rows: Sequence[Sequence[str]]) -> None:
    print(f"{what}\n\n{markdown(rows)}\n", flush=True)


def share_line(what: str, share: float, most: float, count: int) -> Line:
    """A share of so many experiments, and the most that chance gives where the true share is at its bound."""
    from scipy.stats import binom  # type: ignore[import-untyped]

    limit = float(binom.ppf(CHANCE, count, most)) / count
    return Line(f"{what} (at most {most:.1%}, of {count})", 100 * share, 100 * limit, "%")


def _cell(job: tuple[int, int, int, float, int]) -> Found:
    """One regime's experiments at one number of runs and steps: what a process does at once."""
    regime, runs, steps, speed, count = job
    return experiments(REGIMES[regime], runs, count, steps=steps, run_sd=RUN_SD, speed=speed)


def _every_cell(count: int) -> tuple[list[dict[Place, Found]], list[dict[Place, Found]], list[Found]]:
    """By regime the experiments of identical engines and of a true 1.1, and those of each shape.

    Where nothing is promised (2 and 10 runs, a true 1.1) a fifth of the experiments is enough.
    """
    places, fewer = list(product(MORE_RUNS, STEPS)), max(1, count // 20)
    each = max(1, count // (len(RUNS) * len(STEPS)))
    jobs = [
        (regime, runs, steps, speed, each if speed == 1.0 and runs in RUNS else fewer)
        for regime, speed, (runs, steps) in product(range(len(REGIMES)), (1.0, 1.1), places)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        by_shape = pool.map(partial(shaped, count=count), SHAPES)
        cells = iter(list(pool.map(_cell, jobs)))
        shapes = list(by_shape)
    by_speed = [{speed: {place: next(cells) for place in places} for speed in (1.0, 1.1)} for _ in REGIMES]
    return [of[1.0] for of in by_speed], [of[1.1] for of in by_speed], shapes


def coverage_lines(count: int = EXPERIMENTS) -> list[Line]:
    """Prints the tables that docs/estimates.md sums up; the lines are what is promised of claims and intervals."""
    places = list(product(RUNS, STEPS))
    equal_at, faster_at, shapes = _every_cell(count)
    equal = [pooled([at[place] for place in places]) for at in equal_at]
    faster = [{place: at[place] for place in places} for at in faster_at]
    show(
        f"Bias, {len(equal[0].cases)} experiments each (3 and 5 runs of 20 and 60 steps, which differ by 2%):",
        bias_table(equal),
    )
    show("By the number of runs:", runs_table(equal_at, faster_at))
    show("Claims:", claims_table(equal, faster))
    rows = [
        [one.name, with_error(one.claimed("+-"), count), with_error(one.coverage(), count), f"{width(one):.3f}"]
        for one in shapes
    ]
    show("Identical engines, other runs and steps:", [["", "called different", "coverage", "width"], *rows])
    lines = []
    for same, by_place in zip(equal, faster, strict=True):
        most = by_place[RUNS[-1], STEPS[-1]]
        lines += [
            share_line(f"{same.name}: called different", same.claimed("+-"), MOST_DIFFERENT, len(same.told)),
            share_line(
                f"{same.name}: 1.1 not claimed, 5 × 60", 1 - most.claimed("+"), 1 - LEAST_CLAIMED, len(most.told)
            ),
        ]
    for shape, one in zip(SHAPES, shapes, strict=True):
        line = share_line(f"{one.name}: called different", one.claimed("+-"), MOST_DIFFERENT, count)
        alone = min(len(shape.a), len(shape.b)) < RUNS[0]
        lines.append(Line(line.what, line.measured, None, line.unit) if alone else line)
    for runs in MORE_RUNS:
        wider = float(np.nanmean([now / before for now, before in widths(equal_at, runs)]))
        lines.append(
            Line(
                f"width with {runs} runs, of the recorded",
                100 * wider,
                None if runs < RUNS[0] else 100 * MOST_WIDER,
                "%",
            )
        )
    return lines


def pooled(found: Sequence[Found]) -> Found:
    """Experiments of several numbers of runs and steps, of one regime and speed, as one."""
    return Found(found[0].name, found[0].speed, [case for one in found for case in one.cases])


def percent(share: float) -> str:
    return "none" if math.isnan(share) else f"{100 * share:.1f}%"


def with_error(share: float, count: int) -> str:
    """A share with its standard error; of none or of all, that of one experiment."""
    least = min(max(share, 1 / count), 1 - 1 / count)
    return f"{100 * share:.1f} ± {100 * (least * (1 - least) / count) ** 0.5:.1f}%"


def recorded_widths() -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found
