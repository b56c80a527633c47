"""Lists the runs of each arm, with the arm and workload of each run.

A trained arm has one run per combination of factors; an imported arm lists its runs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from common.errors import UserError
from common.messages import did_you_mean, short_repr
from common.published import as_number
from trainers.protocol import StackFacts
from trainers.registry import brings_work, trainer_named
from trainers.workload import Workload
from workflow.config.imports import ImportedRun
from workflow.config.model import Arm, Config
from workflow.config.reading import parse_config


def points_of(config: Config, arm_name: str) -> Iterator[tuple[dict[str, Any], Arm, Workload | None]]:
    """A trained arm's combinations of factors, each with its arm and workload; None if the arm brings its own."""
    repeated = config.arms[arm_name].same_as
    paths = [path for path in config.sweep if target_of(path, config)[0] in (None, arm_name, repeated)]
    seen: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*(config.sweep[path] for path in paths)):
        factors = dict(zip(paths, values, strict=True))
        arm, workload = at_point(config, arm_name, factors)
        if workload is not None and config.warmup_steps >= workload.steps:
            raise UserError(
                f"warmup_steps must be less than workload.steps, or no step would count (got "
                f"{config.warmup_steps} and {workload.steps}); lower warmup_steps or raise workload.steps"
            )
        work = workload.model_dump(mode="json") if workload is not None else None
        meaning = json.dumps([work, arm.model_dump()], sort_keys=True)
        same = seen.setdefault(meaning, factors)
        if same is not factors:
            raise UserError(f"sweep lists the same value twice: {same} and {factors} are the same run; remove one")
        yield factors, arm, workload


def at_point(config: Config, arm_name: str, factors: Mapping[str, Any]) -> tuple[Arm, Workload | None]:
    """The arm and the workload with these factors applied; errors name the full path of a wrong factor."""
    arm = config.arm(arm_name)
    workload = None if arm.import_ is None and brings_work(arm.trainer) else config.workload
    if not factors:
        return arm, workload
    # Without same_as, which would be validated again.
    changed: dict[str, Any] = {"arm": arm.model_dump(mode="json", exclude={"same_as"})}
    if workload is not None:
        changed["workload"] = workload.model_dump(mode="json")
    for path, value in factors.items():
        changed = _with(changed, target_of(path, config)[1], value)
    try:
        arm = Arm.model_validate(changed["arm"] | {"same_as": arm.same_as})
        return arm, Workload.model_validate(changed["workload"]) if workload is not None else None
    except ValidationError:
        # A full configuration reports the error with its full path.
        alone = {"experiment": config.experiment, "baseline": arm_name, "arms": {arm_name: changed["arm"]}}
        try:
            parse_config(alone | {key: value for key, value in changed.items() if key == "workload"})
        except UserError as error:
            raise UserError(f"sweep with {dict(factors)}: {error}") from None
        raise


def target_of(path: str, config: Config) -> tuple[str | None, tuple[str, ...]]:
    """The arm of a sweep path (None: all arms), and the keys to set in `{"arm": ..., "workload": ...}`."""
    keys = path.split(".")
    if keys[0] == "workload" and len(keys) > 1:
        at: Any = config.workload.model_dump(mode="json") if config.workload else {}
        for depth, key in enumerate(keys[1:], start=1):
            if not isinstance(at, Mapping) or key not in at:
                known = list(at) if isinstance(at, Mapping) else []
                where = ".".join(keys[:depth])
                raise UserError(f"sweep path {path} does not exist: {where} has no {key!r}{did_you_mean(key, known)}")
            at = at[key]
        return None, tuple(keys)
    if keys[0] == "arms" and len(keys) >= 4 and keys[1] in config.arms and keys[2] in ("options", "env"):
        if other := config.arms[keys[1]].same_as:
            raise UserError(f"sweep path {path}: arm {keys[1]} repeats {other}; vary arms.{other} to change both")
        return keys[1], ("arm", *keys[2:])
    raise UserError(
        f"sweep path {path} must be workload.<key>... or arms.<arm>.options.<setting> or arms.<arm>.env.<variable> "
        f"with <arm> one of: {', '.join(config.arms)}"
    )


def _with(mapping: Mapping[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of nested mappings with one value replaced."""
    head, *rest = keys
    inner = _with(mapping.get(head, {}), tuple(rest), value) if rest else value
    return {**mapping, head: inner}


def factor_labels(paths: list[str]) -> dict[str, str]:
    """For each sweep path its shortest unique suffix."""
    labels = {}
    for path in paths:
        keys = path.split(".")
        ends = [".".join(keys[-n:]) for n in range(1, len(keys) + 1)]
        others = [f".{other}" for other in paths if other != path]
        labels[path] = next(end for end in ends if not any(other.endswith(f".{end}") for other in others))
    return labels


def require_possible_sweep(config: Config) -> None:
    """UserError for a sweep that varies an existing run."""
    for path in config.sweep:
        keys = path.split(".")
        if not config.trained:
            raise UserError(
                f"sweep path {path} varies nothing: no arm is trained; give each run's values as factors of "
                "arms.<arm>.import.runs"
            )
        if keys[0] == "arms" and len(keys) > 1 and keys[1] in config.imports:
            raise UserError(
                f"sweep path {path} varies existing runs: arm {keys[1]} is imported; give each run's values as factors "
                f"of arms.{keys[1]}.import.runs"
            )


def imported_specs(config: Config, name: str, facts: StackFacts | None) -> Iterator[dict[str, Any]]:
    """The specification of each run of an imported arm, without the id and fingerprint that the plan adds.

    `facts` describe the arm's stack, if it has one.
    """
    imported = config.imports[name]
    for index, run in enumerate(imported.runs):
        where = f"arms.{name}.import.runs.{index}"
        factors = _factors(config, run, where)
        arm, workload = config.arm(name), None
        if config.workload is not None:
            arm, workload = at_point(config, name, {path: factors[path] for path in factors if _is_workload(path)})
        driver = trainer_named(arm.trainer).driver
        args: dict[str, Any] = {}
        if facts is not None and workload is not None and driver is not None:
            args = driver.trainer_args(arm, workload, run.seed or 0, facts)
        source_facts = imported.model_dump(exclude={"runs", *imported.unset})
        if source_facts["version"] is None and facts is not None:
            source_facts["version"] = facts.trainer_version
        yield {
            "arm": name,
            "trainer": arm.trainer,
            "engine": arm.engine,
            "stack": arm.stack,
            "seed": run.seed,
            "factors": factors,
            "workload": workload.for_spec() if workload is not None else {},
            "options": arm.options,
            "env": arm.env,
            "trainer_args": args,
            "import": {"sources": list(run.source), **source_facts},
        }


def _is_workload(path: str) -> bool:
    return path.startswith("workload.")


def _factors(config: Config, run: ImportedRun, where: str) -> dict[str, Any]:
    """A run's factors with the sweep's values; UserError if they are not in the sweep."""
    for path in run.factors:
        if _is_workload(path) and config.workload is not None:
            target_of(path, config)
    shared = [path for path in config.sweep if target_of(path, config)[0] is None]
    found: dict[str, Any] = {}
    for path in shared:
        values = list(config.sweep[path])
        same = [value for value in values if path in run.factors and as_number(value) == run.factors[path]]
        # Python's true == 1, but they are two values.
        same = [value for value in same if isinstance(value, bool) == isinstance(run.factors[path], bool)]
        if not same:
            got = short_repr(run.factors[path]) if path in run.factors else "nothing"
            raise UserError(
                f"{where}.factors: the sweep varies {path}, so the run must have one of its values: "
                f"{', '.join(map(short_repr, values))} (got {got}); give it as {path}: {short_repr(values[0])}"
            )
        found[path] = same[0]
    return found | {path: value for path, value in run.factors.items() if path not in found}
