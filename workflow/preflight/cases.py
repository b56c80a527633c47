"""Which different runs does a plan hold? One case per arm and combination of factors; seeds do not matter here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from workflow import stacks
from workflow.plan import Plan, Run
from workflow.preflight.settings import Settings, settings_of

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"

# Where verl's adapter puts a run's seed; no option may set these.
_SEED_KEYS = frozenset({"data.seed", f"{ACTOR}.data_loader_seed", f"{ROLLOUT}.seed"})

ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "transformers": "transformers"}


@dataclass(frozen=True, slots=True)
class StackTold:
    """What a stack's definition says without being built."""

    accelerator: str
    trainer_version: str
    packages: Mapping[str, str] = field(default_factory=dict)
    """Package -> version, of its lock."""


@dataclass(frozen=True, eq=False)
class Case:
    """What a run would be, for all its seeds."""

    arm: str
    label: str
    """The arm's name, with the factors that are its own."""
    trainer: str
    engine: str
    stack: str
    version: str
    """Of the trainer."""
    told: StackTold
    workload: Mapping[str, Any]
    env: Mapping[str, str]
    settings: Settings
    overrides: tuple[str, ...] = ()
    point: str = ""
    """The combination of the factors that all arms share."""
    imported: bool = False
    """Whether it has run elsewhere already: nothing about it can be impossible any more."""

    @property
    def engine_name(self) -> str:
        return ENGINE_NAMES.get(self.engine, self.engine)

    @property
    def place(self) -> str:
        """Trainer, version and engine, as the tables of behaviours name them."""
        return f"{self.trainer} {self.version} {self.engine}"

    @property
    def on_gpu(self) -> bool:
        return self.told.accelerator == "cuda"

    @property
    def gpus(self) -> int:
        """GPUs of one run, over all its nodes."""
        if self.trainer == "verl":
            return self.settings.int("trainer.n_gpus_per_node", 1) * self.settings.int("trainer.nnodes", 1)
        return int(self.workload.get("gpus_per_node") or 0) * int(self.workload.get("nodes") or 1)

    @property
    def tensor_parallel(self) -> int:
        if self.trainer == "verl":
            return max(1, self.settings.int(f"{ROLLOUT}.tensor_model_parallel_size", 1))
        return max(1, self.settings.int("vllm_tensor_parallel_size", 1))

    @property
    def lora(self) -> bool:
        """Whether only an adapter is trained."""
        return max(self.settings.int(f"{MODEL}.lora_rank"), self.settings.int(f"{MODEL}.lora.rank")) > 0

    @property
    def longest(self) -> int:
        """Prompt and response at their longest, in tokens."""
        return int(self.workload["max_prompt_length"]) + int(self.workload["max_response_length"])

    @cached_property
    def per_replica(self) -> int:
        """Sequences that one engine of `tensor_parallel` GPUs generates in a step, if they are dealt out evenly."""
        replicas = max(1, self.gpus // self.tensor_parallel)
        return -(-int(self.workload["batch_size"]) // replicas)


def told_by_stack(name: str) -> StackTold:
    """What `envs/<name>` says."""
    stack = stacks.load_stack(name)
    return StackTold(stack.accelerator, stack.trainer_version, _pins(stack.lock, stack.lock.stat().st_mtime_ns))


@lru_cache(maxsize=64)
def _pins(lock: Path, _changed: int) -> Mapping[str, str]:
    text = lock.read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Za-z0-9_.\-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE))


def settings_id(run: Run) -> str:
    """Which settings.json holds a run's resolved settings: 8 hex digits over its stack's lock and its settings.

    Seeds share one: they change no setting but themselves.
    """
    said = json.dumps([run.lock_id, settings_request(run)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()[:8]


def settings_request(run: Run) -> dict[str, Any]:
    """What `workflow.jobs.settings` is asked about a run: the same for all its seeds."""
    args = dict(run.spec["trainer_args"])
    args.pop("seed", None)
    if isinstance(overrides := args.get("overrides"), Sequence):
        args["overrides"] = [_seedless(one) for one in overrides]
    rewards = run.spec["workload"]["rewards"] if run.spec["trainer"] == "trl" else []
    return {"trainer": run.spec["trainer"], "trainer_args": args, "rewards": rewards}


def _seedless(override: str) -> str:
    key, _, _ = override.partition("=")
    return f"{key}=0" if key.lstrip("+") in _SEED_KEYS else override


def settings_ids(plan: Plan) -> dict[str, str]:
    """run_id -> settings_id."""
    return {run_id: settings_id(run) for run_id, run in plan.runs.items()}


def settings_requests(plan: Plan, ids: Mapping[str, str] | None = None) -> dict[str, Run]:
    """settings_id -> the first run that it stands for, in the plan's order; `ids` are settings_ids, if known."""
    found: dict[str, Run] = {}
    for run_id, one in (ids or settings_ids(plan)).items():
        found.setdefault(one, plan.runs[run_id])
    return found


def cases_of(
    plan: Plan,
    composed: Mapping[str, Mapping[str, Any]] | None = None,
    stack_of: Callable[[str], StackTold] = told_by_stack,
) -> list[Case]:
    """Every case that is trained, in the plan's order; `composed` holds the contents of settings.json by
    settings_id."""
    told = {name: stack_of(name) for name in dict.fromkeys(run.stack for run in plan.runs.values())}
    return [
        case_of(run, told[run.stack], (composed or {}).get(settings_id(run)) if composed else None)
        for run in different(plan.runs.values())
    ]


def different(runs: Iterable[Run]) -> list[Run]:
    """The first run of each arm and combination of factors."""
    found: dict[str, Run] = {}
    for run in runs:
        found.setdefault(json.dumps([run.spec["arm"], run.spec["factors"]], sort_keys=True), run)
    return list(found.values())


def case_of(run: Run, told: StackTold, composed: Mapping[str, Any] | None) -> Case:
    """A run as a case; `composed` is the content of its settings.json."""
    spec = run.spec
    args: Mapping[str, Any] = spec["trainer_args"]
    label, point = names_of(spec)
    return Case(
        arm=spec["arm"],
        label=label,
        trainer=spec["trainer"],
        engine=spec["engine"],
        stack=run.stack,
        version=str((composed or {}).get("version") or args.get("version") or told.trainer_version),
        told=told,
        workload=spec["workload"],
        env=spec["env"],
        settings=settings_of(spec["trainer"], args, composed["settings"] if composed else None),
        overrides=tuple(args.get("overrides", ())),
        point=point,
    )


def names_of(spec: Mapping[str, Any]) -> tuple[str, str]:
    """A run's arm with the factors that are its own, and the combination of those that all arms share."""
    own = {path: value for path, value in spec["factors"].items() if path.startswith("arms.")}
    shared = sorted((path, value) for path, value in spec["factors"].items() if path not in own)
    words = ", ".join(f"{path.split('.', 3)[-1]}={value}" for path, value in own.items())
    label = f"{spec['arm']} ({words})" if words else spec["arm"]
    return label, ", ".join(f"{path}={value}" for path, value in shared)


def points_of(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """The cases that are compared with one another: of all arms, at one combination of the shared factors."""
    for point in dict.fromkeys(case.point for case in cases):
        yield [case for case in cases if case.point == point]
