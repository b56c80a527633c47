"""Defines a case, an arm at one point of the sweep, and the rules by which a trainer checks it before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.findings import Finding, Level
from engines import Engine

if TYPE_CHECKING:
    from trainers.protocol import Trainer


@dataclass(frozen=True)
class Settings:
    """Flat settings by dotted key; `composed` if the trainer itself has resolved them."""

    values: Mapping[str, Any]
    given: frozenset[str]
    """The keys that the run sets itself."""
    composed: bool = False

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str, default: Any = None) -> Any:
        """A setting's value; `default` if it is missing."""
        return self.values.get(key, default)

    def int(self, key: str, default: int = 0) -> int:
        """A setting as a whole number; `default` if it is null or not a number."""
        value = self.values.get(key)
        return int(value) if isinstance(value, int | float) else default

    def number(self, key: str) -> float | None:
        """A setting as a number; None if it is not one."""
        value = self.values.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def true(self, key: str) -> bool:
        """Whether a switch is on."""
        return self.values.get(key) is True

    def under(self, prefix: str) -> dict[str, Any]:
        """The settings below a key that are not null, without that key's name."""
        start = f"{prefix}."
        found = {key.removeprefix(start): value for key, value in self.values.items() if key.startswith(start)}
        return {key: value for key, value in found.items() if value is not None and value != {}}


@dataclass(frozen=True, slots=True)
class StackPins:
    """What a stack's definition pins; known before it is built."""

    accelerator: str
    trainer_version: str
    packages: Mapping[str, str] = field(default_factory=dict)
    """Package -> version, of its lock."""
    as_found: bool = False
    """Whether it is an environment as found, which may lack what every locked stack has."""


@dataclass(frozen=True, eq=False)
class Case:
    """An arm at one point of the sweep: those of its runs that have the same terms, mostly all."""

    arm: str
    label: str
    """The arm's name with its own factors."""
    trainer: Trainer
    engine: Engine
    stack: str
    version: str
    """The trainer's version."""
    pins: StackPins
    workload: Mapping[str, Any]
    env: Mapping[str, str]
    settings: Settings
    overrides: tuple[str, ...] = ()
    point: str = ""
    """The values of the factors that all arms share."""
    imported: bool = False
    """Whether it was trained elsewhere: then nothing about it is impossible."""
    runs: tuple[str, ...] = ()
    """The ids of its runs."""
    unknown: str = ""
    """Why not all its settings are known; then `workload` is empty, and a setting that `settings` lacks is unknown."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """What is known nevertheless (`gpu`, `nodes`, ...)."""

    @property
    def release(self) -> tuple[str, str]:
        """Its trainer and the trainer's version."""
        return self.trainer.name, self.version

    @property
    def of_command(self) -> bool:
        """Whether a log's start command is all that is known of its settings."""
        return bool(self.unknown and self.settings.given) and not self.settings.composed

    @property
    def place(self) -> str:
        """Trainer, version and engine."""
        return f"{self.trainer.name} {self.version} {self.engine.name}"

    @property
    def on_gpu(self) -> bool:
        return self.pins.accelerator == "cuda"

    @property
    def gpus(self) -> int:
        """GPUs of one run on all nodes, by the trainer's settings, else by the workload."""
        if "gpus_per_node" in self.trainer.keys:
            return self._count("gpus_per_node") * self._count("nodes")
        return int(self.workload.get("gpus_per_node") or 0) * int(self.workload.get("nodes") or 1)

    @property
    def tensor_parallel(self) -> int:
        return max(1, self._count("tensor_parallel"))

    @property
    def lora(self) -> int:
        """The rank of the trained adapter; 0 without one."""
        return max((self.settings.int(key) for key in self.trainer.keys.get("lora_rank", ())), default=0)

    @property
    def longest(self) -> int:
        """The most tokens of a prompt with its response."""
        return int(self.workload["max_prompt_length"]) + int(self.workload["max_response_length"])

    @cached_property
    def per_replica(self) -> int:
        """Sequences that one engine of `tensor_parallel` GPUs generates in a step, if they are divided evenly."""
        replicas = self._count("server_engines") if self.served else self.gpus // self.tensor_parallel
        return -(-int(self.workload["batch_size"]) // max(1, replicas))

    @property
    def served(self) -> bool:
        """Whether its engine is a separate server."""
        return self.trainer.is_served(self.settings.values, self.engine)

    def allows_tensor_parallel(self, gpus: int) -> bool:
        """Whether its nodes have room for engines of so many GPUs, and the batch divides over a trainer beside them."""
        nodes = int(self.workload.get("nodes") or 1)
        each = self.gpus // nodes
        if not self.served:
            return each == 0 or each % gpus == 0
        used = gpus * self._count("server_engines")
        return used <= each if nodes > 1 else used < each and int(self.workload["batch_size"]) % (each - used) == 0

    @property
    def engine_terms(self) -> dict[str, object]:
        """What the engine's own options say of it, or its defaults where the trainer gives it none."""
        if self.on_gpu and not self.reads_engine_options:
            return self.engine.reported(self.engine.defaults)
        return self.engine.reported(self.engine_settings)

    @property
    def reads_engine_options(self) -> bool:
        """Whether its trainer passes options on to this engine."""
        return self.trainer.engine_options(self.engine.name, self.version) != ()

    @property
    def engine_settings(self) -> dict[str, Any]:
        """The engine's own options, by the engine's names."""
        return self.trainer.engine_settings(self.settings.values, self.engine.name, self.version)

    def _count(self, name: str) -> int:
        return self.settings.int(self.trainer.key(name), 1)


Check = Callable[[Case], Iterator[Finding]]


def label_and_point(spec: Mapping[str, Any]) -> tuple[str, str]:
    """A run's arm with its own factors, and its point: the values of the factors that all arms share."""
    own = {path: value for path, value in spec["factors"].items() if path.startswith("arms.")}
    shared = sorted((path, value) for path, value in spec["factors"].items() if path not in own)
    factors = ", ".join(f"{path.split('.', 3)[-1]}={value}" for path, value in own.items())
    label = f"{spec['arm']} ({factors})" if factors else spec["arm"]
    return label, ", ".join(f"{path}={value}" for path, value in shared)


def points_of(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """The cases that are compared with each other: of all arms, at one point."""
    for point in dict.fromkeys(case.point for case in cases):
        yield [case for case in cases if case.point == point]


@dataclass(frozen=True)
class Rule:
    """A check of one case. In its texts `{got}`, `{version}`, `{engine}` and `{stack}` become the case's own."""

    code: str
    level: Level
    when: Callable[[Case], Any]
    """What the check finds; None or false where it finds nothing."""
    what: str
    why: str
    source: str
    change: str
    on_imported: bool = True
    """Whether it also checks runs that were trained elsewhere."""

    def __call__(self, case: Case) -> Iterator[Finding]:
        """The finding, if there is one."""
        got = self.when(case) if self.on_imported or not case.imported else None
        if got is None or got is False:
            return
        values = {"got": got, "version": case.version, "engine": case.engine.label, "stack": case.stack}

        def filled(text: str) -> str:
            for name, value in values.items():
                text = text.replace(f"{{{name}}}", f"{value:g}" if isinstance(value, float) else str(value))
            return text

        what, why, source, change = map(filled, (self.what, self.why, self.source, self.change))
        yield Finding(self.level, self.code, (case.arm,), what, why, source, change)


def rules_in(file: Path, module: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules of a trainer's `checks.toml`, one a row of `checks`; `module` are the names of its functions' module.

    `code`, `level`, `what`, `why`, `source` and `change` are a `Rule`'s. A rule finds something where each setting in
    `if` has one of its values, or by the function of the trainer's module that `finds` names, without its underscore;
    `{got}` is the last such value, or what the function returns. `releases`: those of the trainer that it is about; all
    without it. `imported = false`: not of runs that were trained elsewhere.
    """
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["checks"]
    return tuple(_rule(row, module) for row in rows)


def _rule(row: Mapping[str, Any], module: Mapping[str, Any]) -> Rule:
    find: Callable[[Case], Any] | None = module[f"_{row['finds']}"] if "finds" in row else None
    wanted, releases = {} if find else row["if"], row.get("releases")

    def when(case: Case) -> Any:
        if releases is not None and case.version not in releases:
            return None
        if find:
            return find(case)
        found = [case.settings.get(key) for key in wanted]
        fits = all(one in values for one, values in zip(found, wanted.values(), strict=True))
        return str(found[-1]) if fits else None

    texts = {name: row[name] for name in ("what", "why", "source", "change")}
    return Rule(row["code"], row["level"], when, **texts, on_imported=row.get("imported", True))
