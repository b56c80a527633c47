"""Pairs each arm's steps with the baseline's, and makes the tables `comparison` and `phase_speedups` of the pairs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.factors import at, factors_label
from analysis.phases import BETWEEN_STEPS, shown_phase
from analysis.planned import PlanRead
from analysis.wide import OWN, PHASE, counted_rows, threw_away
from analysis.windows import first_steps, mean_of, median_of, pair_weights, steps_per_row
from common.verdicts import Verdict, count_of
from trainers.logs.record import STEPS_LOGGED
from trainers.registry import discards
from trainers.timers.tree import TimerTree, in_order

TOKENS = "response_tokens"
MEAN_LENGTH = "mean_response_length"
# Step times are skewed, so means and medians always differ a little; from this ratio on a few steps decide.
OUTLIERS_DECIDE_FROM = 1.25
# The share of the paired steps whose time between steps must be known for a ratio by the wall clock.
ENOUGH_KNOWN = 0.9
# From this difference on, tables over other steps than the paired ones are of other work.
OTHER_STEPS_SHARE = 0.01
RATIOS = [
    *("raw_speedup", "per_token_speedup", "median_speedup"),
    *("wall_speedup", "lowest_seed_speedup", "highest_seed_speedup"),
]
SUMS = ["baseline_s", "arm_s", "baseline_tokens", "arm_tokens"]
COMPARISON_COLUMNS = ["factors", "baseline", "arm", "run_pairs", "paired_steps", *SUMS, *RATIOS, "warmup_left_out"]


def paired_steps(
    wide: pd.DataFrame, factors: str, baseline: str, arm: str, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Counted steps of two arms, matched by (seed, step), with columns `<name>_a` and `<name>_b`.

    `columns` selects columns; missing ones are ignored. Two rows of a pair stand for the same steps (`pair_weights`).
    """
    rows = wide["counted"].astype(bool) & (wide["factors"] == factors)
    kept = wide if columns is None else wide[["seed", "step", *(c for c in (*columns, STEPS_LOGGED) if c in wide)]]
    a, b = kept[rows & (wide["arm"] == baseline)], kept[rows & (wide["arm"] == arm)]
    return a.merge(b, on=["seed", "step"], suffixes=("_a", "_b")).sort_values(["seed", "step"])


def compared(
    wide: pd.DataFrame, plan: PlanRead, columns: Sequence[str] | None = None
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(factors, arm, `paired_steps` with the baseline) of each of its rivals, at each factor combination."""
    for factors in wide["factors"].unique():
        here = set(wide.loc[wide["factors"] == factors, "arm"])
        for arm in plan.rivals:
            # Other factors are options of one arm's engine; the ranking compares these.
            if not plan.engines_only or {arm, plan.baseline} <= here:
                yield factors, arm, paired_steps(wide, factors, plan.baseline, arm, columns)


def ratio(a: float, b: float) -> float:
    """a / b, NaN unless both are positive."""
    return a / b if a > 0 and b > 0 else math.nan


def disagrees(a: float, b: float) -> bool:
    """Whether two printed ratios are on different sides of 1.00."""
    return (round(a, 2) - 1) * (round(b, 2) - 1) < 0


def outliers_decide(sums: float, medians: float) -> bool:
    """Whether a few steps decide the ratio of sums: the medians' ratio has another direction or size."""
    if not (sums > 0 and medians > 0):
        return False
    return disagrees(sums, medians) or max(sums / medians, medians / sums) > OUTLIERS_DECIDE_FROM


def _total_tokens(pairs: pd.DataFrame, side: str) -> float:
    """Response tokens of one side; NaN unless every step has a positive number and threw no completions away."""
    tokens = pairs.get(f"{TOKENS}_{side}")
    if tokens is None or threw_away(pairs, f"_{side}").any() or not (tokens > 0).all():
        return math.nan
    return float((tokens * pair_weights(pairs)).sum())


def _fewest_warmup_steps(wide: pd.DataFrame, factors: str, arms: Sequence[str], warmup_steps: int) -> int:
    """The fewest warm-up steps that a run of these arms leaves out: a log may begin after the warm-up."""
    used = wide[[name for name in ("arm", "seed", "step", "counted", STEPS_LOGGED) if name in wide]]
    rows = used[(wide["factors"] == factors) & wide["arm"].isin(arms)]
    first, run = first_steps(rows), [rows["arm"], rows["seed"]]
    # A record that begins in the warm-up is left out with all steps that it stands for.
    ends = rows["step"].where(first <= warmup_steps, warmup_steps).groupby(run).max()
    counts = rows["counted"].astype(bool).groupby(run).any()
    left_out = (ends.clip(lower=warmup_steps) - first.groupby(run).min() + 1).clip(lower=0)
    return int(left_out[counts].min())


def _without_completions(wide: pd.DataFrame, factors: str, arms: Sequence[str]) -> list[str]:
    """The arms that logged their responses' mean length but not their number."""
    if MEAN_LENGTH not in wide:
        return []
    counted = counted_rows(wide, "arm", "factors", MEAN_LENGTH, TOKENS)
    counted = counted[counted["factors"] == factors]
    tokens = counted.get(TOKENS, pd.Series(math.nan, index=counted.index))
    missing = counted.loc[tokens.isna() & (counted[MEAN_LENGTH] > 0), "arm"].unique()
    return [arm for arm in arms if arm in missing]


def _unpaired_verdicts(
    wide: pd.DataFrame, pairs: pd.DataFrame, factors: str, arms: tuple[str, str]
) -> Iterator[Verdict]:
    """Reports counted steps without a partner, and whether an arm's tables over all its steps mislead."""
    here = at(factors)
    for side, arm, other in (("a", *arms), ("b", *reversed(arms))):
        own = counted_rows(wide, "arm", "factors", STEPS_LOGGED, PHASE + "step")
        own = own[(own["factors"] == factors) & (own["arm"] == arm)]
        steps, paired = int(steps_per_row(own).sum()), int(pair_weights(pairs).sum())
        if (unpaired := steps - paired) <= 0:
            continue
        text = f"{unpaired} counted steps of {arm}{here} have no partner in {other}: no speed-up includes them"
        yield Verdict("note", "unpaired-steps", text)
        own_s = mean_of(own[PHASE + "step"], steps_per_row(own))
        paired_s = mean_of(pairs[f"{PHASE}step_{side}"], pair_weights(pairs))
        if abs(own_s - paired_s) > OTHER_STEPS_SHARE * paired_s:
            text = (
                f"{arm}{here}: its tables (phases, GPU-hours used) are over its own "
                f"{count_of(steps, 'counted step')}, {own_s:.1f} s on average; {paired} of them are "
                f"paired with {other}'s, {paired_s:.1f} s on average. Do not compare these tables with {other}'s: they "
                "are of other steps"
            )
            yield Verdict("warning", "tables-over-other-steps", text)


def _none_counts(arm: str, rows: pd.DataFrame) -> str:
    """The sentence that none of an arm's steps counts, with the reasons, the most common first."""
    reasons = [f"{number} ({reason})" for reason, number in rows["left_out"].value_counts().items()]
    return f". {arm} counts none of its {count_of(len(rows), 'step')}; left out: {', '.join(reasons) or 'none'}"


def _no_common_steps(wide: pd.DataFrame, factors: str, baseline: str, arm: str) -> str:
    """Why two arms have no step in common, by the factors, the seeds and the steps of each."""
    counted = counted_rows(wide, "arm", "factors", "seed", "step")
    rows = {name: counted[(counted["arm"] == name) & (counted["factors"] == factors)] for name in (baseline, arm)}
    if absent := [name for name, mine in rows.items() if mine.empty]:
        sentences = []
        for name in absent:
            keys = counted.loc[counted["arm"] == name, "factors"].unique()
            labels = [factors_label(key) or "no factor" for key in keys[:4]] + ["..."] * (len(keys) > 4)
            only = f". {name} counts steps only at {'; '.join(labels)}: runs of equal factors are compared"
            sentences.append(only if len(keys) else _none_counts(name, wide[wide["arm"] == name]))
        return "".join(sentences)
    seeds = {name: sorted(set(mine["seed"])) for name, mine in rows.items()}
    both = set(seeds[baseline]) & set(seeds[arm])
    if not both:
        shown = " and ".join(f"{name}'s {', '.join(map(str, its))}" for name, its in seeds.items())
        return (
            f". Runs of equal seed are compared, and the seeds are {shown}: give matching runs the same seed (`seeds`; "
            "for imported runs `seed` in import.runs)"
        )
    steps = {name: mine.loc[mine["seed"].isin(both), "step"] for name, mine in rows.items()}
    shown = " and ".join(f"{name}'s {its.min()} to {its.max()}" for name, its in steps.items())
    return f". Steps of equal number are compared, and at the seeds that both have these are {shown}"


def comparison_table(
    wide: pd.DataFrame, plan: PlanRead, refused: Collection[tuple[str, str]] = ()
) -> tuple[pd.DataFrame, list[Verdict]]:
    """One row per factor combination and arm but the baseline; speed-ups are ratios of sums.

    raw: ΣT_baseline / ΣT_arm; per token: (ΣT_baseline/Σtokens_baseline) / (ΣT_arm/Σtokens_arm); median: of the median
    steps, which shows whether outliers decide; wall: with the time between steps, where it is known. Seconds and tokens
    are sums over the paired steps. A combination without common steps is a finding, not a row. Arms that are `refused`
    (comparable.py), by (factors, arm), have their seconds and no ratio. `warmup_left_out`: the fewest warm-up steps
    that a run leaves out.
    """
    rows, verdicts = [], []
    used = (PHASE + "step", BETWEEN_STEPS, TOKENS, *discards())
    for factors, arm, pairs in compared(wide, plan, used):
        both = (plan.baseline, arm)
        if pairs.empty:
            why = _no_common_steps(wide, factors, *both)
            text = f"{plan.baseline} and {arm} have no counted (seed, step) in common{at(factors)}: not compared{why}"
            verdicts.append(Verdict("error", "no-common-steps", text))
            continue
        head = {"factors": factors, "baseline": plan.baseline, "arm": arm}
        warmup_steps = plan.warmup_steps if plan.step_of == "step" else 0
        row = head | _sums(pairs) | {"warmup_left_out": _fewest_warmup_steps(wide, factors, both, warmup_steps)}
        verdicts += _unpaired_verdicts(wide, pairs, factors, both)
        if (factors, arm) in refused:
            row |= dict.fromkeys(RATIOS, math.nan)
        else:
            verdicts += _without_tokens(wide, pairs, row, f"{arm} against {plan.baseline}{at(factors)}")
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
    a_s, b_s, steps = pairs[PHASE + "step_a"], pairs[PHASE + "step_b"], pair_weights(pairs)
    base_s, arm_s = float((a_s * steps).sum()), float((b_s * steps).sum())
    base_tokens, arm_tokens = _total_tokens(pairs, "a"), _total_tokens(pairs, "b")
    seeds = _by_seed(pairs)
    return {
        "run_pairs": pairs["seed"].nunique(),
        "paired_steps": int(steps.sum()),
        "baseline_s": base_s,
        "arm_s": arm_s,
        "baseline_tokens": base_tokens,
        "arm_tokens": arm_tokens,
        "raw_speedup": ratio(base_s, arm_s),
        "per_token_speedup": ratio(ratio(base_s, base_tokens), ratio(arm_s, arm_tokens)),
        "median_speedup": ratio(median_of(a_s, steps), median_of(b_s, steps)),
        "wall_speedup": _by_wall_clock(pairs),
        "lowest_seed_speedup": seeds.min(),
        "highest_seed_speedup": seeds.max(),
    }


def _by_wall_clock(pairs: pd.DataFrame) -> float:
    """The ratio with the time between steps; NaN where that is known for too few pairs.

    The pairs where it is known show how much it changes the ratio of the steps, which is over all pairs.
    """
    names = [name + side for name in (PHASE + "step", BETWEEN_STEPS) for side in ("_a", "_b")]
    steps = pair_weights(pairs)
    known = pairs.reindex(columns=names).astype(float).mul(steps, axis=0).dropna()
    if steps[pairs.index.isin(known.index)].sum() < ENOUGH_KNOWN * steps.sum():
        return math.nan
    a_s, b_s = (float(known[names[at::2]].sum().sum()) for at in (0, 1))
    steps_alone, whole = known[names[:2]].sum(), pairs[names[:2]].mul(steps, axis=0).sum()
    return ratio(a_s, b_s) * ratio(*whole) / ratio(*steps_alone)


def _by_seed(pairs: pd.DataFrame) -> pd.Series:
    names = [PHASE + "step_a", PHASE + "step_b"]
    sums = pairs[names].mul(pair_weights(pairs), axis=0).groupby(pairs["seed"]).sum()
    return sums[PHASE + "step_a"] / sums[PHASE + "step_b"]


def _without_tokens(wide: pd.DataFrame, pairs: pd.DataFrame, row: Mapping[str, Any], versus: str) -> Iterator[Verdict]:
    """Warns that the tokens of an arm's steps are not known, and names what would tell them."""
    # The estimates report thrown-away completions.
    if pd.isna(row["per_token_speedup"]) and not any(threw_away(pairs, side).any() for side in ("_a", "_b")):
        text = f"{versus}: response tokens are missing or zero: no speed per token"
        if arms := _without_completions(wide, row["factors"], (row["baseline"], row["arm"])):
            lengths = f"{' and '.join(arms)} logged lengths, but not the number of responses of a step"
            # The estimates do so with the mean lengths of both arms.
            both = f"{versus}: {lengths}, which the speed per token takes as equal"
            text = both if len(arms) == 2 else f"{text}. {lengths}"
            text += ": set arms.<arm>.import.batch_size"
        yield Verdict("warning", "no-tokens", text)


def phase_speedups(
    wide: pd.DataFrame, plan: PlanRead, trees: Sequence[TimerTree], refused: Collection[tuple[str, str]] = ()
) -> pd.DataFrame:
    """Per factor combination, arm and phase: mean seconds of both over the paired steps, and their ratio.

    NaN where one arm does not time the phase, or the arms are `refused` (comparable.py). A phase includes its
    children; the last row of each block is the residual, the time without a timer.
    """
    paths = in_order([c.removeprefix(PHASE) for c in wide.columns if c.startswith(PHASE)], trees)
    shown = [(path, shown_phase(path, trees).label, PHASE + path) for path in paths]
    shown.append(("(residual)", "Residual", OWN + "step"))
    rows = []
    for factors, arm, pairs in compared(wide, plan, [column for _, _, column in shown]):
        steps = pair_weights(pairs)
        for path, label, column in shown if len(pairs) else ():
            a, b = (
                mean_of(s.fillna(0.0), steps) if (s := pairs[f"{column}_{side}"]).notna().any() else math.nan
                for side in "ab"
            )
            if pd.isna(a) and pd.isna(b):
                continue
            gain = (math.nan, math.nan) if (factors, arm) in refused else (a - b, ratio(a, b))
            rows.append((factors, plan.baseline, arm, path, label, path.count("/"), a, b, *gain))
    names = ["factors", "baseline", "arm", "path", "label", "depth"]
    return pd.DataFrame(rows, columns=[*names, "baseline_mean_s", "arm_mean_s", "saved_s", "speedup"])
