"""Collects the content of a report: its tables, verdicts and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from analysis.compared import compared
from analysis.comparison_tables import comparison_table, cost_lines, phase_speedups
from analysis.cost import cost_table, per_gpu_table
from analysis.counted import wide_steps
from analysis.estimates.comparable import comparable
from analysis.estimates.estimate_table import PER_STEP, UNNUMBERED, estimate_table
from analysis.estimates.gate import gate_table, reward_verdicts
from analysis.estimates.ranking import ranking_lines, ranking_table
from analysis.machines import disturbance_verdicts, disturbances
from analysis.mismatch import mismatch_table
from analysis.phases import phase_table, sums_table
from analysis.planned import PlanRead, read_plan, without_unneeded
from analysis.report.provenance import runs_table
from analysis.report.sample_completions import read_samples
from analysis.reported_terms import origin_verdicts, terms_table, with_reported
from analysis.roofline.floors import with_floors
from analysis.roofline.setup import setup_of
from analysis.runs import Run, read_runs
from analysis.token_ledger import loops_table
from analysis.verdict.arm_verdict import ArmVerdict
from analysis.verdict.verdict_table import VerdictEvidence, arm_verdicts, with_engines_alone
from common.findings import Finding, Preflight, read_preflight
from common.verdicts import Verdict, VerdictFile, count_of, worst_first
from trainers.timers.tree import TimerTree

if TYPE_CHECKING:
    from analysis.figures.drawing import Figure


@dataclass(frozen=True)
class Rest:
    """What a report has besides its answer."""

    tables: dict[str, pd.DataFrame]
    verdicts: list[Verdict]


@dataclass(frozen=True)
class Content:
    """The report's parts; tables keep full precision (the function that makes a table documents its columns)."""

    plan: PlanRead
    runs: list[Run]
    trees: list[TimerTree]
    arm_verdicts: list[ArmVerdict]
    """Each rival against the baseline, then the arms with steps of another kind, each against the first of its kind."""
    read_verdicts: list[Verdict]
    """The verdicts about reading the runs and choosing their steps."""
    preflight: Preflight | None
    make_rest: Callable[[], Rest]

    @cached_property
    def _rest(self) -> Rest:
        # The answer needs none of it, and comes first.
        return self.make_rest()

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table that the report writes, by its name in tables/."""
        return self._rest.tables

    @property
    def verdicts(self) -> list[Verdict]:
        """All verdicts about the data, the most serious first."""
        return self._rest.verdicts

    @cached_property
    def figures(self) -> list[Figure]:
        """The figures, drawn on first use."""
        # Altair takes a second to load, and a verdict needs no figure.
        from analysis.figures.curves import figures_of

        return figures_of(self.plan, self.tables)

    @property
    def verdict_file(self) -> VerdictFile:
        """The content of verdict.json."""
        return {
            "experiment": self.plan.experiment,
            "baseline": self.plan.baseline,
            "arms": [one.as_json() for one in self.arm_verdicts],
            "no_comparison": self.no_comparison,
        }

    @property
    def no_comparison(self) -> str:
        """Why there is no verdict, as a sentence; empty when there is one."""
        if self.arm_verdicts:
            return ""
        arms = list(dict.fromkeys(r.arm for r in self.runs))
        if not arms:
            return "No comparison: no run could be read."
        if ranked := ranking_lines(self.tables["ranking"], self.plan):
            return " ".join(ranked)
        if len(arms) == 1:
            return f"No comparison: only one arm has runs ({arms[0]})."
        others = [arm for arm in arms if arm != self.plan.baseline]
        if self.plan.baseline in arms and all(self.plan.repeats(arm) for arm in others):
            return _only_repetitions(self.plan, others, self.tables["estimates"])
        if self.plan.baseline in arms and all(self.plan.is_other_kind(arm) for arm in others):
            kinds = "; ".join(f"{arm}: {self.plan.step_name(arm)}" for arm in arms)
            return f"No comparison: a step is different work in each of them ({kinds}). Give two logs of one kind."
        why = next((f": {one.text}" for one in self.verdicts if one.code == "no-common-steps"), "")
        return f"No comparison{why or ': no arm has a counted step in common with the baseline'}."


def read_content(
    plan_path: Path, results: Path, baseline: str | None, stacks: Path | None, preflight: Path | None = None
) -> Content:
    """The content of one experiment's report; `UserError` when the plan or the preflight is unusable.

    A problem of a run becomes a verdict, and its data is in no number.
    """
    plan = without_unneeded(read_plan(plan_path, baseline), results)
    before = read_preflight(preflight or results / "preflight.json", plan.experiment)
    return content_of(plan, *read_runs(plan, results, stacks), before)


def content_of(plan: PlanRead, runs: list[Run], verdicts: Sequence[Verdict], before: Preflight | None) -> Content:
    """The content of a report on runs; `verdicts` are those of reading them, `before` is the preflight's result."""
    wide, more = wide_steps(runs, plan.warmup_steps)
    readable = set(wide["run_id"])
    runs = [run for run in runs if run.run_id in readable]
    wide, of_floors = with_floors(wide, runs, plan.baseline)
    before = with_reported(before, runs)
    trees = list(dict.fromkeys(r.tree for r in runs))
    machines = disturbances(runs, wide, plan)
    disturbed = [one for one in machines if one.level == "unequal"]
    read = [*verdicts, *more]
    first = _evidence(plan, runs, wide, before, disturbed, read)
    found = arm_verdicts(first)
    for other in plan.of_other_kinds():
        found += arm_verdicts(_evidence(other, runs, wide, before, disturbed, read))

    def rest() -> Rest:
        return _all_tables(first, runs, trees, [*of_floors, *disturbance_verdicts(machines)])

    return Content(plan, runs, trees, with_engines_alone(found, plan), read, before, rest)


def _evidence(
    plan: PlanRead,
    runs: Sequence[Run],
    wide: pd.DataFrame,
    before: Preflight | None,
    disturbed: Sequence[Finding],
    read: Sequence[Verdict],
) -> VerdictEvidence:
    """What the verdicts of a plan's arms are made of, against its baseline."""
    divisible, refusals = comparable(runs, plan, wide)
    every = compared(wide, plan)
    comparison, matched = comparison_table(wide, every, divisible.refused)
    unnumbered = {run for one in read if one.code == UNNUMBERED for run in one.about}
    estimates, disagreements = estimate_table(wide, plan, every, divisible, unnumbered)
    # Where phases overlap, no part of a step is told.
    told = [arm for arm in plan.arms if arm not in {arm for _, arm in divisible.throughput_only}]
    trees = {arm: list(dict.fromkeys(run.tree for run in runs if run.arm == arm)) for arm in told}
    read = [*read, *refusals, *disagreements, *matched]
    gate = gate_table(wide, every)
    return VerdictEvidence(
        plan,
        wide,
        every,
        comparison,
        estimates,
        gate,
        before,
        disturbed,
        read,
        trees,
        divisible.refused,
        divisible.per_gpu,
        {run.run_id: setup_of(run).gpus for run in runs} if divisible.per_gpu else {},
    )


def _all_tables(of: VerdictEvidence, runs: list[Run], trees: list[TimerTree], verdicts: Sequence[Verdict]) -> Rest:
    """All tables and verdicts, from those of the answer."""
    plan, wide = of.plan, of.wide
    of_arm = {arm: list(dict.fromkeys(r.tree for r in runs if r.arm == arm)) for arm in plan.arms}
    phases = phase_table(wide, list(plan.arms), trees, of_arm)
    completions, without = read_samples(runs)
    tables = {
        "steps": wide,
        "phases": phases,
        "sums": sums_table(phases, wide, trees),
        "estimates": of.estimates,
        "comparison": of.comparison,
        "phase_speedups": phase_speedups(wide, of.every, trees, of.refused),
        "step_costs": cost_lines(wide, of.every, trees),
        "gate": of.gate,
        "mismatch": mismatch_table(of.mismatches),
        "per_gpu": per_gpu_table(of.per_gpu),
        "loops": loops_table(wide, runs),
        "ranking": ranking_table(wide, runs, plan),
        "samples": completions,
        "cost": cost_table(wide, runs, plan),
        "settings": terms_table(of.preflight, plan),
        "runs": runs_table(runs, wide),
    }
    found = [*of.read, *without, *verdicts, *_run_verdicts(runs, plan, wide)]
    return Rest(tables, worst_first([*found, *_spent_verdicts(runs, plan, tables["cost"])]))


def _run_verdicts(runs: list[Run], plan: PlanRead, wide: pd.DataFrame) -> Iterator[Verdict]:
    """The verdicts about the runs, their machines and their settings."""
    for run in runs:
        yield from origin_verdicts(run)
    yield from reward_verdicts(wide)
    yield from _missing_arms(runs, plan)


def _spent_verdicts(runs: list[Run], plan: PlanRead, cost: pd.DataFrame) -> Iterator[Verdict]:
    """With `seeds: {until, most}`: the pairs of runs that were trained, and what the others would have cost."""
    pairs = len({run.seed for run in runs if not plan.imported(run.arm)})
    if not plan.most or not pairs:
        return
    left = plan.most - pairs
    spent, unit = float(cost["gpu_hours"].sum()), "GPU-hours"
    if cost.empty:
        spans = [run.time_span for run in runs if run.time_span]
        spent, unit = sum(end - start for start, end in spans) / 3600, "hours of training"
    text = f"{count_of(pairs, 'run pair')} of at most {plan.most} ({spent:.3g} {unit})"
    saved = f"the other {left} were not needed, which saved about {spent * left / pairs:.3g} {unit}"
    yield Verdict("note", "pairs-spent", f"{text}; {saved if left else 'none is left'}")


def _only_repetitions(plan: PlanRead, others: list[str], estimates: pd.DataFrame) -> str:
    """The sentence of a report with A/A arms only, and how far apart they are."""
    pairs = "; ".join(f"{arm} is the same as {plan.repeats(arm)}" for arm in others)
    ratios = estimates.loc[estimates["estimate"] == PER_STEP, "value"].dropna()
    apart = f" By step time they are {ratios.min():.3g}x to {ratios.max():.3g}x as fast." if len(ratios) else ""
    return f"No comparison: there are only repetitions (A/A) of one arm ({pairs}).{apart}"


def _missing_arms(runs: list[Run], plan: PlanRead) -> Iterator[Verdict]:
    """Arms without a run, and a report on one arm alone."""
    counts = {arm: sum(r.arm == arm for r in runs) for arm in plan.arms}
    for arm, count in counts.items():
        if not count:
            yield Verdict("error", "arm-without-runs", f"arm {arm} has no run that can be read")
    if len(plan.arms) == 1 and len({r.factors_key for r in runs}) < 2:
        yield Verdict("warning", "one-arm", "the plan has only one arm: there is nothing to compare")
    alone = [arm for arm, count in counts.items() if count and len({r.seed for r in runs if r.arm == arm}) == 1]
    if alone:
        yield Verdict("note", "one-seed", f"one run only ({', '.join(alone)}): the spread between runs is unknown")
