"""Defines the interface of a trainer: its folder provides one `Trainer`, and no other room names it.

A `Trainer` has two parts, `Logs` (what its runs log) and `Driver` (how it is run; None for an imported one), and says
itself what its settings mean: for the preflight, the fairness ledger and the floors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from common.dotted import flatten
from engines import Engine
from trainers import Spread
from trainers.cases import Check, Settings
from trainers.launching import Launch
from trainers.logs.log_files import Printout
from trainers.logs.record import Imported, StepNames
from trainers.timers.tree import TimerTree
from trainers.workload import TrainedArm, Workload

OFF: tuple[Any, ...] = (None, False, "", "null", "None", "False", "false", "auto", {}, [])
"""Values of a switch, or of an option, that is off."""


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
    """The module that runs inside the stack with the path of attempt.json, hashed into fingerprints;
    `trainers.driver_module` maps it to its present name. Its `resolved(trainer_args, rewards)` returns the trainer's
    version and flat settings, or raises a `UserError` for settings that the trainer refuses. That of a
    script (`Spread.OWN`) has `keep(spec, run_folder)` instead, called before each submission."""
    trainer_args: Callable[[TrainedArm, Workload, int, StackFacts], dict[str, Any]]
    """The trainer's own settings; a `UserError` where workload and options contradict each other. Those of a script are
    `script`, `words`, `arguments`, `nodes` and `gpus_per_node`."""
    spread: Spread = Spread.ALONE
    """How it spreads over a job's GPUs and nodes. With `Spread.OWN` a user's script brings its environment and its
    work: no stack, no workload, no inputs, and steps from its log."""
    needs: Callable[[dict[str, Any], Workload], dict[str, Any]] = lambda args, workload: {}
    """What a run with these settings needs beside the trainer's processes: `server`, the engine's (`Spread.to_spec`),
    and `least_cpus`, of all nodes together."""


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A file format of trainers' logs, and how its content is recognised."""

    name: str
    what: str
    """A description for errors."""
    read: Callable[[Path], Imported] | None
    """None for a console that is recognised, and not read."""
    is_step: Callable[[Printout], bool] = lambda part: False
    """Whether a part of a console log, or of a JSON document over many lines, shows a training step of this format."""
    is_row: Callable[[Mapping[str, Any]], bool] = lambda row: False
    """Whether a JSON line is a row of this format."""


@dataclass(frozen=True)
class Ledger:
    """Under which names a trainer counts what became of what it generated; all but `discards`: beside training.

    The scalars of an account are added up; a table of any trainer has the accounts' own names.
    """

    unit: str = "as logged"
    """What it counts: `groups`, the responses of one prompt, or `responses`."""
    generated: tuple[str, ...] = ("generated",)
    trained: tuple[str, ...] = ("trained",)
    """Without it what each step trained on follows from its tokens."""
    stale: tuple[str, ...] = ("stale",)
    dropped: tuple[str, ...] = ("dropped",)
    in_flight: tuple[str, ...] = ("in_flight",)
    """Numbers at one time: what is generated and waits to be trained."""
    totals: tuple[str, ...] = ()
    """Those scalars that count from the start of the process."""
    discards: Mapping[str, int | None] = field(default_factory=dict)
    """Scalars that count discarded completions, or the batches generated in a step -> the most without a discard; and
    settings that make it discard some (None). The time of a discarded completion is in the step, its tokens are not."""


@dataclass(frozen=True)
class Logs:
    """What a trainer logs: all that one whose runs are only imported fills in."""

    declared: Callable[[], tuple[TimerTree, ...]] = tuple
    """Makes its timer trees, which `trees` has: each log is of one trainer."""
    loop: Callable[[str, Mapping[str, Any]], str] = lambda version, settings: ""
    """The mode of a release's loop, by its settings."""
    formats: tuple[LogFormat, ...] = ()
    rows: StepNames | None = None
    """The names in its wandb rows, if `analysis/sources/wandb_rows.py` has no own reader for them."""
    quantities: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A quantity (trainers/registry.py) -> the names under which it is logged; `-x` and `-log(x)` are made of x. Of a
    result that is no step: all that `compare` prints of it, in words with their unit."""
    ledger: Ledger = Ledger()

    @cached_property
    def trees(self) -> tuple[TimerTree, ...]:
        """Its timer trees, by release and loop."""
        return self.declared()


def plain_settings(args: Mapping[str, Any], composed: Mapping[str, Any] | None) -> Settings:
    """Settings by name, overridden by those that the trainer has resolved itself."""
    given = flatten(args)
    return Settings({**given, **(composed or {})}, frozenset(given), composed is not None)


@dataclass(frozen=True)
class Trainer:
    """A trainer, as its folder describes it; an unknown trainer has all defaults."""

    name: str
    label: str = ""
    """Its name for readers, if different; where it is one word, also the package whose version is its release."""
    engines: tuple[str, ...] = ()
    """The engines of its runs, driven or imported."""
    step: str = "training step"
    """What one of its steps is; only such steps are compared with each other."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Common name -> its settings for it; the first that is set counts. Common names are the workload's keys and
    `engine`, `seed`, `server`, `prompts` (of a step; without any, `mini_batches` of `mini_prompts`), `tensor_parallel`,
    `pipeline_parallel`, `server_engines`, `memory_share`, `max_model_len`, `lora_rank`. A setting of `engine` is the
    engine's name, or the switch `use_<name>`; one in a run's configuration shows whose run it is. A setting of `server`
    is `server` where the engine is one."""
    logs: Logs = Logs()
    driver: Driver | None = None
    """None if its runs can only be imported."""
    launch: Launch | None = None
    """How people start it themselves; None if its commands are not read."""
    settings: Callable[[Mapping[str, Any], Mapping[str, Any] | None], Settings] = plain_settings
    """A run's settings, from its `trainer_args` or as the stack has resolved them."""
    bookkeeping: frozenset[str] = frozenset()
    """Last parts of settings without effect on a step: names, trackers, places, a limit that no sequence reaches."""
    resumable: tuple[str, ...] = ()
    """Patterns of settings that people change when a run goes on: how long it trains, how often it saves."""
    engine_options: Callable[[str, str], tuple[str, ...] | None] = lambda engine, release: None
    """The prefixes of settings named as an engine's options, in a release; what has the last one is that engine's
    alone, and counts first. Without any it is given none; None: not known."""
    checks: tuple[Check, ...] = ()
    """What its settings mean for a run, before it."""
    gpus_beside: Callable[[Mapping[str, Any], TimerTree, bool], int | None] = lambda settings, tree, separate: (
        None if separate else 0
    )
    """GPUs beside the trainer's: of engines that are separate (a loop that overlaps, a server), and of other pools,
    such as a reward model's own; None if no setting says so."""
    undecoded: Callable[[Mapping[str, Any], TimerTree], Iterable[str]] = lambda settings, tree: ()
    """What a run's numbers do not tell of its engine's iterations, and why."""

    @property
    def trains(self) -> bool:
        """Whether it trains: another runs an engine alone."""
        return self.step.startswith("training")

    @property
    def step_of(self) -> str:
        """The unit of its steps: `step`, or that of a result for which the engine ran once, without a warm-up."""
        return "step" if "step" in self.step else self.step.partition(" ")[0]

    @property
    def distribution(self) -> str:
        """The package whose version is its release."""
        return self.label.lower() if self.label and " " not in self.label else self.name

    def is_served(self, settings: Mapping[str, Any], engine: Engine) -> bool:
        """Whether a run's engine is a separate server."""
        return self.lookup(settings, "server") == "server" and not engine.in_trainer

    def engine_settings(self, settings: Mapping[str, Any], engine: str, release: str) -> dict[str, Any]:
        """An engine's own options in flat settings, by the engine's names."""
        return {
            key.removeprefix(prefix): value
            for prefix in self.engine_options(engine, release) or ()
            for key, value in settings.items()
            if key.startswith(prefix)
        }

    def engine_prefix(self, engine: str, release: str) -> str:
        """The prefix of the settings that are one engine's alone; empty if it has none."""
        return next(reversed(self.engine_options(engine, release) or ()), "")

    def lookup(self, settings: Mapping[str, Any], name: str) -> Any:
        """The value of a common name; None if it is not set."""
        return next((settings[key] for key in self.keys.get(name, ()) if settings.get(key) is not None), None)

    def key(self, name: str) -> str:
        """The setting of a common name."""
        return self.keys.get(name, (name,))[0]
