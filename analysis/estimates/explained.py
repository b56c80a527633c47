"""Tables the raw ratio of two trained arms as a product with intervals: engine at equal work, lengths, sync, rest.

Which part has which share, parts.py computes; docs/estimates.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimates.arm import ACROSS, FIT_BIAS, ONE_STEP, WITHIN, rounding_reach, spent_blocks, verdict_of
from analysis.estimates.bootstrap import RESAMPLES, SEED, Floats, Interval, Sums, interval_from
from analysis.estimates.comparable import Comparable
from analysis.estimates.disagreement import REST_MATTERS_FROM
from analysis.estimates.equal_work import EQUAL_WORK, GENERATION, LONGEST, STEP, paired
from analysis.estimates.parts import (
    ENGINE,
    EQUAL,
    FACTORS,
    IN_TRAINING,
    LABELS,
    LENGTHS,
    OTHER_PHASES,
    RAW,
    REST,
    SPLIT,
    SYNC,
    SYNC_S,
    Apart,
    estimator,
    phase_ratios,
    sided,
)
from analysis.estimates.replays import StepSample, chains_of, replay_sample
from analysis.roofline.floors import category_s
from analysis.runs import PlanRead, Run
from analysis.speedup import TOKENS, paired_steps
from analysis.wide import OWN
from engines import engine_named

COLUMNS = [
    *("factors", "baseline", "arm", "part", "label", "value", "low", "high", "verdict", "share", "phase_ratio"),
    *("scope", "run_pairs", "paired_steps", "replay_pairs", "replay_steps", "estimator", "why"),
]
# Each interval is of runs of two kinds, drawn independently of one another.
REPLAY_SEED = SEED + 1
# PrintedNumber digits that leave the step open by more than this leave no interval of its parts.
ROUNDED_FROM = 0.01


def explained_table(
    wide: pd.DataFrame,
    runs: Sequence[Run],
    plan: PlanRead,
    comparable: Comparable,
    estimates: pd.DataFrame,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """One row per factor combination, explained arm and part of its raw ratio (columns: `COLUMNS`).

    Which arms, and by which replays, `report.explain` says; the first replay is of the baseline's engine. The values of
    `FACTORS` multiply to that of `raw`. A factor without data has no value, and `why`; what it would hold is in the
    rest. `share` is a factor's part of the raw ratio's logarithm, `phase_ratio` the ratio of the phase's own seconds.
    """
    rows: list[dict[str, Any]] = []
    chains = chains_of(plan)
    timed = wide.assign(**{SYNC_S: _sync_s(wide, runs)}) if chains else wide
    for factors in wide["factors"].unique():
        for arm in plan.rivals:
            raw = estimates[
                (estimates["factors"] == factors) & (estimates["arm"] == arm) & (estimates["estimate"] == "raw")
            ]
            if arm not in chains or raw.empty or not raw["value"].iloc[0] > 0:
                continue
            head = {"factors": factors, "baseline": plan.baseline, "arm": arm}
            of_raw = {name: raw[name].iloc[0] for name in COLUMNS if name in raw}
            pairs = paired_steps(timed, factors, plan.baseline, arm)
            here = [run for run in runs if run.factors_key == factors]
            replay, lacks = replay_sample(wide, here, factors, chains[arm])
            overlap = comparable.throughput_only.get((factors, arm), "")
            parts = product(pairs, replay, chains[arm], lacks, overlap, resamples)
            whole = math.log(of_raw["value"])
            rows += [
                head
                | {"share": math.log(part["value"]) / whole if abs(whole) >= REST_MATTERS_FROM else math.nan}
                | part
                for part in [{"part": RAW, "label": LABELS[RAW]} | of_raw, *parts]
            ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _sync_s(wide: pd.DataFrame, runs: Sequence[Run]) -> Floats:
    """Own seconds of weight sync; 0 where the trainer's own model generates, NaN where an arm times none."""
    seconds = pd.Series(category_s(wide, runs, OWN, "weight sync"), index=wide.index)
    own = {run.run_id for run in runs if engine_named(str(run.spec.get("engine"))).in_trainer}
    timed = seconds.notna().groupby([wide["factors"], wide["arm"]]).transform("any")
    untimed = seconds.isna() & (timed | wide["run_id"].isin(own))
    return np.asarray(seconds.mask(untimed, 0.0), dtype=np.float64)


def product(
    pairs: pd.DataFrame, replay: StepSample | None, chain: tuple[str, ...], lacks: str, overlap: str, resamples: int
) -> list[dict[str, Any]]:
    """The rows of all parts of one arm at one factor combination, from `paired_steps` with `sync_s`, and its replays.

    `lacks` says why there is no replay, `overlap` why the phases are not apart.
    """
    missing = overlap or ("" if _positive(pairs, GENERATION) else "generation is not timed in all paired steps of both")
    if missing:
        return [_without(name, missing) for name in FACTORS]
    of_generation = pairs.assign(**{f"{STEP}_{s}": pairs[f"{GENERATION}_{s}"] for s in "ab"})
    steps = paired(of_generation)
    timed_sync = bool(pairs[sided([SYNC_S])].notna().to_numpy().all())
    split = pairs[sided(SPLIT)].fillna(0.0).to_numpy(np.float64)
    columns = np.concatenate([steps.columns, split], axis=1)

    def made(by: str) -> Apart:
        name = by if by in EQUAL_WORK else "raw"
        sample = StepSample(columns, steps.lengths, steps.series[name], spent_blocks(name, steps))
        return Apart(sample, steps, by, timed_sync, replay, chain)

    # The first that has an interval, else the first that has a value, as the verdict chooses.
    known = [EQUAL] if _same_lengths(pairs) else [name for name in EQUAL_WORK if name not in steps.why]
    tried = {by: _rows(made(by), pairs, resamples) for by in known or [""]}
    tried = {by: rows for by, rows in tried.items() if not by or _row(rows, LENGTHS)["value"] > 0} or {
        "": _rows(made(""), pairs, resamples)
    }
    rows = next((rows for rows in tried.values() if _row(rows, LENGTHS).get("low", 0) > 0), next(iter(tried.values())))
    whys = {
        ENGINE: lacks,
        LENGTHS: "; ".join(dict.fromkeys(steps.why.get(name, "no value") for name in EQUAL_WORK)),
        SYNC: "weight sync is not timed in both arms",
    }
    return [row if row["value"] > 0 else _without(row["part"], whys[row["part"]]) for row in rows]


def _positive(pairs: pd.DataFrame, name: str) -> bool:
    columns = sided([name])
    return set(columns) <= set(pairs) and bool((pairs[columns] > 0).all(axis=None))


def _same_lengths(pairs: pd.DataFrame) -> bool:
    """Whether both arms' responses have the same number of tokens and the same longest in every paired step."""
    names = (TOKENS, LONGEST)
    return all(_positive(pairs, name) and bool((pairs[f"{name}_a"] == pairs[f"{name}_b"]).all()) for name in names)


def _row(rows: Sequence[dict[str, Any]], part: str) -> dict[str, Any]:
    return next(row for row in rows if row["part"] == part)


def _without(part: str, why: str) -> dict[str, Any]:
    numbers = ("value", "low", "high", "share", "phase_ratio")
    counts = dict.fromkeys(("run_pairs", "paired_steps", "replay_pairs", "replay_steps"), 0)
    return {"part": part, "label": LABELS[part], **dict.fromkeys(numbers, math.nan), **counts} | {
        "verdict": "x",
        "scope": "",
        "estimator": "",
        "why": why,
    }


@dataclass(frozen=True)
class _Resampled:
    """The logarithms of all parts: of all runs, of the resamples, and with each run of a kind left out."""

    trained: Sums
    replay: Sums | None
    whole: Mapping[str, Floats]
    within: Mapping[str, Floats]
    both: Mapping[str, Floats]
    left_out: tuple[Mapping[str, Floats], ...]
    """Of the trained pairs, then of the replays' pairs; empty for a kind with one pair."""


def _resampled(apart: Apart, resamples: int) -> _Resampled:
    trained = apart.trained.sums(resamples, SEED)
    replay = apart.replay.sums(resamples, REPLAY_SEED) if apart.replay else None
    left_out = [apart.logs(trained.without, replay.whole if replay else None)] if trained.runs > 1 else []
    if replay and replay.runs > 1:
        left_out.append(apart.logs(trained.whole, replay.without))
    return _Resampled(
        trained,
        replay,
        apart.logs(trained.whole, replay.whole if replay else None),
        apart.logs(trained.within, replay.within if replay else None),
        apart.logs(trained.both, replay.both if replay else None),
        tuple(left_out),
    )


def _rows(apart: Apart, pairs: pd.DataFrame, resamples: int) -> list[dict[str, Any]]:
    """All parts with their intervals, those without data as parts without a value."""
    drawn, weight = _resampled(apart, resamples), apart.weight()
    ratios = phase_ratios(apart, drawn.whole, weight, pairs)
    rounded = max(rounding_reach(pairs)) >= ROUNDED_FROM
    links = (name for name in drawn.whole if name.startswith(f"{ENGINE}/"))
    rows = []
    for part in (ENGINE, *links, LENGTHS, SYNC, REST, IN_TRAINING, OTHER_PHASES):
        if part not in drawn.whole:
            rows.append(_without(part, ""))
            continue
        found, scope, counts = _interval(part, apart, drawn)
        found = None if rounded or found is None else _widened(part, found, apart.by, weight, drawn.whole)
        row = _part_row(part, float(drawn.whole[part]), found, scope) | counts
        rows.append(row | {"phase_ratio": ratios.get(part, math.nan), "estimator": estimator(part, apart)})
    return rows


def _interval(part: str, apart: Apart, drawn: _Resampled) -> tuple[Interval | None, str, dict[str, int]]:
    """A part's interval, what it speaks of, and how many pairs and steps it is from."""
    trained = drawn.trained
    replay = None if part in (LENGTHS, SYNC, OTHER_PHASES) else drawn.replay
    across = trained.runs > 1 and (replay is None or replay.runs > 1)
    found = interval_from(
        float(drawn.whole[part]),
        drawn.within[part],
        drawn.both[part] if across else None,
        [one[part] for one in drawn.left_out[: 2 if replay else 1]] if across else [],
        min(one.blocks for one in (trained, replay) if one),
        apart.trained.spent,
    )
    counts = {"run_pairs": trained.runs, "paired_steps": trained.steps, "replay_pairs": 0, "replay_steps": 0}
    if replay:
        counts |= {"replay_pairs": replay.runs, "replay_steps": replay.steps}
    one_step = 1 in (trained.steps, counts["replay_steps"])
    return found, ONE_STEP if one_step else ACROSS if across else WITHIN, counts


def _widened(part: str, found: Interval, by: str, weight: float, whole: Mapping[str, Floats]) -> Interval:
    """An interval with the bias of what took the lengths out, which is in the rest the other way round."""
    if part not in (LENGTHS, REST, IN_TRAINING):
        return found
    low, high = found.low, found.high
    if by == "standardised":
        low, high = low - weight * FIT_BIAS, high + weight * FIT_BIAS
    elif by == "roofline":
        # How much of generation grows with its floor is not known: all of it, or none (disagreement.py).
        off = float(whole[LENGTHS]) * (-1 if part == LENGTHS else 1)
        low, high = min(low, low + off), max(high, high + off)
    return replace(found, low=low, high=high)


def _part_row(part: str, value: float, found: Interval | None, scope: str) -> dict[str, Any]:
    why = "" if scope == ACROSS and found else "one step has no interval" if scope == ONE_STEP else ""
    if not why and scope == WITHIN:
        why = "one pair of runs does not tell how much other runs differ"
    elif not why and found is None:
        why = "no interval: too few steps, or times printed with too few digits"
    return {
        "part": part,
        "label": LABELS.get(part, f"of it, {part.partition('/')[2]}"),
        "value": math.exp(value),
        "low": math.exp(found.low) if found else math.nan,
        "high": math.exp(found.high) if found else math.nan,
        "verdict": verdict_of(value, found) if scope == ACROSS else "~",
        "scope": scope,
        "why": why,
    }
