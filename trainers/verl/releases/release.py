"""Defines what belongs to one release of verl; `v<release>.py` says it, and no other file asks for a version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainers.cases import Case
from trainers.rows import Effect
from trainers.timers.tree import TimerTree
from trainers.verl.driver.overrides import ACTOR, ROLLOUT

if TYPE_CHECKING:
    from trainers.protocol import Check
    from trainers.workload import Workload

Words = dict[str, tuple[str, Any]]
"""Hydra key -> the word of the workload that it follows from, and its value."""


@dataclass(frozen=True, slots=True)
class Loss:
    """How a `loss_type` is had from a release, and where it is not what TRL computes."""

    mode: str
    differs: str = ""
    """Empty where it is TRL's."""
    sums_micro_batch: bool = False
    """Whether it sums over the completions of a micro-batch where it should average."""


@dataclass(frozen=True)
class Refusal:
    """What is wrong with some settings, in one sentence, why it stops and what to change; `code` is the preflight's."""

    code: str
    text: str
    why: str = "verl {version} refuses it, often only when the workers and the engine are built"
    change: str = "the setting, as it must be"


@dataclass(frozen=True)
class FlatConfig:
    """Flat settings, with the numbers that several rules need."""

    values: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """A setting; the default where it is null or not there."""
        value = self.values.get(key)
        return default if value is None else value

    def of(self, key: str) -> int:
        """A count; 1 where it is not given."""
        return int(self.get(key) or 1)

    @property
    def gpus(self) -> int:
        return self.of("trainer.nnodes") * self.of("trainer.n_gpus_per_node")

    @property
    def longest(self) -> int:
        """Tokens of a prompt with its completion."""
        return self.of("data.max_prompt_length") + self.of("data.max_response_length")

    @property
    def dynamic(self) -> bool:
        """Whether micro-batches are packed by tokens."""
        return bool(self.get(f"{ACTOR}.use_dynamic_bsz"))


@dataclass(frozen=True)
class Release:
    """What is known of one release; one that is known by its version alone has all defaults."""

    version: str

    # Its settings
    job_keys: tuple[str, ...] = ()
    """The keys, and what lies below them, that only the job on the node sets."""
    reward_key: str = ""
    """Where it looks for a reward function of ours."""
    own_reward_model: str = ""
    """How it scores with a model itself, in words."""
    ray_cpus_key: str = ""
    loggers: tuple[str, ...] = ()
    losses: Mapping[str, Loss] = field(default_factory=dict)
    """By `loss_type` (read in `agg_loss` of verl's core_algos.py and in TRL 1.16's GRPOTrainer)."""
    words: Callable[[Workload, int], Words] = lambda workload, seed: {}
    """Keys of its own that follow from the workload and the seed."""
    overruling: Mapping[str, str] = field(default_factory=dict)
    """Further keys, and what lies below them, that would overrule a word, and the word."""
    made_equal: Mapping[str, Any] = field(default_factory=dict)
    """Where its own default is not TRL's, or might come to differ; an arm's options may say otherwise."""

    # What it stops at
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """A key, and the values it may have, each of them if it is a list."""
    problems: Callable[[FlatConfig], Iterator[Refusal]] = lambda config: iter(())
    """What this release stops at, and not every one."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Code of a problem -> where in its code."""
    checks: tuple[Check, ...] = ()
    """What runs otherwise than it looks, in this release."""
    pads_packed_batches: bool = False
    """Whether it pads a batch that it packs by tokens, and reads no size of a micro-batch then."""

    # What its engines make of settings
    effects: Mapping[str, Mapping[str, Effect]] = field(default_factory=dict)
    """By engine, and by the code of a behaviour (trainers/verl/behaviours.py)."""
    changes: Mapping[str, Callable[[Sequence[Case]], str]] = field(default_factory=dict)
    """By the code of a behaviour, what to change where engines differ in it; else the behaviour's own words hold."""
    engines_without_options: tuple[str, ...] = ()
    """Engines to which it passes no options."""
    sequence_limit: str = f"{ROLLOUT}.max_num_seqs"
    """The setting that says how many sequences an engine decodes at once; empty where it passes none on."""
    context_checked: Mapping[str, str] = field(default_factory=dict)
    """By engine, where it compares the longest sequence with the model's context."""
    rope_scaling_unchecked: tuple[str, ...] = ()
    """Engines with which that check is left out for a model with rope_scaling."""
    checks_model_length: bool = False
    """Whether that check holds whatever max_model_len says."""

    # How it spreads, and what it holds in memory
    cpus_with_gpu: int = 3
    """CPUs that its actors reserve in Ray with each GPU."""
    storage_units: int = 0
    """Of its transfer queue, a CPU each, where V1 trains and no setting says another number."""
    engine_in_worker: bool = False
    """Whether the engine is in the trainer's own process, and sleeps between rollouts whatever free_cache_engine says.
    """
    reference_stays: bool = True
    """Whether FSDP's reference stays on the GPU."""

    # What it logs
    trees: tuple[TimerTree, ...] = ()
    padded_loops: tuple[str, ...] = ()
    """Modes of its trees that pad a batch to its longest response."""
