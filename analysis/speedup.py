"""Compares each arm with the baseline over the steps that both have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.phases import BETWEEN_STEPS, shown_phase
from analysis.runs import PlanRead, at, factors_label
from analysis.wide import OWN, PHASE, first_steps, threw_away
from common.verdicts import Verdict, count_of
from trainers.timers.tree import TimerTree, in_order

TOKENS = "response_tokens"
MEAN_LENGTH = "mean_response_length"


def paired_steps(
    wide: pd.DataFrame, factors: str, baseline: str, arm: str, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Counted steps of two arms side by side, matched by (seed, step): columns `<name>_a` and `<name>_b`.

    All columns, or of the given ones those that are there.
    """
    rows = wide["counted"].astype(bool) & (wide["factors"] == factors)
    kept = wide if columns is None else wide[["seed", "step", *(c for c in columns if c in wide)]]
    a, b = kept[rows & (wide["arm"] == baseline)], kept[rows & (wide["arm"] == arm)]
    return a.merge(b, on=["seed", "step"], suffixes=("_a", "_b")).sort_values(["seed", "step"])


def compared(
    wide: pd.DataFrame, plan: PlanRead, columns: Sequence[str] | None = None
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(factors, arm, `paired_steps` with the baseline) of each of its rivals, at each factor combination."""
    for factors in wide["factors"].unique():
        here = set(wide.loc[wide["factors"] == factors, "arm"])
        for arm in plan.rivals:
            # Options of one arm's engine alone: the ranking compares these.
            if not plan.engines_only or {arm, plan.baseline} <= here:
                yield factors, arm, paired_steps(wide, factors, plan.baseline, arm, columns)


def ratio(a: float, b: float) -> float:
    """a / b, NaN where either is no positive number."""
    return a / b if a > 0 and b > 0 else float("nan")


# Step times are skewed, so means and medians differ a little in any run; from here on it is a few steps' doing.
OUTLIERS_DECIDE_FROM = 1.25
# The share of the paired steps of which a ratio by the wall clock needs to know what passed before them.
ENOUGH_KNOWN = 0.9


def disagrees(a: float, b: float) -> bool:
    """Whether two printed ratios lie on different sides of 1.00."""
    return (round(a, 2) - 1) * (round(b, 2) - 1) < 0


def outliers_decide(sums: float, medians: float) -> bool:
    """Whether a few steps make the ratio of sums: the medians' ratio has another direction, or another size."""
    if not (sums > 0 and medians > 0):
        return False
    return disagrees(sums, medians) or max(sums / medians, medians / sums) > OUTLIERS_DECIDE_FROM


def total_tokens(pairs: pd.DataFrame, side: str) -> float:
    """Response tokens of one side, NaN unless every step tells a number that can be one, and threw none away."""
    name = f"{TOKENS}_{side}"
    if name not in pairs or threw_away(pairs, f"_{side}").any():
        return float("nan")
    tokens = pairs[name]
    return float("nan") if tokens.isna().any() or (tokens <= 0).any() else float(tokens.sum())


def _fewest_warmup_steps(wide: pd.DataFrame, factors: str, arms: Sequence[str], warmup_steps: int) -> int:
    """The steps left out as warm-up of that run of these arms which has the fewest: a log may begin after them."""
    rows = wide[(wide["factors"] == factors) & wide["arm"].isin(arms)]
    begins, run = first_steps(rows), [rows["arm"], rows["seed"]]
    # A record that begins in the warm-up is left out with all steps that it stands for.
    ends = rows["step"].where(begins <= warmup_steps, warmup_steps).groupby(run).max()
    counts = rows["counted"].astype(bool).groupby(run).any()
    left_out = (ends.clip(lower=warmup_steps) - begins.groupby(run).min() + 1).clip(lower=0)
    return int(left_out[counts].min())


def _uncounted(wide: pd.DataFrame, factors: str, arms: Sequence[str]) -> list[str]:
    """The arms that know their responses' mean length and not their number."""
    counted = wide[wide["counted"].astype(bool) & (wide["factors"] == factors)]
    if MEAN_LENGTH not in counted:
        return []
    tokens = counted[TOKENS] if TOKENS in counted else pd.Series(float("nan"), index=counted.index)
    lacking = counted.loc[tokens.isna() & (counted[MEAN_LENGTH] > 0), "arm"].unique()
    return [arm for arm in arms if arm in lacking]


# Tables over steps that take so much longer or shorter than the paired ones are of other work.
OTHER_STEPS_SHARE = 0.01


def _unpaired(wide: pd.DataFrame, pairs: pd.DataFrame, factors: str, arms: tuple[str, str]) -> Iterator[Verdict]:
    """Says which counted steps of two arms have no partner, and whether tables over all of an arm's mislead."""
    here = at(factors)
    for side, arm, other in (("a", *arms), ("b", *reversed(arms))):
        own_s = wide.loc[
            wide["counted"].astype(bool) & (wide["factors"] == factors) & (wide["arm"] == arm), PHASE + "step"
        ]
        if (unpaired := len(own_s) - len(pairs)) <= 0:
            continue
        text = f"{unpaired} counted steps of {arm}{here} have no partner in {other}: they are in no speed-up"
        yield Verdict("note", "unpaired-steps", text)
        paired_s = pairs[f"{PHASE}step_{side}"].mean()
        if abs(own_s.mean() - paired_s) > OTHER_STEPS_SHARE * paired_s:
            text = (
                f"{arm}{here}: its tables (phases, waterfall, GPU-hours used) are over its own "
                f"{count_of(len(own_s), 'counted step')}, {own_s.mean():.1f} s in the mean; "
                f"{len(pairs)} of them are paired with {other}'s, {paired_s:.1f} s in the mean. Do not set these "
                f"tables beside {other}'s: they are of other steps"
            )
            yield Verdict("warning", "tables-over-other-steps", text)


RATIOS = [
    "raw_speedup",
    "per_token_speedup",
    "median_speedup",
    "wall_speedup",
    "lowest_seed_speedup",
    "highest_seed_speedup",
]
SUMS = ["baseline_s", "arm_s", "baseline_tokens", "arm_tokens"]
COMPARISON_COLUMNS = ["factors", "baseline", "arm", "run_pairs", "paired_steps", *SUMS, *RATIOS, "warmup_left_out"]


def _none_counts(arm: str, rows: pd.DataFrame) -> str:
    """That an arm counts no step, with the reasons, the commonest first."""
    reasons = [f"{number} ({reason})" for reason, number in rows["left_out"].value_counts().items()]
    return f". {arm} counts none of its {count_of(len(rows), 'step')}; left out: {', '.join(reasons) or 'none'}"


def _apart(wide: pd.DataFrame, factors: str, baseline: str, arm: str) -> str:
    """Why two arms have no step in common: by the factors, the seeds and the steps of each."""
    counted = wide[wide["counted"].astype(bool)]
    rows = {name: counted[(counted["arm"] == name) & (counted["factors"] == factors)] for name in (baseline, arm)}
    if absent := [name for name, some in rows.items() if some.empty]:
        elsewhere = {name: counted.loc[counted["arm"] == name, "factors"].unique() for name in absent}
        return "".join(
            f". {name} counts steps only at {'; '.join(factors_label(key) or 'no factor' for key in keys[:4])}"
            f"{'; ...' if len(keys) > 4 else ''}: runs of equal factors are compared"
            if len(keys)
            else _none_counts(name, wide[wide["arm"] == name])
            for name, keys in elsewhere.items()
        )
    seeds = {name: sorted(set(some["seed"])) for name, some in rows.items()}
    both = set(seeds[baseline]) & set(seeds[arm])
    if not both:
        told = " and ".join(f"{name}'s {', '.join(map(str, some))}" for name, some in seeds.items())
        return (
            f". Runs of equal seed are compared, and the seeds are {told}: give those that belong together one seed "
            "(`seeds`, of imported runs `seed` in import.runs)"
        )
    some = {name: rows[name][rows[name]["seed"].isin(both)]["step"] for name in rows}
    told = " and ".join(f"{name}'s {steps.min()} to {steps.max()}" for name, steps in some.items())
    return f". Steps of equal number are compared, and of the seeds that both have these are {told}"


def comparison_table(
    wide: pd.DataFrame, plan: PlanRead, refused: Mapping[tuple[str, str], str] | None = None
) -> tuple[pd.DataFrame, list[Verdict]]:
    """One row per factor combination and arm but the baseline; speed-ups are ratios of sums.

    raw: ΣT_baseline / ΣT_arm; per token: (ΣT_baseline/Σtokens_baseline) / (ΣT_arm/Σtokens_arm); median: of
    the median steps, to see whether outliers decide; wall: of the sums with the time between steps, where it is told.
    Seconds and tokens are sums over the paired steps. A combination without common steps is a verdict, not a row; what
    is `refused` (comparable.py), by (factors, arm), has its seconds and no ratio. `warmup_left_out`: the steps left out
    as warm-up of that run which has the fewest.
    """
    rows, verdicts = [], []
    for factors, arm, pairs in compared(wide, plan):
        both = (plan.baseline, arm)
        if pairs.empty:
            why = _apart(wide, factors, *both)
            text = f"{plan.baseline} and {arm} have no counted (seed, step) in common{at(factors)}: not compared{why}"
            verdicts.append(Verdict("error", "no-common-steps", text))
            continue
        head = {"factors": factors, "baseline": plan.baseline, "arm": arm}
        row = head | _sums(pairs) | {"warmup_left_out": _fewest_warmup_steps(wide, factors, both, plan.warmup_steps)}
        verdicts += _unpaired(wide, pairs, factors, both)
        if (factors, arm) in (refused or {}):
            row |= dict.fromkeys(RATIOS, float("nan"))
        else:
            verdicts += _comparison_verdicts(wide, pairs, row, f"{arm} against {plan.baseline}{at(factors)}")
        rows.append(row)
    found = pd.DataFrame(rows, columns=COMPARISON_COLUMNS)
    rates = {
        "baseline_step_s": found["baseline_s"] / found["paired_steps"],
        "arm_step_s": found["arm_s"] / found["paired_steps"],
        "baseline_tokens_per_s": found["baseline_tokens"] / found["baseline_s"],
        "arm_tokens_per_s": found["arm_tokens"] / found["arm_s"],
    }
    return found.assign(**rates), verdicts


def _sums(pairs: pd.DataFrame) -> dict[str, Any]:
    """The counts, sums and ratios of paired steps."""
    a_s, b_s = pairs[PHASE + "step_a"], pairs[PHASE + "step_b"]
    base_s, arm_s = float(a_s.sum()), float(b_s.sum())
    base_tokens, arm_tokens = total_tokens(pairs, "a"), total_tokens(pairs, "b")
    seeds = _by_seed(pairs)
    return {
        "run_pairs": pairs["seed"].nunique(),
        "paired_steps": len(pairs),
        "baseline_s": base_s,
        "arm_s": arm_s,
        "baseline_tokens": base_tokens,
        "arm_tokens": arm_tokens,
        "raw_speedup": ratio(base_s, arm_s),
        "per_token_speedup": ratio(ratio(base_s, base_tokens), ratio(arm_s, arm_tokens)),
        "median_speedup": ratio(a_s.median(), b_s.median()),
        "wall_speedup": _by_wall_clock(pairs),
        "lowest_seed_speedup": seeds.min(),
        "highest_seed_speedup": seeds.max(),
    }


def _by_wall_clock(pairs: pd.DataFrame) -> float:
    """The ratio with the time between steps, over the pairs of which it is known; NaN where that are too few."""
    names = [name + side for name in (PHASE + "step", BETWEEN_STEPS) for side in ("_a", "_b")]
    known = pairs.reindex(columns=names).astype(float).dropna()
    if len(known) < ENOUGH_KNOWN * len(pairs):
        return float("nan")
    a_s, b_s = (float(known[names[at::2]].sum().sum()) for at in (0, 1))
    return ratio(a_s, b_s)


def _by_seed(pairs: pd.DataFrame) -> pd.Series:
    """The raw speed-up of each pair of runs."""
    sums = pairs.groupby("seed")[[PHASE + "step_a", PHASE + "step_b"]].sum()
    return sums[PHASE + "step_a"] / sums[PHASE + "step_b"]


def _comparison_verdicts(
    wide: pd.DataFrame, pairs: pd.DataFrame, row: Mapping[str, Any], versus: str
) -> Iterator[Verdict]:
    """What to read before the ratios of a row of the comparison."""
    seeds = _by_seed(pairs)
    if disagrees(seeds.min(), seeds.max()):
        each = ", ".join(f"seed {seed}: {speedup:.2f}×" for seed, speedup in seeds.items())
        text = f"{versus}: the seeds disagree on which is faster ({each}): the runs differ more than the arms"
        yield Verdict("warning", "seeds-disagree", text)
    # Where completions were thrown away the estimates say so.
    thrown_away = any(threw_away(pairs, side).any() for side in ("_a", "_b"))
    if pd.isna(row["per_token_speedup"]) and not thrown_away:
        text = f"{versus}: response tokens are missing or zero: no speed per token"
        if uncounted := _uncounted(wide, row["factors"], (row["baseline"], row["arm"])):
            text += (
                f". {' and '.join(uncounted)} logged lengths, and not how many responses a step has: "
                "arms.<arm>.import.batch_size tells it"
            )
        yield Verdict("warning", "no-tokens", text)
    if outliers_decide(row["raw_speedup"], row["median_speedup"]):
        text = (
            f"{versus}: the sums say {row['raw_speedup']:.2f}×, the median steps {row['median_speedup']:.2f}×: "
            "a few steps far from the others decide. Look at the step times below, and at what else ran then"
        )
        yield Verdict("warning", "sums-and-medians-disagree", text)
    if len(pairs) == 1:
        text = f"{versus}: a single paired step; it says nothing about spread"
        yield Verdict("warning", "single-step", text)


def phase_speedups(
    wide: pd.DataFrame,
    plan: PlanRead,
    trees: Sequence[TimerTree],
    refused: Mapping[tuple[str, str], str] | None = None,
) -> pd.DataFrame:
    """Per factor combination, arm and phase: mean seconds of both over the paired steps, and their ratio.

    NaN where one of the two does not time the phase, or the arms are `refused` (comparable.py). Whole phases,
    children included; the last row of each block is the residual, what no timer of the step covers.
    """
    paths = in_order([c.removeprefix(PHASE) for c in wide.columns if c.startswith(PHASE)], trees)
    shown = [(path, shown_phase(path, trees).label, PHASE + path) for path in paths]
    rows = []
    for factors, arm, pairs in compared(wide, plan):
        for path, label, column in [*shown, ("(residual)", "Residual", OWN + "step")] if len(pairs) else ():
            a, b = (
                s.fillna(0.0).mean() if (s := pairs[f"{column}_{side}"]).notna().any() else float("nan")
                for side in "ab"
            )
            if pd.isna(a) and pd.isna(b):
                continue
            won = (float("nan"), float("nan")) if (factors, arm) in (refused or {}) else (a - b, ratio(a, b))
            rows.append((factors, plan.baseline, arm, path, label, path.count("/"), a, b, *won))
    names = ["factors", "baseline", "arm", "path", "label", "depth"]
    return pd.DataFrame(rows, columns=[*names, "baseline_mean_s", "arm_mean_s", "saved_s", "speedup"])
