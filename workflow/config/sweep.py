"""What does a sweep vary? An arm's combinations of factors, each with the arm and the workload that it means."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from common.errors import UserError
from common.messages import did_you_mean
from trainers.workload import Workload
from workflow.config.model import Arm, Config
from workflow.config.reading import parse_config


def points_of(config: Config, arm_name: str) -> Iterator[tuple[dict[str, Any], Arm, Workload]]:
    """A trained arm's combinations of factors, each with the arm and the workload that it means."""
    repeated = config.arms[arm_name].same_as
    paths = [path for path in config.sweep if target_of(path, config)[0] in (None, arm_name, repeated)]
    seen: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*(config.sweep[path] for path in paths)):
        factors = dict(zip(paths, values, strict=True))
        arm, workload = at_point(config, arm_name, factors)
        if config.warmup_steps >= workload.steps:
            raise UserError(
                f"warmup_steps must be less than workload.steps, or no step would be counted (got "
                f"{config.warmup_steps} and {workload.steps}); lower warmup_steps or raise workload.steps"
            )
        said = json.dumps([workload.model_dump(mode="json"), arm.model_dump()], sort_keys=True)
        same = seen.setdefault(said, factors)
        if same is not factors:
            raise UserError(f"sweep lists the same value twice: {same} and {factors} mean the same run; remove one")
        yield factors, arm, workload


def at_point(config: Config, arm_name: str, factors: Mapping[str, Any]) -> tuple[Arm, Workload]:
    """An arm and the workload with some factors in them; what is wrong with those is said with its full path."""
    arm, workload = config.arm(arm_name), config.workload
    if workload is None:
        raise ValueError("only an experiment without a trained arm has no workload")
    if not factors:
        return arm, workload
    # The names of what it was made from do not matter here, and would only be checked again.
    changed = {
        "workload": workload.model_dump(mode="json"),
        "arm": arm.model_dump(mode="json", exclude={"same_as"}),
    }
    for path, value in factors.items():
        changed = _with(changed, target_of(path, config)[1], value)
    try:
        arm = Arm.model_validate(changed["arm"] | {"same_as": arm.same_as})
        return arm, Workload.model_validate(changed["workload"])
    except ValidationError:
        # Said again through a whole configuration, whose errors name the full path.
        alone = {"experiment": config.experiment, "baseline": arm_name, "arms": {arm_name: changed["arm"]}}
        try:
            parse_config(alone | {"workload": changed["workload"]})
        except UserError as error:
            raise UserError(f"sweep with {dict(factors)}: {error}") from None
        raise


def target_of(path: str, config: Config) -> tuple[str | None, tuple[str, ...]]:
    """Which arm a sweep path belongs to (None: all), and the keys to set in that arm's and the workload's mapping."""
    keys = path.split(".")
    if keys[0] == "workload" and len(keys) > 1:
        at: Any = config.workload.model_dump(mode="json") if config.workload else {}
        for depth, key in enumerate(keys[1:], start=1):
            if not isinstance(at, Mapping) or key not in at:
                known = list(at) if isinstance(at, Mapping) else []
                where = ".".join(keys[:depth])
                raise UserError(f"sweep path {path} leads nowhere: {where} has no {key!r}{did_you_mean(key, known)}")
            at = at[key]
        return None, tuple(keys)
    if keys[0] == "arms" and len(keys) >= 4 and keys[1] in config.arms and keys[2] in ("options", "env"):
        if other := config.arms[keys[1]].same_as:
            raise UserError(f"sweep path {path}: arm {keys[1]} repeats {other}; vary arms.{other}, and it follows")
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


def factor_labels(paths: list[str]) -> dict[str, str]:
    """For each sweep path its shortest end that no other path shares."""
    labels = {}
    for path in paths:
        keys = path.split(".")
        ends = [".".join(keys[-n:]) for n in range(1, len(keys) + 1)]
        others = [f".{other}" for other in paths if other != path]
        labels[path] = next(end for end in ends if not any(other.endswith(f".{end}") for other in others))
    return labels
