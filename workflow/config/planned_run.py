"""Makes one planned run: its id, its specification with the text of the user's Python files, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from symtable import symtable
from typing import Any

from common.contracts import SPEC_VERSION
from common.errors import UserError
from common.files import fingerprint_of
from common.messages import unknown_name
from node.own_reward_process import describe_error
from trainers.command.trainer import options_of
from trainers.protocol import Driver, StackFacts
from trainers.registry import driver_of, trainer_named
from trainers.reward_settings import OwnReward, without_code
from trainers.workload import Workload, require_trainable
from workflow.config.imports import local_path
from workflow.config.model import Arm, Config

_ID_LENGTH = 80
MOST_BYTES = 40_000
"""A specification is one argument of a command, and Linux allows 131,072 bytes."""
# A module with one of these may define names at run time.
_DYNAMIC_NAMES = re.compile(r"import\s*\(?\s*\*|\b(__getattr__|exec|globals?|setattr|__dict__)\b")
Read = Callable[[str, str], str]
_LOOKS_LIKE_ANOTHER_TYPE = re.compile(r"true|false|none|[-+.\d].*|inf|nan")


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run; `spec` is the content of spec.json. An imported run has no lock and no inputs."""

    run_id: str
    stack: str
    lock_id: str
    inputs_id: str
    fingerprint: str
    spec: dict[str, Any]

    @property
    def case(self) -> str:
        """The text that runs of one arm and one combination of factors share."""
        return json.dumps([self.spec["arm"], self.spec["factors"]], sort_keys=True)


def planned_run(config: Config, fields: Mapping[str, Any], labels: Mapping[str, str]) -> PlannedRun:
    """Completes a run's specification with the keys that all runs have."""
    run_id = run_id_of(fields["arm"], fields["factors"], labels, fields["seed"])
    spec = {"spec_version": SPEC_VERSION, "experiment": config.experiment, "run_id": run_id, **fields}
    spec["fingerprint"] = fingerprint_of(spec)
    lock_id, inputs_id = fields.get("lock_id", ""), fields.get("inputs_id", "")
    return PlannedRun(run_id, fields["stack"], lock_id, inputs_id, spec["fingerprint"], spec)


def trained_fields(
    name: str,
    arm: Arm,
    factors: Mapping[str, Any],
    seed: int,
    workload: Workload,
    facts: StackFacts,
    inputs_id: str,
    read: Read,
) -> dict[str, Any]:
    """The specification of a run that trains the workload in a stack, without the keys that `planned_run` adds."""
    driver = driver_of(name, arm)
    if trainer_named(arm.trainer).trains:
        require_trainable(workload)
    options = options_json(arm.options, read)
    args = driver.trainer_args(arm.model_copy(update={"options": options}), workload, seed, facts)
    needs = driver.needs(args, workload)
    return {
        **_arm_fields(name, arm, arm.stack, factors, seed, driver),
        "workload": workload_json(workload, read),
        "options": without_code(options),
        "trainer_args": args,
        **driver.spread.to_spec(workload.processes, needs.get("server")),
        "least_cpus": needs.get("least_cpus", 1),
        "lock_id": facts.lock_id,
        "inputs_id": inputs_id,
    }


def own_fields(name: str, arm: Arm, factors: Mapping[str, Any], seed: int, run_id: str) -> dict[str, Any]:
    """As `trained_fields`, of a run that brings its environment and its work."""
    from workflow.launch_scripts.words import script_facts  # loads bash's grammar

    driver = driver_of(name, arm)
    try:
        args = options_of(arm).model_dump(mode="json")
        names = {"seed": str(seed), "arm": name, "run": run_id}
        args |= script_facts(args, local_path(args["script"]), names)
    except UserError as error:
        raise UserError(f"arms.{name}: {error}") from None
    return {
        **_arm_fields(name, arm, "", factors, seed, driver),
        "workload": {key: args[key] for key in ("nodes", "gpus_per_node")},
        "options": arm.options,
        "trainer_args": args,
        **driver.spread.to_spec(1),
        "least_cpus": 1,
        "lock_id": "",
        "inputs_id": "",
    }


def _arm_fields(
    name: str, arm: Arm, stack: str, factors: Mapping[str, Any], seed: int, driver: Driver
) -> dict[str, Any]:
    return {
        "arm": name,
        "trainer": arm.trainer,
        "engine": arm.engine,
        "stack": stack,
        "seed": seed,
        "factors": factors,
        "env": arm.env,
        "job_module": driver.job_module,
    }


def inputs_request(workload: Workload) -> dict[str, Any]:
    models = [{"model": reward.model, "revision": reward.revision} for reward in workload.reward_models]
    return {
        **({"reward_models": models} if models else {}),
        "data": workload.data.model_dump(mode="json"),
        "model": workload.model.model_dump(mode="json"),
        "max_prompt_length": workload.max_prompt_length,
        "max_response_length": workload.max_response_length,
    }


def fitting_facts(name: str, config: Config, facts: StackFacts) -> StackFacts:
    """The stack's facts; UserError if the stack does not fit the arm and the workload."""
    arm, workload = config.arms[name], config.workload
    trainer = trainer_named(arm.trainer)
    # What runs an engine alone has no stack of its own: it runs in every stack of its engine.
    fits = facts.trainer == arm.trainer or (trainer.driver is not None and not trainer.trains)
    if not fits or facts.engine != arm.engine:
        raise UserError(
            f"arms.{name}.stack {arm.stack} is built for trainer {facts.trainer} with engine {facts.engine} "
            f"(got {arm.trainer} with {arm.engine}); choose another stack of envs/"
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
            f"arms.{name}.import.version is {version}, but its stack {arm.stack} pins {facts.trainer} "
            f"{facts.trainer_version}; give the stack of that release, or none"
        )
    return facts


def run_id_of(arm: str, factors: Mapping[str, Any], labels: Mapping[str, str], seed: int) -> str:
    parts = [arm, *(f"{labels[path]}={_slug(value)}" for path, value in factors.items()), f"s{seed}"]
    run_id = "-".join(parts)
    if len(run_id) <= _ID_LENGTH:
        return run_id
    tail = f"-{sha256_of(dict(factors))[:8]}-s{seed}"
    return run_id[: _ID_LENGTH - len(tail)].rstrip("-.=") + tail


def _slug(value: Any) -> str:
    """A value as part of a folder's name; a hash replaces text that is ambiguous, too long or has other characters."""
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.")
    ambiguous = isinstance(value, str) and bool(_LOOKS_LIKE_ANOTHER_TYPE.fullmatch(text))
    if slug == text and len(slug) <= 24 and not ambiguous:
        return slug
    return f"{slug[:16].rstrip('_.')}_{sha256_of(value)[:6]}".lstrip("_")


def sha256_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def workload_json(workload: Workload, read: Read) -> dict[str, Any]:
    """A workload for a specification: each own reward has its file's name, text and hash, and the data's columns.

    A run's fingerprint therefore depends on the function's code, not on its path, and a change of the file does not
    affect runs that are already planned.
    """
    spec = workload.for_spec()
    for reward, entry in zip(workload.rewards, spec["rewards"], strict=True):
        if isinstance(reward, OwnReward):
            entry |= _file_json("workload.rewards", reward.source, "function", reward.function, read)
            if workload.data.columns:
                entry["columns"] = list(workload.data.columns)
    return spec


def options_json(options: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """An arm's options for a specification; a user's class, `{source, class}`, has its file's name, text and hash."""
    found = dict(options)
    for name, value in options.items():
        if isinstance(value, dict) and value.keys() == {"source", "class"}:
            found[name] = value | _file_json(f"options.{name}", value["source"], "class", str(value["class"]), read)
    return found


def _file_json(setting: str, source: str, kind: str, name: str, read: Read) -> dict[str, str]:
    code = read(setting, source)
    _require_name(setting, Path(source).name, kind, name, code)
    return {"source": Path(source).name, "sha256": hashlib.sha256(code.encode()).hexdigest(), "code": code}


def read_own_file(setting: str, source: str) -> str:
    """The text of a user's Python file; UserError names the setting if it cannot be read."""
    where = f"{setting}: {source}"
    if not str(source).endswith(".py"):
        raise UserError(f"{where} must be a Python file with a name that ends in .py")
    path = local_path(source)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"{setting}: no such file: {source} (looked in {Path.cwd()}); give the path of a Python file"
        ) from None
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror}; give the path of a Python file") from None
    if len(content) > MOST_BYTES:
        raise UserError(
            f"{where} is too large: {len(content):,} bytes of at most {MOST_BYTES:,}, because its text is part of each "
            "run's specification; move data and helpers to a package of the stack"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


@cache
def _require_name(setting: str, source: str, kind: str, name: str, code: str) -> None:
    """UserError if the file's text defines no such function or class; does not run the file."""
    where = f"{setting}: {source}"
    try:
        symbols = symtable(code, source, "exec").get_symbols()
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{where} cannot be imported: {describe_error(error, source)}; correct the file") from None
    assigned = [symbol.get_name() for symbol in symbols if symbol.is_assigned()]
    imported = [symbol.get_name() for symbol in symbols if symbol.is_imported()]
    if name not in (*assigned, *imported) and not _DYNAMIC_NAMES.search(code):
        raise UserError(f"{where}: {unknown_name(kind, name, assigned)}")
