"""Reads the terms of a training from the arguments of transformers' Trainer, as TRL has them and ms-swift with changes.

Read in TRL 1.16.0 trainer/grpo_trainer.py and grpo_config.py, and transformers' TrainingArguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainers import hf_server
from trainers.cases import Case
from trainers.hf_arguments import FSDP
from trainers.terms import (
    ALL_WEIGHTS,
    BY_SEED,
    GPUS_PER_COPY,
    NEWEST,
    ONE_TURN,
    POLICY_VERSION,
    PROMPT_ORDER,
    TRAINED_WEIGHTS,
    TURNS,
    WEIGHTS_SENT,
    Terms,
    TermValue,
    adapter_text,
    number,
    number_or_off,
    schedule,
    term,
)

_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf")
KL_ESTIMATE, KL_PENALTY = "KL estimate", "KL penalty"


def trl_terms(case: Case) -> Terms:
    """The terms as TRL's settings have them."""
    return {
        "optimizer": term(case, lambda name: "AdamW" if name in _ADAMW else str(name), "optim"),
        "learning rate": term(case, number, "learning_rate"),
        "learning rate's course": term(case, _course(case), "lr_scheduler_type", "warmup_steps"),
        "Adam's betas": term(case, lambda one, two: [number(one), number(two)], "adam_beta1", "adam_beta2"),
        "Adam's epsilon": term(case, number, "adam_epsilon"),
        "weight decay": term(case, number, "weight_decay"),
        "largest norm of a gradient": term(case, number, "max_grad_norm"),
        "updates from a batch": _updates(case),
        TRAINED_WEIGHTS: _trained(case),
        GPUS_PER_COPY: _shared(case),
        # It merges an adapter into the weights before it sends them, all of them.
        WEIGHTS_SENT: TermValue(ALL_WEIGHTS),
        POLICY_VERSION: TermValue(NEWEST),
        "weights' number format": term(case, number_format, "model_init_kwargs.dtype"),
        "number format of a pass": term(case, _of_a_pass, "bf16", "fp16"),
        "loss": term(case, str, "loss_type"),
        "clip range": term(case, _range, "epsilon", "epsilon_high"),
        "clip of a bad completion's ratio": term(case, number_or_off(()), "delta"),
        "what a ratio is of": term(case, str, "importance_sampling_level"),
        "advantages are divided by": term(case, scale, "scale_rewards"),
        "added to that divisor": TermValue(1e-4),
        "weights of the rewards": term(case, _weights, "reward_weights"),
        KL_PENALTY: term(case, number, "beta"),
        KL_ESTIMATE: kl_estimate(case, "k3"),
        "reference follows the policy": term(case, bool, "sync_ref_model"),
        "entropy bonus": term(case, number, "entropy_coef"),
        "completions that are cut off": term(case, cut_off, "mask_truncated_completions"),
        "correction of the engine's probabilities": _correction(case),
        "log-probabilities of the old policy": TermValue("left out where a batch has one update"),
        PROMPT_ORDER: TermValue(BY_SEED),
        # Our driver hands no tools over; what a run from elsewhere had stands in no setting.
        TURNS: TermValue(None if case.imported else ONE_TURN),
        **sampling(case),
    }


def _shared(case: Case) -> TermValue:
    """With DDP each has the whole model; of a run from elsewhere no setting tells how many GPUs it had."""
    ways = hf_server.training_gpus(case) if case.settings.true(FSDP[0]) else 1
    return TermValue(None if case.imported else ways, FSDP[:1])


def _trained(case: Case) -> TermValue:
    """Our driver's words; the settings of a run from elsewhere do not tell."""
    if case.imported:
        return TermValue(None)
    if not case.settings.true("use_peft"):
        return TermValue(ALL_WEIGHTS, ("use_peft",))
    return term(case, adapter_text, "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")


def sampling(case: Case) -> Terms:
    """How completions are drawn."""
    return {
        "temperature": term(case, number, "temperature"),
        "top-p": term(case, number, "top_p"),
        "top-k": term(case, number_or_off((0.0, -1.0)), "top_k"),
        "min-p": term(case, number_or_off((0.0,)), "min_p"),
        "repetition penalty": term(case, number_or_off((1.0,)), "repetition_penalty"),
        "completions of a prompt": term(case, int, "num_generations"),
        "longest completion": term(case, int, "max_completion_length"),
    }


def _course(case: Case) -> Callable[[Any, Any], object]:
    """Up to transformers 4 a share of all steps has a name of its own, and counts where no steps are given."""
    return lambda kind, warmup: schedule(kind, warmup, case.settings.get("warmup_ratio"))


def _updates(case: Case) -> TermValue:
    """Of the completions of one generation; ours are learned from at once.

    Where settings of ours are resolved there is one process: what each of several would hold stands nowhere.
    """
    if not case.imported:
        return term(case, int, "num_iterations")
    generated, learned = "steps_per_generation", "gradient_accumulation_steps"
    return term(
        case,
        lambda times, some, each: int(times) * max(1, int(some) // int(each)) if some and each else None,
        *("num_iterations", generated, learned),
    )


def kl_estimate(case: Case, name: str) -> TermValue:
    """The estimator that a trainer has fixed; it matters where there is a penalty."""
    beta = case.settings.number("beta")
    return TermValue(None if beta is None else name if beta else "none")


def scale(value: Any) -> object:
    """What advantages are divided by; older releases have a switch."""
    return {"True": "group", "False": "none"}.get(str(value), str(value))


def cut_off(left_out: Any) -> str:
    """What becomes of completions that reach the longest length."""
    return "not learned from" if left_out else "learned from"


def number_format(value: Any) -> str:
    """A number format, with torch's prefix or without."""
    return str(value).removeprefix("torch.")


def _of_a_pass(bf16: Any, fp16: Any) -> str:
    return "bfloat16" if bf16 else "float16" if fp16 else "float32"


def _range(low: Any, high: Any) -> object:
    return [number(low), number(low if high is None else high)]


def _weights(value: Any) -> object:
    return [number(one) for one in value] if isinstance(value, list | tuple) else None


def _correction(case: Case) -> TermValue:
    """TRL has it for vLLM alone."""
    if case.engine.in_trainer:
        return TermValue("off", ("vllm_importance_sampling_correction",))
    return term(case, lambda on: "on" if on else "off", "vllm_importance_sampling_correction")
