"""Writes a workload and an arm's options as verl's settings (Hydra overrides) with the same meaning as in TRL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from common.dotted import flatten
from common.errors import UserError
from common.messages import short_repr
from trainers.protocol import StackFacts
from trainers.verl.driver.overrides import ACTOR, REF, ROLLOUT, listed_part, override, sections_above
from trainers.verl.releases import Release, release_named, releases
from trainers.verl.releases.release import LOSSES, DerivedSettings
from trainers.workload import TrainedArm, Workload


def trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    """verl's version and its Hydra overrides for one run: the workload translated, then the arm's options.

    `trainers.verl.driver.composed.job_overrides` adds paths, names and loggers on the node. A `UserError` for an option
    that overrides a workload key: it would silently make the arms unequal.
    """
    known = {one.version: one for one in releases()}
    release = known.get(stack.trainer_version)
    if release is None:
        raise UserError(
            f"the stack {arm.stack} pins verl {stack.trainer_version}, which is not supported; supported: "
            f"{', '.join(known)} (to add one, write a file in trainers/verl/releases/)"
        )
    options = list(flatten(arm.options, keep_plus=True).items())
    given = {key.lstrip("+"): value for key, value in options}
    ulysses = given.get("actor_rollout_ref.actor.ulysses_sequence_parallel_size", 1)
    dynamic = given.get("actor_rollout_ref.actor.use_dynamic_bsz", False) is True
    owned = settings(workload, arm.engine, seed, release, ulysses if isinstance(ulysses, int) else 1, dynamic)
    try:
        written = [override(key, value) for key, (_, value) in owned.items()]
        written += [override(key, value) for key, value in release.trl_defaults.items() if key not in given]
        written += [override(key, value) for key, value in _checked_leaves(options, owned, release)]
    except ValueError as error:
        raise UserError(f"options of an arm: {error}") from None
    return {"version": release.version, "overrides": written}


_STORAGE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


def least_cpus(args: dict[str, Any], workload: Workload) -> int:
    """The CPUs that verl's actors reserve in Ray; with fewer, verl waits for them silently and forever.

    0.4.1: one with each GPU (RayResourcePool of ray_trainer.py), and one to place the actor in which workers meet
    (register_center/ray.py). 0.9.1: three with each GPU (ResourcePoolManager of single_controller/ray/base.py), and
    with V1 one for the controller and one for each storage unit of the transfer queue. Our TaskRunner reserves none.
    """
    gpus = workload.nodes * workload.gpus_per_node
    release = release_named(args["version"])
    given = dict(one.lstrip("+").split("=", 1) for one in args["overrides"])
    v1 = release.storage_units and given.get("trainer.use_v1", "true") == "true"
    return 1 + (int(given.get(_STORAGE_UNITS, release.storage_units)) if v1 else 0) + release.cpus_with_gpu * gpus


def settings(
    workload: Workload, engine: str, seed: int, release: Release, sequence_parallel: int, dynamic: bool
) -> DerivedSettings:
    """The settings that follow from the workload, the engine and the seed; a `UserError` for what verl cannot do.

    `sequence_parallel` is the arm's Ulysses group size; `dynamic`: it packs micro-batches by tokens.
    """
    _require_what_verl_can(workload, release, dynamic)
    generations = workload.num_generations
    mini = workload.mini_batch_size or workload.batch_size
    devices = workload.nodes * workload.gpus_per_node
    micro = workload.micro_batch_size or max(1, mini * sequence_parallel // devices)
    found: DerivedSettings = {
        "algorithm.adv_estimator": ("", "grpo"),
        "algorithm.use_kl_in_reward": ("beta", False),
        "data.train_batch_size": ("batch_size", workload.batch_size // generations),
        "data.max_prompt_length": ("max_prompt_length", workload.max_prompt_length),
        "data.max_response_length": ("max_response_length", workload.max_response_length),
        f"{ACTOR}.ppo_mini_batch_size": ("mini_batch_size", mini // generations),
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": ("micro_batch_size", micro),
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": ("micro_batch_size", micro),
        f"{REF}.log_prob_micro_batch_size_per_gpu": ("micro_batch_size", micro),
        f"{ACTOR}.loss_agg_mode": ("loss_type", LOSSES[workload.loss_type]),
        f"{ACTOR}.use_kl_loss": ("beta", workload.beta > 0),
        f"{ACTOR}.kl_loss_coef": ("beta", workload.beta),
        f"{ACTOR}.kl_loss_type": ("beta", "low_var_kl"),
        f"{ACTOR}.optim.lr": ("learning_rate", workload.learning_rate),
        f"{ACTOR}.optim.lr_warmup_steps": ("lr_warmup_steps", workload.lr_warmup_steps),
        f"{ROLLOUT}.name": ("engine", engine),
        f"{ROLLOUT}.n": ("num_generations", generations),
        f"{ROLLOUT}.temperature": ("temperature", workload.temperature),
        f"{ROLLOUT}.top_p": ("top_p", workload.top_p),
        f"{ROLLOUT}.dtype": ("dtype", workload.dtype),
        "trainer.n_gpus_per_node": ("gpus_per_node", workload.gpus_per_node),
        "trainer.nnodes": ("nodes", workload.nodes),
        "trainer.total_training_steps": ("steps", workload.steps),
        # An epoch has at least one step, so the steps end before the epochs.
        "trainer.total_epochs": ("steps", workload.steps),
        "trainer.save_freq": ("save_steps", workload.save_steps or -1),
        "trainer.test_freq": ("test_steps", workload.test_steps or -1),
        "trainer.val_before_train": ("test_steps", workload.samples > 0),
        # 0.4.1 deletes the old checkpoint before it writes the new one.
        "trainer.max_actor_ckpt_to_keep": ("save_steps", 2),
        "trainer.critic_warmup": ("", 0),
    }
    return found | release.derived(workload, seed)


def _require_what_verl_can(workload: Workload, release: Release, dynamic: bool) -> None:
    """`UserError` for workloads that this release of verl cannot train."""
    if not workload.gpus_per_node:
        raise UserError("workload.gpus_per_node must be at least 1 with trainer verl, which needs GPUs (got 0)")
    if workload.dtype != "bfloat16":
        raise UserError(
            f"workload.dtype must be bfloat16 with trainer verl: its actor runs FlashAttention, which has no float32 "
            f"(got {workload.dtype})"
        )
    if workload.samples and not workload.test_steps:
        raise UserError(
            f"workload.samples needs workload.test_steps with trainer verl, which takes samples from its validations "
            f"(got samples {workload.samples} and test_steps 0); set test_steps, or samples: 0"
        )
    if workload.reward_models:
        raise UserError(
            f"workload.rewards has a reward model ({workload.reward_models[0].model}), and trainer verl calls a reward "
            "with one response at a time, in several processes without a GPU: each process would load the model. "
            "verl has reward models of its own, with other prompts and scores; remove the model, or use trainer trl or "
            "swift"
        )
    mini, batch, generations = workload.mini_batch_size, workload.batch_size, workload.num_generations
    if mini is not None and (mini % generations or (mini < batch and batch % mini)):
        raise UserError(
            f"workload.mini_batch_size must be a multiple of num_generations and divide batch_size with trainer verl, "
            f"which counts it in prompts (got {mini}, with num_generations {generations} and batch_size {batch})"
        )
    if workload.loss_type in release.sums_micro_batch and (workload.micro_batch_size != 1 or dynamic):
        raise UserError(
            f"workload.loss_type {workload.loss_type} needs micro_batch_size 1, and no use_dynamic_bsz, with verl "
            f"{release.version}: it sums over the completions of a micro-batch where it should average, so that the "
            f"gradient grows with micro_batch_size (got {workload.micro_batch_size}); set it to 1, or take a stack "
            "with verl 0.9.1"
        )


def _checked_leaves(
    leaves: list[tuple[str, Any]], owned: DerivedSettings, release: Release
) -> Iterator[tuple[str, Any]]:
    """The options that an arm may set; a `UserError` at the first that it may not.

    `owned` are single keys, with the workload key that each follows from; the release lists whole sections.
    """
    parents = {section for key in owned for section in sections_above(key.lstrip("+"))}
    sections = dict.fromkeys(release.job_keys, "job") | dict(release.reserved_keys)
    for key, value in leaves:
        bare = key.lstrip("+")
        owner = _owner(bare, owned, sections)
        if owner is not None:
            raise UserError(
                f"options.{key} of an arm is not free: {_owner_text(owner)}, for all arms alike "
                f"(got {short_repr(value)})"
            )
        if bare in parents and not (isinstance(value, Mapping) and not value):
            raise UserError(
                f"options.{key} is a section of verl's configuration, not one setting (got {short_repr(value)})"
            )
        if bare == "hydra" or bare.startswith("hydra."):
            raise UserError(f"options.{key} is a setting of Hydra's command line, without effect here; remove it")
        if "oc.env" in str(value):
            # Resolved settings, with the variable's value, are written into results.
            raise UserError(
                f"options.{key} reads an environment variable (got {short_repr(value)}); write the value itself, or "
                "give the variable in the arm's env"
            )
        yield key, value


def _owner(bare: str, owned: DerivedSettings, sections: Mapping[str, str]) -> str | None:
    """The workload key, or `job`, that sets a key; None where an arm may set it."""
    if found := owned.get(bare) or owned.get(f"+{bare}"):
        return found[0]
    at = listed_part(bare, sections)
    return sections[at] if at else None


def _owner_text(owner: str) -> str:
    if owner == "job":
        return "the job sets it on the node (paths, names, loggers, resuming, the reward's file)"
    if not owner:
        return "rolloutbench sets it, since it compares GRPO"
    if owner in ("engine", "seeds"):
        return f"it follows from {'the arm' if owner == 'engine' else 'the experiment'}'s {owner}; change that instead"
    return f"it follows from workload.{owner}; change that instead"
