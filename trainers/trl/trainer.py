"""Describes TRL: translates a workload into GRPOConfig (TRL 1.16), and lists its formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.errors import UserError
from trainers import Spread, hf_server
from trainers.cases import Case, rules_in
from trainers.described import trainer_of
from trainers.engine_checks import context, sglang_speed_on_cpu
from trainers.hf_arguments import (
    BOOKKEEPING,
    completed,
    half_format,
    require_equal_shares,
    require_one_process,
    require_one_update,
    require_sharing,
    workload_arguments,
)
from trainers.logs import hf_rows
from trainers.protocol import Driver, LogFormat, StackFacts
from trainers.trl import console
from trainers.trl.driver.options import LORA, SERVER_ARGS, is_lora_setting
from trainers.trl.launch import LAUNCH, TABLE
from trainers.workload import TrainedArm, Workload

_SERVER_GPUS = (hf_server.TENSOR_PARALLEL,)

# As an option these could silently change the arm's engine, or the workload for one arm only.
_OWNED = (
    *("use_sglang", "use_transformers_continuous_batching", "vllm_group_port"),
    *("sglang_model_path", "sglang_dtype", "sglang_random_seed"),
)


def _trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    """GRPOConfig's keyword arguments for one run, from the workload and the arm's options."""
    require_one_update("trl", workload)
    _require_lora(arm)
    processes = hf_server.training_processes(arm, workload, _SERVER_GPUS)
    _require_processes(arm, workload, stack, processes)
    _require_server_options(arm)
    # These correct a mismatch between engine and trainer; TRL turns them on for vLLM only.
    corrections = {"vllm_importance_sampling_correction": False, "use_bias_correction_kl": False}
    longest = workload.max_prompt_length + workload.max_response_length
    engine: dict[str, Any] = {}
    if arm.engine == "vllm":
        engine = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": longest}
        if hf_server.is_server_arm(arm):
            engine |= hf_server.settings(arm, workload, _SERVER_GPUS)
        elif stack.accelerator == "cuda":
            # Its cache and weights leave the GPU for the update, as under verl.
            engine["vllm_enable_sleep_mode"] = True
    if arm.engine == "sglang" and stack.accelerator == "cuda":
        # As for vLLM: GRPOConfig's share of the GPU, released for the update.
        engine = {"use_sglang": True, "sglang_mem_fraction_static": 0.3, "sglang_enable_memory_saver": True}
    elif arm.engine == "sglang":
        # Room for twice the sequences of a step, so that none waits.
        engine = {"use_sglang": True, "sglang_max_total_tokens": 2 * workload.batch_size * longest}
    fixed = workload_arguments(workload, seed, processes) | corrections
    return completed(fixed, engine, arm, stack, _OWNED)


def _require_processes(arm: TrainedArm, workload: Workload, stack: StackFacts, processes: int) -> None:
    """`UserError` if the processes cannot train this arm."""
    require_equal_shares("trl", workload, processes)
    weights = (arm.options.get("model_init_kwargs") or {}).get("dtype")
    require_sharing("trl", arm, stack, processes, weights, (LORA,))
    if processes == 1:
        return
    on_cpu = arm.engine == "vllm" and stack.accelerator == "cpu" and not hf_server.is_server_arm(arm)
    if arm.engine == "sglang" or on_cpu:
        on_a_cpu = " on a CPU" if stack.accelerator == "cpu" else ""
        require_one_process(f"trl with engine {arm.engine}{on_a_cpu}", workload)


def _require_lora(arm: TrainedArm) -> None:
    """`UserError` for an adapter's options without the switch that turns it on, and for an adapter with SGLang."""
    given = [name for name in arm.options if is_lora_setting(name) and name != LORA]
    if given and arm.options.get(LORA) is not True:
        raise UserError(f"options.{given[0]} is for a LoRA adapter; set options.{LORA} to true, or remove it")
    if arm.options.get(LORA) and arm.engine == "sglang":
        raise UserError(
            f"options.{LORA} cannot be used with engine sglang and trainer trl: SGLang gets the policy's weights "
            "without the adapter merged into them. Use engine vllm or transformers"
        )


def _require_server_options(arm: TrainedArm) -> None:
    """`UserError` for a server's options without a server, or a colocated engine's with one."""
    if not hf_server.is_server_arm(arm):
        if SERVER_ARGS in arm.options:
            raise UserError(f"options.{SERVER_ARGS} is for a server; set options.vllm_mode to server, or remove it")
        return
    hf_server.reject_options(arm, "vllm_enable_sleep_mode")
    if not isinstance(arm.options.get(SERVER_ARGS, {}), dict):
        raise UserError(
            f"options.{SERVER_ARGS} must map vLLM's options to their values (got {arm.options[SERVER_ARGS]!r})"
        )


def _weights_in_half(case: Case) -> object:
    return None if case.settings.true(LORA) else half_format(case, "model_init_kwargs.dtype")


def _merged_in_half(case: Case) -> object:
    merges = case.settings.true(LORA) and not case.engine.in_trainer
    return half_format(case, "model_init_kwargs.dtype") if merges else None


TRAINER_STATE = LogFormat(
    hf_rows.TRAINER_STATE,
    "trainer_state.json of transformers' Trainer",
    hf_rows.read_trainer_state,
    is_step=lambda part: '"log_history":' in part.text,
    is_row=lambda row: "log_history" in row,
)

TRL = trainer_of(
    "trl",
    TABLE,
    (
        LogFormat(
            console.TRL,
            "TRL's console log, with lines {'loss': ..., 'reward': ...}",
            console.read_trl_console,
            is_step=lambda part: console.format_of_row(part) == console.TRL,
        ),
        TRAINER_STATE,
    ),
    driver=Driver(
        job_module="workflow.jobs.trl_grpo",
        trainer_args=_trainer_args,
        spread=Spread.TORCHRUN,
        needs=lambda args, workload: hf_server.needs("trainers.trl.driver.serve", args),
    ),
    launch=LAUNCH,
    bookkeeping=BOOKKEEPING | {"vllm_max_model_length"},
    engine_options=lambda engine, release: (f"{engine}_",),
    checks=(
        sglang_speed_on_cpu,
        context,
        *rules_in(Path(__file__).with_name("checks.toml"), globals()),
    ),
    gpus_beside=hf_server.gpus_beside,
)
