"""How does a workload read in TRL's words? (GRPOConfig of TRL 1.16)"""

from __future__ import annotations

from typing import Any

from common.errors import UserError
from trainers.protocol import StackFacts
from trainers.workload import TrainedArm, Workload

ENGINES = ("transformers", "vllm")
JOB_MODULE = "workflow.jobs.trl_grpo"
RAY = False

_NAMES_AND_PLACES = ("output_dir", "report_to", "run_name", "disable_tqdm")
BOOKKEEPING = frozenset(
    {
        *(*_NAMES_AND_PLACES, "logging_dir", "overwrite_output_dir"),
        *("hub_model_id", "hub_token", "hub_private_repo", "hub_revision", "log_completions_hub_repo"),
        *("project", "trackio_space_id", "trackio_static_space_id", "trackio_bucket_id"),
        *("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_group_port"),
        *("resume_from_checkpoint", "ignore_data_skip", "resume_only_model"),
        *("swanlab_project", "swanlab_workspace", "swanlab_exp_name", "swanlab_mode", "add_version"),
    }
)
"""Names, trackers, places, and what only a resumed run reads, ms-swift's among them: no work of a step."""

# Set by the job itself on the node; an option of that name would break the paths that the collector reads.
_OWNED_BY_JOB = frozenset(
    {*_NAMES_AND_PLACES, "logging_steps", "logging_strategy", "logging_first_step", "logging_nan_inf_filter"}
)
# The engine is the arm's `engine`; an option could silently turn it into another.
_OWNED_BY_ENGINE = frozenset({"use_vllm", "use_transformers_continuous_batching", "use_cpu"})


def trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    """GRPOConfig's keyword arguments for one run: the workload's words translated, then the arm's options.

    An option that contradicts a workload word is refused: it would make the arms unequal behind the reader's back.
    """
    _require_what_trl_can(workload)
    micro = workload.micro_batch_size or workload.batch_size
    args: dict[str, Any] = {
        "max_steps": workload.steps,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": workload.batch_size // micro,
        "num_generations": workload.num_generations,
        "max_completion_length": workload.max_response_length,
        "temperature": workload.temperature,
        "top_p": workload.top_p,
        "learning_rate": workload.learning_rate,
        "lr_scheduler_type": "constant_with_warmup" if workload.lr_warmup_steps else "constant",
        "warmup_steps": workload.lr_warmup_steps,
        "beta": workload.beta,
        "loss_type": workload.loss_type,
        "reward_weights": [reward.weight for reward in workload.rewards],
        "bf16": workload.dtype == "bfloat16",
        "seed": seed,
        "save_strategy": "steps" if workload.save_steps else "no",
        "save_steps": workload.save_steps or workload.steps,
        "save_total_limit": 2,
        # Corrections of a mismatch between engine and trainer: TRL turns them on for vLLM alone.
        "vllm_importance_sampling_correction": False,
        "use_bias_correction_kl": False,
    }
    owned = set(args) | _OWNED_BY_JOB | _OWNED_BY_ENGINE | {"generation_batch_size", "steps_per_generation"}
    if stack.accelerator == "cpu":
        args |= {"use_cpu": True, "gradient_checkpointing": False}
    if arm.engine == "vllm":
        args |= {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_max_model_length": workload.max_prompt_length + workload.max_response_length,
        }
    for option in arm.options:
        if option in owned:
            raise UserError(
                f"options.{option} of an arm is not free: it follows from the workload, the engine or the run's "
                "folder. Change the workload's own word instead, so that it holds for every arm alike "
                f"(got {arm.options[option]!r})"
            )
    return args | arm.options


def least_cpus(args: dict[str, Any], workload: Workload) -> int:
    """TRL needs no particular number."""
    return 1


def _require_what_trl_can(workload: Workload) -> None:
    """`UserError` for words that TRL, or our driver of it, has no answer to."""
    if workload.num_generations < 2:
        raise UserError("workload.num_generations must be at least 2 with trainer trl: it compares completions (got 1)")
    if workload.mini_batch_size not in (None, workload.batch_size):
        raise UserError(
            f"workload.mini_batch_size must be null or batch_size ({workload.batch_size}) with trainer trl: one "
            f"update each step (got {workload.mini_batch_size})"
        )
    if workload.test_steps:
        raise UserError(f"workload.test_steps must be 0 with trainer trl: no validation (got {workload.test_steps})")
    if workload.nodes > 1 or workload.gpus_per_node > 1:
        raise UserError(
            "trainer trl trains in one process: workload.nodes must be 1 and workload.gpus_per_node at most 1 (got "
            f"{workload.nodes} and {workload.gpus_per_node}); trainer verl takes more"
        )
