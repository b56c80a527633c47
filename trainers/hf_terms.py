"""Reads the terms of a training from the arguments of transformers' Trainer: TRL's, which ms-swift changes in part.

Source: TRL 1.16.0 trainer/grpo_trainer.py and grpo_config.py, and transformers' TrainingArguments.
"""

from __future__ import annotations

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
# Older releases have a switch.
_SCALES = {"True": "group", "False": "none"}
KL_ESTIMATE = "KL estimate"


def trl_terms(case: Case) -> Terms:
    """The terms of a training by TRL's settings."""
    settings = case.settings
    # With DDP each GPU has the whole model. No setting of an imported run gives its GPUs.
    gpus_per_copy = hf_server.training_gpus(case) if settings.true(FSDP[0]) else 1
    return {
        "optimizer": term(case, lambda name: "AdamW" if name in _ADAMW else str(name), "optim"),
        "learning rate": term(case, number, "learning_rate"),
        # transformers 4 gives the share of all steps its own name; it counts if no steps are given.
        "learning rate schedule": term(
            case,
            lambda kind, warmup: schedule(kind, warmup, settings.get("warmup_ratio")),
            *("lr_scheduler_type", "warmup_steps"),
        ),
        "Adam's betas": term(case, lambda one, two: [number(one), number(two)], "adam_beta1", "adam_beta2"),
        "Adam's epsilon": term(case, number, "adam_epsilon"),
        "weight decay": term(case, number, "weight_decay"),
        "gradient norm limit": term(case, number, "max_grad_norm"),
        "updates per batch": _updates(case),
        TRAINED_WEIGHTS: _trained(case),
        GPUS_PER_COPY: TermValue(None if case.imported else gpus_per_copy, FSDP[:1]),
        # TRL merges an adapter into the weights before it sends them.
        WEIGHTS_SENT: TermValue(ALL_WEIGHTS),
        POLICY_VERSION: TermValue(NEWEST),
        "number format of the weights": term(case, number_format, "model_init_kwargs.dtype"),
        "number format of a pass": term(case, _pass_format, "bf16", "fp16"),
        "loss": term(case, str, "loss_type"),
        "clip range": term(case, _range, "epsilon", "epsilon_high"),
        "dual-clip bound": term(case, number_or_off(()), "delta"),
        "level of the ratio": term(case, str, "importance_sampling_level"),
        "divisor of the advantages": term(case, lambda by: _SCALES.get(str(by), str(by)), "scale_rewards"),
        "epsilon of that divisor": TermValue(1e-4),
        "reward weights": term(
            case,
            lambda weights: [number(one) for one in weights] if isinstance(weights, list | tuple) else None,
            "reward_weights",
        ),
        "KL penalty": term(case, number, "beta"),
        KL_ESTIMATE: kl_estimate(case, "k3"),
        "reference follows the policy": term(case, bool, "sync_ref_model"),
        "entropy bonus": term(case, number, "entropy_coef"),
        "truncated completions": term(case, truncated, "mask_truncated_completions"),
        "correction of the engine's probabilities": _correction(case),
        "log-probabilities of the old policy": TermValue("left out where a batch has one update"),
        PROMPT_ORDER: TermValue(BY_SEED),
        # The driver passes no tools. No setting of an imported run shows its tools.
        TURNS: TermValue(None if case.imported else ONE_TURN),
        **_sampling(case),
    }


def _sampling(case: Case) -> Terms:
    return {
        "temperature": term(case, number, "temperature"),
        "top-p": term(case, number, "top_p"),
        "top-k": term(case, number_or_off((0.0, -1.0)), "top_k"),
        "min-p": term(case, number_or_off((0.0,)), "min_p"),
        "repetition penalty": term(case, number_or_off((1.0,)), "repetition_penalty"),
        "completions per prompt": term(case, int, "num_generations"),
        "longest completion": term(case, int, "max_completion_length"),
    }


def _trained(case: Case) -> TermValue:
    """The weights that are trained, by the driver's options; no setting of an imported run shows them."""
    if case.imported:
        return TermValue(None)
    if not case.settings.true("use_peft"):
        return TermValue(ALL_WEIGHTS, ("use_peft",))
    return term(case, adapter_text, "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")


def _updates(case: Case) -> TermValue:
    """Updates from the completions of one generation. The driver learns from all completions at once, and its settings
    are resolved in one process, so they do not hold each process's share."""
    if not case.imported:
        return term(case, int, "num_iterations")
    return term(
        case,
        lambda times, generated, learned: (
            int(times) * max(1, int(generated) // int(learned)) if generated and learned else None
        ),
        *("num_iterations", "steps_per_generation", "gradient_accumulation_steps"),
    )


def kl_estimate(case: Case, name: str) -> TermValue:
    """The trainer's fixed estimator; it matters only with a penalty."""
    beta = case.settings.number("beta")
    return TermValue(None if beta is None else name if beta else "none")


def truncated(excluded: Any) -> str:
    """Whether truncated completions are learned from."""
    return "not learned from" if excluded else "learned from"


def number_format(value: Any) -> str:
    """A number format without torch's prefix."""
    return str(value).removeprefix("torch.")


def _pass_format(bf16: Any, fp16: Any) -> str:
    return "bfloat16" if bf16 else "float16" if fp16 else "float32"


def _range(low: Any, high: Any) -> object:
    return [number(low), number(low if high is None else high)]


def _correction(case: Case) -> TermValue:
    """TRL corrects vLLM's probabilities only."""
    if case.engine.in_trainer:
        return TermValue("off", ("vllm_importance_sampling_correction",))
    return term(case, lambda on: "on" if on else "off", "vllm_importance_sampling_correction")
