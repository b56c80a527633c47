"""Checks whether the runs end and tell something: walltime, checkpoints, steps and seeds."""

from __future__ import annotations

from collections.abc import Iterator

from common.findings import Finding
from trainers.cases import Case
from workflow.cluster.progress import readable_duration
from workflow.cluster.site import Site
from workflow.config.plan import Plan
from workflow.preflight.surroundings import Surroundings, finding_of


def walltime(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Checkpoints that come too late for the walltime."""
    life, pace = place.site.life_s, place.paces.get(case.arm)
    if not life or not case.on_gpu:
        return
    save, steps = int(case.workload.get("save_steps") or 0), int(case.workload["steps"])
    source = f"docs/slurm.md: a job goes on from its last checkpoint; profile {place.site.profile or 'unknown'}"
    if pace is not None:
        yield from _paced(case, place.site, source, pace, steps, save)
    elif not save:
        yield finding_of(
            case,
            "odd",
            "no-checkpoints",
            f"no checkpoints (save_steps: 0), and a job is stopped after {readable_duration(life)} of training",
            "a run that takes longer would start from nothing each time and never end; its step time is not known "
            "yet (--seconds-per-step X says what you expect)",
            source,
            "workload.save_steps: as many steps as you can bear to lose",
        )


def _paced(case: Case, site: Site, source: str, pace: float, steps: int, save: int) -> Iterator[Finding]:
    """What the time of a step, in seconds, makes of a run that outlasts one life of its job."""
    life, whole, between = site.life_s, steps * pace, save * pace
    if whole <= life:
        return
    trains, comes = readable_duration(life), readable_duration(between)
    if not 0 < between <= life:
        yield finding_of(
            case,
            "impossible",
            "never-ends",
            f"{steps} steps of about {readable_duration(pace)} take {readable_duration(whole)}, a job trains {trains}, "
            f"and {f'a checkpoint comes every {comes}' if save else 'there are no checkpoints'}",
            "every life of the job would start where the one before it did",
            source,
            f"workload.save_steps: {max(1, int(life / 4 // pace))} or fewer; or a longer runtime in the profile",
        )
    elif between > life / 4:
        yield finding_of(
            case,
            "odd",
            "rare-checkpoints",
            f"a checkpoint every {save} steps, about {comes}",
            f"a job trains {trains} and its last steps are lost unless a checkpoint can be written at the end of its "
            "time; a node's failure loses as much",
            source,
            f"workload.save_steps: {max(1, int(life / 10 // pace))}",
        )
    if pace > site.stop_grace_s:
        yield finding_of(
            case,
            "odd",
            "stop-grace",
            f"a step takes about {readable_duration(pace)}, and a job is told to stop "
            f"{readable_duration(site.stop_grace_s)} before its limit",
            "the step that is running then cannot end: its work is lost in every life",
            source,
            f"stop_grace_s in the profile: {int(pace * 1.5)} or more",
        )


def few_steps(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Too few steps that count."""
    if case.on_gpu and int(case.workload["steps"]) < 3:
        yield finding_of(
            case,
            "odd",
            "few-steps",
            f"a run has {case.workload['steps']} steps",
            "the first is not like the others (compilation, graphs, caches), and one or two steps tell no spread",
            "docs/preflight.md#odd",
            "workload.steps: 10 or more",
        )


CHECKS = (walltime, few_steps)


def experiment_findings(plan: Plan) -> Iterator[Finding]:
    """What holds of the experiment as a whole."""
    seeds: dict[str, set[int]] = {arm: set() for arm in plan.config.arms}
    for run in plan.all_runs.values():
        seeds[run.spec["arm"]].add(run.spec["seed"])
    alone = tuple(arm for arm, found in seeds.items() if len(found) == 1)
    if alone:
        imported = any(arm in plan.config.imports for arm in alone)
        yield Finding(
            "odd",
            "one-seed",
            alone,
            "one run per arm (one seed)",
            "lengths and so times differ from run to run; one run tells no interval, and the report can only say so",
            "docs/preflight.md#odd",
            "seeds: three or more" + ("; import three runs or more of an arm" if imported else ""),
        )
    trained = tuple(plan.config.trained)
    if trained and plan.config.warmup_steps == 0:
        yield Finding(
            "odd",
            "no-warmup",
            trained,
            "no step is left out as warm-up (warmup_steps: 0)",
            "the first step holds compilation, graph capture and cold caches, which differ between engines",
            "docs/preflight.md#odd",
            "warmup_steps: 1 or more",
        )
