"""A workload in ms-swift's words (RLHFArguments of 4.6), as equal to TRL's as swift allows."""

from __future__ import annotations

from typing import Any

from common.errors import UserError
from trainers.cases import Case
from trainers.hf_arguments import completed, require_one_process, require_one_update, workload_arguments
from trainers.hf_terms import KL_ESTIMATE, cut_off, kl_estimate, number_format, trl_terms
from trainers.protocol import StackFacts
from trainers.terms import Said, Terms, said
from trainers.workload import TrainedArm, Workload

# Those beside TRL's that the job sets itself on the node.
_OWNED = (
    *("rlhf_type", "model", "dataset", "add_version", "logging_dir"),
    *("resume_from_checkpoint", "resume_only_model", "reward_funcs"),
)
_NOT_DRIVEN = {
    "async_generate": "a step would train on the completions of the one before",
    "dynamic_sample": "completions that are thrown away are not counted yet",
    "multi_turn_scheduler": "a completion of several turns is not encoded by the tokenizer's chat template yet",
    "reward_model": "workload.rewards takes a reward model, with the same score under every trainer",
}
"""What ms-swift could do and our driver does not read right, and why."""


def trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    """RLHFArguments for one run: the workload's words translated, then the arm's options."""
    _require_what_swift_can(arm, workload)
    fixed = workload_arguments(workload, seed) | {
        "max_length": workload.max_prompt_length + workload.max_response_length,
        # swift takes float16 where it is told of neither.
        "fp16": False,
        # The prompts: the tokenizer's own chat template. swift's for a model may add a system message.
        "template": "dummy",
        "template_backend": "jinja",
    }
    # What TRL has where nothing is said; swift's own are another optimizer's (0.95, 0.1), bfloat16 weights and LoRA.
    defaults = {"tuner_type": "full", "torch_dtype": "float32", "adam_beta2": 0.999, "weight_decay": 0.0}
    defaults["dataloader_num_workers"] = 0
    return completed(fixed, defaults, arm, stack, _OWNED)


def _require_what_swift_can(arm: TrainedArm, workload: Workload) -> None:
    """`UserError` for words that ms-swift, or our driver of it, has no answer to."""
    if arm.engine != "transformers":
        raise UserError(
            f"trainer swift trains from here with engine transformers alone (got {arm.engine}); its runs with "
            f"{arm.engine} can be compared by an import (docs/import.md)"
        )
    require_one_update("swift", workload)
    require_one_process("swift", workload)
    for option, why in _NOT_DRIVEN.items():
        if arm.options.get(option):
            raise UserError(
                f"options.{option} cannot be used with trainer swift from here: {why}. Its runs can be compared by an "
                "import (docs/import.md)"
            )


def swift_terms(case: Case) -> Terms:
    """The terms as swift's settings have them: TRL's, but for what it names or does otherwise.

    Read in ms-swift 4.6.0 rlhf_trainers/grpo_trainer.py and rl_core/advantage.py.
    """
    correction = "rollout_importance_sampling_mode"
    return {
        **trl_terms(case),
        "weights' number format": said(case, number_format, "torch_dtype"),
        KL_ESTIMATE: kl_estimate(case, "k3, at most 10"),
        "entropy bonus": Said(0.0),
        "completions that are cut off": said(case, cut_off, "overlong_filter"),
        "correction of the engine's probabilities": said(case, lambda mode: "on" if mode else "off", correction),
        "log-probabilities of the old policy": Said("computed in every step"),
    }
