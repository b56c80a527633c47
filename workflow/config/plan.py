"""Plans the runs of a configuration: arms x factors x seeds, each with a readable id and a fingerprint.

Snakemake evaluates the plan again in every job, so this module reads no data and does not import pandas.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from common.contracts import PlanFile
from common.errors import UserError
from common.messages import join_first
from node.hub import source_kind
from trainers.protocol import StackFacts
from trainers.registry import driver_of, require_importable
from workflow import stacks
from workflow.config.imports import is_remote, local_path
from workflow.config.model import Arm, Config
from workflow.config.planned_run import (
    PlannedRun,
    fitting_facts,
    inputs_request,
    own_fields,
    planned_run,
    read_own_file,
    run_id_of,
    sha256_of,
    trained_fields,
)
from workflow.config.reading import parse_config, read_yaml
from workflow.config.sweep import factor_labels, imported_specs, points_of, require_possible_sweep

CONFIG = Path("config.yaml")
"""The configuration of a command that names none."""
# The configuration and each spec are one quoted argument of a command, and Linux allows 131,072 bytes.
_ARGUMENT_LENGTH = 100_000


@dataclass(frozen=True)
class Plan:
    """All runs of an experiment in order, and the requests for their inputs."""

    config: Config
    runs: dict[str, PlannedRun]
    """The trained runs."""
    imports: dict[str, PlannedRun]
    """The existing runs, which are read from their logs."""
    inputs: dict[str, dict[str, Any]]
    """The content of each request.json by inputs_id."""

    @property
    def all_runs(self) -> dict[str, PlannedRun]:
        """All compared runs."""
        return {**self.runs, **self.imports}

    @property
    def fingerprint(self) -> str:
        """A hash over all runs and the report's settings."""
        config = self.config
        settings: list[Any] = [config.description, config.baseline, config.warmup_steps, config.report.as_json()]
        settings.append({name: arm.same_as for name, arm in config.arms.items() if arm.same_as})
        return sha256_of([settings, [run.fingerprint for run in self.all_runs.values()]])

    def first_pairs(self, pairs: int) -> dict[str, PlannedRun]:
        """The compared runs of the first so many seeds, and all imported ones."""
        seeds = self.config.every_seed[:pairs]
        return {run_id: run for run_id, run in self.runs.items() if run.spec["seed"] in seeds} | self.imports

    def run_files(self, runs: Iterable[str]) -> list[str]:
        """The files that mark the end of each run, relative to the folder of runs."""
        ends = [(run, "imported.json" if run in self.imports else "done.json") for run in runs]
        return [f"{run}/{file}" for run, end in ends for file in (end, "steps.parquet")]

    @property
    def folder(self) -> str:
        """The folder of the experiment's results, relative to the working directory."""
        return f"results/{self.config.experiment}"

    @property
    def own_runs(self) -> list[str]:
        """The trained runs that bring their environment and their work; their steps are read from their logs."""
        return [run_id for run_id, run in self.runs.items() if not run.stack]

    @property
    def first_own_runs(self) -> list[str]:
        """Those of them that are certainly trained."""
        until = self.config.until
        first = self.first_pairs(until.least if until else len(self.config.every_seed))
        return [run_id for run_id in self.own_runs if run_id in first]

    def stack_file(self, run_id: str) -> str:
        """The file that marks a run's stack as built, and that its processes read."""
        run = self.runs[run_id]
        return f".stacks/{run.stack}/{run.lock_id}/verify.json"

    def checked_file(self, run_id: str) -> str:
        """The file that marks a run's stack as verified by today's checks."""
        run = self.runs[run_id]
        return f".stacks/{run.stack}/{run.lock_id}/verify-{self.verify_ids[run.stack]}.json"

    @cached_property
    def verify_ids(self) -> dict[str, str]:
        """The checks of each stack."""
        names = dict.fromkeys(run.stack for run in self.runs.values() if run.stack)
        return {name: stacks.verify_id(stacks.load_stack(name)) for name in names}

    def inputs_file(self, run_id: str) -> str:
        """The file that marks a run's data and model as prepared."""
        return f"{self.folder}/inputs/{self.runs[run_id].inputs_id}/inputs.json"

    def needed_files(self, run_id: str, of_run: Callable[[str], str]) -> list[str]:
        """A file that the training of a run needs; none for a run that brings its environment and its work."""
        return [of_run(run_id)] if self.runs[run_id].stack else []

    @cached_property
    def priorities(self) -> dict[str, int]:
        """The runs' priorities for Snakemake, highest for the first one."""
        return {run_id: len(self.runs) - index for index, run_id in enumerate(self._turns)}

    @cached_property
    def _turns(self) -> list[str]:
        """The trained runs in the order of their submission: which arm is first alternates by seed."""
        seeds: dict[int, list[str]] = {}
        for run in self.runs.values():
            seeds.setdefault(run.spec["seed"], []).append(run.run_id)
        return [run_id for index, ids in enumerate(seeds.values()) for run_id in (ids[::-1] if index % 2 else ids)]

    @property
    def inputs_stack_file(self) -> str:
        """The verify.json of the stack that prepares the inputs of all arms: the baseline's, if it is trained."""
        arms = {run.spec["arm"]: run.run_id for run in reversed(self.runs.values()) if run.stack}
        return self.stack_file(arms.get(self.config.baseline) or next(one for one in self.runs if self.runs[one].stack))

    def local_files(self, inputs_id: str) -> list[str]:
        """The local files of an inputs request: the data files, and the models' files except hidden ones."""
        files = []
        for key, source in _local_inputs(self.inputs[inputs_id]):
            path = local_path(source)
            # Like tree_sha256: hidden files (.git, .cache) are not part of the model.
            files += [str(path)] if key.startswith("workload.data") else _files_in(path)
        return files

    def import_files(self, run_id: str) -> list[str]:
        """The local files of an imported run's sources, without hidden files in folders."""
        sources = self.imports[run_id].spec["import"]["sources"]
        paths = [local_path(source) for source in sources if not is_remote(source)]
        return [file for path in paths for file in (_files_in(path) if path.is_dir() else [str(path)])]

    def import_state(self, run_id: str) -> list[str]:
        """Size and date of those files; a change means that the import is read again, also for an older file."""
        states = [(file, Path(file).stat()) for file in self.import_files(run_id) if Path(file).exists()]
        return [f"{file}: {state.st_size} bytes, {state.st_mtime_ns} ns" for file, state in states]

    def as_json(self) -> PlanFile:
        """The content of plan.json."""
        config = self.config
        content: PlanFile = {
            "experiment": config.experiment,
            "description": config.description,
            "baseline": config.baseline,
            "arms": {name: _arm_json(config.arm(name)) for name in config.arms},
            "sweep": {path: list(values) for path, values in config.sweep.items()},
            "seeds": list(config.every_seed),
            "warmup_steps": config.warmup_steps,
            "report": config.report.as_json(),
            "fingerprint": self.fingerprint,
            "runs": list(self.all_runs),
            "imports": list(self.imports),
            "fingerprints": {run.run_id: run.fingerprint for run in self.all_runs.values()},
        }
        if config.until is not None:
            content |= {"until": config.until.until, "most": config.until.most}
        return content


def plan_of(file: Path | None) -> Plan:
    """The plan of a configuration file, to look at its runs: its sources need not be on this machine."""
    return plan_runs(config_of(file or config_here()), cache(stack_facts))


def config_of(file: Path) -> Config:
    """The configuration of a file whose results are not elsewhere."""
    raw = read_yaml(file)
    _require_started_here(file, str(raw.get("experiment")))
    return parse_config(raw)


def config_here() -> Path:
    """The configuration of a command that names none: config.yaml, else the only experiment in this folder."""
    files = [] if CONFIG.exists() else [file for file in sorted(Path().glob("*.yaml")) if _is_experiment(file)]
    if len(files) > 1:
        raise UserError(f"several experiments are here; give one of {join_first(files, 5)}")
    return files[0] if files else CONFIG


def _is_experiment(file: Path) -> bool:
    try:
        return re.search(r"^arms:", file.read_text(encoding="utf-8"), re.MULTILINE) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _require_started_here(file: Path, experiment: str) -> None:
    """`UserError` if the results are beside the configuration and not here: paths are seen from where it started."""
    here = Path("results") / experiment
    beside = file.parent / here
    try:
        is_elsewhere = beside.is_dir() and not here.is_dir()
    except OSError:  # the name is too long, or the folder may not be read
        is_elsewhere = False
    if is_elsewhere:
        raise UserError(
            f"the results of {file} are in {beside}, and all its paths are seen from the folder where it was started; "
            f"go there first: cd {shlex.quote(str(file.parent))}, and then give {file.name}"
        )


def load_plan(raw: Mapping[str, Any]) -> Plan:
    """The plan of Snakemake's configuration, checked against the stacks and the existing files."""
    plan = plan_runs(parse_config(raw), cache(stack_facts))
    require_there(plan)
    _check_length("the configuration", raw)
    for run in plan.all_runs.values():
        _check_length(f"the specification of run {run.run_id}", run.spec)
    return plan


def require_there(plan: Plan) -> None:
    """`UserError` for a local source that is not there."""
    for where, source, instead in _local_sources(plan):
        path = local_path(source)
        try:
            exists = path.exists()
        except OSError:  # the name is too long, or the folder may not be read
            exists = False
        if not exists:
            raise UserError(f"{where}: no such file or folder: {source} (looked in {Path.cwd()}); give {instead}")
        if not (path.is_file() or path.is_dir()):
            # A reader of a pipe would wait forever.
            raise UserError(f"{where}: {source} is neither a file nor a folder; give {instead}")


def _local_sources(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Each local source of the configuration: its key, its path, and the allowed alternatives."""
    for request in plan.inputs.values():
        for key, source in _local_inputs(request):
            if key == "workload.rewards":
                yield key, source, "the folder of a reward model, or a hub id with its revision"
            else:
                yield key, source, "a path that exists, a hub id with its revision, or a builtin: source"
    for run in plan.imports.values():
        for source in run.spec["import"]["sources"]:
            if not is_remote(source):
                yield f"arms.{run.spec['arm']}.import", source, "the run's logs, or wandb:entity/project/id"


def stack_facts(name: str) -> StackFacts:
    """The plan's facts about a stack in `envs/`."""
    stack = stacks.load_stack(name)
    return StackFacts(stack.trainer, stack.engine, stack.accelerator, stack.trainer_version, stacks.lock_id(stack))


def _check_length(what: str, content: Mapping[str, Any]) -> None:
    length = len(shlex.quote(json.dumps(content)))
    if length > _ARGUMENT_LENGTH:
        raise UserError(
            f"{what} is too large: {length:,} characters as JSON, of at most {_ARGUMENT_LENGTH:,}, because it is one "
            "argument of a command; shorten its texts and options, or vary less in one experiment"
        )


def _arm_json(arm: Arm) -> dict[str, Any]:
    """An arm in plan.json; rare settings are included only if set."""
    left_out: dict[str, Any] = {name: True for name in ("import_", "same_as") if getattr(arm, name) is None}
    if arm.import_ is not None:
        left_out["import_"] = arm.import_.unset
    return arm.model_dump(mode="json", exclude=left_out)


def _files_in(folder: Path) -> list[str]:
    inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(folder / path) for path in inside if not any(part.startswith(".") for part in path.parts))


def plan_runs(config: Config, stack_facts: Callable[[str], StackFacts]) -> Plan:
    """Plans every run of a configuration.

    Ids are `<arm>[-<factor>=<value>...]-s<seed>` and depend on nothing else, so other runs do not change them. The
    fingerprint, not the id, covers everything that a run computes.
    """
    for name, arm in config.arms.items():
        (driver_of if arm.import_ is None else require_importable)(name, arm)
    require_possible_sweep(config)
    facts = {
        name: fitting_facts(name, config, stack_facts(one.stack)) for name, one in config.arms.items() if one.stack
    }
    paths = [path for one in config.imports.values() for run in one.runs for path in run.factors]
    labels = factor_labels(list(dict.fromkeys([*config.sweep, *paths])))
    plan = Plan(config, {}, {}, {})
    for fields in _trained(config, facts, labels, plan.inputs):
        _add(plan.runs, planned_run(config, fields, labels))
    for name in config.imports:
        for spec in imported_specs(config, name, facts.get(name)):
            _add(plan.imports, planned_run(config, spec, labels), others=plan.runs)
    return plan


def _trained(
    config: Config, facts: Mapping[str, StackFacts], labels: Mapping[str, str], inputs: dict[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The specification of each trained run; `inputs` gets the requests for their inputs."""
    read = cache(read_own_file)
    points = {
        name: [(*point, inputs_request(point[2]) if point[2] is not None else {}) for point in points_of(config, name)]
        for name in config.trained
    }
    # The outer loop is over seeds: equal seeds of all arms run after one another, so drift affects all arms equally.
    for seed in config.every_seed:
        for name, arm_points in points.items():
            for factors, arm, workload, request in arm_points:
                if workload is None:
                    yield own_fields(name, arm, factors, seed, run_id_of(name, factors, labels, seed))
                    continue
                inputs_id = sha256_of(request)[:8]
                inputs[inputs_id] = request
                yield trained_fields(name, arm, factors, seed, workload, facts[name], inputs_id, read)


def _add(runs: dict[str, PlannedRun], run: PlannedRun, others: Mapping[str, PlannedRun] | None = None) -> None:
    if run.run_id in runs or run.run_id in (others or {}):
        raise UserError(f"two runs have the id {run.run_id}; rename an arm")
    runs[run.run_id] = run


def _local_inputs(request: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each local source of an inputs request: its key in the configuration, and its path."""
    for part, key in (("data", "source"), ("data", "test_source"), ("model", "source")):
        if (source := request[part][key]) and source_kind(source) == "local":
            yield f"workload.{part}.{key}", source
    for reward in request.get("reward_models", ()):
        if not reward["revision"]:
            yield "workload.rewards", reward["model"]
