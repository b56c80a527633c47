"""Describes TRL: translates a workload into GRPOConfig (TRL 1.16), estimates memory, and lists its formats."""

from __future__ import annotations

from typing import Any

from common.errors import UserError
from common.model_facts import ModelFacts
from trainers import Spread, hf_server
from trainers.cases import Case, sglang_speed_on_cpu
from trainers.hf_arguments import (
    BOOKKEEPING,
    FSDP,
    HALF,
    KEYS,
    RESHARD,
    completed,
    require_equal_shares,
    require_one_process,
    require_one_update,
    require_sharing,
    workload_arguments,
)
from trainers.hf_server import SERVER
from trainers.hf_terms import trl_terms
from trainers.logs import hf_rows
from trainers.memory_estimate import GIB, MemoryEstimate, Part, pass_parts
from trainers.protocol import Driver, LogFormat, StackFacts, Trainer
from trainers.trl import checks, console
from trainers.trl.driver.options import LORA, SERVER_ARGS
from trainers.trl.launch import LAUNCH
from trainers.trl.timers import TRL_1_16, TRL_NATIVE
from trainers.workload import TrainedArm, Workload

_SERVER_GPUS = (hf_server.TENSOR_PARALLEL,)

# As an option these could silently change the arm's engine, or the workload for one arm only.
_OWNED = (
    *("use_sglang", "use_transformers_continuous_batching", "vllm_group_port"),
    *("sglang_model_path", "sglang_dtype", "sglang_random_seed"),
)

_ON_A_GPU = {
    "vllm": ("vllm_gpu_memory_utilization", "vllm_enable_sleep_mode"),
    "sglang": ("sglang_mem_fraction_static", "sglang_enable_memory_saver"),
}
"""An engine's settings for its share of a GPU's memory, and for releasing that between generations."""


def _trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    """GRPOConfig's keyword arguments for one run, from the workload and the arm's options."""
    require_one_update("trl", workload)
    checks.require_lora(arm)
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
        engine = {"use_sglang": True, **dict(zip(_ON_A_GPU["sglang"], (0.3, True), strict=True))}
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


def memory(
    case: Case, gib: float, model: ModelFacts, adapter: bool | None = None, whole_reference: bool = True
) -> MemoryEstimate:
    """The memory of a process per GPU; weights are float32 unless an option sets their format.

    A server's GPUs hold nothing of the trainer; its engines share the whole batch. `adapter`: whether only an adapter
    is trained (default: by TRL's own switch). `whole_reference`: whether FSDP treats the reference as one unit.
    """
    adapter = case.settings.true(LORA) if adapter is None else adapter
    served = hf_server.is_served(case)
    engines, processes = hf_server.engines_and_gpus(case.settings.values)[0], hf_server.training_gpus(case)
    share_of_gpu, sleeps = _ON_A_GPU.get(case.engine.name, _ON_A_GPU["vllm"])
    share = int(case.workload["batch_size"]) // processes
    tokens_per_pass = min(int(case.workload.get("micro_batch_size") or share), share) * case.longest
    always, update = _trainers_share(case, model, adapter, processes, whole_reference)
    update = [*always, *update, *pass_parts(model, tokens_per_pass)]
    rollout = [] if served else [Part("the trainer, not offloaded", MemoryEstimate.sum(tuple(always)), True)]
    tokens, more = None, "trainer verl" if adapter else f"{FSDP[0]}: true"
    if not case.engine.in_trainer:
        of_gpu = case.settings.number(share_of_gpu) or 0.3  # GRPOConfig's default
        weights = (model.parameters or 0) * 2 / GIB / case.tensor_parallel
        room = of_gpu * gib - weights
        rollout += [
            Part("the engine's weights", weights, True),
            Part("room for keys and values", max(0.0, room), False),
        ]
        tokens = int(max(0.0, room) * GIB / model.kv_bytes) * case.tensor_parallel
        if not (served or case.settings.true(sleeps)):
            update.append(Part("the engine, awake all the time", of_gpu * gib, True))
    return MemoryEstimate(
        gpu=str(case.workload.get("gpu")),
        gib=gib,
        update=tuple(update),
        rollout=tuple(rollout),
        kv_tokens=tokens,
        kv_wanted=(int(case.workload["batch_size"]) // engines if served else share * case.tensor_parallel)
        * case.longest,
        model=model,
        update_advice=f"a smaller model or micro_batch_size, {sleeps}: True, or {more} on more GPUs",
        rollout_advice=f"{share_of_gpu}: less",
    )


def _trainers_share(
    case: Case, model: ModelFacts, adapter: bool, processes: int, whole_reference: bool
) -> tuple[list[Part], list[Part]]:
    """A process's memory at all times, and the additional memory of an update; with FSDP its share and gathers."""
    size = 2 if case.settings.get(checks.WEIGHTS) in HALF else 4
    ways = processes if case.settings.true(FSDP[0]) else 1
    of_all, part = f", 1/{ways}" if ways > 1 else "", (model.parameters or 0) * size / ways / GIB
    gathered = part * ways * 2 / size
    always, update = [Part(f"weights{of_all}, {size} bytes each", part, True)], []
    if not adapter:
        always += [Part(f"gradients{of_all}", part, True), Part(f"AdamW's two moments{of_all}", 2 * part, True)]
        if processes > 1 and not of_all:
            update.append(Part("gradients on their way to the other GPUs (DDP's buckets)", part, True))
        if float(case.workload.get("beta") or 0) > 0:
            update.append(Part(f"the reference's weights{of_all}", part, True))
            if of_all and whole_reference:  # TRL 1.16 models/utils.py, prepare_fsdp
                update.append(Part("the reference gathered, 2 bytes each", gathered, True))
    if of_all and case.settings.get(f"{FSDP[1]}.{RESHARD}") is False:
        update.append(Part("the weights gathered, 2 bytes each", gathered, True))
    return always, update


TRAINER_STATE = LogFormat(
    hf_rows.TRAINER_STATE,
    "trainer_state.json of transformers' Trainer",
    hf_rows.read_trainer_state,
    is_row=lambda row: "log_history" in row,
    mark=b'"log_history"',
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
"""A quantity -> the scalar that transformers' Trainer logs; the same for ms-swift."""

TRL = Trainer(
    name="trl",
    label="TRL",
    engines=("transformers", "vllm", "sglang"),
    driver=Driver(
        job_module="workflow.jobs.trl_grpo",
        resolver="trainers.trl.driver.train",
        trainer_args=_trainer_args,
        rewards_in_settings=True,
        spread=Spread.TORCHRUN,
        server=lambda args: hf_server.to_spec("trainers.trl.driver.serve", args),
    ),
    launch=LAUNCH,
    keys=KEYS,
    marks=("use_vllm",),
    bookkeeping=BOOKKEEPING,
    engine_switches={
        "use_sglang": {True: "sglang", False: "transformers"},
        "use_vllm": {True: "vllm", False: "transformers"},
    },
    engine_specific=("use_vllm", "vllm_", "use_sglang", "sglang_"),
    changes_text=frozenset({"vllm_structured_outputs_regex", "sglang_preferred_sampling_params"}),
    checks=(checks.refusals, sglang_speed_on_cpu, checks.weights_in_half, hf_server.idle_gpus),
    memory=memory,
    terms=trl_terms,
    trees=(TRL_1_16, *TRL_NATIVE),
    native="native",
    formats=(
        LogFormat(
            console.TRL,
            "TRL's console log, with lines {'loss': ..., 'reward': ...}",
            console.read_trl_console,
            is_step=lambda part: console.format_of_row(part) == console.TRL,
        ),
        TRAINER_STATE,
    ),
    quantities=QUANTITIES,
    server=SERVER,
    engine_gpus=hf_server.engine_gpus,
)
