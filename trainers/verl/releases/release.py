"""Defines what is known of one release of verl. `v<release>.py` declares it; no other file compares versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainers.cases import Check
from trainers.rows import Advice, Effect
from trainers.timers.tree import TimerTree
from trainers.verl.driver.overrides import ACTOR, ROLLOUT

if TYPE_CHECKING:
    from trainers.workload import Workload

DerivedSettings = dict[str, tuple[str, Any]]
"""Hydra key -> the workload key that it follows from, and its value."""


@dataclass(frozen=True, slots=True)
class Loss:
    """verl's `loss_agg_mode` for a `loss_type` (docs/preflight.md#different-trainers: where it differs from TRL's)."""

    mode: str
    sums_micro_batch: bool = False
    """Whether it sums over the completions of a micro-batch instead of averaging."""


@dataclass(frozen=True)
class RefusedSetting:
    """Settings that verl stops at: the problem in one sentence, why verl stops, and what to change."""

    code: str
    text: str
    why: str = "verl {version} refuses it, often only when the workers and the engine are built"
    change: str = "the setting, to an allowed value"
    source: str = ""
    """Its place in verl's code, where its code has several."""


@dataclass(frozen=True)
class Assertion:
    """An assertion of verl's own code that settings can break."""

    broken: Callable[[FlatConfig], object]
    """What was got; None where it holds."""
    text: str
    source: str
    """Its file below `verl/`, and its line."""
    change: str
    code: str = "setting-asserted"

    def refusals(self, config: FlatConfig, version: str) -> Iterator[RefusedSetting]:
        """Nothing where it holds."""
        if (got := self.broken(config)) is not None:
            place = f"verl {version}, {self.source}"
            yield RefusedSetting(self.code, f"{self.text} (got {got})", change=self.change, source=place)


@dataclass(frozen=True)
class FlatConfig:
    """Flat settings, with the counts that several rules need."""

    values: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """A setting; the default where it is null or missing."""
        value = self.values.get(key)
        return default if value is None else value

    def count(self, key: str) -> int:
        """A count; 1 where it is not set."""
        return int(self.get(key) or 1)

    @property
    def gpus(self) -> int:
        return self.count("trainer.nnodes") * self.count("trainer.n_gpus_per_node")

    @property
    def longest(self) -> int:
        """Tokens of a prompt with its completion."""
        return self.count("data.max_prompt_length") + self.count("data.max_response_length")

    @property
    def dynamic(self) -> bool:
        """Whether micro-batches are packed by tokens."""
        return bool(self.get(f"{ACTOR}.use_dynamic_bsz"))


@dataclass(frozen=True)
class Release:
    """One release of verl; a release without a file has all defaults."""

    version: str

    # Its settings
    job_keys: tuple[str, ...] = ()
    """Keys, with all keys below them, that only the job on the node sets."""
    reward_key: str = ""
    """The section of the custom reward function."""
    own_reward_model: str = ""
    """Its own reward models, in words."""
    loggers: tuple[str, ...] = ()
    losses: Mapping[str, Loss] = field(default_factory=dict)
    """By `loss_type` (read in `agg_loss` of verl's core_algos.py and in TRL 1.16's GRPOTrainer)."""
    derived: Callable[[Workload, int], DerivedSettings] = lambda workload, seed: {}
    """Settings of this release alone that follow from the workload and the seed."""
    reserved_keys: Mapping[str, str] = field(default_factory=dict)
    """Further keys, with all keys below them, that would override a workload key -> that key."""
    trl_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings whose default is not TRL's, or may change; an arm's options may override them."""

    # What it refuses
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Key -> its allowed values; of a list, the allowed items."""
    problems: Callable[[FlatConfig], Iterator[RefusedSetting]] = lambda config: iter(())
    """What this release refuses and others accept."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Code of a refusal -> its place in verl's code."""
    checks: tuple[Check, ...] = ()
    """Settings that have another effect than they seem to have."""
    pads_packed_batches: bool = False
    """Whether it pads a batch that it packs by tokens, and then ignores the micro-batch size."""
    validates_in_step: bool = False
    """Whether a step's time includes its validation (before 0.6.0, verl PR 3117)."""

    # What its engines make of settings
    effects: Mapping[str, Mapping[str, Effect]] = field(default_factory=dict)
    """By engine, and by the code of a behaviour (trainers/verl/behaviours.py)."""
    changes: Mapping[str, Advice] = field(default_factory=dict)
    """Code of a behaviour -> what to change where engines differ; without it the behaviour's own advice."""
    engines_without_options: tuple[str, ...] = ()
    """Engines to which it passes no options."""
    sequence_limit: str = f"{ROLLOUT}.max_num_seqs"
    """The setting that limits how many sequences an engine decodes at once; empty if it passes none on."""
    context_checked: Mapping[str, str] = field(default_factory=dict)
    """Engine -> where verl compares the longest sequence with the model's context."""
    rope_scaling_unchecked: tuple[str, ...] = ()
    """Engines for which it skips that check if the model has rope_scaling."""
    checks_model_length: bool = False
    """Whether it makes that check for any max_model_len."""

    # Ray
    cpus_with_gpu: int = 3
    """CPUs that its actors reserve in Ray with each GPU."""
    storage_units: int = 0
    """Default number of its transfer queue's storage units with V1; each takes a CPU."""

    # What it logs
    trees: tuple[TimerTree, ...] = ()
    padded_loops: tuple[str, ...] = ()
    """Modes of its loops that pad a batch to its longest response."""
