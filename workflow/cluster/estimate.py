"""Estimates what snakemake would do if it were started now, and what that costs."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workflow.cluster.experiment import of_plan
from workflow.cluster.inquiry import SlurmSays
from workflow.cluster.paths import RunPaths
from workflow.cluster.site import Site, gpus_of_gres
from workflow.cluster.state import RunState, run_states
from workflow.config.plan import Plan, PlannedRun

_CHECKPOINT = re.compile(r"(?:checkpoint-|global_step_)(\d+)")


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per step, and whence: measured in the run itself (own), in other `runs` of its arm, given, or unknown."""

    step_s: float | None
    source: str
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run would still take."""

    run: PlannedRun
    action: str
    """skip, attach, resume, submit, or `attach?`: there may be a job, but Slurm does not say."""
    told: str
    gpus: int | None
    pace: Pace
    steps_left: int

    @property
    def time_s(self) -> float | None:
        """How long its remaining steps take."""
        if not self.steps_left:
            return 0.0
        return None if self.pace.step_s is None else self.steps_left * self.pace.step_s

    @property
    def gpu_hours(self) -> float | None:
        """What its remaining steps take of the GPUs."""
        if not self.steps_left or self.gpus == 0:
            return 0.0
        return None if self.time_s is None or self.gpus is None else self.gpus * self.time_s / 3600


def estimates_of(plan: Plan, site: Site, given_step_s: float | None) -> tuple[list[Estimate], SlurmSays]:
    """Every run's, in the plan's order, and what Slurm said of the jobs that are there."""
    experiment = of_plan(plan)
    states, says = run_states(experiment)
    runs = list(plan.runs.values())
    paces = paces_of(runs, states, given_step_s)
    saved = [
        steps_saved(experiment.run(run.run_id), run.fingerprint, state.step) if state.attempt is not None else 0
        for run, state in zip(runs, states, strict=True)
    ]
    return [_estimate(*each, site) for each in zip(runs, states, saved, paces, strict=True)], says


def usual_profile(plan: Plan | None = None) -> Path | None:
    """The folder of the Slurm profile, if there is one; of no use to an experiment that needs no GPU."""
    on_gpus = plan is None or any(run.spec["workload"]["gpus_per_node"] for run in plan.runs.values())
    return next((folder for folder in (Path("slurm"), Path("profiles/slurm")) if on_gpus and folder.is_dir()), None)


def paces_of(runs: Sequence[PlannedRun], states: Sequence[RunState], given_step_s: float | None) -> list[Pace]:
    """Each run's seconds per step: its own, else its arm's (with its factors, if there are any), else the given."""
    of_arm: dict[str, list[RunState]] = defaultdict(list)
    of_point: dict[str, list[RunState]] = defaultdict(list)
    for run, state in zip(runs, states, strict=True):
        if state.step_s is not None:
            of_arm[run.spec["arm"]].append(state)
            of_point[_point(run)].append(state)
    given = Pace(given_step_s, "given" if given_step_s is not None else "unknown")
    arms = {arm: _median_pace(found) for arm, found in of_arm.items()}
    points = {point: _median_pace(found) for point, found in of_point.items()}
    return [
        Pace(state.step_s, "own")
        if state.step_s is not None
        else (points and points.get(_point(run))) or arms.get(run.spec["arm"], given)
        for run, state in zip(runs, states, strict=True)
    ]


def _point(run: PlannedRun) -> str:
    return json.dumps([run.spec["arm"], run.spec["factors"]], sort_keys=True)


def _median_pace(states: Sequence[RunState]) -> Pace:
    seconds = [state.step_s for state in states if state.step_s is not None]
    return Pace(statistics.median(seconds), "arm", tuple(state.run_id for state in states))


def _estimate(run: PlannedRun, state: RunState, saved: int, pace: Pace, site: Site) -> Estimate:
    steps, gpus = int(run.spec["workload"]["steps"]), site.gpus(run.spec["workload"])
    if state.state == "finished":
        return Estimate(run, "skip", "skip: finished", gpus, pace, 0)
    name = state.job.named if state.job else ""
    if state.live and not state.other:
        gpus = _gpus_of(state) if state.job and state.job.on_slurm else gpus
        if state.state == "unknown":
            return Estimate(run, "attach?", f"attach: {name}, if it lives", gpus, pace, steps - state.step)
        return Estimate(run, "attach", f"attach: {name}, {state.state}", gpus, pace, steps - state.step)
    after = f" after {name} of another configuration" if state.live else ""
    if saved:
        return Estimate(run, "resume", f"resume after step {saved}{after}", gpus, pace, steps - saved)
    return Estimate(run, "submit", f"submit{after}", gpus, pace, steps)


def steps_saved(run: RunPaths, fingerprint: str, last_step: int) -> int:
    """The step from whose checkpoint a run goes on; where a checkpoint's name does not tell it, the last one done."""
    names = [path.name for path in run.folder.glob(f"checkpoints/{fingerprint[:12]}-*/*")]
    told = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    return max(told, default=last_step if names else 0)


def _gpus_of(state: RunState) -> int | None:
    """What a job that is there has asked for."""
    site = state.job.order.get("site") or {} if state.job else {}
    gpus = gpus_of_gres(str(site.get("gres") or ""))
    return None if gpus is None else gpus * int(site.get("nodes") or 1)
