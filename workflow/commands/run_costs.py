"""Estimates what snakemake would do if it started now, and the cost of that."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.messages import join_first, table_lines
from common.verdicts import count_of
from workflow.commands.status import readable_step
from workflow.config.finished_before import finished_before
from workflow.config.plan import Plan
from workflow.config.planned_run import PlannedRun
from workflow.config.to_train import Outlook, outlook
from workflow.runs.experiment import Experiment, is_imported, planned_experiment
from workflow.runs.history import steps_of
from workflow.runs.progress import readable_duration
from workflow.runs.run_state import RunState, run_states
from workflow.slurm.sbatch import gpus_of_gres
from workflow.slurm.shared_queue import Queue
from workflow.slurm.site import Site
from workflow.stacks.verification import stack_notes

_HEADER = ("run", "trainer", "engine", "stack", "steps", "GPUs", "s/step", "time", "GPU-h", "next")
_NUMBERS = ("steps", "GPUs", "s/step", "time", "GPU-h")
_STARTS = ("start", "resume")


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds per step; `source`: own (this run), arm (`runs` of its arm), given (by the user), or unknown."""

    step_s: float | None
    source: str
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """The remaining cost of a run."""

    run: PlannedRun
    action: str
    """What becomes of it now, in words that begin with skip, attach, start, resume, if needed or not needed."""
    gpus: int | None
    pace: StepTime
    steps_left: int | None  # None: unknown

    @property
    def starts(self) -> bool:
        return self.action.startswith(_STARTS)

    @property
    def time_s(self) -> float | None:
        if self.steps_left == 0:
            return 0.0
        return None if self.pace.step_s is None or self.steps_left is None else self.steps_left * self.pace.step_s

    @property
    def gpu_hours(self) -> float | None:
        if self.steps_left == 0 or self.gpus == 0:
            return 0.0
        return None if self.time_s is None or self.gpus is None else self.gpus * self.time_s / 3600


def estimates_of(
    plan: Plan, experiment: Experiment, site: Site, given_step_s: float | None
) -> tuple[list[Estimate], Queue]:
    """An estimate of each run, in the plan's order, and squeue's answer on the existing jobs."""
    states, queue = run_states(experiment)
    runs = list(plan.runs.values())
    before = finished_before(plan)
    estimates = []
    for run, state, pace in zip(runs, states, _paces(runs, states, given_step_s), strict=True):
        if run.run_id in before:
            text = f"skip: finished before, as {before[run.run_id].run.folder}"
            estimates.append(Estimate(run, text, site.gpus(run.spec["workload"]), pace, 0))
        else:
            kept = experiment.run(run.run_id).folder.glob(f"checkpoints/{run.fingerprint[:12]}-*/*")
            estimates.append(_estimate(run, state, any(kept), pace, site))
    return estimates, queue


def _paces(runs: Sequence[PlannedRun], states: Sequence[RunState], given_step_s: float | None) -> list[StepTime]:
    """Each run's pace: its own, else its arm's with the same factors, else its arm's, else the given one."""
    measured: dict[str, list[RunState]] = defaultdict(list)
    for run, state in zip(runs, states, strict=True):
        if state.step_s is not None:
            measured[run.spec["arm"]].append(state)
            measured[run.case].append(state)
    given = StepTime(given_step_s, "given" if given_step_s is not None else "unknown")
    medians = {}
    for key, found in measured.items():
        median = statistics.median(state.step_s for state in found if state.step_s is not None)
        medians[key] = StepTime(median, "arm", tuple(state.run_id for state in found))
    return [
        StepTime(state.step_s, "own")
        if state.step_s is not None
        else medians.get(run.case) or medians.get(run.spec["arm"], given)
        for run, state in zip(runs, states, strict=True)
    ]


def _estimate(run: PlannedRun, state: RunState, has_checkpoint: bool, pace: StepTime, site: Site) -> Estimate:
    steps, gpus = steps_of(run.spec), site.gpus(run.spec["workload"])
    # A checkpoint may be some steps older than the last one.
    done = state.step if state.live or has_checkpoint else 0
    left = None if steps is None else steps - done
    if state.state == "finished":
        return Estimate(run, "skip: finished", gpus, pace, 0)
    if state.state == "not needed":
        return Estimate(run, "not needed", gpus, pace, left)
    name = state.order.label if state.order else "a job of another folder"
    if state.live and not state.other:
        if state.order and state.order.on_slurm:  # the job keeps the GPUs that it asked for
            asked = state.order.content.get("site") or {}
            gpus = gpus_of_gres(str(asked.get("gres") or "")) * int(asked.get("nodes") or 1)
        is_known = "if it still exists" if state.state == "unknown" else state.state
        return Estimate(run, f"attach: {name}, {is_known}", gpus, pace, left)
    after = f" after {name} of another configuration" if state.live else ""
    if has_checkpoint:
        return Estimate(run, f"resume from its checkpoint{after}", gpus, pace, left)
    return Estimate(run, f"start{after}", gpus, pace, steps)


@dataclass(frozen=True)
class Cost:
    """What each run of a plan would do now, and cost."""

    plan: Plan
    experiment: Experiment
    site: Site
    estimates: list[Estimate]
    ahead: Outlook
    unavailable: str
    """Why Slurm's jobs are unknown; empty if they are known."""

    @property
    def starting(self) -> list[dict[str, Any]]:
        """The specifications of the runs that would be submitted."""
        return [one.run.spec for one in self.estimates if one.starts or one.action == "if needed"]

    @property
    def paces(self) -> dict[str, float]:
        """Arm -> seconds per step, as far as it is known."""
        return {one.run.spec["arm"]: one.pace.step_s for one in reversed(self.estimates) if one.pace.step_s is not None}

    def as_json(self) -> list[dict[str, Any]]:
        """The output of `--json`: a run each."""
        return [
            {
                "run": one.run.run_id,
                "action": one.action,
                "gpus": one.gpus,
                "step_s": one.pace.step_s,
                "steps_left": one.steps_left,
                "gpu_hours": one.gpu_hours,
            }
            for one in self.estimates
        ]


def cost_of(plan: Plan, site: Site, given_step_s: float | None) -> Cost:
    """The cost of a plan on a site; `given_step_s`: of arms without a measured step."""
    experiment = planned_experiment(plan)
    estimates, queue = estimates_of(plan, experiment, site, given_step_s)
    ahead = outlook(plan)
    certain = plan.first_pairs(ahead.wanted)
    estimates = [
        replace(one, action="if needed") if one.starts and one.run.run_id not in certain else one for one in estimates
    ]
    return Cost(plan, experiment, site, estimates, ahead, queue.error or "")


def cost_lines(cost: Cost) -> list[str]:
    """The table of runs, what is left in all, and what the numbers rest on."""
    plan, experiment, site, estimates = cost.plan, cost.experiment, cost.site, cost.estimates
    done = {run.run_id for run in experiment.imports if is_imported(experiment, run)}
    imported = [_import_row(run, run.run_id in done) for run in plan.imports.values()]
    table = table_lines(_HEADER, [*map(_row, estimates), *imported], _NUMBERS)
    left = [one for one in estimates if one.steps_left != 0 and one.action != "not needed"]
    sums = [count_of(len(left), "run"), _time(left), f"{hours} GPU-h" if (hours := _gpu_hours(left)) else ""]
    notes = [
        *_pair_notes(plan, cost.ahead, estimates),
        *_site_notes(site, estimates),
        *_pace_notes(left),
    ]
    if cost.unavailable:
        notes.append(f"{cost.unavailable}: the state of its jobs is unknown; snakemake asks again before it submits")
    notes += stack_notes(experiment.stacks)
    return [*table, "", f"left: {', '.join(filter(None, sums))}", *(f"- {note}" for note in notes)]


def _pair_notes(plan: Plan, ahead: Outlook, estimates: Sequence[Estimate]) -> list[str]:
    """With `seeds: {until, most}`: the least, the likely and the most that is still to be spent."""
    until = plan.config.until
    if until is None or not plan.runs:
        return []
    if ahead.known:
        return [f"the verdict is known after {count_of(ahead.wanted, 'run pair')}; at most {until.most} were allowed"]

    def cost(pairs: int) -> str:
        runs = plan.first_pairs(pairs)
        part = [one for one in estimates if one.run.run_id in runs]
        hours, time = _gpu_hours(part), _time(part)
        return f"{count_of(pairs, 'run pair')}" + (f", {hours} GPU-h" if hours else f", {time}" if time else "")

    likely = cost(min(ahead.likely, until.most)) if ahead.likely else f"known after the first {until.least} run pairs"
    return [
        f"until the verdict is resolved to {until.until:g}: least {cost(ahead.wanted)}; likely {likely}; most "
        f"{cost(until.most)}"
    ]


def _row(estimate: Estimate) -> tuple[str, ...]:
    spec, pace = estimate.run.spec, estimate.pace
    step_s = "?" if pace.step_s is None else ("" if pace.source == "own" else "~") + readable_step(pace.step_s)
    return (
        estimate.run.run_id,
        *(str(spec[key] or "-") for key in ("trainer", "engine", "stack")),
        str(steps_of(spec) or "?"),
        "?" if estimate.gpus is None else str(estimate.gpus),
        step_s,
        _time([estimate]),
        _gpu_hours([estimate]),
        estimate.action,
    )


def _import_row(run: PlannedRun, done: bool) -> tuple[str, ...]:
    sources = run.spec["import"]["sources"]
    action = f"{'skip: imported' if done else 'import'} from {join_first(sources, 1)}"
    return (run.run_id, run.spec["trainer"], run.spec["engine"], run.stack or "-", "", "", "", "", "", action)


def _time(estimates: Iterable[Estimate]) -> str:
    """The time of the runs in sequence; empty if none trains."""
    times = [estimate.time_s for estimate in estimates if estimate.steps_left != 0]
    return _sum(times, readable_duration) if times else ""


def _gpu_hours(estimates: Iterable[Estimate]) -> str:
    hours = [estimate.gpu_hours for estimate in estimates if estimate.steps_left != 0 and estimate.gpus != 0]
    return _sum(hours, lambda value: f"{value:,.0f}" if value >= 1000 else f"{value:.1f}") if hours else ""


def _sum(values: Sequence[float | None], readable: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "?"
    return ("> " if len(known) < len(values) else "") + readable(sum(known))


def _site_notes(site: Site, estimates: Iterable[Estimate]) -> list[str]:
    gpus = [estimate.gpus for estimate in estimates]
    if site.profile is not None:
        unread = ", whose gres or nodes contain no plain number" if None in gpus else ""
        return [f"GPUs and walltime: as {site.profile} asks for each run{unread}; an existing job keeps its own"]
    return ["walltime: unknown without a profile; name one with --profile"] if any(gpus) else []


def _pace_notes(left: Sequence[Estimate]) -> list[str]:
    """Where the seconds of a step come from, of the runs that are left."""
    arms: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for estimate in left:
        if estimate.pace.source == "arm":
            arms[estimate.pace.runs].append(estimate.run.run_id)
    notes = [
        f"~ of {join_first(runs, 3)}: the median s/step of {join_first(measured, 3)}" for measured, runs in arms.items()
    ]
    if any(estimate.pace.source == "given" for estimate in left):
        notes.append("~ of the others: from --seconds-per-step" if notes else "~ from --seconds-per-step")
    if unknown := [estimate.run.run_id for estimate in left if estimate.pace.source == "unknown"]:
        notes.append(f"s/step of {join_first(unknown, 3)}: not measured yet; give your own with --seconds-per-step X")
    return [*notes, "time counts only the steps; loading and compiling are extra"] if notes else []
