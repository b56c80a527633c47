"""A workload in ms-swift's words (RLHFArguments of 4.6), as equal to TRL's as swift allows."""

from __future__ import annotations

from typing import Any

from common.errors import UserError
from trainers.protocol import StackFacts
from trainers.workload import TrainedArm, Workload

# Set by the job itself on the node; an option of that name would break the paths that the collector reads.
_OWNED_BY_JOB = frozenset(
    {
        *("rlhf_type", "model", "dataset", "output_dir", "run_name", "add_version", "report_to", "disable_tqdm"),
        *("logging_steps", "logging_strategy", "logging_first_step", "logging_nan_inf_filter", "logging_dir"),
        *("resume_from_checkpoint", "resume_only_model", "reward_funcs", "reward_weights", "use_vllm", "use_cpu"),
        *("generation_batch_size", "steps_per_generation"),
    }
)
_NOT_DRIVEN = {
    "async_generate": "a step would train on the completions of the one before",
    "dynamic_sample": "completions that are thrown away are not counted yet",
    "multi_turn_scheduler": "a completion of several turns is not encoded by the tokenizer's chat template yet",
    "reward_model": "its seconds are no phase yet",
}
"""What ms-swift could do and our driver does not read right, and why."""


def trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    """RLHFArguments for one run: the workload's words translated, then the arm's options.

    An option that contradicts a workload word is refused: it would make the arms unequal behind the reader's back.
    """
    _require_what_swift_can(arm, workload)
    micro = workload.micro_batch_size or workload.batch_size
    args: dict[str, Any] = {
        "max_steps": workload.steps,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": workload.batch_size // micro,
        "num_generations": workload.num_generations,
        "max_completion_length": workload.max_response_length,
        "max_length": workload.max_prompt_length + workload.max_response_length,
        "temperature": workload.temperature,
        "top_p": workload.top_p,
        "learning_rate": workload.learning_rate,
        "lr_scheduler_type": "constant_with_warmup" if workload.lr_warmup_steps else "constant",
        "warmup_steps": workload.lr_warmup_steps,
        "beta": workload.beta,
        "loss_type": workload.loss_type,
        "reward_weights": [reward.weight for reward in workload.rewards],
        # swift takes float16 where it is told of neither.
        "bf16": workload.dtype == "bfloat16",
        "fp16": False,
        "seed": seed,
        "save_strategy": "steps" if workload.save_steps else "no",
        "save_steps": workload.save_steps or workload.steps,
        "save_total_limit": 2,
        # The prompts: the tokenizer's own chat template. swift's for a model may add a system message.
        "template": "dummy",
        "template_backend": "jinja",
    }
    owned = set(args) | _OWNED_BY_JOB
    # What TRL has where nothing is said; swift's own are another optimizer's (0.95, 0.1), bfloat16 weights and LoRA.
    args |= {"tuner_type": "full", "torch_dtype": "float32", "adam_beta2": 0.999, "weight_decay": 0.0}
    args |= {"dataloader_num_workers": 0}
    if stack.accelerator == "cpu":
        args |= {"use_cpu": True, "gradient_checkpointing": False}
    for option in arm.options:
        if option in owned:
            raise UserError(
                f"options.{option} of an arm is not free: it follows from the workload, the engine or the run's "
                "folder. Change the workload's own word instead, so that it holds for every arm alike "
                f"(got {arm.options[option]!r})"
            )
    return args | arm.options


def _require_what_swift_can(arm: TrainedArm, workload: Workload) -> None:
    """`UserError` for words that ms-swift, or our driver of it, has no answer to."""
    if arm.engine != "transformers":
        raise UserError(
            f"trainer swift trains from here with engine transformers alone (got {arm.engine}); its runs with "
            f"{arm.engine} can be compared by an import (docs/import.md)"
        )
    if workload.num_generations < 2:
        raise UserError(
            "workload.num_generations must be at least 2 with trainer swift: it compares completions (got 1)"
        )
    if workload.mini_batch_size not in (None, workload.batch_size):
        raise UserError(
            f"workload.mini_batch_size must be null or batch_size ({workload.batch_size}) with trainer swift: one "
            f"update each step (got {workload.mini_batch_size})"
        )
    if workload.test_steps:
        raise UserError(f"workload.test_steps must be 0 with trainer swift: no validation (got {workload.test_steps})")
    if workload.nodes > 1 or workload.gpus_per_node > 1:
        raise UserError(
            "trainer swift trains in one process: workload.nodes must be 1 and workload.gpus_per_node at most 1 (got "
            f"{workload.nodes} and {workload.gpus_per_node}); trainer verl takes more"
        )
    for option, why in _NOT_DRIVEN.items():
        if arm.options.get(option):
            raise UserError(
                f"options.{option} cannot be used with trainer swift from here: {why}. Its runs can be compared by an "
                "import (docs/import.md)"
            )
