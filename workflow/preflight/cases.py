"""Lists the distinct runs of a plan: one case per arm and combination of factors, for all its seeds.

Also what some checks of a case take: the launch context.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.dotted import flatten
from common.files import read_json
from engines import engine_named
from trainers.cases import Case, StackPins, label_and_point
from trainers.registry import trainer_named
from trainers.reward_settings import without_code
from workflow.slurm.site import Site

if TYPE_CHECKING:
    from workflow.config.plan import Plan
    from workflow.config.planned_run import PlannedRun


@dataclass(frozen=True)
class LaunchContext:
    """Where and how fast the runs would go, as far as it is known."""

    site: Site = field(default_factory=Site)
    paces: Mapping[str, float] = field(default_factory=dict)
    """Arm -> seconds per step."""
    variables: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Variable -> (value, who sets it), for all arms alike."""


def load_stack_pins(name: str) -> StackPins:
    """Accelerator, trainer version and pinned packages of a stack."""
    from workflow import stacks

    stack = stacks.load_stack(name)
    pins = _pins(stack.lock, stack.lock.stat().st_mtime_ns)
    return StackPins(stack.accelerator, stack.trainer_version, pins, stack.found_python is not None)


@lru_cache(maxsize=64)
def _pins(lock: Path, _changed: int) -> Mapping[str, str]:
    text = lock.read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Za-z0-9_.\-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE))


def settings_id(run: PlannedRun) -> str:
    """Names the settings.json of a run: 8 hex digits over its stack's lock and its settings; all seeds share it."""
    request = json.dumps([run.lock_id, settings_request(run)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(request.encode()).hexdigest()[:8]


def settings_request(run: PlannedRun) -> dict[str, Any]:
    """The request of `trainers.resolve` for a run; the same for all seeds."""
    seeds = trainer_named(run.spec["trainer"]).keys.get("seed", ("seed",))
    args = {key: value for key, value in run.spec["trainer_args"].items() if key not in seeds}
    if "overrides" in args:
        pairs = [(override.partition("=")[0], override) for override in args["overrides"]]
        args["overrides"] = [f"{key}=0" if key.lstrip("+") in seeds else text for key, text in pairs]
    return {"trainer": run.spec["trainer"], "trainer_args": args, "rewards": run.spec["workload"]["rewards"]}


def settings_ids(plan: Plan) -> dict[str, str]:
    """run_id -> settings_id."""
    return {run_id: settings_id(run) for run_id, run in plan.runs.items() if run.stack}


def settings_requests(plan: Plan, ids: Mapping[str, str] | None = None) -> dict[str, PlannedRun]:
    """settings_id -> the first run that has it, in the plan's order; `ids` avoids computing them again."""
    found: dict[str, PlannedRun] = {}
    for run_id, one in (ids or settings_ids(plan)).items():
        found.setdefault(one, plan.runs[run_id])
    return found


def known_files(plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """What earlier starts left: settings_id -> settings.json, and run_id -> imported.json of runs read from logs."""
    files = [Path(plan.folder) / "settings" / f"{one}.json" for one in settings_requests(plan)]
    composed = {file.stem: read_json(file) for file in files if file.is_file()}
    runs = plan.imports | {run_id: plan.runs[run_id] for run_id in plan.own_runs}
    logs = {run_id: Path(plan.folder) / "runs" / run_id / "imported.json" for run_id in runs}
    read = {run_id: read_json(file) for run_id, file in logs.items() if file.is_file()}
    return composed, {run_id: one for run_id, one in read.items() if one["fingerprint"] == runs[run_id].fingerprint}


def cases_of(
    plan: Plan,
    composed: Mapping[str, Mapping[str, Any]] | None = None,
    stack_of: Callable[[str], StackPins] = load_stack_pins,
) -> list[Case]:
    """Every case that is trained, in the plan's order; `composed` maps settings_id to the content of settings.json."""
    runs: dict[str, list[PlannedRun]] = {}
    for run in plan.runs.values():
        if run.stack:
            # What is planned differs between seeds in nothing else.
            runs.setdefault(run.case, []).append(run)
    pins = cache(stack_of)
    return [
        case_of(
            [run.spec for run in some],
            pins(some[0].stack),
            composed.get(settings_id(some[0])) if composed else None,
        )
        for some in runs.values()
    ]


def first_of_each_case(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """The first run of each arm and combination of factors."""
    found: dict[str, PlannedRun] = {}
    for run in runs:
        found.setdefault(run.case, run)
    return list(found.values())


def case_of(specs: Sequence[Mapping[str, Any]], pins: StackPins, composed: Mapping[str, Any] | None) -> Case:
    """Runs that differ in their seeds, with their stack's pins; `composed` is the content of their settings.json."""
    spec = specs[0]
    args: Mapping[str, Any] = spec["trainer_args"]
    label, point = label_and_point(spec)
    trainer = trainer_named(spec["trainer"])
    settings = trainer.settings(without_code(args), composed["settings"] if composed else None)
    given = frozenset(flatten(spec["options"]))
    return Case(
        arm=spec["arm"],
        label=label,
        trainer=trainer,
        engine=engine_named(spec["engine"]),
        stack=spec["stack"],
        version=str((composed or {}).get("version") or args.get("version") or pins.trainer_version),
        pins=pins,
        workload=without_code(spec["workload"]),
        env=spec["env"],
        settings=replace(settings, given=given),
        overrides=tuple(args.get("overrides", ())),
        point=point,
        runs=tuple(one["run_id"] for one in specs),
    )
