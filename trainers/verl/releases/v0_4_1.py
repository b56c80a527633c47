"""verl 0.4.1: its settings, what it stops at, what vLLM 0.8.5 and SGLang 0.4.6.post5 make of them, and its timers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from common.findings import Finding
from common.model_facts import model_facts
from trainers.cases import Case, vllm_attention_backend
from trainers.rows import Effect, Rule
from trainers.verl import engine_settings as told
from trainers.verl import phases
from trainers.verl.driver.overrides import ACTOR, MODEL, ROLLOUT
from trainers.verl.releases import alike
from trainers.verl.releases.release import FlatConfig, Loss, Refusal, Release, Words

if TYPE_CHECKING:
    from trainers.protocol import Variables
    from trainers.workload import Workload

_WORKERS = "verl 0.4.1, workers"
_VLLM = f"{_WORKERS}/rollout/vllm_rollout/vllm_rollout_spmd.py"
_SGLANG = f"{_WORKERS}/rollout/sglang_rollout/sglang_rollout.py"
_TRAINER = "verl 0.4.1, trainer/ppo/ray_trainer.py"


def _words(workload: Workload, seed: int) -> Words:
    return {
        f"{ACTOR}.optim.warmup_style": ("lr_warmup_steps", "constant"),
        "reward_model.enable": ("rewards", False),
        "reward_model.reward_manager": ("rewards", "naive"),
        "+data.seed": ("seeds", seed),
    }


def _problems(config: FlatConfig) -> Iterator[Refusal]:
    engine = config.get(f"{ROLLOUT}.name")
    # workers/rollout/vllm_rollout/vllm_rollout_spmd.py stops with chunked prefill, vLLM itself without it.
    room = config.get(f"{ROLLOUT}.max_num_batched_tokens")
    longest = config.get(f"{ROLLOUT}.max_model_len") or config.longest
    if engine == "vllm" and room is not None and room < longest:
        yield Refusal(
            "batched-tokens",
            f"{ROLLOUT}.max_num_batched_tokens must be at least {longest}, the longest sequence, with vLLM in verl "
            f"0.4.1 (got {room})",
            "verl 0.4.1 refuses it with chunked prefill, though vLLM itself would not",
            f"{ROLLOUT}.max_num_batched_tokens: prompt and response at their longest, or more",
        )
    if config.get(f"{ROLLOUT}.enforce_eager") is False and config.get(f"{ROLLOUT}.free_cache_engine"):
        yield Refusal(
            "eager-and-cache",
            f"{ROLLOUT}.free_cache_engine must be false where {ROLLOUT}.enforce_eager is, in verl 0.4.1 (got true)",
            "verl 0.4.1 ends with an assertion when the engine is built",
            f"{ROLLOUT}.free_cache_engine: False. It costs no memory in 0.4.1: with the vLLM and SGLang pinned here "
            "the engine sleeps between rollouts all the same",
        )
    yield from _lora(config, str(engine))
    prompts, together = config.of("data.train_batch_size"), config.get(f"{ROLLOUT}.mode") != "async"
    if together and prompts % config.gpus and not prompts * config.of(f"{ROLLOUT}.n") % config.gpus:
        yield Refusal(
            "batch-over-gpus",
            f"data.train_batch_size, the prompts of a step, must be a multiple of the {config.gpus} GPUs in verl 0.4.1 "
            f"(got {prompts})",
            "verl 0.4.1 deals the prompts out before it repeats them, and ends with an assertion in its first step",
            "workload.batch_size: a multiple of the GPUs times num_generations; or verl 0.9.1",
        )
    if not together and not config.get("data.return_raw_chat"):
        yield Refusal(
            "rollout-mode",
            f"data.return_raw_chat must be true with {ROLLOUT}.mode async in verl 0.4.1 (got false)",
            "its first step ends with a KeyError: the scheduler of chats reads the prompts as they were written",
            f"{ROLLOUT}.mode: sync",
        )
    if engine == "sglang" and config.get(f"{ROLLOUT}.multi_stage_wake_up"):
        yield Refusal(
            "setting-choice",
            f"{ROLLOUT}.multi_stage_wake_up must be false with SGLang in verl 0.4.1 (got true)",
            "SGLang 0.4.6 has no parts to wake up one by one: its first rollout ends with a TypeError",
            f"{ROLLOUT}.multi_stage_wake_up: False",
        )


_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM 0.8.5 takes (vllm/config.py, `LoRAConfig`); verl hands it the adapter's own (fsdp_workers.py:423)."""


def _lora(config: FlatConfig, engine: str) -> Iterator[Refusal]:
    rank = config.get(f"{MODEL}.lora_rank", 0)
    if rank and engine == "sglang":
        yield Refusal(
            "lora-sglang",
            f"{MODEL}.lora_rank must be 0 with SGLang in verl 0.4.1, which has no LoRA there (got {rank})",
            "verl 0.4.1 hands SGLang the adapters' weights under names that it does not know, and nothing refuses it: "
            "the engine would generate from dummy weights or fail. First supported in 0.8.0",
            f"the vLLM engine for LoRA, or a stack of 0.9.1 with {MODEL}.lora.merge: True",
        )
    if rank and engine == "vllm" and rank not in _LORA_RANKS:
        text = (
            f"{MODEL}.lora_rank must be one of {', '.join(map(str, _LORA_RANKS))} with vLLM in verl 0.4.1 (got {rank})"
        )
        yield Refusal("lora-weights", text)
    # With dummy weights vLLM never gets the base model's once only the adapter is sent (sharding_manager/fsdp_vllm.py).
    load = config.get(f"{ROLLOUT}.load_format")
    if rank and config.get(f"{ROLLOUT}.layered_summon") and str(load).startswith("dummy"):
        text = f"{ROLLOUT}.load_format must be safetensors with {ROLLOUT}.layered_summon and LoRA (got {load})"
        yield Refusal("lora-weights", text)


# What it gives vLLM by name (vllm_rollout_spmd.py:149): a second time in engine_kwargs is a TypeError.
_GIVEN_TO_VLLM = frozenset(
    {
        *("model", "enable_sleep_mode", "tensor_parallel_size", "distributed_executor_backend", "dtype"),
        *("enforce_eager", "gpu_memory_utilization", "disable_custom_all_reduce", "skip_tokenizer_init"),
        *("max_model_len", "load_format", "disable_log_stats", "max_num_batched_tokens", "enable_chunked_prefill"),
        *("enable_prefix_caching", "trust_remote_code", "seed"),
    }
)


def _engine_kwargs(case: Case, variables: Variables) -> Iterator[Finding]:
    """Engine options that never arrive, or arrive twice."""
    engine, section = case.engine.name, f"{ROLLOUT}.engine_kwargs.{case.engine.name}"
    # What the packaged configuration itself holds is not what somebody asked for.
    given = [key for key in case.settings.under(section) if f"{section}.{key}" in case.settings.given]
    twice = [key for key in given if engine == "vllm" and key.split(".")[0] in _GIVEN_TO_VLLM]
    if given and (engine == "sglang" or told.rollout(case, "mode") == "async"):
        yield Finding(
            "unequal",
            "engine-kwargs-ignored",
            (case.arm,),
            f"engine_kwargs.{engine} ({', '.join(given)}) has no effect",
            f"verl 0.4.1 never reads it for {case.engine.label}"
            + (" in its asynchronous mode" if engine == "vllm" else "")
            + ": the engine runs with its own defaults, whatever the configuration says",
            f"{_SGLANG}:390" if engine == "sglang" else f"{_VLLM.replace('rollout_spmd', 'async_server')}:165",
            "take it out, or compare with verl 0.9.1, which passes it on",
        )
    elif twice:
        yield Finding(
            "impossible",
            "engine-kwargs-twice",
            (case.arm,),
            f"engine_kwargs.vllm ({', '.join(twice)}) repeats what verl 0.4.1 passes by name",
            "Python ends with a TypeError: multiple values for one argument",
            f"{_VLLM}:149",
            f"the setting of that name in {ROLLOUT}, where there is one; others cannot be changed in 0.4.1",
        )


_CHECKS = (
    Rule(
        "graphs-may-hang",
        "odd",
        lambda case: case.engine.name == "vllm" and told.rollout(case, "enforce_eager") is False,
        "enforce_eager: False in verl 0.4.1 with vLLM",
        "users reported rollouts that hang with it and do not without; the watchdog stops such a run once and gives it "
        "up at its second hang. Not seen here: no GPU was at hand",
        "verl issue 1815",
        f"run this arm for a few steps first; where it hangs, {ROLLOUT}.enforce_eager: True and "
        f"{ROLLOUT}.free_cache_engine: True, or compare with verl 0.9.1",
    ),
    Rule(
        "rollout-mode",
        "odd",
        lambda case: told.rollout(case, "mode") == "async" and case.settings.true("data.return_raw_chat"),
        f"{ROLLOUT}.mode: async",
        "in 0.4.1 it is meant for chats of several turns: no phase reshard is timed, and vLLM is built otherwise",
        f"{_WORKERS}/rollout/vllm_rollout/vllm_async_server.py:165",
        f"{ROLLOUT}.mode: sync",
    ),
    _engine_kwargs,
    vllm_attention_backend,
)

# sglang 0.4.6.post5, srt/utils.py:2096: where it takes FlashAttention 3 on Hopper of its own accord.
_FLASH_ATTENTION_3 = (
    *("Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "LlamaForCausalLM"),
    *("Llama4ForConditionalGeneration", "Gemma2ForCausalLM", "Gemma3ForConditionalGeneration"),
)
_HOPPER = ("h100", "h200", "h800", "h20-", "gh200")


def _attention_of_vllm(case: Case) -> str | None:
    backend = case.env.get("VLLM_ATTENTION_BACKEND")
    return told.attention_name(backend) if backend else "FlashAttention"


def _attention_of_sglang(case: Case) -> str | None:
    model = model_facts(str(case.workload["model"]["source"]))
    if model is None:
        return None
    if model.architecture not in _FLASH_ATTENTION_3:
        return "flashinfer"
    gpu = str(case.workload.get("gpu") or "").lower()
    return None if not gpu else "FlashAttention" if gpu.startswith(_HOPPER) else "flashinfer"


def _sequences_of_vllm(case: Case) -> str | None:
    """vLLM 0.8.5 chooses by the GPU's memory what verl does not pass."""
    given = None if told.rollout(case, "mode") == "async" else told.engine_kwarg(case, "max_num_seqs")
    return (
        str(given) if given else told.by_memory(case, ((70, 256), (told.ANY_GPU, 1024))) or "vLLM's own (256 or 1024)"
    )


def _captured_by_sglang(case: Case) -> str | None:
    few = 8 if case.tensor_parallel < 4 else 80
    return told.by_memory(case, ((24.5, few), (96.5, 160), (told.ANY_GPU, 256)))


def _seed_of_vllm(case: Case) -> str | None:
    if told.rollout(case, "mode") == "async":
        return "fixed: the replica's number"
    # The engine runs in the worker's own process, where verl sets the state that is drawn from before each rollout:
    # the engine's own seed of 0 never tells. rollout.seed would be the seed of every request: the adapter refuses it.
    return "fixed: 1000 + the replica's number, whatever the run's seed"


def _mode(case: Case) -> str | None:
    value = told.rollout(case, "mode")
    return None if value is None else str(value)


_OF_VLLM = {
    "cuda-graphs": Effect(
        told.graphs, f"{_VLLM}:155; default True in ppo_trainer.yaml; on by default since 0.6.0 (verl PR 2956)"
    ),
    "graph-sizes": Effect(told.always("512"), "vLLM 0.8.5, vllm/config.py, _set_cudagraph_sizes"),
    "attention-kernels": Effect(
        _attention_of_vllm,
        "vLLM 0.8.5, vllm/platforms/cuda.py:220: FlashAttention from Ampere on, unless VLLM_ATTENTION_BACKEND says "
        "otherwise",
    ),
    "custom-all-reduce": Effect(told.always("off"), f"{_VLLM}:157, hard-coded"),
    "memory-share": Effect(
        told.share("all memory", "num_gpu_blocks_override", 16),
        f"{_VLLM}:156; vLLM 0.8.5, vllm/v1/worker/gpu_worker.py:208",
    ),
    "sequence-limit": Effect(
        _sequences_of_vllm,
        f"{_VLLM}:149, which passes no max_num_seqs; vLLM 0.8.5, vllm/engine/arg_utils.py:1596: 1024 from 70 GiB on",
    ),
    "prefill-limit": Effect(told.prefill_limit, f"{_VLLM}:162"),
    "prefix-cache": Effect(told.always("on"), f"{_VLLM}:164, hard-coded"),
    "sampling-seed": Effect(
        _seed_of_vllm,
        f"{_WORKERS}/sharding_manager/fsdp_vllm.py:90 and :204; vLLM 0.8.5, vllm/config.py:1726 (no process of its "
        f"own); in mode async {_WORKERS}/rollout/vllm_rollout/vllm_async_server.py:183",
    ),
    "sleep": Effect(
        told.always(told.COPIED),
        f"{_WORKERS}/sharding_manager/fsdp_vllm.py:215, whatever free_cache_engine says (level 1)",
    ),
    "ignore-eos": Effect(told.end_token, f"{_VLLM}:185"),
    "rollout-mode": Effect(_mode, "verl 0.4.1, workers/fsdp_workers.py:430"),
    "engine-environment": Effect(
        told.always("NCCL_CUMEM_ENABLE=0, TORCHINDUCTOR_COMPILE_THREADS=1"),
        "vLLM 0.8.5, vllm/env_override.py, where it is imported",
    ),
}
_OF_SGLANG = {
    "cuda-graphs": Effect(
        told.always("on"), f"{_SGLANG}:390, which never passes the flag (only asserted on, :288; verl PR 3456)"
    ),
    "graph-sizes": Effect(
        _captured_by_sglang,
        "sglang 0.4.6.post5, srt/model_executor/cuda_graph_runner.py:127, srt/server_args.py:298",
    ),
    "attention-kernels": Effect(
        _attention_of_sglang, "sglang 0.4.6.post5, srt/model_executor/model_runner.py:317 and srt/utils.py:2096"
    ),
    "custom-all-reduce": Effect(
        lambda case: "off" if told.spans_nodes(case) else "on", f"{_SGLANG}:390, SGLang's default"
    ),
    "memory-share": Effect(
        told.share("the memory free at its start"),
        f"{_SGLANG}:393 as mem_fraction_static; sglang 0.4.6.post5, srt/model_executor/model_runner.py:816",
    ),
    "sequence-limit": Effect(
        told.always("SGLang's own (2048 or more)"), f"{_SGLANG}:390; sglang 0.4.6.post5, model_runner.py:845"
    ),
    "prefill-limit": Effect(
        lambda case: told.by_memory(case, ((24.5, 2048), (told.ANY_GPU, 8192))),
        f"{_SGLANG}:390, which passes none; sglang 0.4.6.post5, srt/server_args.py:271",
    ),
    "prefix-cache": Effect(told.always("on"), f"{_SGLANG}:390, SGLang's default (radix cache)"),
    "sampling-seed": Effect(
        told.always("random at each start"), f"{_SGLANG}:390; sglang 0.4.6.post5, srt/server_args.py:241"
    ),
    "sleep": Effect(
        told.always(told.DROPPED), f"{_WORKERS}/sharding_manager/fsdp_sglang.py:187, whatever free_cache_engine says"
    ),
    "ignore-eos": Effect(told.end_token, f"{_SGLANG}:430"),
    "rollout-mode": Effect(_mode, "verl 0.4.1, trainer/main_ppo.py:105"),
    "engine-environment": Effect(
        told.always("CUDA_DEVICE_MAX_CONNECTIONS=4, NCCL_CUMEM_ENABLE=0, NCCL_NVLS_ENABLE=0"), f"{_SGLANG}:88"
    ),
}


def _attention_change(cases: Sequence[Case]) -> str:
    if not any(case.version == V0_4_1.version and case.engine.name == "sglang" for case in cases):
        return told.SAME_KERNEL
    return (
        "verl 0.9.1, which passes both engines a choice: 0.4.1 passes SGLang none. In the vLLM arms' env, "
        "VLLM_ATTENTION_BACKEND: FLASHINFER wants a stack of your own that pins flashinfer-python; verl04-vllm "
        "does not, and vLLM ends with an error"
    )


_CHANGES = {
    "cuda-graphs": told.always(
        f"in the arms without graphs: {ROLLOUT}.enforce_eager: False, with {ROLLOUT}.free_cache_engine: False (an "
        "assertion of 0.4.1 wants both; vLLM sleeps between rollouts all the same). SGLang of 0.4.1 cannot be "
        "told to leave them out"
    ),
    "graph-sizes": told.always(
        "fewer completions per replica and step (a smaller batch_size, or more GPUs): 0.4.1 passes SGLang no size"
    ),
    "attention-kernels": _attention_change,
    "custom-all-reduce": told.always(
        f"{ROLLOUT}.tensor_model_parallel_size: 1, where the model fits one GPU: nothing is reduced then. 0.4.1 "
        "has no setting for it, 0.9.1 leaves it on in both engines"
    ),
    "memory-share": told.always(
        f"choose {ROLLOUT}.gpu_memory_utilization in each arm so that the engines report about the same number of "
        "cached tokens in their first lines, or lower the batch until every sequence fits"
    ),
    "sequence-limit": told.always(
        f"fewer completions per replica and step (a smaller batch_size, or more GPUs): 0.4.1 passes SGLang no limit; "
        f"vLLM's is +{ROLLOUT}.engine_kwargs.vllm.max_num_seqs"
    ),
    "prefill-limit": told.always(
        f"{ROLLOUT}.max_num_batched_tokens in the vLLM arms at what SGLang takes by itself (8192 on GPUs of 80 GB)"
    ),
    "sampling-seed": told.always(
        "several seeds, and read response lengths beside every time: 0.4.1 passes SGLang no seed"
    ),
    "sleep": told.always(
        "nothing: 0.4.1 has no setting for it. reshard is timed apart, the copy to the CPU only within gen"
    ),
}

V0_4_1 = Release(
    "0.4.1",
    job_keys=(*alike.JOB_KEYS, "ray_init.num_cpus"),
    reward_key="custom_reward_function",
    own_reward_model="reward_model.enable: a worker on the trainer's GPUs",
    ray_cpus_key="ray_init.num_cpus",
    loggers=("console", "wandb"),  # it has none that writes a file
    losses={
        "grpo": Loss("seq-mean-token-mean"),
        "dr_grpo": Loss("seq-mean-token-sum-norm", sums_micro_batch=True),
        "bnpo": Loss("token-mean"),
        "dapo": Loss("token-mean", f"verl 0.4.1 takes {alike.LOCAL_MEAN}; TRL takes {alike.GLOBAL_MEAN}"),
    },
    words=_words,
    # rollout.seed would become the seed of every single request, and all prompts would draw the same random numbers.
    # It hands on each key that an engine's sampling parameters have, too: vLLM has the one limit, SGLang the other.
    overruling={
        **alike.OVERRULING,
        f"{ROLLOUT}.seed": "seeds",
        **dict.fromkeys((f"{ROLLOUT}.max_tokens", f"{ROLLOUT}.max_new_tokens"), "max_response_length"),
    },
    made_equal={**alike.MADE_EQUAL, f"{ACTOR}.grad_clip": 1.0},
    choices={
        **alike.CHOICES,
        f"{ROLLOUT}.mode": ("sync", "async"),
        # Whatever begins with "dummy" is "dummy" to the engine; the rest goes to it as it is (workers/rollout).
        f"{ROLLOUT}.load_format": (*alike.LOADS, "dummy_dtensor", "dummy_hf"),
        f"{ACTOR}.loss_agg_mode": (
            *("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
        ),
        f"{ACTOR}.policy_loss.loss_mode": ("vanilla", "clip_cov", "kl_cov"),
        f"{ACTOR}.kl_loss_type": alike.PENALTIES,
        "algorithm.kl_penalty": alike.PENALTIES,
        f"{ACTOR}.optim.warmup_style": ("constant", "cosine"),
        "trainer.logger": ("console", "wandb", "tensorboard", "mlflow", "swanlab", "vemlp_wandb", "clearml"),
        "reward_model.reward_manager": ("naive", "prime", "batch", "dapo"),
    },
    problems=_problems,
    sources={
        "batch-over-gpus": f"{_TRAINER}:377, :983",
        "mini-batch": f"{_TRAINER}:437",
        "micro-batch": "verl 0.4.1, workers/fsdp_workers.py:158 and :165",
        "micro-batch-missing": f"{_TRAINER}:385",
        "dynamic-tokens": "verl 0.4.1, utils/seqlen_balancing.py:263",
        "tensor-parallel-gpus": "verl 0.4.1, workers/fsdp_workers.py:406",
        "batched-tokens": f"{_VLLM}:128",
        "eager-and-cache": f"{_VLLM}:90; {_SGLANG}:288; verl issue 995",
        "lora-sglang": f"{_WORKERS}/sharding_manager/fsdp_sglang.py:114, which has no word of LoRA",
        "rollout-mode": "verl 0.4.1, workers/fsdp_workers.py:430; chat_scheduler.py, generate_sequences",
        "lora-weights": "verl 0.4.1, workers/fsdp_workers.py:423",
    },
    checks=_CHECKS,
    effects={"vllm": _OF_VLLM, "sglang": _OF_SGLANG},
    changes=_CHANGES,
    engines_without_options=("sglang",),
    sequence_limit="",
    context_checked={"vllm": f"{_VLLM}:124", "sglang": f"{_SGLANG}:358"},
    rope_scaling_unchecked=("vllm",),
    checks_model_length=True,
    cpus_with_gpu=1,
    engine_in_worker=True,
    reference_stays=False,
    trees=(
        phases.tree_of(
            "0.4.1",
            "verl 0.4.1 trainer/ppo/ray_trainer.py (fit), workers/fsdp_workers.py, workers/sharding_manager/",
            phases.STEP,
            phases.gen(
                "Driver wall clock; its own time is waiting for the slowest rank, putting the engine to sleep and "
                "moving the batch."
            ),
            *(
                phases.GENERATE_SEQUENCES,
                phases.RESHARD,
                phases.GEN_MAX,
                phases.reward(),
                *phases.BEFORE_V1,
                phases.DUMP,
                *phases.INSIDE_FIRST,
            ),
        ),
    ),
)
