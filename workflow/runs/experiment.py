"""Lists an experiment's runs, from a configuration or from its plan.json."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from common.contracts import PlanFile, read_file
from common.errors import UserError
from common.files import inputs_sha256
from common.messages import print_message, unknown_name
from workflow.config.plan import Plan, config_here, config_of, plan_runs, stack_facts
from workflow.config.to_train import pairs_that_resolved
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
        file = config or config_here()
        known = config_of(file)
        try:
            plan = plan_runs(known, cache(stack_facts))
        except UserError as error:  # such as a script that is not on this machine
            if not (Path("results") / known.experiment / "plan.json").is_file():
                raise
            print_message(f"warning: the runs are those of its last start, as {file} cannot be planned here: {error}")
            return lambda: named_experiment(known.experiment)
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
