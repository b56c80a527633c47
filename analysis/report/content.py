"""Gathers everything that a report says, before it has a form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from analysis.cost import cost_table
from analysis.estimates.comparable import comparable
from analysis.estimates.explained import explained_table
from analysis.estimates.gate import gate_table, gate_verdicts
from analysis.estimates.noise import noise_table, repetition_of
from analysis.estimates.ranking import ranking_lines, ranking_table
from analysis.estimates.replays import replay_verdicts
from analysis.estimates.speedup_table import estimate_table
from analysis.fairness import Setting, config_settings, fairness_verdicts, reported_settings, settings_table
from analysis.installed import environment_table, mixed_origin_verdicts, origin_verdicts
from analysis.phases import category_table, phase_table, phase_verdicts, sums_table
from analysis.report.addresses import KEYS, rows_with_addresses
from analysis.report.provenance import runs_table
from analysis.reward_change import rewards_table
from analysis.roofline.floors import floors_of
from analysis.roofline.waterfall import waterfall_table
from analysis.roofline.work import with_work, work_verdicts
from analysis.run_checks import (
    busy_machine_verdicts,
    busy_terms,
    reward_verdicts,
    shared_machine_verdicts,
)
from analysis.runs import PlanRead, Run, read_plan, read_runs
from analysis.sample_table import read_samples
from analysis.speedup import comparison_table, phase_speedups
from analysis.stragglers import straggler_table
from analysis.suggestions import Suggestion, suggestions
from analysis.verdict.arm_verdict import ArmVerdict
from analysis.verdict.verdict_table import verdict_table
from analysis.wide import samples, wide_steps
from common.contracts import VerdictFile
from common.findings import Preflight, read_preflight
from common.verdicts import ReportFile, Verdict, worst_first
from trainers.timers.tree import TimerTree

if TYPE_CHECKING:
    from analysis.figures.drawing import Figure

# How the names of figures of single steps begin, which say nothing where there is but one.
OVER_STEPS = (
    "paired-steps",
    "step-time",
    "response-length",
    "stragglers",
    "reward",
    "tokens-per-second",
)


@dataclass(frozen=True)
class Content:
    """The report's parts; tables keep full precision (columns: where each is made)."""

    plan: PlanRead
    runs: list[Run]
    trees: list[TimerTree]
    tables: dict[str, pd.DataFrame]
    """Every table that the report writes, by its name in tables/; a cell's place is a row and a column of one."""
    lengths: pd.DataFrame
    """The samples of response_length in counted steps."""
    settings: dict[str, list[Setting]]
    """By part: config (asked for, and finally held), hardware and versions (as the jobs reported them)."""
    arm_verdicts: list[ArmVerdict]
    verdicts: list[Verdict]
    preflight: Preflight | None

    @cached_property
    def figures(self) -> list[Figure]:
        """The figures, drawn when they are first asked for; those over the steps where a run has more than one."""
        # Altair takes a second to load, and a verdict needs no figure.
        from analysis.figures import figures_of

        several = bool((self.tables["steps"].groupby("run_id").size() > 1).any())
        drawn = figures_of(self.plan, self.tables, self.lengths)
        return [figure for figure in drawn if several or not figure.name.startswith(OVER_STEPS)]

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
    def report_file(self) -> ReportFile:
        """The content of report.json."""
        return {
            "experiment": self.plan.experiment,
            "baseline": self.plan.baseline,
            "arms": list(self.plan.arms),
            "warmup_steps": self.plan.warmup_steps,
            "findings": [one.as_dict() for one in self.verdicts],
            "tables": {name: rows_with_addresses(name, self.tables[name]) for name in KEYS},
        }

    @property
    def no_comparison(self) -> str:
        """Why there is no verdict, as a sentence; empty when there is one."""
        if self.arm_verdicts:
            return ""
        arms = list(dict.fromkeys(r.arm for r in self.runs))
        if not arms:
            return "No comparison: no run could be read."
        if ranked := ranking_lines(self.tables["ranking"]):
            return " ".join(ranked)
        if len(arms) == 1:
            return f"No comparison: there are runs of one arm only ({arms[0]})."
        others = [arm for arm in arms if arm != self.plan.baseline]
        if self.plan.baseline in arms and all(repetition_of(self.plan, arm) for arm in others):
            return _only_repetitions(self.plan, others, self.tables["noise"])
        if self.plan.baseline in arms and all(self.plan.apart(arm) for arm in others):
            return (
                f"No comparison: of {', '.join(arms)} some train and some run an engine alone, whose steps are not of "
                f"the same work (the baseline is {self.plan.baseline})."
            )
        why = next((one.text for one in self.verdicts if one.code == "no-common-steps"), "").partition("compared. ")[2]
        return "No comparison: no arm has a counted step in common with the baseline." + (f" {why}." if why else "")


def read_content(
    plan_path: Path, results: Path, baseline: str | None, stacks: Path | None, preflight: Path | None = None
) -> Content:
    """The content of one experiment's report; `UserError` only when the plan or the preflight itself is unusable.

    Whatever is wrong with a run is a verdict instead, and never in a number.
    """
    plan = read_plan(plan_path, baseline)
    before = read_preflight(preflight or results / "preflight.json", plan.experiment)
    runs, verdicts = read_runs(plan, results, stacks)
    wide, more = wide_steps(runs, plan.warmup_steps)
    floors = floors_of(wide, runs)
    wide = with_work(wide, runs, floors, plan.baseline)
    runs = [r for r in runs if r.run_id in set(wide["run_id"])]
    trees = list(dict.fromkeys(r.tree for r in runs))
    of_arm = {arm: list(dict.fromkeys(r.tree for r in runs if r.arm == arm)) for arm in plan.arms}
    phases = phase_table(wide, list(plan.arms), trees, of_arm)
    divisible, refusals = comparable(runs, plan, wide)
    comparison, paired = comparison_table(wide, plan, divisible.refused)
    estimates, disagreements = estimate_table(wide, plan, divisible)
    gate = gate_table(wide, plan)
    lengths = samples(runs, "response_length", wide)
    completions, without = read_samples(runs, results)
    verdicts += [*more, *refusals, *disagreements, *paired, *gate_verdicts(gate, plan), *phase_verdicts(phases)]
    verdicts += [*without, *work_verdicts(wide, runs, floors), *_run_verdicts(runs, plan, wide, lengths)]
    settings = {
        "config": config_settings(runs, plan),
        "hardware": reported_settings(runs, plan, "hardware"),
        "versions": reported_settings(runs, plan, "versions"),
    }
    tables = _run_tables(runs, plan, wide, results) | {
        "steps": wide,
        "phases": phases,
        "sums": sums_table(phases, wide, trees),
        "estimates": estimates,
        "noise": noise_table(wide, plan, divisible),
        "comparison": comparison,
        "waterfall": waterfall_table(wide, category_table(phases, "step")),
        "stragglers": straggler_table(wide, runs, plan, lengths),
        "gate": gate,
        "samples": completions,
        "phase_speedups": phase_speedups(wide, plan, trees, divisible.refused),
        "settings": settings_table([one for some in settings.values() for one in some], plan),
        "explained": explained_table(wide, runs, plan, divisible, estimates),
    }
    next_things = suggestions(tables["stragglers"], tables["waterfall"], wide, before)
    columns = [field.name for field in fields(Suggestion)]
    tables["suggestions"] = pd.DataFrame(map(asdict, next_things), columns=columns)
    arm_verdicts = verdict_table(comparison, plan, before, estimates, gate, busy_terms(runs, wide))
    return Content(plan, runs, trees, tables, lengths, settings, arm_verdicts, worst_first(verdicts), before)


def _run_tables(runs: list[Run], plan: PlanRead, wide: pd.DataFrame, results: Path) -> dict[str, pd.DataFrame]:
    """The tables that are of the runs themselves, whichever may be compared."""
    return {
        "rewards": rewards_table(wide, runs),
        "cost": cost_table(wide, runs, plan),
        "ranking": ranking_table(wide, runs, plan),
        "environment": environment_table(runs),
        "runs": runs_table(runs, wide, results),
    }


def _run_verdicts(runs: list[Run], plan: PlanRead, wide: pd.DataFrame, lengths: pd.DataFrame) -> Iterator[Verdict]:
    """What the runs themselves, their machines and their settings give to read."""
    yield from replay_verdicts(wide, runs, plan)
    yield from fairness_verdicts(runs, plan)
    for run in runs:
        yield from origin_verdicts(run)
    yield from mixed_origin_verdicts(runs)
    yield from shared_machine_verdicts(runs)
    yield from busy_machine_verdicts(runs, wide)
    yield from reward_verdicts(wide, runs)
    yield from _missing_arms(runs, plan)
    if runs and lengths.empty:
        yield Verdict("note", "no-lengths", "no counted step has response_length samples: no distribution of lengths")


def _only_repetitions(plan: PlanRead, others: list[str], noise: pd.DataFrame) -> str:
    """That there is nothing but A/A, and how far apart the same comes out."""
    who = "; ".join(f"{arm} is the same as {repetition_of(plan, arm)}" for arm in others)
    text = f"No comparison: there are only repetitions (A/A) of one arm ({who})."
    bands = noise.dropna(subset=["low", "high"])
    if bands.empty:
        return f"{text} How far apart they come out is not known: they have no counted step in common."
    # The first band of a factor combination is the declared A/A arms'.
    bands = bands.drop_duplicates("factors")
    low, high = bands["low"].min(), bands["high"].max()
    where = "" if len(bands) == 1 else " at any factor combination"
    between = f"between {low:.3g} and {high:.3g}{where}"
    return f"{text} The noise: 95% of the ratios of step time of two such runs lie {between}."


def _missing_arms(runs: list[Run], plan: PlanRead) -> Iterator[Verdict]:
    """Arms without a run, and a report on one arm alone."""
    have = {r.arm for r in runs}
    for arm in plan.arms:
        if arm not in have:
            yield Verdict("error", "arm-without-runs", f"arm {arm} has no run that can be read")
    if len(plan.arms) == 1 and not (plan.engines_only and len({r.factors_key for r in runs}) > 1):
        yield Verdict("warning", "one-arm", "the plan has one arm only: there is nothing to compare")
    seeds = {arm: len({r.seed for r in runs if r.arm == arm}) for arm in plan.arms if arm in have}
    if seeds and min(seeds.values()) == 1:
        alone = ", ".join(arm for arm, count in seeds.items() if count == 1)
        text = f"one seed only ({alone}): how much runs differ from one another is not known"
        yield Verdict("note", "one-seed", text)
