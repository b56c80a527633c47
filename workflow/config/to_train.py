"""Says which runs of a plan are wanted after the looks so far, and which the preflight lets train."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.files import write_json
from common.verdicts import FIRST_LOOK, looks_so_far, resolving_look
from workflow.config.finished_before import left_to_make, paths_of
from workflow.config.plan import Plan
from workflow.config.planned_run import PlannedRun
from workflow.runs.history import read_object


def pairs_wanted(plan: Plan, look: Callable[[int], Mapping[str, Any]]) -> int:
    """The pairs of runs that are wanted after the looks so far (`look`: of `looks_so_far`)."""
    until = plan.config.until
    if until is None or not plan.runs:
        return len(plan.config.every_seed)
    wanted = FIRST_LOOK
    for pairs, found in looks_so_far(look, until.until, until.most):
        if not found["more"]:
            return pairs
        wanted = pairs + 1
    return wanted


def wanted_runs(plan: Plan, checkpoints: Any, dry: bool = False) -> dict[str, PlannedRun]:
    """All runs, or those of the pairs that are wanted after the looks so far; `checkpoints` is Snakemake's object.

    Its `get` raises Snakemake's exception for a look that is still to be made, or to be made again. A dry run has none
    of those that finished under other names: the start gives them their files before any job.
    """

    def look(pairs: int) -> Mapping[str, Any]:
        return read_object(Path(checkpoints.look.get(pairs=pairs).output[0]))

    runs = plan.first_pairs(pairs_wanted(plan, look))
    return left_to_make(plan, runs) if dry else runs


def is_trained(plan: Plan, run_id: str) -> bool:
    """Whether a run has finished as the plan declares it."""
    done = read_object(paths_of(plan, run_id).done)
    return bool(done.get("fingerprint") == plan.runs[run_id].fingerprint)


def clearance(plan: Plan, run_id: str) -> str:
    """The file by which the preflight lets a run train, as the plan declares it."""
    return f"{plan.folder}/cleared/{run_id}-{plan.runs[run_id].fingerprint[:12]}"


def clearances(plan: Plan, runs: Iterable[str] | None = None) -> list[str]:
    """Those of the runs (by default of all) that are still to be trained."""
    return [clearance(plan, run_id) for run_id in (plan.runs if runs is None else runs) if not is_trained(plan, run_id)]


def checks_before(plan: Plan) -> list[str]:
    """The files that mark the stacks of the runs that are still to be trained as verified by today's checks.

    A clearance needs them, and no training does: with other checks a finished run would have another input.
    """
    stacks = {run.stack: run_id for run_id, run in plan.runs.items() if run.stack and not is_trained(plan, run_id)}
    return [plan.checked_file(run_id) for run_id in stacks.values()]


def clear(plan: Plan) -> None:
    """Remove those of other configurations: one that comes back is cleared, and trained, again.

    Snakemake without metadata, or with `--rerun-triggers mtime`, accepts a done.json of another configuration unless a
    file that its training needs is new.
    """
    for file in map(Path, clearances(plan)):
        run_id = file.name.rpartition("-")[0]
        for old in file.parent.glob(f"{glob.escape(run_id)}-{'[0-9a-f]' * 12}"):
            if old != file:
                old.unlink(missing_ok=True)


def withdraw_old(plan: Plan) -> None:
    """Remove the clearances of runs whose done.json is of another configuration; made again, they train it.

    After `snakemake --touch` they are there, and all dates and parameters fit; plan.json is then an earlier one, too.
    """
    file = Path(plan.folder) / "plan.json"
    if file.exists() and read_object(file).get("fingerprint") != plan.fingerprint:
        write_json(file, plan.as_json())
    for run_id in plan.runs:
        if paths_of(plan, run_id).done.exists() and not is_trained(plan, run_id):
            Path(clearance(plan, run_id)).unlink(missing_ok=True)


def needed_before(plan: Plan, run_id: str, settings_ids: Mapping[str, str]) -> list[str]:
    """The settings and the clearance that a training needs; `settings_ids` name the files of the settings.

    For a finished run those that it needed then: another input would train it again.
    """
    file = clearance(plan, run_id)
    settings = plan.needed_files(run_id, lambda run_id: f"{plan.folder}/settings/{settings_ids[run_id]}.json")
    return [*settings, *([file] if not is_trained(plan, run_id) or Path(file).exists() else [])]


def pairs_that_resolved(folder: Path, until: float, most: int) -> int | None:
    """The pairs of runs after which the looks in an experiment's folder want no more; None while they do."""
    found = resolving_look(lambda pairs: read_object(folder / "looks" / f"{pairs}.json"), until, most)
    return None if found is None else found[0]


@dataclass(frozen=True, slots=True)
class Outlook:
    """The pairs of runs of an experiment as far as its looks tell."""

    wanted: int
    """Those that are trained in any case."""
    likely: int | None
    """Those that are likely to resolve the verdicts; None before the first look."""
    known: bool
    """Whether the verdicts are resolved."""


def outlook(plan: Plan) -> Outlook:
    """What the files of the looks say."""

    def look(pairs: int) -> Mapping[str, Any]:
        return read_object(Path(plan.folder) / "looks" / f"{pairs}.json")

    wanted = pairs_wanted(plan, look)
    if (last := look(wanted)) and not last["more"]:
        return Outlook(wanted, wanted, known=True)
    before = look(wanted - 1)
    return Outlook(wanted, before["pairs"] + before["more"] if before else None, known=False)
