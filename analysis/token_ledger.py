"""Says what each run's loop did beside its steps: what became of what it generated, and who waited for whom.

A loop that generates while it trains has a ledger: what was generated is trained, went stale, was dropped, or waits.
The counts are the trainer's own, between a run's first and its last logged step; they close, or say by how much not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.compared import TOKENS
from analysis.counted import mean_of, missing_before, steps_per_row
from analysis.roofline.setup import setup_of
from analysis.runs import Run
from analysis.wide import PHASE
from common.verdicts import count_of
from trainers.logs.hf_work import SAMPLES_PER_STEP
from trainers.logs.record import STEPS_LOGGED
from trainers.protocol import Ledger
from trainers.registry import trainer_named

ACCOUNTS = ("generated", "trained", "stale", "dropped", "in_flight")
MEANS = (
    *("staleness", "partial_share", "trainer_wait_share", "engine_wait_share", "no_engine_share"),
    *("turns", "tool_seconds", "slowest_generation_s", "acceptance_length", "prefix_hit_rate"),
)
_USED = (
    *("step", "counted", STEPS_LOGGED, TOKENS, SAMPLES_PER_STEP),
    *("mean_response_length", "trainer_wait_s", "engine_wait_s"),
)
COLUMNS = ["factors", "arm", "run_id", "unit", *ACCOUNTS, "unaccounted", "not_logged", *MEANS]


def loops_table(wide: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """One row for each run of which its log tells something of this (columns: `COLUMNS`), NaN where it does not.

    `in_flight` is how much more waited at the end than at the beginning. `unaccounted` is what was generated less all
    others; accounts that are `not_logged` are in it. The others are means of the counted steps.
    """
    # Without the other columns: of many runs they would be copied once more.
    trees = {run.tree for run in runs}
    used = {*_USED, *MEANS, *(PHASE + path for tree in trees for path in (tree.root, *tree.generating))}
    ledgers = [trainer_named(tree.trainer).logs.ledger for tree in trees]
    used |= {column for names in ledgers for one in ACCOUNTS for column in getattr(names, one)}
    narrow = wide[[name for name in wide if name in used]]
    rows, places = [], wide.groupby("run_id", sort=False).indices
    for run in runs:
        if run.run_id in places:
            of_run = narrow.iloc[places[run.run_id]].dropna(axis=1, how="all")
            rows.append([run.factors_key, run.arm, run.run_id, *_ledger(run, of_run), *_means(run, of_run)])
    table = pd.DataFrame(rows, columns=COLUMNS)
    told = table[[*ACCOUNTS, *MEANS]].drop(columns=["trained"]).notna().any(axis=1)
    return table[told].reset_index(drop=True)


def _ledger(run: Run, of_run: pd.DataFrame) -> list[object]:
    """The accounts of a run, in its trainer's unit, what they do not explain, and which of them it does not log."""
    names = trainer_named(run.tree.trainer).logs.ledger
    found = {name: _account(of_run, getattr(names, name), name == "in_flight", names.totals) for name in ACCOUNTS}
    if all(map(math.isnan, found.values())):
        return ["", *(math.nan,) * (len(ACCOUNTS) + 1), ""]
    unclear = {name: why for name in ACCOUNTS if (why := _unclear(of_run, name, names))}
    found |= dict.fromkeys(unclear, math.nan)
    if math.isnan(found["trained"]) and "trained" not in unclear:
        found["trained"] = _trained(run, of_run, names.unit)
    lacking = [name.replace("_", " ") + unclear.get(name, "") for name in ACCOUNTS if math.isnan(found[name])]
    others = sum(value for name, value in found.items() if name != "generated" and not math.isnan(value))
    open_ = math.nan if math.isnan(found["trained"]) else found["generated"] - others
    return [names.unit, *(found[name] for name in ACCOUNTS), open_, ", ".join(lacking)]


def _unclear(of_run: pd.DataFrame, account: str, names: Ledger) -> str:
    """Why an account has no sum: no number is below 0, and a blank cell of a plain table and a missing row are unknown.

    What a process has counted since its start, and what waits, need no row of each step.
    """
    logged = [of_run[name].astype(float) for name in getattr(names, account) if name in of_run]
    if any((one < 0).any() for one in logged):
        return " (negative)"
    if names.unit == Ledger().unit and any(one.isna().any() for one in logged):
        return " (blank cells)"
    by_row = account == "trained" or any(one.name not in names.totals for one in logged)
    missing = int(missing_before(of_run)[1:].sum()) if by_row and account != "in_flight" else 0
    return f" ({count_of(missing, 'missing step')})" if missing else ""


def _account(of_run: pd.DataFrame, columns: Sequence[str], is_level: bool, totals: Sequence[str]) -> float:
    """The sum over the scalars of an account, from the first step to the last; NaN where none of them is logged."""
    logged = [of_run[name].astype(float) for name in columns if name in of_run]
    if not logged or len(of_run) < 2:
        return math.nan
    if is_level:
        return float(sum(one.ffill().fillna(0.0).iloc[-1] - one.fillna(0.0).iloc[0] for one in logged))
    # A count of a process begins anew with it. A trainer logs no count that is 0; a row of several steps has their sum.
    return float(
        sum(
            one.ffill().diff().where(lambda by: by >= 0, one)[1:].sum() if one.name in totals else one[1:].sum()
            for one in logged
        )
    )


def _trained(run: Run, of_run: pd.DataFrame, unit: str) -> float:
    """What the steps after the first one trained on."""
    n, group = steps_per_row(of_run), setup_of(run).group
    if {TOKENS, "mean_response_length"} <= {*of_run}:
        responses = (of_run[TOKENS] / of_run["mean_response_length"] * n)[1:]
    elif SAMPLES_PER_STEP in of_run:
        responses = (of_run[SAMPLES_PER_STEP] * n)[1:]
    else:
        return math.nan
    each = 1 if unit == "responses" else group
    return math.nan if each is None or responses.isna().any() else round(float(responses.sum()) / each, 3)


def _means(run: Run, of_run: pd.DataFrame) -> list[float]:
    """The means of a run's counted steps (`MEANS`)."""
    counted = of_run[of_run["counted"].astype(bool)]
    n, step = steps_per_row(counted), counted.get(PHASE + run.tree.root, pd.Series(math.nan, index=counted.index))
    found = {name: mean_of(counted[name].astype(float), n) for name in MEANS if name in counted}
    step_s = mean_of(step, n)
    for name in ("trainer_wait", "engine_wait"):
        if f"{name}_share" not in found and f"{name}_s" in counted:
            found[f"{name}_share"] = mean_of(counted[f"{name}_s"].astype(float), n) / step_s
    # Beside training the engines work all the time but when they wait.
    found["no_engine_share"] = found.get("engine_wait_share", math.nan)
    if not run.tree.overlap:
        generates = [PHASE + path for path in run.tree.generating if PHASE + path in counted]
        generation_s = sum(mean_of(counted[name].fillna(0.0), n) for name in generates)
        found["no_engine_share"] = 1 - generation_s / step_s if generates else math.nan
    return [found.get(name, math.nan) for name in MEANS]
