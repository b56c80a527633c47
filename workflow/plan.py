"""Which runs does a configuration mean? Arms x factors x seeds, each with a readable id and a fingerprint.

Quick: Snakemake evaluates it again in every job, so nothing here reads data or imports pandas.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analysis.errors import UserError
from analysis.files import fingerprint_of
from workflow import stacks
from workflow.config import Arm, Config, Workload, source_kind
from workflow.messages import did_you_mean
from workflow.reading import parse_config
from workflow.trainers import StackFacts, trainer_of

SPEC_VERSION = 1
_ID_LENGTH = 80
# The configuration and each spec travel as one argument of a command, quoted, and Linux ends one at 131,072 bytes.
_ARGUMENT_LENGTH = 100_000
_LOOKS_LIKE_ANOTHER_TYPE = re.compile(r"true|false|none|[-+.\d].*|inf|nan")


@dataclass(frozen=True, slots=True)
class Run:
    """One run: `spec` is the whole of spec.json."""

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
    runs: dict[str, Run]
    inputs: dict[str, dict[str, Any]]
    """inputs_id -> request.json"""

    @property
    def fingerprint(self) -> str:
        """One hash over all runs: it changes when any of them does, or what the report is told."""
        told = [self.config.description, self.config.baseline, self.config.warmup_steps]
        return _sha256([told, [run.fingerprint for run in self.runs.values()]])

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
        """The stack whose libraries prepare the inputs, once for all arms: the baseline's."""
        return next(
            self.stack_file(run.run_id) for run in self.runs.values() if run.spec["arm"] == self.config.baseline
        )

    def local_files(self, inputs_id: str) -> list[str]:
        """The local files that inputs are made from: the data's, and all of a model's folder but the hidden ones."""
        request = self.inputs[inputs_id]
        data, model = (request[part]["source"] for part in ("data", "model"))
        test = request["data"]["test_source"]
        files = [str(_local_path(source)) for source in (data, test) if source and source_kind(source) == "local"]
        if source_kind(model) == "local":
            folder = _local_path(model)
            inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
            # As tree_sha256 reads them: a hidden file (.git, .cache) is no part of the model.
            files += sorted(str(folder / path) for path in inside if not any(p.startswith(".") for p in path.parts))
        return files

    def as_json(self) -> dict[str, Any]:
        """The content of plan.json, as docs/files.md has it."""
        config = self.config
        return {
            "experiment": config.experiment,
            "description": config.description,
            "baseline": config.baseline,
            "arms": {name: config.arm(name).model_dump() for name in config.arms},
            "sweep": {path: list(values) for path, values in config.sweep.items()},
            "seeds": list(config.seeds),
            "warmup_steps": config.warmup_steps,
            "fingerprint": self.fingerprint,
            "runs": list(self.runs),
            "fingerprints": {run.run_id: run.fingerprint for run in self.runs.values()},
        }


def load_plan(raw: Mapping[str, Any]) -> Plan:
    """The plan of a configuration as Snakemake holds it, checked against the stacks and the files that are there."""
    plan = plan_runs(parse_config(raw), cache(stack_facts))
    for request in plan.inputs.values():
        for part, key in (("data", "source"), ("data", "test_source"), ("model", "source")):
            source = request[part][key]
            if source and source_kind(source) == "local" and not _is_there(_local_path(source)):
                raise UserError(
                    f"workload.{part}.{key}: no such file or folder: {source} (looked in {Path.cwd()}); "
                    "give a path that exists, a hub id with its revision, or a builtin: source"
                )
    _check_length("the configuration", raw)
    for run in plan.runs.values():
        _check_length(f"the specification of run {run.run_id}", run.spec)
    return plan


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


def _local_path(source: str) -> Path:
    try:
        return Path(source).expanduser()
    except RuntimeError:  # ~name without such a user
        return Path(source)


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
        trainer_of(name, arm)
    facts = {
        name: _checked_stack(name, arm, config.workload, stack_facts(arm.stack)) for name, arm in config.arms.items()
    }
    labels = _factor_labels(list(config.sweep))
    runs: dict[str, Run] = {}
    inputs: dict[str, dict[str, Any]] = {}
    # Seeds outermost: equal seeds of different arms run next to one another, so that drift falls on all arms alike.
    points = {name: list(_points(config, name)) for name in config.arms}
    for seed in config.seeds:
        for name, arm_points in points.items():
            for factors, arm, workload, request in arm_points:
                trainer = trainer_of(name, arm)
                args = trainer.trainer_args(arm, workload, seed, facts[name])
                inputs_id = _sha256(request)[:8]
                inputs[inputs_id] = request
                spec: dict[str, Any] = {
                    "spec_version": SPEC_VERSION,
                    "experiment": config.experiment,
                    "run_id": _run_id(name, factors, labels, seed),
                    "arm": name,
                    "trainer": arm.trainer,
                    "engine": arm.engine,
                    "stack": arm.stack,
                    "seed": seed,
                    "factors": factors,
                    "workload": workload.model_dump(mode="json"),
                    "options": arm.options,
                    "env": arm.env,
                    "trainer_args": args,
                    "job_module": trainer.JOB_MODULE,
                    "ray": trainer.RAY,
                    "least_cpus": trainer.least_cpus(args, workload),
                    "lock_id": facts[name].lock_id,
                    "inputs_id": inputs_id,
                }
                spec["fingerprint"] = fingerprint_of(spec)
                run_id = spec["run_id"]
                if run_id in runs:
                    raise UserError(f"two runs have the id {run_id}; rename an arm")
                runs[run_id] = Run(run_id, arm.stack, facts[name].lock_id, inputs_id, spec["fingerprint"], spec)
    return Plan(config, runs, inputs)


def _checked_stack(name: str, arm: Arm, workload: Workload, facts: StackFacts) -> StackFacts:
    if (facts.trainer, facts.engine) != (arm.trainer, arm.engine):
        raise UserError(
            f"arms.{name}.stack {arm.stack} is built for trainer {facts.trainer} with engine {facts.engine} "
            f"(got {arm.trainer} with {arm.engine}); choose a stack in envs/ that fits"
        )
    if (facts.accelerator == "cuda") != (workload.gpus_per_node > 0):
        raise UserError(
            f"arms.{name}.stack {arm.stack} is built for {'GPUs' if facts.accelerator == 'cuda' else 'the CPU'}, but "
            f"workload.gpus_per_node is {workload.gpus_per_node}; "
            + ("set it to the GPUs of a node" if facts.accelerator == "cuda" else "set it to 0, or choose a GPU stack")
        )
    return facts


def _points(config: Config, arm_name: str) -> Iterator[tuple[dict[str, Any], Arm, Workload, dict[str, Any]]]:
    """An arm's factor combinations, each with the arm, the workload and the inputs' request that it means."""
    base = {"workload": config.workload.model_dump(mode="json"), "arm": config.arm(arm_name).model_dump()}
    paths = [path for path in config.sweep if _target(path, config)[0] in (None, arm_name)]
    seen: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*(config.sweep[path] for path in paths)):
        factors = dict(zip(paths, values, strict=True))
        changed = base
        for path, value in factors.items():
            changed = _with(changed, _target(path, config)[1], value)
        workload, arm = config.workload, config.arm(arm_name)
        if factors:
            try:
                workload, arm = (
                    Workload.model_validate(changed["workload"]),
                    Arm.model_validate(changed["arm"]),
                )
            except ValidationError:
                # Said again through the whole configuration, whose errors name the full path.
                whole = config.model_dump(mode="json") | {"workload": changed["workload"], "sweep": {}, "shared": {}}
                whole["arms"][arm_name] = changed["arm"]
                try:
                    parse_config(whole)
                except UserError as error:
                    raise UserError(f"sweep with {factors}: {error}") from None
                raise
        if config.warmup_steps >= workload.steps:
            raise UserError(
                f"warmup_steps must be less than workload.steps, or no step would be counted (got "
                f"{config.warmup_steps} and {workload.steps}); lower warmup_steps or raise workload.steps"
            )
        same = seen.setdefault(_sha256([workload.model_dump(mode="json"), arm.model_dump()]), factors)
        if same is not factors:
            raise UserError(f"sweep lists the same value twice: {same} and {factors} mean the same run; remove one")
        request = {
            "data": workload.data.model_dump(mode="json"),
            "model": workload.model.model_dump(mode="json"),
            "max_prompt_length": workload.max_prompt_length,
            "max_response_length": workload.max_response_length,
        }
        yield factors, arm, workload, request


def _target(path: str, config: Config) -> tuple[str | None, tuple[str, ...]]:
    """Which arm a sweep path belongs to (None: all), and the keys to set in that arm's and the workload's mapping."""
    keys = path.split(".")
    if keys[0] == "workload" and len(keys) > 1:
        at: Any = config.workload.model_dump(mode="json")
        for depth, key in enumerate(keys[1:], start=1):
            if not isinstance(at, Mapping) or key not in at:
                known = list(at) if isinstance(at, Mapping) else []
                where = ".".join(keys[:depth])
                raise UserError(f"sweep path {path} leads nowhere: {where} has no {key!r}{did_you_mean(key, known)}")
            at = at[key]
        return None, tuple(keys)
    if keys[0] == "arms" and len(keys) >= 4 and keys[1] in config.arms and keys[2] in ("options", "env"):
        return keys[1], ("arm", *keys[2:])
    raise UserError(
        f"sweep path {path} must be workload.<key>... or arms.<arm>.options.<setting> or arms.<arm>.env.<variable> "
        f"with <arm> one of: {', '.join(config.arms)}"
    )


def _with(mapping: Mapping[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of nested mappings with one value replaced; only the mappings on the way are copied."""
    head, *rest = keys
    inner = _with(mapping.get(head, {}), tuple(rest), value) if rest else value
    return {**mapping, head: inner}


def _factor_labels(paths: list[str]) -> dict[str, str]:
    """For each sweep path its shortest end that no other path shares."""
    labels = {}
    for path in paths:
        keys = path.split(".")
        ends = [".".join(keys[-n:]) for n in range(1, len(keys) + 1)]
        others = [f".{other}" for other in paths if other != path]
        labels[path] = next(end for end in ends if not any(other.endswith(f".{end}") for other in others))
    return labels


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
