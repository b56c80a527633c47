"""Reads the terms of a training from verl's settings.

Read in verl 0.4.1 and 0.9.1: trainer/ppo/core_algos.py (losses, KL, advantages) and the workers' optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trainers import terms
from trainers.cases import Case
from trainers.terms import Terms, TermValue, adapter_text, number, number_or_off, schedule, term
from trainers.verl.driver.overrides import ACTOR, MODEL, ROLLOUT
from trainers.verl.engine_settings import with_adapter
from trainers.verl.releases import Release, release_named

_OPTIM, _MODULES = f"{ACTOR}.optim", f"{MODEL}.target_modules"
_LOOP = "trainer.v1.trainer_mode"
_ADAM = [0.9, 0.999]
_LEVELS = {"vanilla": "token", "gspo": "sequence"}
_FORMATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_CLAMPED = {"low_var_kl": "k3, at most 10", "k3": "k3, at most 10"}


def verl_terms(case: Case) -> Terms:
    """The terms of verl's settings; none for an unknown release."""
    release = release_named(case.version)
    return {**_of_the_update(case), **_of_the_loss(case, release), **_sampling(case)} if release.losses else {}


def _first(case: Case, *keys: str) -> tuple[str, ...]:
    """The first of some keys that is set; releases name it differently."""
    return tuple(key for key in keys if key in case.settings)[:1]


def _of_the_update(case: Case) -> Terms:
    betas, kind = _first(case, f"{_OPTIM}.betas"), _first(case, f"{_OPTIM}.lr_scheduler_type", f"{_OPTIM}.warmup_style")
    norm, weights = _first(case, f"{_OPTIM}.clip_grad", f"{ACTOR}.grad_clip"), f"{ACTOR}.fsdp_config.model_dtype"
    warmup = f"{_OPTIM}.lr_warmup_steps"
    return {
        "optimizer": TermValue(
            str(case.settings.get(f"{_OPTIM}.optimizer", "AdamW")), _first(case, f"{_OPTIM}.optimizer")
        ),
        "learning rate": term(case, number, f"{_OPTIM}.lr"),
        "learning rate schedule": term(case, _schedule(case), *kind, warmup) if kind else TermValue(None, (warmup,)),
        "Adam's betas": term(case, _numbers, *betas) if betas else TermValue(_ADAM),
        "Adam's epsilon": TermValue(1e-8),  # torch's own
        "weight decay": term(case, number, f"{_OPTIM}.weight_decay"),
        "gradient norm limit": term(case, number, *norm) if norm else TermValue(None),
        "updates per batch": _updates(case),
        terms.TRAINED_WEIGHTS: _trained(case),
        terms.GPUS_PER_COPY: TermValue(max(1, _shards(case)), (f"{ACTOR}.fsdp_config.fsdp_size",)),
        terms.WEIGHTS_SENT: TermValue(
            terms.ADAPTER_ONLY if with_adapter(case) else terms.ALL_WEIGHTS, _first(case, f"{MODEL}.lora.merge")
        ),
        terms.POLICY_VERSION: TermValue(
            terms.NEWEST if case.settings.get(_LOOP, "sync") == "sync" else "also older ones", _first(case, _LOOP)
        ),
        "number format of the weights": TermValue(
            _FORMATS.get(str(case.settings.get(weights, "fp32")), str(case.settings.get(weights))), (weights,)
        ),
        "number format of a pass": term(case, str, f"{ROLLOUT}.dtype"),
    }


def _shards(case: Case) -> int:
    """GPUs that share the weights."""
    ways = case.settings.int(f"{ACTOR}.fsdp_config.fsdp_size", -1)
    return case.gpus if ways < 1 else min(ways, case.gpus)


def _schedule(case: Case) -> Callable[[Any, Any], object]:
    """A negative number of steps selects the share of all steps."""
    share = case.settings.get(f"{_OPTIM}.lr_warmup_steps_ratio")
    return lambda kind, warmup: schedule(kind, warmup, share if float(warmup or 0) < 0 else None)


def _updates(case: Case) -> TermValue:
    """Mini-batches of a step times epochs; both batch sizes are in prompts."""
    times, mini, batch = f"{ACTOR}.ppo_epochs", f"{ACTOR}.ppo_mini_batch_size", "data.train_batch_size"
    updates = term(
        case,
        lambda epochs, mini, batch: int(epochs) * max(1, math.ceil(batch / mini)) if mini and batch else None,
        *(times, mini, batch),
    )
    return TermValue(updates.value, (times, mini))


def _trained(case: Case) -> TermValue:
    rank = _first(case, *case.trainer.keys["lora_rank"])
    if not case.lora:
        return TermValue(terms.ALL_WEIGHTS, rank)
    # Its FSDP workers set no dropout, and peft's own is 0.
    adapter = term(
        case, lambda alpha, modules: adapter_text(case.lora, alpha, 0.0, modules), f"{MODEL}.lora_alpha", _MODULES
    )
    return TermValue(adapter.value, (*rank, *adapter.keys))


def _of_the_loss(case: Case, release: Release) -> Terms:
    ratio, correction = f"{ACTOR}.policy_loss.loss_mode", "algorithm.rollout_correction.rollout_is"
    penalised, estimate = case.settings.true(f"{ACTOR}.use_kl_loss"), str(case.settings.get(f"{ACTOR}.kl_loss_type"))
    return {
        "loss": term(case, lambda mode: _loss(str(mode), case.workload, release), f"{ACTOR}.loss_agg_mode"),
        "clip range": term(
            case, lambda low, high: [number(low), number(high)], f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"
        ),
        "dual-clip bound": term(case, number_or_off(()), f"{ACTOR}.clip_ratio_c"),
        "level of the ratio": term(case, lambda mode: _LEVELS.get(str(mode), str(mode)), ratio),
        "divisor of the advantages": term(
            case, lambda on: "group" if on else "none", "algorithm.norm_adv_by_std_in_grpo"
        ),
        "epsilon of that divisor": TermValue(1e-6),
        "reward weights": TermValue(_reward_weights(case.workload)),
        "KL penalty": term(case, lambda beta: number(beta) if penalised else 0.0, f"{ACTOR}.kl_loss_coef"),
        "KL estimate": TermValue(_CLAMPED.get(estimate, estimate) if penalised else "none"),
        "reference follows the policy": TermValue(False),
        "entropy bonus": term(case, number, f"{ACTOR}.entropy_coeff"),
        "truncated completions": TermValue("learned from"),
        "correction of the engine's probabilities": TermValue(
            "on" if case.settings.get(correction) else "off", _first(case, correction)
        ),
        "log-probabilities of the old policy": TermValue("computed in every step"),
        "order of the prompts": TermValue("verl's sampler, by the run's seed"),
    }


def _sampling(case: Case) -> Terms:
    return {
        "temperature": term(case, number, f"{ROLLOUT}.temperature"),
        "top-p": term(case, number, f"{ROLLOUT}.top_p"),
        "top-k": term(case, number_or_off((0.0, -1.0)), f"{ROLLOUT}.top_k"),
        "min-p": _passed(case, "min_p", 0.0),
        "repetition penalty": _passed(case, "repetition_penalty", 1.0),
        "completions per prompt": term(case, int, f"{ROLLOUT}.n"),
        "longest completion": term(case, int, "data.max_response_length"),
        terms.TURNS: term(case, lambda on: "several" if on else terms.ONE_TURN, f"{ROLLOUT}.multi_turn.enable"),
    }


def _passed(case: Case, name: str, off: float) -> TermValue:
    """A sampling key that a release passes on as it is; one that it does not pass has no effect."""
    key, keys = f"{ROLLOUT}.{name}", release_named(case.version).sampling_keys.get(case.engine.name, frozenset())
    reaches = name in keys and key in case.settings and case.settings.get(f"{ROLLOUT}.mode") != "async"
    return term(case, number_or_off((off,)), key) if reaches else TermValue("off")


def _loss(mode: str, workload: Mapping[str, Any], release: Release) -> str:
    """The `loss_type` of a `loss_agg_mode`, and how it differs from TRL's loss of that name."""
    matching = {name: loss for name, loss in release.losses.items() if loss.mode == mode}
    wanted = workload.get("loss_type")
    name = wanted if wanted in matching else next((name for name, loss in matching.items() if not loss.differs), mode)
    return f"{name}, but {matching[name].differs}" if name in matching and matching[name].differs else str(name)


def _reward_weights(workload: Mapping[str, Any]) -> object:
    rewards = workload.get("rewards")
    return [number(one.get("weight", 1.0)) for one in rewards] if isinstance(rewards, list) else None


def _numbers(values: Any) -> object:
    return [number(one) for one in values] if isinstance(values, list | tuple) else None
