"""TRL: how a workload reads in its words (GRPOConfig of TRL 1.16), and what else is asked of a trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from common.errors import UserError
from common.findings import Finding
from common.model_facts import ModelFacts
from trainers.cases import Case
from trainers.logs import hf_rows
from trainers.memory_estimate import GIB, MemoryEstimate, Part, working
from trainers.protocol import Driver, LogFormat, StackFacts, Trainer, Variables
from trainers.trl import console
from trainers.trl.timers import TRL_1_16, TRL_NATIVE
from trainers.workload import TrainedArm, Workload

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

KEYS = {
    "model": ("model_name_or_path", "_name_or_path", "model"),
    "steps": ("max_steps",),
    "num_generations": ("num_generations",),
    "max_prompt_length": ("max_prompt_length",),
    "max_response_length": ("max_completion_length",),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "learning_rate": ("learning_rate",),
    "tensor_parallel": ("vllm_tensor_parallel_size",),
}
"""Its settings by word; ms-swift shares their names."""
SERVER = ("vllm_mode", "server")

# Set by the job itself on the node; an option of that name would break the paths that the collector reads.
_OWNED_BY_JOB = frozenset(
    {*_NAMES_AND_PLACES, "logging_steps", "logging_strategy", "logging_first_step", "logging_nan_inf_filter"}
)
# The engine is the arm's `engine`; an option could silently turn it into another.
_OWNED_BY_ENGINE = frozenset({"use_vllm", "use_sglang", "use_transformers_continuous_batching", "use_cpu"})


def _trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    """GRPOConfig's keyword arguments for one run: the workload's words translated, then the arm's options.

    An option that contradicts a workload word is refused: it would make the arms unequal behind the reader's back.
    """
    _require_what_trl_can(workload)
    if arm.engine == "sglang" and stack.accelerator != "cpu":
        raise UserError(
            "trainer trl drives engine sglang on a CPU only: TRL knows no SGLang, and ours has not run on a GPU (got "
            f"accelerator {stack.accelerator}). Take the stack trl-sglang-cpu, or trainer verl for SGLang on GPUs"
        )
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
    if arm.engine == "sglang":
        # Room for all sequences of a step and as many again, so that none waits.
        longest = workload.max_prompt_length + workload.max_response_length
        args |= {"use_sglang": True, "sglang_max_total_tokens": 2 * workload.batch_size * longest}
    for option in arm.options:
        if option in owned:
            raise UserError(
                f"options.{option} of an arm is not free: it follows from the workload, the engine or the run's "
                "folder. Change the workload's own word instead, so that it holds for every arm alike "
                f"(got {arm.options[option]!r})"
            )
    return args | arm.options


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


def _one_gpu(case: Case, variables: Variables) -> Iterator[Finding]:
    """More GPUs than one process trains on."""
    gpus = int(case.workload.get("gpus_per_node") or 0) * int(case.workload.get("nodes") or 1)
    if gpus > 1:
        yield Finding(
            "impossible",
            "trl-one-gpu",
            (case.arm,),
            f"trainer trl on {gpus} GPUs",
            "its job is one process: Transformers would spread the batch over all visible GPUs of one node by "
            "DataParallel, and batch_size would no longer be what is trained",
            "trainers/trl/driver/train.py; docs/preflight.md#impossible",
            "workload.gpus_per_node: 1 and nodes: 1, or trainer verl",
        )


def _speed_on_a_cpu(case: Case, variables: Variables) -> Iterator[Finding]:
    """SGLang without its kernels: what it does is its own, how fast it does it is not."""
    if case.engine.name == "sglang" and not case.on_gpu and not case.imported:
        yield Finding(
            "unequal",
            "sglang-speed-on-cpu",
            (case.arm,),
            "SGLang generates on a CPU, without its compiled kernels",
            "its scheduler, cache, sampler and weight updates are the real ones, its attention and layers are plain "
            "PyTorch: its seconds here, slower or faster, say nothing of its speed on a GPU",
            "SGLang 0.5.23 on a CPU without AMX, engines/sglang/; docs/preflight.md#unequal",
            "read the rewards, lengths and correctness of this report, not its speeds; on GPUs take trainer verl",
        )


def _memory(case: Case, gib: float, model: ModelFacts) -> MemoryEstimate:
    """One process on one GPU; the job loads the policy's weights in float32."""
    whole = (model.parameters or 0) * 4 / GIB
    tokens_per_pass = int(case.workload.get("micro_batch_size") or case.workload["batch_size"]) * case.longest
    update = [
        Part("weights, 4 bytes each", whole, True),
        Part("gradients", whole, True),
        Part("AdamW's two moments", 2 * whole, True),
        *working(model, tokens_per_pass),
    ]
    if float(case.workload.get("beta") or 0) > 0:
        update.append(Part("the reference's weights", whole, True))
    rollout = [Part("the trainer, not offloaded", MemoryEstimate.sum(tuple(update[:3])), True)]
    tokens = None
    if not case.engine.in_trainer:
        share = case.settings.number("vllm_gpu_memory_utilization") or 0.3  # GRPOConfig's default
        weights = (model.parameters or 0) * 2 / GIB
        room = share * gib - weights
        rollout += [
            Part("the engine's weights", weights, True),
            Part("room for keys and values", max(0.0, room), False),
        ]
        tokens = int(max(0.0, room) * GIB / model.kv_bytes)
        if not case.settings.true("vllm_enable_sleep_mode"):
            update.append(Part("the engine, awake all the time", share * gib, True))
    return MemoryEstimate(
        gpu=str(case.workload.get("gpu")),
        gib=gib,
        update=tuple(update),
        rollout=tuple(rollout),
        kv_tokens=tokens,
        kv_wanted=int(case.workload["batch_size"]) * case.longest,
        model=model,
        less_update="a smaller model or micro_batch_size, vllm_enable_sleep_mode: True, or trainer verl on more GPUs",
        less_rollout="vllm_gpu_memory_utilization: less",
    )


TRAINER_STATE = LogFormat(
    hf_rows.TRAINER_STATE,
    "trainer_state.json of transformers' Trainer",
    hf_rows.read_trainer_state,
    is_row=lambda row: "log_history" in row,
    mark=b'"log_history"',
    step_alone=True,
)

QUANTITIES = {
    "reward": ("train/reward",),
    "mean_response_length": ("train/completions/mean_length",),
    "max_response_length": ("train/completions/max_length",),
    "truncated_share": ("train/completions/clipped_ratio",),
    "reference_kl": ("train/kl",),
    "policy_entropy": ("train/entropy",),
    "rollout_kl": ("train/rollout_correction/kl",),
    "rollout_logp_gap": ("train/sampling/sampling_logp_difference/mean",),
    "gradient_norm": ("train/grad_norm",),
}
"""Our name of a quantity -> the scalar that transformers' Trainer logs; ms-swift shares them."""

TRL = Trainer(
    name="trl",
    label="TRL",
    engines=("transformers", "vllm", "sglang"),
    driver=Driver(
        job_module="workflow.jobs.trl_grpo",
        resolver="trainers.trl.driver.train",
        trainer_args=_trainer_args,
        rewards_in_settings=True,
    ),
    keys=KEYS,
    marks=("use_vllm",),
    bookkeeping=BOOKKEEPING,
    engine_switches={
        "use_sglang": {True: "sglang", False: "transformers"},
        "use_vllm": {True: "vllm", False: "transformers"},
    },
    of_one_engine=("use_vllm", "vllm_", "use_sglang", "sglang_"),
    checks=(_one_gpu, _speed_on_a_cpu),
    memory=_memory,
    trees=(TRL_1_16, *TRL_NATIVE),
    native="native",
    formats=(
        LogFormat(
            console.TRL,
            "TRL's console log, with lines {'loss': ..., 'reward': ...}",
            console.read_trl_console,
            is_step=lambda part: console.looks_like_trainer((part,)) == console.TRL,
            step_alone=True,
        ),
        TRAINER_STATE,
    ),
    quantities=QUANTITIES,
    server=SERVER,
)
