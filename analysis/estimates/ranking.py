"""Ranks the settings of engines that ran alone on equal completions, the fastest first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.estimates.arm import estimates
from analysis.estimates.comparable import different_conditions
from analysis.estimates.equal_work import LONGEST, STEP
from analysis.factors import factors_key, factors_label, factors_of
from analysis.pairs import TOKENS
from analysis.planned import PlanRead
from analysis.runs import Run, rows_of
from analysis.wide import ROUNDING, counted_rows

COLUMNS = [
    *("factors", "arm", "workload", "rank", "runs", "steps", "step_s", "tokens_per_s", "ratio", "low", "high"),
    *("verdict", "why"),
]
FIRST, SLOWER, UNRESOLVED, UNKNOWN = "first", "slower", "not resolved", "not comparable"
# The verdict compares two settings already.
LEAST = 3
_KEY = ["seed", "step"]
Setting = tuple[str, str]
"""An arm and its factor combination."""


def ranking_table(wide: pd.DataFrame, runs: Sequence[Run], plan: PlanRead) -> pd.DataFrame:
    """One row per setting (arm and factors) by its seconds a step; settings of one `workload` rank together.

    Empty where an arm trains, and for fewer than three settings. `ratio` is a setting's seconds divided by those of the
    first, over the steps that both have, with its 95% interval. The `verdict` is `slower` where the interval is above
    1, otherwise `not resolved`, as with a single pair of runs. Settings with other completions or machines have no
    ratio, and `why`.
    """
    groups: dict[str, dict[Setting, pd.DataFrame]] = {}
    if plan.engines_only:
        counted = counted_rows(wide, "arm", "factors", *_KEY, STEP, ROUNDING + "step", TOKENS, LONGEST)
        for (arm, factors), rows in counted.groupby(["arm", "factors"], sort=False):
            groups.setdefault(_of_workload(str(factors)), {})[str(arm), str(factors)] = rows
    ranked: list[dict[str, Any]] = []
    if sum(map(len, groups.values())) >= LEAST:
        for workload, settings in groups.items():
            ranked += _ranked(workload, settings, runs)
    return pd.DataFrame(ranked, columns=COLUMNS)


def _of_workload(factors: str) -> str:
    """The factors of the workload, which all arms share; another value is other work."""
    return factors_key({path: value for path, value in factors_of(factors).items() if path.startswith("workload.")})


def _ranked(workload: str, settings: Mapping[Setting, pd.DataFrame], runs: Sequence[Run]) -> list[dict[str, Any]]:
    common = _common_steps(settings)
    means = {setting: float(rows[STEP].mean()) for setting, rows in common.items()}
    order = sorted(settings, key=lambda setting: means[setting])
    first = order[0]
    of = {s: [run for run in runs if (run.arm, run.factors_key) == s] for s in settings}
    found = []
    for rank, setting in enumerate(order, 1):
        rows = settings[setting]
        row = {
            "factors": setting[1],
            "arm": setting[0],
            "workload": workload,
            "rank": rank,
            "runs": rows["seed"].nunique(),
            "steps": len(rows),
            "step_s": means[setting],
            "tokens_per_s": _tokens_per_s(common[setting]),
        }
        other = "; ".join(different_conditions(of[first], of[setting]).values())
        if setting == first:
            row |= {"ratio": 1.0, "low": math.nan, "high": math.nan, "verdict": FIRST, "why": ""}
        else:
            row |= _against(settings[first], rows, other)
        found.append(row)
    return found


def _common_steps(settings: Mapping[Setting, pd.DataFrame]) -> dict[Setting, pd.DataFrame]:
    """The steps of each setting that all settings have, or all its steps where there are none."""
    keys = {setting: pd.MultiIndex.from_frame(rows[_KEY]) for setting, rows in settings.items()}
    shared = set.intersection(*(set(index) for index in keys.values()))
    return {setting: rows[keys[setting].isin(shared)] if shared else rows for setting, rows in settings.items()}


def _tokens_per_s(rows: pd.DataFrame) -> float:
    """Tokens per second of the steps that have both; NaN where none does."""
    known = rows.dropna(subset=[STEP, TOKENS]) if TOKENS in rows else rows.iloc[:0]
    return float(known[TOKENS].sum() / known[STEP].sum()) if len(known) else math.nan


def _against(first: pd.DataFrame, rows: pd.DataFrame, other: str) -> dict[str, Any]:
    """A setting's seconds divided by those of the first, with the interval."""
    names = [name for name in (STEP, ROUNDING + "step", TOKENS, LONGEST) if name in rows]
    pairs = rows[[*_KEY, *names]].merge(first[[*_KEY, *names]], on=_KEY, suffixes=("_a", "_b")).sort_values(_KEY)
    lengths = [name for name in (TOKENS, LONGEST) if name in rows]
    why = other
    if not why and pairs.empty:
        why = "no counted step in common with the first"
    elif not why and (len(lengths) < 2 or any((pairs[f"{n}_a"] != pairs[f"{n}_b"]).any() for n in lengths)):
        why = "its completions are not of the same lengths as the first's"
    if why:
        nothing = dict.fromkeys(("ratio", "low", "high"), math.nan)
        return {**nothing, "verdict": UNKNOWN, "why": f"ran with {why}" if other else why}
    raw = next(row for row in estimates(pairs) if row["estimate"] == "raw")
    verdict = SLOWER if raw["verdict"] == "+" else UNRESOLVED
    return {"ratio": raw["value"], "low": raw["low"], "high": raw["high"], "verdict": verdict, "why": raw["why"]}


def ranking_lines(ranking: pd.DataFrame) -> list[str]:
    """For each workload a sentence with the first setting and those not resolved from it."""
    lines = []
    for workload, rows in ranking.groupby("workload", sort=False):
        where = f" at {factors_label(str(workload))}" if workload else ""
        names = [r.arm + (f" ({factors_label(r.factors)})" if r.factors else "") for r in rows_of(rows)]
        unresolved = [name for name, verdict in zip(names, rows["verdict"], strict=True) if verdict == UNRESOLVED]
        rest = f"not resolved from it: {', '.join(unresolved)}" if unresolved else "all others are slower"
        if (rows["verdict"] == UNKNOWN).any() and not unresolved:
            rest = "the others are slower or not comparable"
        lines.append(
            f"Fastest of {len(rows)} settings{where}: {names[0]}, {rows['step_s'].iloc[0]:.3g} s a step; {rest}."
        )
    return lines
