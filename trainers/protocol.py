"""Defines what is asked of a trainer: its folder answers with one `Trainer`, and nobody else names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.dotted import flatten
from common.findings import Finding
from common.model_facts import ModelFacts
from engines import Engine
from trainers import Spread
from trainers.cases import Settings
from trainers.logs.log_files import Printout
from trainers.logs.record import Imported
from trainers.logs.step_names import StepNames
from trainers.terms import Terms
from trainers.timers.tree import TimerTree
from trainers.workload import TrainedArm, Workload

if TYPE_CHECKING:
    from trainers.cases import Case
    from trainers.memory_estimate import MemoryEstimate
    from trainers.rows import Behaviour

Variables = Mapping[str, tuple[str, str]]
"""Variable -> (value, who sets it), outside of the experiment."""
Check = Callable[["Case", Variables], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What the plan needs to know of a stack."""

    trainer: str
    engine: str
    accelerator: str
    """`cpu` or `cuda`."""
    trainer_version: str
    """The version of the trainer that the stack's lock pins."""
    lock_id: str


@dataclass(frozen=True, slots=True)
class Driver:
    """How a trainer is run from here."""

    job_module: str
    """The module that runs inside the stack, given the path of attempt.json. It is hashed into fingerprints: what
    it is called today says `trainers.driver_module`."""
    resolver: str
    """The module that runs inside the stack and has `resolved(trainer_args, rewards)`: the trainer's version and its
    flat settings, or a `UserError` for what the trainer would refuse."""
    trainer_args: Callable[[TrainedArm, Workload, int, StackFacts], dict[str, Any]]
    """The trainer's own settings; a `UserError` where words and options contradict each other."""
    spread: Spread = Spread.ALONE
    """How it spreads over a job's GPUs and nodes."""
    server: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda args: None
    """What the server beside it is with these settings (`Spread.to_spec`); None where there is none."""
    least_cpus: Callable[[dict[str, Any], Workload], int] = lambda args, workload: 1
    """CPUs, of all nodes together, that the trainer with these settings needs to start at all."""
    without_seed: Callable[[dict[str, Any]], dict[str, Any]] = lambda args: args
    """Its settings without what a run's seed decides, beside `seed` itself."""
    any_stack: bool = False
    """Whether it runs in every stack of its engine, whichever trainer that is for."""
    rewards_in_settings: bool = False
    """Whether its resolved settings depend on the workload's rewards."""


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A file that trainers write, and how it is told from others by its content."""

    name: str
    what: str
    """In words, for errors."""
    read: Callable[[Path], Imported]
    is_step: Callable[[Printout], bool] | None = None
    """Whether a part of a console log is a training step of this format."""
    is_row: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether a JSON line is a row of this format."""
    mark: bytes = b""
    """A word that a whole JSON document of this format holds."""
    preview: Callable[[Path, Iterable[Printout], bool], Imported] | None = None
    """What it tells beside its steps: its path, its first parts, and whether the run's version is known without it."""
    step_alone: bool = False
    """Whether it holds no timer but the step's: that is the same in all releases."""


@dataclass(frozen=True, slots=True)
class UnreadConsole:
    """What each step of a trainer's console has, which is named and not read; `mark` is a plain part of such a line,
    looked for first."""

    mark: str
    step: re.Pattern[str]

    def printed(self, text: str) -> bool:
        """Whether a text is of such a step."""
        return self.mark in text and self.step.search(text) is not None


def plain_settings(args: Mapping[str, Any], composed: Mapping[str, Any] | None) -> Settings:
    """Settings that are given by name, with those that the trainer itself has resolved over them."""
    given = flatten(args)
    return Settings({**given, **(composed or {})}, frozenset(given), composed is not None)


def engine_sequence_limit(
    tree: TimerTree, engine: Engine, settings: Mapping[str, Any], held: Mapping[str, Any]
) -> object:
    """The most sequences at once, as the engine itself holds it."""
    return held.get(engine.max_sequences_option)


def refused_context(case: Case, model: ModelFacts) -> tuple[bool, str, str]:
    """What happens to sequences beyond the model's context: whether the engine refuses, why, and the source."""
    return (
        True,
        f"{case.engine.label} or {case.trainer.name} refuses it when the engine is built",
        "the check of length",
    )


@dataclass(frozen=True)
class Trainer:
    """A trainer, as its folder describes it; one that is known by its name alone has all defaults."""

    name: str
    label: str = ""
    """As people write it, where that is not its name."""
    engines: tuple[str, ...] = ()
    """The engines that it can be driven with, or imported."""
    package: str = ""
    """The package whose version is its release, where that has another name."""
    driver: Driver | None = None
    """None where its runs can only be imported."""
    trains: bool = True
    """Whether it trains; one that runs an engine alone has steps of another kind."""

    # Its settings
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Word -> its settings that say it, the first that is there counts. The words are those of a workload and `engine`,
    `prompts` (of a step), `tensor_parallel`, `pipeline_parallel`, `server_engines`, `memory_share`, `max_model_len`,
    `lora_rank`."""
    marks: tuple[str, ...] = ()
    """Settings, or sections of them, that only its configurations hold (`keys["engine"]` may be one)."""
    bookkeeping: frozenset[str] = frozenset()
    """Last parts of its settings that are names, trackers and places: no work of a step."""
    engine_options: str = ""
    """What stands before an engine's own options, with `{engine}` for its name."""
    engine_switches: Mapping[str, Mapping[bool, str]] = field(default_factory=dict)
    """Switches that say which engine it is, beside `keys["engine"]`."""
    engine_specific: tuple[str, ...] = ()
    """How settings begin that mean something with one of its engines alone."""
    changes_text: frozenset[str] = frozenset()
    """Those of them that change what is written, and not only how: arms must have them alike, whatever the engine."""
    settings: Callable[[Mapping[str, Any], Mapping[str, Any] | None], Settings] = plain_settings
    """A run's settings, from its `trainer_args` or from what the stack has resolved."""

    # What it does with a run, before it runs
    releases: tuple[str, ...] = ()
    """Those of which it is known what engines make of their settings; empty where there is nothing to know."""
    behaviours: tuple[Behaviour, ...] = ()
    checks: tuple[Check, ...] = ()
    memory: Callable[[Case, float, ModelFacts], MemoryEstimate] | None = None
    """An estimate for a GPU of so many GiB."""
    context: Callable[[Case, ModelFacts], tuple[bool, str, str]] = refused_context
    terms: Callable[[Case], Terms] = lambda case: {}
    """What its settings come to in the words of trainers/terms.py; empty where nobody has read it."""
    reads_engine_options: Callable[[Case], bool] = lambda case: True

    # What it logs
    trees: tuple[TimerTree, ...] = ()
    native: str = ""
    """The mode of its trees where no driver of ours timed it."""
    loop: Callable[[str, Mapping[str, Any]], str] = lambda version, settings: ""
    """The mode of a release's loop, by its settings."""
    formats: tuple[LogFormat, ...] = ()
    unread: UnreadConsole | None = None
    """Its console, where that is not read."""
    rows: StepNames | None = None
    """How its rows in wandb are told, where it is none of those that `analysis/sources/wandb_rows.py` knows."""
    quantities: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Our name of a quantity -> the scalars that it is logged as."""
    discarded: tuple[str, ...] = ()
    """Scalars that count completions which were generated and thrown away: they are in a step's seconds alone."""
    clipped_at_longest: Callable[[TimerTree], str] = lambda tree: ""
    """The scalar that counts every response as truncated that is as long as the batch's longest."""

    # How a run of it generated
    server: tuple[str, str] = ("", "")
    """The setting, and its value, with which its engine is a server of its own."""
    iterations_hidden_by: Mapping[str, str] = field(default_factory=dict)
    """Settings with which response lengths do not give the engine's iterations, and why."""
    carried_over: Mapping[str, str] = field(default_factory=dict)
    """Modes whose steps hold work of earlier steps, and what is unknown then."""
    sequence_limit: Callable[[TimerTree, Engine, Mapping[str, Any], Mapping[str, Any]], object] = engine_sequence_limit
    """The most sequences that one engine was certainly told to decode at once; of its tree, settings, and the settings
    that the engine holds."""
    engine_gpus: Callable[[str, Mapping[str, Any]], int | None] = lambda mode, settings: None
    """GPUs that only its engines have, in a mode that overlaps; None where no setting tells."""

    @property
    def distribution(self) -> str:
        """The package whose version is its release."""
        return self.package or self.name

    def lookup(self, settings: Mapping[str, Any], word: str, default: Any = None) -> Any:
        """What settings say under a word; the default where they do not."""
        return next((settings[key] for key in self.keys.get(word, ()) if settings.get(key) is not None), default)

    def key(self, word: str) -> str:
        """The setting that a word is written as."""
        return self.keys.get(word, (word,))[0]
