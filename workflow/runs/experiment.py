"""Lists an experiment's runs, from a configuration or from its plan.json, and how many pairs of them its looks want."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.contracts import PlanFile, read_file
from common.errors import UserError
from common.files import inputs_sha256
from common.messages import unknown_name
from common.verdicts import FIRST_LOOK, looks_so_far, resolving_look
from workflow.config.finished_before import left_to_make
from workflow.config.plan import Plan, plan_of
from workflow.config.planned_run import PlannedRun
from workflow.runs.history import read_object, steps_of
from workflow.runs.paths import RunPaths


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """A run as a plan declares it; None is unknown."""

    run_id: str
    fingerprint: str
    steps: int | None = None
    inputs_sha256: dict[str, str] | None = None
    needed: bool = True
    """False for a run of a later pair than those that resolved the verdicts (`seeds: {until, most}`)."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment: its folder, and its runs in the plan's order."""

    name: str
    folder: Path
    runs: list[ExpectedRun]  # the trained runs
    imports: list[ExpectedRun] = field(default_factory=list)  # the runs that are imported from their logs elsewhere
    stacks: tuple[str, ...] = ()  # the stacks of the trained arms

    def run(self, run_id: str) -> RunPaths:
        return RunPaths(self.folder / "runs" / run_id)

    @property
    def cancelled(self) -> Path:
        return self.run("any").cancelled


def find_experiment(config: Path | None, name: str | None) -> Callable[[], Experiment]:
    """A function that reads the current files of a command's experiment; a configuration is read once, now."""
    if name is None:
        plan = plan_of(config)
        return lambda: planned_experiment(plan)
    if config is not None:
        raise UserError(f"give a configuration or --experiment, not both (got {config} and {name})")
    return lambda: named_experiment(name)


def planned_experiment(plan: Plan) -> Experiment:
    """The experiment of a configuration."""
    inputs = {
        inputs_id: _prepared(Path(plan.folder) / "inputs" / inputs_id / "inputs.json") for inputs_id in plan.inputs
    }
    runs = [
        # A run without inputs has no hashes of them.
        ExpectedRun(run.run_id, run.fingerprint, steps_of(run.spec), inputs[run.inputs_id] if run.inputs_id else {})
        for run in plan.runs.values()
    ]
    if (until := plan.config.until) is not None:
        runs = _marked(runs, Path(plan.folder), until.until, until.most)
    imports = [ExpectedRun(run.run_id, run.fingerprint) for run in plan.imports.values()]
    stacks = tuple(dict.fromkeys(run.stack for run in plan.runs.values() if run.stack))
    return Experiment(plan.config.experiment, Path(plan.folder), runs, imports, stacks)


def named_experiment(name: str) -> Experiment:
    """The experiment of a name, from its plan.json."""
    folder = Path("results") / name
    if not (folder / "plan.json").is_file():
        known = sorted(file.parent.name for file in Path("results").glob("*/plan.json"))
        raise UserError(unknown_name("experiment", name, known) + "; an experiment has a results/NAME/plan.json")
    plan = read_file(PlanFile, folder / "plan.json", "snakemake")
    try:
        fingerprints, imported = plan["fingerprints"], set(plan.get("imports", ()))
        expected = [ExpectedRun(run_id, fingerprints[run_id]) for run_id in plan["runs"]]
        runs = [run for run in expected if run.run_id not in imported]
        if "most" in plan:
            runs = _marked(runs, folder, plan["until"], plan["most"])
        stacks = tuple(dict.fromkeys(arm["stack"] for arm in plan.get("arms", {}).values() if arm.get("stack")))
        return Experiment(name, folder, runs, [run for run in expected if run.run_id in imported], stacks)
    except (KeyError, TypeError):
        raise UserError(f"{folder / 'plan.json'} is damaged or too old; start snakemake to rewrite it") from None


def _marked(runs: Sequence[ExpectedRun], folder: Path, until: float, most: int) -> list[ExpectedRun]:
    """The trained runs, with those that the looks do not want marked; their seeds are 0, 1, 2 and so on."""
    pairs = pairs_that_resolved(folder, until, most)
    # A run's id ends with its seed.
    return [replace(run, needed=pairs is None or int(run.run_id.rpartition("-s")[2]) < pairs) for run in runs]


def unplanned(experiment: Experiment) -> Experiment:
    """The experiment's runs that have a folder and are not in the plan: those of an earlier plan."""
    names = run_folders(experiment.folder) - {run.run_id for run in (*experiment.runs, *experiment.imports)}
    return Experiment(experiment.name, experiment.folder, [ExpectedRun(name, "") for name in sorted(names)])


def run_folders(experiment: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(experiment / "runs") if entry.is_dir()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def is_imported(experiment: Experiment, run: ExpectedRun) -> bool:
    """Whether a run was imported as the plan declares it."""
    file = experiment.run(run.run_id).folder / "imported.json"
    return read_object(file).get("fingerprint") == run.fingerprint


def _prepared(inputs: Path) -> dict[str, str] | None:
    """The hashes of the prepared data and model; None until they are prepared."""
    try:
        return inputs_sha256(read_object(inputs))
    except (KeyError, TypeError):
        return None


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
    done = read_object(RunPaths(Path(plan.folder) / "runs" / run_id).done)
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
