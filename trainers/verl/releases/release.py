"""Defines what is known of one release of verl. `v<release>.py` declares it; no other file compares versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from common.model_facts import ModelFacts
from trainers.verl.driver.overrides import ACTOR, BOOKKEEPING, REF, ROLLOUT

if TYPE_CHECKING:
    from trainers.cases import Case
    from trainers.workload import Workload

DerivedSettings = dict[str, tuple[str, Any]]
"""Hydra key -> the workload key that it follows from, and its value."""


LOSSES: Mapping[str, str] = {
    "grpo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "bnpo": "token-mean",
    "dapo": "token-mean",
}
"""A `loss_type` -> verl's `loss_agg_mode`, read in `agg_loss` of verl's core_algos.py and in TRL 1.16's GRPOTrainer
(docs/preflight.md#different-trainers: where it differs from TRL's)."""


def context_by_length(case: Case, model: ModelFacts, sources: Mapping[str, str] | None = None) -> tuple[str, str]:
    """`Release.context` of one that compares only `max_model_len` with the model's context (by engine: where)."""
    source = (sources or {}).get(case.engine.name, "the check of max_model_len")
    if case.settings.int(f"{ROLLOUT}.max_model_len") > model.context:
        return "", source
    return (
        f"verl {case.version} does not warn, and {case.engine.label} truncates responses at the model's context",
        source,
    )


@dataclass(frozen=True)
class Release:
    """One release of verl; a release without a file has all defaults."""

    version: str

    # Its settings
    job_keys: tuple[str, ...] = ()
    """Keys, with all keys below them, that only the job on the node sets."""
    reward_key: str = ""
    """The section of the custom reward function."""
    sums_micro_batch: tuple[str, ...] = ()
    """The `loss_type`s that sum over the completions of a micro-batch instead of averaging."""
    derived: Callable[[Workload, int], DerivedSettings] = lambda workload, seed: {}
    """Settings of this release alone that follow from the workload and the seed."""
    reserved_keys: Mapping[str, str] = field(default_factory=dict)
    """Further keys, with all keys below them, that would override a workload key -> that key."""
    trl_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings whose default is not TRL's, or may change; an arm's options may override them."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Its own defaults that decide a check or an engine's term before a stack has composed all of them."""

    # What it refuses
    validate: Callable[[Any], object] = lambda config: None
    """verl's own check of a composed configuration (OmegaConf), which raises for a refusal; it imports verl."""

    # Its engines
    engines_without_options: tuple[str, ...] = ()
    """Engines to which it passes no options."""
    serves: bool = True
    """Whether its engines are their own servers, which have further options."""
    context: Callable[[Case, ModelFacts], tuple[str, str]] = context_by_length
    """What happens to sequences beyond the model's context, empty where engine or trainer refuse it when the engine is
    built; and the source."""

    # Ray
    cpus_with_gpu: int = 3
    """CPUs that its actors reserve in Ray with each GPU."""
    storage_units: int = 0
    """Default number of its transfer queue's storage units with V1; each takes a CPU."""


JOB_KEYS = (
    *("data.train_files", "data.val_files", "actor_rollout_ref.model.path"),
    *(*BOOKKEEPING, "trainer.val_only", "custom_reward_function"),
    *("data.prompt_key", "data.reward_fn_key", "data.custom_cls"),
)
RESERVED_KEYS: Mapping[str, str] = {
    f"{ACTOR}.ppo_micro_batch_size": "micro_batch_size",
    f"{ROLLOUT}.log_prob_micro_batch_size": "micro_batch_size",
    f"{REF}.log_prob_micro_batch_size": "micro_batch_size",
    f"{ROLLOUT}.prompt_length": "max_prompt_length",
    f"{ROLLOUT}.response_length": "max_response_length",
    f"{ROLLOUT}.do_sample": "temperature",
    f"{ACTOR}.optim.total_training_steps": "steps",
    "data.gen_batch_size": "batch_size",
    "trainer.remove_previous_ckpt_in_save": "save_steps",
}
TRL_DEFAULTS: Mapping[str, Any] = {
    f"{ACTOR}.entropy_coeff": 0.0,
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.ppo_epochs": 1,
    # verl's default is 0.01, that of TRL (and transformers) 0.
    f"{ACTOR}.optim.weight_decay": 0.0,
    # TRL divides by a group's standard deviation whatever the loss_type.
    "algorithm.norm_adv_by_std_in_grpo": True,
    f"{ROLLOUT}.top_k": -1,
}
