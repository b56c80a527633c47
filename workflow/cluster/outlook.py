"""Prints `rolloutbench plan`: the runs, what would become of each, and what they would cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from common.messages import listed, table_lines
from workflow.cluster.estimate import Estimate, estimates_of, usual_profile
from workflow.cluster.experiment import is_read, of_plan
from workflow.cluster.inquiry import SlurmSays
from workflow.cluster.progress import readable_duration
from workflow.cluster.site import Site, read_site
from workflow.cluster.status import readable_step
from workflow.config.plan import Plan, PlannedRun
from workflow.stacks.verification import stack_notes

_HEADER = ("run", "trainer", "engine", "stack", "steps", "GPUs", "s/step", "time", "GPU-h", "next")
_NUMBERS = ("runs", "steps", "GPUs", "s/step", "time", "GPU-h")
_ACTIONS = ("skip", "attach", "resume", "submit", "attach?")


def plan_lines(plan: Plan, profile: Path | None, given_step_s: float | None) -> list[str]:
    """All that is printed of a plan."""
    profile = profile or usual_profile(plan)
    site = read_site(profile) if profile else Site()
    estimates, says = estimates_of(plan, site, given_step_s)
    experiment = of_plan(plan)
    read = {want.run_id for want in experiment.imports if is_read(experiment, want)}
    imported = [_import_row(run, run.run_id in read) for run in plan.imports.values()]
    table = table_lines(_HEADER, [*map(_row, estimates), *imported], _NUMBERS)
    totals = table_lines(("next", "runs", "time", "GPU-h"), _totals(estimates), _NUMBERS)
    notes = [f"- {note}" for note in [*_notes(estimates, site, says), *stack_notes(experiment.stacks)]]
    many = [(len(estimates), ""), (len(imported), "imported ")] if imported else [(len(estimates), "")]
    runs = " and ".join(f"{n} {kind}run{'s' * (n != 1)}" for n, kind in many if n or not imported)
    count = f"{runs} of experiment {plan.config.experiment}"
    return [*table, "", count, *(totals if estimates else []), *notes]


def _row(estimate: Estimate) -> tuple[str, ...]:
    spec, pace = estimate.run.spec, estimate.pace
    step_s = "?" if pace.step_s is None else ("" if pace.source == "own" else "~") + readable_step(pace.step_s)
    return (
        estimate.run.run_id,
        *(str(spec[key]) for key in ("trainer", "engine", "stack")),
        str(spec["workload"]["steps"]),
        "?" if estimate.gpus is None else str(estimate.gpus),
        step_s,
        _time([estimate]),
        _gpu_hours([estimate]),
        estimate.told,
    )


def _import_row(run: PlannedRun, read: bool) -> tuple[str, ...]:
    """A run that takes nothing of this site: it is only read."""
    sources = run.spec["import"]["sources"]
    stack = run.stack or "-"
    action = f"{'skip: imported' if read else 'import'} from {listed(sources, 1)}"
    return (run.run_id, run.spec["trainer"], run.spec["engine"], stack, "", "", "", "", "", action)


def _totals(estimates: Sequence[Estimate]) -> list[tuple[str, ...]]:
    """Runs and their cost per action; on one machine that is the time of one run after another."""
    parts = [(action, [estimate for estimate in estimates if estimate.action == action]) for action in _ACTIONS]
    parts = [(action, some) for action, some in parts if some]
    if len(parts) > 1:
        parts.append(("in all", list(estimates)))
    on_gpus = any(estimate.gpus != 0 for estimate in estimates)
    return [(name, str(len(some)), "" if on_gpus else _time(some), _gpu_hours(some)) for name, some in parts]


def _time(estimates: Iterable[Estimate]) -> str:
    """The time of runs, one after another; empty if none trains."""
    times = [estimate.time_s for estimate in estimates if estimate.steps_left]
    return _sum(times, readable_duration) if times else ""


def _gpu_hours(estimates: Iterable[Estimate]) -> str:
    """The GPU-hours of runs; empty if none takes a GPU."""
    hours = [estimate.gpu_hours for estimate in estimates if estimate.steps_left and estimate.gpus != 0]
    return _sum(hours, lambda value: f"{value:,.0f}" if value >= 1000 else f"{value:.1f}") if hours else ""


def _sum(values: Sequence[float | None], readable: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "?"
    return ("> " if len(known) < len(values) else "") + readable(sum(known))


def _notes(estimates: Sequence[Estimate], site: Site, says: SlurmSays) -> list[str]:
    notes = [*_site_notes(site, estimates), *_pace_notes(estimates), *_walltime_notes(estimates, site)]
    if says.silence:
        notes.append(f"{says.silence}: what its jobs do is not known; snakemake asks again before it submits anything")
    return notes


def _site_notes(site: Site, estimates: Iterable[Estimate]) -> list[str]:
    gpus = [estimate.gpus for estimate in estimates]
    if site.profile is not None:
        told = ", which does not say gres and nodes in plain words" if None in gpus else ""
        return [f"GPUs and walltime: as {site.profile} asks for each run{told}; a job that is there keeps its own"]
    return ["walltime: unknown without a profile; name one with --profile profiles/slurm"] if any(gpus) else []


def _pace_notes(estimates: Sequence[Estimate]) -> list[str]:
    """Whence the seconds per step are that no run's own attempts have shown."""
    left = [estimate for estimate in estimates if estimate.steps_left]
    arms: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for estimate in left:
        if estimate.pace.source == "arm":
            arms[estimate.pace.runs].append(estimate.run.run_id)
    notes = [f"~ of {listed(runs, 3)}: the median s/step of {listed(measured, 3)}" for measured, runs in arms.items()]
    if any(estimate.pace.source == "given" for estimate in left):
        notes.append("~ of the others: as --seconds-per-step says" if notes else "~ as --seconds-per-step says")
    if unknown := [estimate.run.run_id for estimate in left if estimate.pace.source == "unknown"]:
        notes.append(f"s/step of {listed(unknown, 3)}: not measured yet; --seconds-per-step X says what you expect")
    if notes:
        notes.append("time is that of the steps alone: loading and compiling come on top")
    return notes


def _walltime_notes(estimates: Sequence[Estimate], site: Site) -> list[str]:
    """Which runs take longer than a job may."""
    lives: dict[int, list[Estimate]] = defaultdict(list)
    for estimate in estimates:
        if site.life_s and estimate.time_s and estimate.time_s > site.life_s:
            lives[math.ceil(estimate.time_s / site.life_s)].append(estimate)
    walltime = readable_duration(site.runtime_min * 60)
    return [
        f"walltime {walltime} is too short for {listed([one.run.run_id for one in some], 3)}: "
        f"{readable_duration(max(one.time_s or 0.0 for one in some))} in about {count} lives, each from a checkpoint"
        for count, some in sorted(lives.items())
    ]
