"""Plans the runs of a configuration: arms x factors x seeds, each with a readable id and a fingerprint.

Quick: Snakemake evaluates it again in every job, so nothing here reads data or imports pandas.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from common.contracts import PlanFile
from common.errors import UserError
from common.files import fingerprint_of
from node.hub import source_kind
from trainers.registry import StackFacts, driver_of, require_importable, trainer_named
from trainers.reward_settings import without_code
from trainers.workload import Workload
from workflow import stacks
from workflow.config.imports import is_remote, local_path
from workflow.config.model import Arm, Config
from workflow.config.own_files import options_json, read_own_file, workload_json
from workflow.config.reading import parse_config
from workflow.config.sweep import factor_labels, imported_specs, points_of, require_possible_sweep, require_same_factors

SPEC_VERSION = 1
_ID_LENGTH = 80
# The configuration and each spec travel as one argument of a command, quoted, and Linux ends one at 131,072 bytes.
_ARGUMENT_LENGTH = 100_000
_LOOKS_LIKE_ANOTHER_TYPE = re.compile(r"true|false|none|[-+.\d].*|inf|nan")


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run: `spec` is the whole of spec.json. One that is imported has no lock and no inputs."""

    run_id: str
    stack: str
    lock_id: str
    inputs_id: str
    fingerprint: str
    spec: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """All runs of an experiment, in the order they are wanted, and what their inputs are made from."""

    config: Config
    runs: dict[str, PlannedRun]
    """Those that are trained."""
    imports: dict[str, PlannedRun]
    """Those that exist already, and are read from what they logged."""
    inputs: dict[str, dict[str, Any]]
    """inputs_id -> request.json"""

    @property
    def all_runs(self) -> dict[str, PlannedRun]:
        """Every run that is compared."""
        return {**self.runs, **self.imports}

    @property
    def fingerprint(self) -> str:
        """One hash over all runs: it changes when any of them does, or a setting of the report."""
        config = self.config
        settings: list[Any] = [config.description, config.baseline, config.warmup_steps, config.report.as_json()]
        settings.append({name: arm.same_as for name, arm in config.arms.items() if arm.same_as})
        return _sha256([settings, [run.fingerprint for run in self.all_runs.values()]])

    @property
    def run_files(self) -> list[str]:
        """What stands for each run's end, below the folder of runs."""
        ends = [*((run, "done.json") for run in self.runs), *((run, "imported.json") for run in self.imports)]
        return [f"{run}/{file}" for run, end in ends for file in (end, "steps.parquet")]

    @property
    def folder(self) -> str:
        """Where the experiment's results lie, relative to the working directory."""
        return f"results/{self.config.experiment}"

    def stack_file(self, run_id: str) -> str:
        """The file that stands for a run's built stack."""
        run = self.runs[run_id]
        return f".stacks/{run.stack}/{run.lock_id}/verify.json"

    def inputs_file(self, run_id: str) -> str:
        """The file that stands for a run's prepared data and model."""
        return f"{self.folder}/inputs/{self.runs[run_id].inputs_id}/inputs.json"

    def priority(self, run_id: str) -> int:
        """Higher for runs that come earlier in the plan."""
        return len(self.runs) - self._order[run_id]

    @cached_property
    def _order(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.runs)}

    @property
    def inputs_stack_file(self) -> str:
        """The stack whose libraries prepare the inputs, once for all arms: the baseline's, if that is trained."""
        arms = {run.spec["arm"]: run.run_id for run in reversed(self.runs.values())}
        return self.stack_file(arms.get(self.config.baseline) or next(iter(self.runs)))

    def local_files(self, inputs_id: str) -> list[str]:
        """The local files that inputs are made from: the data's, and all of a model's folder but the hidden ones."""
        request = self.inputs[inputs_id]
        data, model = (request[part]["source"] for part in ("data", "model"))
        test = request["data"]["test_source"]
        files = [str(local_path(source)) for source in (data, test) if source and source_kind(source) == "local"]
        folders = [model] if source_kind(model) == "local" else []
        for folder in [*folders, *_local_reward_models(request)]:
            # As tree_sha256 reads them: a hidden file (.git, .cache) is no part of the model.
            files += _files_in(local_path(folder))
        return files

    def import_files(self, run_id: str) -> list[str]:
        """The local files that an imported run is read from: of a folder, all in it but the hidden ones."""
        sources = self.imports[run_id].spec["import"]["sources"]
        paths = [local_path(source) for source in sources if not is_remote(source)]
        return [file for path in paths for file in (_files_in(path) if path.is_dir() else [str(path)])]

    def import_state(self, run_id: str) -> list[str]:
        """Size and date of those files: one that is replaced by an older one must be read again, too."""
        states = [(file, Path(file).stat()) for file in self.import_files(run_id) if Path(file).exists()]
        return [f"{file}: {state.st_size} bytes, {state.st_mtime_ns} ns" for file, state in states]

    def as_json(self) -> PlanFile:
        """The content of plan.json."""
        config = self.config
        return {
            "experiment": config.experiment,
            "description": config.description,
            "baseline": config.baseline,
            "arms": {name: _arm_json(config.arm(name)) for name in config.arms},
            "sweep": {path: list(values) for path, values in config.sweep.items()},
            "seeds": list(config.seeds),
            "warmup_steps": config.warmup_steps,
            "report": config.report.as_json(),
            "fingerprint": self.fingerprint,
            "runs": list(self.all_runs),
            "imports": list(self.imports),
            "fingerprints": {run.run_id: run.fingerprint for run in self.all_runs.values()},
        }


def load_plan(raw: Mapping[str, Any]) -> Plan:
    """The plan of a configuration as Snakemake holds it, checked against the stacks and the files that are there."""
    plan = plan_runs(parse_config(raw), cache(stack_facts))
    for where, source, instead in _local_sources(plan):
        path = local_path(source)
        if not _is_there(path):
            raise UserError(f"{where}: no such file or folder: {source} (looked in {Path.cwd()}); give {instead}")
        if not (path.is_file() or path.is_dir()):
            # A pipe would be waited for without end.
            raise UserError(f"{where}: {source} is neither a file nor a folder")
    _check_length("the configuration", raw)
    for run in plan.all_runs.values():
        _check_length(f"the specification of run {run.run_id}", run.spec)
    return plan


def _local_sources(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Where the configuration names each local source, the source, and what else may stand there."""
    for request in plan.inputs.values():
        for part, key in (("data", "source"), ("data", "test_source"), ("model", "source")):
            if (source := request[part][key]) and source_kind(source) == "local":
                instead = "a path that exists, a hub id with its revision, or a builtin: source"
                yield f"workload.{part}.{key}", source, instead
        for source in _local_reward_models(request):
            yield "workload.rewards", source, "the folder of a reward model, or a hub id with its revision"
    for run in plan.imports.values():
        for source in run.spec["import"]["sources"]:
            if not is_remote(source):
                yield f"arms.{run.spec['arm']}.import", source, "what the run has logged, or wandb:entity/project/id"


def stack_facts(name: str) -> StackFacts:
    """What the plan needs to know of a stack in `envs/`."""
    stack = stacks.load_stack(name)
    return StackFacts(stack.trainer, stack.engine, stack.accelerator, stack.trainer_version, stacks.lock_id(name))


def _check_length(what: str, content: Mapping[str, Any]) -> None:
    length = len(shlex.quote(json.dumps(content)))
    if length > _ARGUMENT_LENGTH:
        raise UserError(
            f"{what} is too large: {length:,} characters as JSON, of at most {_ARGUMENT_LENGTH:,}, since it travels "
            "as one argument of a command; shorten its texts and options, or vary less in one experiment"
        )


def _arm_json(arm: Arm) -> dict[str, Any]:
    """An arm in plan.json: what few arms have stands there only where one has it."""
    return arm.model_dump(mode="json", exclude={name for name in ("import_", "same_as") if getattr(arm, name) is None})


def _files_in(folder: Path) -> list[str]:
    inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(folder / path) for path in inside if not any(part.startswith(".") for part in path.parts))


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, or a folder that may not be read
        return False


def plan_runs(config: Config, stack_facts: Callable[[str], StackFacts]) -> Plan:
    """Every run that a configuration means.

    Ids are `<arm>[-<factor>=<value>...]-s<seed>`: they depend on nothing else in the configuration, so a run keeps its
    id when others come or go. What a run computes is in its fingerprint, not in its id.
    """
    for name, arm in config.arms.items():
        (driver_of if arm.import_ is None else require_importable)(name, arm)
    require_possible_sweep(config)
    require_same_factors(config)
    facts = {name: _facts(name, config, stack_facts(arm.stack)) for name, arm in config.arms.items() if arm.stack}
    paths = [path for one in config.imports.values() for run in one.runs for path in run.factors]
    labels = factor_labels(list(dict.fromkeys([*config.sweep, *paths])))
    read = cache(read_own_file)
    runs: dict[str, PlannedRun] = {}
    inputs: dict[str, dict[str, Any]] = {}
    # Seeds outermost: equal seeds of different arms run next to one another, so that drift falls on all arms alike.
    points = {name: [(*point, _request(point[2])) for point in points_of(config, name)] for name in config.trained}
    for seed in config.seeds:
        for name, arm_points in points.items():
            for factors, arm, workload, request in arm_points:
                driver = driver_of(name, arm)
                options = options_json(arm.options, read)
                args = driver.trainer_args(arm.model_copy(update={"options": options}), workload, seed, facts[name])
                inputs_id = _sha256(request)[:8]
                inputs[inputs_id] = request
                spec = {
                    "arm": name,
                    "trainer": arm.trainer,
                    "engine": arm.engine,
                    "stack": arm.stack,
                    "seed": seed,
                    "factors": factors,
                    "workload": workload_json(workload, read),
                    "options": without_code(options),
                    "env": arm.env,
                    "trainer_args": args,
                    "job_module": driver.job_module,
                    **driver.spread.to_spec(workload.processes, driver.server(args), workload.scorer),
                    "least_cpus": driver.least_cpus(args, workload),
                    "lock_id": facts[name].lock_id,
                    "inputs_id": inputs_id,
                }
                _add(runs, _run(config, spec, labels))
    imports: dict[str, PlannedRun] = {}
    for name in config.imports:
        for spec in imported_specs(config, name, facts.get(name)):
            _add(imports, _run(config, spec, labels), taken=runs)
    return Plan(config, runs, imports, inputs)


def _run(config: Config, of: Mapping[str, Any], labels: Mapping[str, str]) -> PlannedRun:
    """A run of a specification that lacks only what all have alike."""
    run_id = _run_id(of["arm"], of["factors"], labels, of["seed"])
    spec = {"spec_version": SPEC_VERSION, "experiment": config.experiment, "run_id": run_id, **of}
    spec["fingerprint"] = fingerprint_of(spec)
    return PlannedRun(run_id, of["stack"], of.get("lock_id", ""), of.get("inputs_id", ""), spec["fingerprint"], spec)


def _add(runs: dict[str, PlannedRun], run: PlannedRun, taken: Mapping[str, PlannedRun] | None = None) -> None:
    if run.run_id in runs or run.run_id in (taken or {}):
        raise UserError(f"two runs have the id {run.run_id}; rename an arm")
    runs[run.run_id] = run


def _local_reward_models(request: Mapping[str, Any]) -> list[str]:
    """The folders of an experiment's reward models, as its configuration names them."""
    return [one["model"] for one in request.get("reward_models", ()) if not one["revision"]]


def _request(workload: Workload) -> dict[str, Any]:
    models = [{"model": one.model, "revision": one.revision} for one in workload.reward_models]
    return {
        **({"reward_models": models} if models else {}),
        "data": workload.data.model_dump(mode="json"),
        "model": workload.model.model_dump(mode="json"),
        "max_prompt_length": workload.max_prompt_length,
        "max_response_length": workload.max_response_length,
    }


def _facts(name: str, config: Config, facts: StackFacts) -> StackFacts:
    """What a stack says, if it is one for the arm and the workload; a `UserError` otherwise."""
    arm, workload = config.arms[name], config.workload
    driver = trainer_named(arm.trainer).driver
    fits = facts.trainer == arm.trainer or (driver is not None and driver.any_stack)
    if not fits or facts.engine != arm.engine:
        raise UserError(
            f"arms.{name}.stack {arm.stack} is built for trainer {facts.trainer} with engine {facts.engine} "
            f"(got {arm.trainer} with {arm.engine}); choose a stack in envs/ that fits"
        )
    if workload is not None and (facts.accelerator == "cuda") != (workload.gpus_per_node > 0):
        raise UserError(
            f"arms.{name}.stack {arm.stack} is built for {'GPUs' if facts.accelerator == 'cuda' else 'the CPU'}, but "
            f"workload.gpus_per_node is {workload.gpus_per_node}; "
            + ("set it to the GPUs of a node" if facts.accelerator == "cuda" else "set it to 0, or choose a GPU stack")
        )
    version = arm.import_.version if arm.import_ is not None else None
    if version not in (None, facts.trainer_version):
        raise UserError(
            f"arms.{name}.import.version is {version}, and its stack {arm.stack} pins {facts.trainer} "
            f"{facts.trainer_version}; name the stack of that release, or none"
        )
    return facts


def _run_id(arm: str, factors: Mapping[str, Any], labels: Mapping[str, str], seed: int) -> str:
    parts = [arm, *(f"{labels[path]}={_slug(value)}" for path, value in factors.items()), f"s{seed}"]
    run_id = "-".join(parts)
    if len(run_id) <= _ID_LENGTH:
        return run_id
    tail = f"-{_sha256(dict(factors))[:8]}-s{seed}"
    return run_id[: _ID_LENGTH - len(tail)].rstrip("-.=") + tail


def _slug(value: Any) -> str:
    """A value as part of a folder's name; what letters cannot say, or say of two values, is told apart by a hash."""
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.")
    ambiguous = isinstance(value, str) and bool(_LOOKS_LIKE_ANOTHER_TYPE.fullmatch(text))
    if slug == text and len(slug) <= 24 and not ambiguous:
        return slug
    return f"{slug[:16].rstrip('_.')}_{_sha256(value)[:6]}".lstrip("_")


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
