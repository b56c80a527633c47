"""Makes the table that explains the raw ratio of two trained arms: engine at equal work, lengths, sync, rest.

parts.py computes the parts; docs/estimates.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimates.arm import (
    ACROSS,
    ONE_STEP,
    REST_MATTERS_FROM,
    WITHIN,
    fit_bias,
    rounding_reach,
    spent_blocks,
    verdict_of,
)
from analysis.estimates.bootstrap import RESAMPLES, SEED, Floats, Interval, Sums, interval_from
from analysis.estimates.comparable import Comparable
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
    Decomposition,
    estimator,
    phase_ratios,
    sided,
)
from analysis.estimates.replays import StepSample, chains_of, replay_sample
from analysis.pairs import TOKENS, paired_steps
from analysis.planned import PlanRead
from analysis.roofline.floors import category_s
from analysis.runs import Run
from analysis.wide import OWN
from analysis.windows import pair_weights
from engines import engine_named

COLUMNS = [
    *("factors", "baseline", "arm", "part", "label", "value", "low", "high", "verdict", "share", "phase_ratio"),
    *("scope", "run_pairs", "paired_steps", "replay_pairs", "replay_steps", "estimator", "why"),
]
# The parts that the estimator of the lengths makes wrong, the rest in the opposite direction.
BY_THE_LENGTHS = (LENGTHS, REST, IN_TRAINING)
# Each interval comes from two kinds of runs, which are drawn independently.
REPLAY_SEED = SEED + 1
# From this rounding error of the step on, its parts have no interval.
ROUNDED_FROM = 0.01


def explained_table(
    wide: pd.DataFrame,
    runs: Sequence[Run],
    plan: PlanRead,
    comparable: Comparable,
    estimates: pd.DataFrame,
) -> pd.DataFrame:
    """One row per factor combination, explained arm and part of its raw ratio (columns: `COLUMNS`).

    `report.explain` names the arms and their replays, the first one with the baseline's engine. The values of `FACTORS`
    multiply to that of `raw`. A factor without data has no value, and `why`; the rest includes it. `share` is a
    factor's part of the raw ratio's logarithm, `phase_ratio` the ratio of the phase's own seconds.
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
            replay, no_replay = replay_sample(wide, here, factors, chains[arm])
            overlap = comparable.throughput_only.get((factors, arm), "")
            parts = product(pairs, replay, chains[arm], no_replay, overlap)
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
    pairs: pd.DataFrame,
    replay: StepSample | None,
    chain: tuple[str, ...],
    no_replay: str,
    overlap: str,
    resamples: int = RESAMPLES,
) -> list[dict[str, Any]]:
    """The rows of all parts of one arm at one factor combination, from `paired_steps` with `sync_s`, and its replays.

    `no_replay` says why there is no replay, `overlap` why the phases cannot be separated.
    """
    timed = _positive(pairs, GENERATION)
    if missing := overlap or ("" if timed else "generation is not timed in all paired steps of both"):
        return [_without(name, missing) for name in FACTORS]
    of_generation = pairs.assign(**{f"{STEP}_{s}": pairs[f"{GENERATION}_{s}"] for s in "ab"})
    steps = paired(of_generation)
    timed_sync = bool(pairs[sided([SYNC_S])].notna().to_numpy().all())
    split = pairs[sided(SPLIT)].fillna(0.0).to_numpy(np.float64) * pair_weights(pairs)[:, None]
    columns = np.concatenate([steps.columns, split], axis=1)

    def rows_by(by: str) -> list[dict[str, Any]]:
        name = by if by in EQUAL_WORK else "raw"
        sample = StepSample(columns, steps.lengths, steps.series[name], spent_blocks(name, steps))
        return _rows(Decomposition(sample, steps, by, timed_sync, replay, chain), pairs, resamples)

    def lengths(rows: list[dict[str, Any]], number: str) -> float:
        return float(next(row for row in rows if row["part"] == LENGTHS)[number])

    # The first with an interval, otherwise the first with a value, as in the verdict.
    known = [EQUAL] if _same_lengths(pairs) else [name for name in EQUAL_WORK if name not in steps.why]
    tried = [rows for by in known if lengths(rows := rows_by(by), "value") > 0] or [rows_by("")]
    rows = next((rows for rows in tried if lengths(rows, "low") > 0), tried[0])
    whys = {
        ENGINE: no_replay,
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


def _without(part: str, why: str) -> dict[str, Any]:
    numbers = ("value", "low", "high", "share", "phase_ratio")
    counts = dict.fromkeys(("run_pairs", "paired_steps", "replay_pairs", "replay_steps"), 0)
    texts = {"verdict": "x", "scope": "", "estimator": "", "why": why}
    return {"part": part, "label": LABELS[part], **dict.fromkeys(numbers, math.nan), **counts, **texts}


@dataclass(frozen=True)
class _Resampled:
    """The logarithms of all parts: observed, resampled, and with each run of a kind left out."""

    trained: Sums
    replay: Sums | None
    whole: Mapping[str, Floats]
    within: Mapping[str, Floats]
    left_out: tuple[Mapping[str, Floats], ...]
    """Of the trained pairs, then of the replays' pairs; nothing for a kind with one pair."""


def _resampled(data: Decomposition, resamples: int) -> _Resampled:
    trained = data.trained.sums(resamples, SEED)
    replay = data.replay.sums(resamples, REPLAY_SEED) if data.replay else None
    whole, within = (
        data.logs(getattr(trained, kind), getattr(replay, kind) if replay else None) for kind in ("whole", "within")
    )
    left_out = [data.logs(trained.without, replay.whole if replay else None)] if trained.runs > 1 else []
    if replay and replay.runs > 1:
        left_out.append(data.logs(trained.whole, replay.without))
    return _Resampled(trained, replay, whole, within, tuple(left_out))


def _rows(data: Decomposition, pairs: pd.DataFrame, resamples: int) -> list[dict[str, Any]]:
    """All parts with their intervals; parts without data have no value."""
    drawn, weight = _resampled(data, resamples), data.weight()
    ratios = phase_ratios(data, drawn.whole, weight, pairs)
    rounded = max(rounding_reach(pairs)) >= ROUNDED_FROM
    links = (name for name in drawn.whole if name.startswith(f"{ENGINE}/"))
    rows = []
    for part in (ENGINE, *links, LENGTHS, SYNC, REST, IN_TRAINING, OTHER_PHASES):
        if part not in drawn.whole:
            rows.append(_without(part, ""))
            continue
        found, scope, counts = _interval(part, data, weight, drawn)
        found = None if rounded or found is None else _settled(part, found, data, drawn)
        row = _part_row(part, float(drawn.whole[part]), found, scope) | counts
        rows.append(row | {"phase_ratio": ratios.get(part, math.nan), "estimator": estimator(part, data)})
    return rows


def _interval(
    part: str, data: Decomposition, weight: float, drawn: _Resampled
) -> tuple[Interval | None, str, dict[str, int]]:
    """A part's interval, its scope, and the number of its pairs and steps."""
    trained = drawn.trained
    replay = None if part in (LENGTHS, SYNC, OTHER_PHASES) else drawn.replay
    across = trained.runs > 1 and (replay is None or replay.runs > 1)
    found = interval_from(
        float(drawn.whole[part]),
        drawn.within[part],
        [logs[part] for logs in drawn.left_out[: 2 if replay else 1]] if across else [],
        min(sums.blocks for sums in (trained, replay) if sums),
        data.trained.spent,
        bias=weight * fit_bias(data.steps, trained.whole)
        if part in BY_THE_LENGTHS and data.by == "standardised"
        else 0.0,
    )
    counts = {"run_pairs": trained.runs, "paired_steps": trained.steps, "replay_pairs": 0, "replay_steps": 0}
    if replay:
        counts |= {"replay_pairs": replay.runs, "replay_steps": replay.steps}
    one_step = 1 in (trained.steps, counts["replay_steps"])
    return found, ONE_STEP if one_step else ACROSS if across else WITHIN, counts


def _settled(part: str, found: Interval, data: Decomposition, drawn: _Resampled) -> Interval:
    """The interval, to both ends where no fit says how much of generation grows with its floor: all of it, or none."""
    if part not in BY_THE_LENGTHS or data.by != "roofline":  # as `settled_roofline`
        return found
    off = float(drawn.whole[LENGTHS]) * (-1 if part == LENGTHS else 1)
    return replace(found, low=min(found.low, found.low + off), high=max(found.high, found.high + off))


def _part_row(part: str, value: float, found: Interval | None, scope: str) -> dict[str, Any]:
    reasons = {
        ONE_STEP: "one step has no interval",
        WITHIN: "one pair of runs does not show how much other runs differ",
        ACROSS: "" if found else "no interval: too few steps, or times printed with too few digits",
    }
    return {
        "part": part,
        "label": LABELS.get(part, f"of it, {part.partition('/')[2]}"),
        "value": math.exp(value),
        "low": math.exp(found.low) if found else math.nan,
        "high": math.exp(found.high) if found else math.nan,
        "verdict": verdict_of(value, found) if scope == ACROSS else "~",
        "scope": scope,
        "why": reasons[scope],
    }
