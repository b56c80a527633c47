"""Defines the interface of a trainer: its folder provides one `Trainer`, and no other room names it.

A `Trainer` has three parts: `Logs` (what its runs log), `Driver` (how it is run; None for an imported one) and `Rules`
(what its settings mean). It answers one question about a run: its `Rollout`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from common.dotted import flatten
from common.model_facts import ModelFacts
from common.verdicts import Verdict
from engines import Engine
from trainers import Spread
from trainers.cases import Behaviour, Case, Check, Effect, Settings
from trainers.launching import Launch
from trainers.logs.log_files import Printout
from trainers.logs.record import Imported, StepNames, StepRecord
from trainers.timers.tree import TimerTree
from trainers.workload import TrainedArm, Workload


@dataclass(frozen=True, slots=True)
class StackFacts:
    """The stack facts that the plan needs."""

    trainer: str
    engine: str
    accelerator: str
    """`cpu` or `cuda`."""
    trainer_version: str
    """The version of the trainer that the stack's lock pins."""
    lock_id: str


@dataclass(frozen=True, slots=True)
class Driver:
    """How rolloutbench runs a trainer."""

    job_module: str
    """The module that runs inside the stack with the path of attempt.json. It is hashed into fingerprints;
    `trainers.driver_module` maps it to its present name."""
    resolver: str
    """The module that runs inside the stack. Its `resolved(trainer_args, rewards)` returns the trainer's version and
    flat settings, or raises a `UserError` for settings that the trainer refuses."""
    trainer_args: Callable[[TrainedArm, Workload, int, StackFacts], dict[str, Any]]
    """The trainer's own settings; a `UserError` where workload and options contradict each other."""
    spread: Spread = Spread.ALONE
    """How it spreads over a job's GPUs and nodes."""
    server: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda args: None
    """The engine's server with these settings (`Spread.to_spec`); None without a server."""
    least_cpus: Callable[[dict[str, Any], Workload], int] = lambda args, workload: 1
    """CPUs of all nodes together that the trainer needs to start."""
    without_seed: Callable[[dict[str, Any]], dict[str, Any]] = lambda args: args
    """Its settings without the effects of the run's seed; `seed` itself is already removed."""
    any_stack: bool = False
    """Whether it runs in every stack of its engine, also in other trainers' stacks."""
    rewards_in_settings: bool = False
    """Whether its resolved settings depend on the workload's rewards."""
    own_work: Callable[[TrainedArm], dict[str, Any]] | None = None
    """Replaces `trainer_args` where a user's script brings its environment and its work (`Spread.OWN`): no stack, no
    workload, no inputs, and steps from its log. The result has `script`, `words`, `arguments`, `nodes` and
    `gpus_per_node`. The job module then has `keep(spec, run_folder)`, called before each submission."""


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A file format of trainers' logs, and how its content is recognised."""

    name: str
    what: str
    """A description for errors."""
    read: Callable[[Path], Imported]
    is_step: Callable[[Printout], bool] | None = None
    """Whether a part of a console log is a training step of this format."""
    is_row: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether a JSON line is a row of this format."""
    mark: bytes = b""
    """Bytes that a complete JSON document of this format contains."""
    file_name: str = ""
    """The name that its tool gives it: among the tool's other files in a folder it is the run's."""


@dataclass(frozen=True, slots=True)
class UnreadConsole:
    """How to recognise a console that is not read. `mark` is a plain part of a step's line, searched first."""

    mark: str
    step: re.Pattern[str]

    def matches(self, text: str) -> bool:
        """Whether a text is a line of a step."""
        return self.mark in text and self.step.search(text) is not None


def plain_settings(args: Mapping[str, Any], composed: Mapping[str, Any] | None) -> Settings:
    """Settings by name, overridden by those that the trainer has resolved itself."""
    given = flatten(args)
    return Settings({**given, **(composed or {})}, frozenset(given), composed is not None)


@dataclass(frozen=True)
class Logs:
    """What a trainer logs: all that one whose runs are only imported fills in."""

    declared: Callable[[], tuple[TimerTree, ...]] = tuple
    """Makes its timer trees, which `trees` has: each log is of one trainer."""
    native: str = ""
    """The mode of its trees for runs that were not timed by our driver."""
    loop: Callable[[str, Mapping[str, Any]], str] = lambda version, settings: ""
    """The mode of a release's loop, by its settings."""
    marks: tuple[str, ...] = ()
    """Settings, or sections, that only its configurations have (`keys["engine"]` may be one)."""
    formats: tuple[LogFormat, ...] = ()
    unread: UnreadConsole | None = None
    """Its console, if that is not read."""
    rows: StepNames | None = None
    """The names in its wandb rows, if `analysis/sources/wandb_rows.py` has no own reader for them."""
    training_steps: Callable[[Sequence[StepRecord], str], tuple[list[StepRecord], list[Verdict]]] | None = None
    """Divides its wandb rows that sum several training steps; the text names their source."""
    quantities: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A quantity (trainers/registry.py) -> the names under which it is logged."""
    discards: Mapping[str, int] = field(default_factory=dict)
    """Scalars that count discarded completions, or the batches generated in a step -> the most without a discard. The
    time of a discarded completion is in the step, its tokens are not."""
    discards_if: tuple[str, ...] = ()
    """Settings that make it discard completions. Without one of the counts above their number is not known."""
    printed: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Scalars that `compare` prints of a run -> the unit in text, and how many of it one of the scalar's are."""
    printed_verdicts: tuple[str, ...] = ()
    """The codes of its reader's verdicts that change what a ratio says, which `compare` prints."""

    @cached_property
    def trees(self) -> tuple[TimerTree, ...]:
        """Its timer trees, by release and loop."""
        return self.declared()


@dataclass(frozen=True)
class Rules:
    """What its settings mean, for the preflight and the fairness ledger."""

    settings: Callable[[Mapping[str, Any], Mapping[str, Any] | None], Settings] = plain_settings
    """A run's settings, from its `trainer_args` or as the stack has resolved them."""
    bookkeeping: frozenset[str] = frozenset()
    """Last parts of settings that are names, trackers and places, without effect on a step."""
    resumable: tuple[str, ...] = ()
    """Patterns of settings that people change when a run goes on: how long it trains, how often it saves."""
    engine_options: str = ""
    """Prefix of an engine's own options, with `{engine}` for its name."""
    reads_engine_options: Callable[[Case], bool] = lambda case: True
    engine_switches: Mapping[str, Mapping[bool, str]] = field(default_factory=dict)
    """Switches that select the engine, beside `keys["engine"]`: setting -> value -> engine."""
    engine_specific: tuple[str, ...] = ()
    """Prefixes of settings that affect only one of its engines."""
    changes_text: frozenset[str] = frozenset()
    """Those of them that change the generated text: they must be equal in all arms."""
    behaviours: tuple[Behaviour, ...] = ()
    effects: Mapping[str, Mapping[str, Mapping[str, Effect]]] = field(default_factory=dict)
    """Release -> engine -> code of a behaviour -> what the engine makes of it; the earliest release first."""
    changes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Release -> code of a behaviour -> what to change where engines differ."""
    checks: tuple[Check, ...] = ()
    context: Callable[[Case, ModelFacts], tuple[str, str]] = lambda case, model: ("", "the check of length")
    """What happens to sequences beyond the model's context, empty where engine or trainer refuse it when the engine is
    built; and the source."""


@dataclass(frozen=True)
class Rollout:
    """How a run generates, as far as its settings and its loop say."""

    server: bool = False
    """Whether its engine is a separate server."""
    engine_gpus: int | None = None
    """GPUs that only its engines use, beside a loop that overlaps or a server; None if no setting says so."""
    sequence_limit: object = None
    """The trainer's own setting for how many sequences one engine decodes at once; None if it has none."""
    iterations_hidden_by: Mapping[str, str] = field(default_factory=dict)
    """Setting -> why response lengths do not give the engine's iterations with it."""
    started_earlier: str = ""
    """What is unknown because responses may have begun in an earlier step; empty if they cannot."""
    padded: bool = False
    """Whether a batch is padded to its longest response, so that each response of that length counts as truncated."""


@dataclass(frozen=True)
class Trainer:
    """A trainer, as its folder describes it; an unknown trainer has all defaults."""

    name: str
    label: str = ""
    """Its name for readers, if different."""
    package: str = ""
    """The package whose version is its release, if it has another name."""
    engines: tuple[str, ...] = ()
    """The engines of its runs, driven or imported."""
    trains: bool = True
    """False for one that only runs an engine: its steps are of another kind."""
    step_of: str = "step"
    """What one of its steps is: `step`, or the unit of a result for which the engine ran once, without a warm-up."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Common name -> its settings for it; the first that is set counts. Common names are the workload's keys and
    `engine`, `prompts` (of a step), `tensor_parallel`, `pipeline_parallel`, `server_engines`, `memory_share`,
    `max_model_len`, `lora_rank`."""
    logs: Logs = Logs()
    driver: Driver | None = None
    """None if its runs can only be imported."""
    launch: Launch | None = None
    """How people start it themselves; None if its commands are not read."""
    rules: Rules = Rules()
    rollout: Callable[[Mapping[str, Any], Engine, TimerTree | None], Rollout] = lambda settings, engine, tree: Rollout()
    """How a run with these flat settings generates; without a tree, what does not depend on its loop."""

    @property
    def distribution(self) -> str:
        """The package whose version is its release."""
        return self.package or self.name

    def lookup(self, settings: Mapping[str, Any], name: str) -> Any:
        """The value of a common name; None if it is not set."""
        return next((settings[key] for key in self.keys.get(name, ()) if settings.get(key) is not None), None)

    def key(self, name: str) -> str:
        """The setting of a common name."""
        return self.keys.get(name, (name,))[0]
