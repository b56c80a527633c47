"""Can the engine do what is asked of it? Checks of one case at a time."""

from __future__ import annotations

from collections.abc import Iterator

from common.findings import Finding, Level
from common.model_facts import model_facts
from trainers.cases import MODEL, ROLLOUT, Case
from trainers.verl.behaviours import IGNORE_EOS, PREFERRED, V4
from workflow.preflight.surroundings import Surroundings

_VLLM4 = "verl 0.4.1, workers/rollout/vllm_rollout/vllm_rollout_spmd.py"
_SGLANG4 = "verl 0.4.1, workers/rollout/sglang_rollout/sglang_rollout.py"
_VLLM9 = "verl 0.9.1, workers/rollout/vllm_rollout/vllm_async_server.py"
_SGLANG9 = "verl 0.9.1, workers/rollout/sglang_rollout/async_sglang_server.py"
# What verl 0.4.1 gives vLLM by name (vllm_rollout_spmd.py:149): a second time in engine_kwargs is a TypeError.
_GIVEN_TO_VLLM = frozenset(
    {
        *("model", "enable_sleep_mode", "tensor_parallel_size", "distributed_executor_backend", "dtype"),
        *("enforce_eager", "gpu_memory_utilization", "disable_custom_all_reduce", "skip_tokenizer_init"),
        *("max_model_len", "load_format", "disable_log_stats", "max_num_batched_tokens", "enable_chunked_prefill"),
        *("enable_prefix_caching", "trust_remote_code", "seed"),
    }
)

_CONTEXT_CHECKED = {
    V4: f"{_VLLM4}:124",
    "verl 0.4.1 sglang": f"{_SGLANG4}:358",
    "verl 0.9.1 vllm": f"{_VLLM9}:1107 and :593",
    "verl 0.9.1 sglang": f"{_SGLANG9}:170 and :588",
}


def _finding(case: Case, level: Level, code: str, what: str, why: str, source: str, change: str) -> Finding:
    return Finding(level, code, (case.arm,), what, why, source, change)


def eager_and_cache(case: Case, place: Surroundings) -> Iterator[Finding]:
    """0.4.1's assertion about graphs and the cache."""
    if case.trainer != "verl" or case.version != "0.4.1":
        return
    if case.settings.get(f"{ROLLOUT}.enforce_eager") is not False:
        return
    if case.engine == "vllm" and case.settings.get(f"{ROLLOUT}.mode") == "async":
        return
    if case.settings.get(f"{ROLLOUT}.free_cache_engine") is True:
        yield _finding(
            case,
            "impossible",
            "eager-and-cache",
            "enforce_eager: False with free_cache_engine: True",
            "verl 0.4.1 ends with an assertion when the engine is built",
            f"{_VLLM4}:90; {_SGLANG4}:288; verl issue 995",
            f"{ROLLOUT}.free_cache_engine: False. It costs no memory in 0.4.1: with the vLLM and SGLang "
            "pinned here the "
            "engine sleeps between rollouts all the same",
        )


def graphs_may_hang(case: Case, place: Surroundings) -> Iterator[Finding]:
    """0.4.1 with vLLM and CUDA graphs: rollouts that hang were reported."""
    if case.trainer != "verl" or case.version != "0.4.1" or case.engine != "vllm":
        return
    if case.settings.get(f"{ROLLOUT}.enforce_eager") is False:
        yield _finding(
            case,
            "odd",
            "graphs-may-hang",
            "enforce_eager: False in verl 0.4.1 with vLLM",
            "users reported rollouts that hang with it and do not without; the watchdog stops such a run once and "
            "gives it up at its second hang. Not seen here: no GPU was at hand",
            "verl issue 1815",
            f"run this arm for a few steps first; where it hangs, {ROLLOUT}.enforce_eager: True and "
            f"{ROLLOUT}.free_cache_engine: True, or compare with verl 0.9.1",
        )


def engine_kwargs(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Engine options that never arrive, or arrive twice."""
    if case.trainer != "verl" or case.version != "0.4.1":
        return
    given = [key for key in case.settings.under(f"{ROLLOUT}.engine_kwargs.{case.engine}")]
    # What the packaged configuration itself holds is not what somebody asked for.
    given = [key for key in given if f"{ROLLOUT}.engine_kwargs.{case.engine}.{key}" in case.settings.given]
    if given and (case.engine == "sglang" or case.settings.get(f"{ROLLOUT}.mode") == "async"):
        yield _finding(
            case,
            "unequal",
            "engine-kwargs-ignored",
            f"engine_kwargs.{case.engine} ({', '.join(given)}) has no effect",
            f"verl 0.4.1 never reads it for {case.engine_name}"
            + (" in its asynchronous mode" if case.engine == "vllm" else "")
            + ": the engine runs with its own defaults, whatever the configuration says",
            f"{_SGLANG4}:390" if case.engine == "sglang" else f"{_VLLM4.replace('rollout_spmd', 'async_server')}:165",
            "take it out, or compare with verl 0.9.1, which passes it on",
        )
    elif twice := [key for key in given if case.engine == "vllm" and key.split(".")[0] in _GIVEN_TO_VLLM]:
        yield _finding(
            case,
            "impossible",
            "engine-kwargs-twice",
            f"engine_kwargs.vllm ({', '.join(twice)}) repeats what verl 0.4.1 passes by name",
            "Python ends with a TypeError: multiple values for one argument",
            f"{_VLLM4}:149",
            f"the setting of that name in {ROLLOUT}, where there is one; others cannot be changed in 0.4.1",
        )


def attention_backend(case: Case, place: Surroundings) -> Iterator[Finding]:
    """A kernel that the stack lacks, or a variable that is no longer read."""
    name = "VLLM_ATTENTION_BACKEND"
    wanted = case.env.get(name, place.variables.get(name, ("", ""))[0])
    packages = case.told.packages
    if case.trainer != "verl" or case.engine != "vllm" or not wanted:
        return
    if (
        case.version == "0.4.1"
        and wanted == "FLASHINFER"
        and "vllm" in packages
        and "flashinfer-python" not in packages
    ):
        yield _finding(
            case,
            "impossible",
            "attention-backend",
            f"{name}=FLASHINFER, and stack {case.stack} has no flashinfer-python",
            "vLLM ends with an error when the engine is built",
            "vLLM 0.8.5, vllm/config.py:422; envs/<stack>/requirements.lock",
            f"take {name} out, or a stack of your own that pins flashinfer-python beside vLLM",
        )
    elif case.version == "0.9.1":
        yield _finding(
            case,
            "odd",
            "attention-backend",
            f"{name}={wanted} has no effect",
            "vLLM 0.24.0 no longer reads it, and only says so in a warning",
            "vLLM 0.24.0, vllm/envs.py:2004, which has no such variable",
            f"+{ROLLOUT}.engine_kwargs.vllm.attention_backend: {wanted}",
        )


def batched_tokens(case: Case, place: Surroundings) -> Iterator[Finding]:
    """A prefill limit below the longest sequence."""
    if case.trainer != "verl" or case.engine != "vllm":
        return
    limit = case.settings.number(f"{ROLLOUT}.max_num_batched_tokens")
    longest = case.settings.int(f"{ROLLOUT}.max_model_len") or case.longest
    chunked = case.settings.get(f"{ROLLOUT}.enable_chunked_prefill")
    if limit is None or limit >= longest:
        return
    key = f"{ROLLOUT}.max_num_batched_tokens"
    if case.version == "0.4.1" and chunked is True and case.settings.get(f"{ROLLOUT}.mode") != "async":
        yield _finding(
            case,
            "impossible",
            "batched-tokens",
            f"max_num_batched_tokens ({limit:g}) is less than prompt and response ({longest})",
            "verl 0.4.1 refuses it with chunked prefill, though vLLM itself would not",
            f"{_VLLM4}:128",
            f"{key}: {longest} or more",
        )
    elif chunked is False:
        told = case.version != "0.4.1"
        yield _finding(
            case,
            "odd",
            "batched-tokens",
            f"chunked prefill is off, and max_num_batched_tokens ({limit:g}) is less than the longest sequence",
            f"verl {case.version} raises the limit by itself, and only says so in a warning"
            if told
            else "vLLM refuses it where it heeds the switch; the engine of 0.8.5 reads prompts in chunks all the same",
            f"{_VLLM9}:1113" if told else f"{_VLLM4}:162",
            f"{key}: {longest} or more",
        )


def rollout_mode(case: Case, place: Surroundings) -> Iterator[Finding]:
    """A rollout mode that is gone, or that times differently."""
    if case.trainer != "verl":
        return
    mode = case.settings.get(f"{ROLLOUT}.mode")
    if case.version != "0.4.1" and mode == "sync":
        yield _finding(
            case,
            "impossible",
            "rollout-mode",
            f"{ROLLOUT}.mode: sync",
            f"it has been removed; verl {case.version} ends with an error",
            "verl 0.9.1, workers/config/rollout.py",
            f"take {ROLLOUT}.mode out",
        )
    elif case.version == "0.4.1" and mode == "async":
        yield _finding(
            case,
            "odd",
            "rollout-mode",
            f"{ROLLOUT}.mode: async",
            "in 0.4.1 it is meant for chats of several turns: no phase reshard is timed, and vLLM is built otherwise",
            "verl 0.4.1, workers/rollout/vllm_rollout/vllm_async_server.py:165",
            f"{ROLLOUT}.mode: sync",
        )
    v1 = case.settings.get("trainer.v1.trainer_mode", "sync")
    if case.version != "0.4.1" and v1 != "sync":
        yield _finding(
            case,
            "odd",
            "trainer-mode",
            f"trainer.v1.trainer_mode: {v1}",
            "generation and update overlap, so the phases of a step do not add up to it, and shares of it mean nothing",
            "verl 0.9.1, trainer/ppo/v1",
            "trainer.v1.trainer_mode: sync, to compare engines",
        )


def lora(case: Case, place: Surroundings) -> Iterator[Finding]:
    """LoRA with SGLang."""
    if case.trainer != "verl" or case.engine != "sglang":
        return
    rank = max(case.settings.int(f"{MODEL}.lora_rank"), case.settings.int(f"{MODEL}.lora.rank"))
    if rank <= 0:
        return
    if case.version == "0.4.1":
        yield _finding(
            case,
            "impossible",
            "lora-sglang",
            f"LoRA (rank {rank}) with SGLang",
            "verl 0.4.1 hands SGLang the adapters' weights under names that it does not know, and "
            "nothing refuses it: the "
            "engine would generate from dummy weights or fail. First supported in 0.8.0",
            "verl 0.4.1, workers/sharding_manager/fsdp_sglang.py:114, which has no word of LoRA",
            f"the vLLM engine for LoRA, or a stack of 0.9.1 with {MODEL}.lora.merge: True",
        )
    elif not case.settings.true(f"{MODEL}.lora.merge"):
        yield _finding(
            case,
            "odd",
            "lora-sglang",
            f"LoRA (rank {rank}) served by SGLang as an adapter",
            "every token pays for the adapter; vLLM and SGLang do so in different kernels",
            f"{_SGLANG9}:344",
            f"{MODEL}.lora.merge: True in all arms",
        )


def ignore_eos(case: Case, place: Surroundings) -> Iterator[Finding]:
    """A fixed length that SGLang of 0.9.1 does not keep."""
    asked = case.place == "verl 0.9.1 sglang" and case.settings.true(f"{ROLLOUT}.ignore_eos")
    if asked and IGNORE_EOS.of(case) == "stops at the end token":
        yield _finding(
            case,
            "unequal",
            "ignore-eos",
            "ignore_eos: True does not reach SGLang",
            "it stops at the end token all the same, so the lengths are not the fixed ones that were "
            "asked for; vLLM's are",
            "verl 0.9.1, trainer/ppo/v1/agent_loop_tq.py:64: no ignore_eos among the sampling parameters",
            f"{ROLLOUT}.ignore_eos: False in all arms, and compare at equal work; or, beside it, {PREFERRED}",
        )


def parallel(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Tensor parallelism that does not divide GPUs or heads."""
    tp, gpus = case.tensor_parallel, case.gpus
    if case.trainer == "verl" and gpus:
        if gpus % tp:
            yield _finding(
                case,
                "impossible",
                "tensor-parallel-gpus",
                f"{gpus} GPUs cannot be split into engines of {tp}",
                "verl ends with an assertion" + ("; there are too few GPUs" if tp > gpus else ""),
                "verl 0.4.1, workers/fsdp_workers.py:406"
                if case.version == "0.4.1"
                else "verl 0.9.1, workers/engine_workers.py:659",
                f"{ROLLOUT}.tensor_model_parallel_size: a divisor of {gpus}; or more GPUs (workload.gpus_per_node)",
            )
        per_node = case.settings.int("trainer.n_gpus_per_node", 1)
        if tp > per_node and gpus % tp == 0:
            yield _finding(
                case,
                "odd",
                "tensor-parallel-nodes",
                f"an engine of {tp} GPUs spans nodes of {per_node}",
                "two all-reduces per layer and token cross the network",
                "docs/preflight.md#odd",
                f"{ROLLOUT}.tensor_model_parallel_size: at most {per_node}",
            )
    model = model_facts(str(case.workload["model"]["source"]))
    if model is None or tp == 1:
        return
    kv = model.kv_heads
    wrong = []
    if model.heads % tp:
        wrong.append(f"{model.heads} attention heads")
    if (kv % tp) if kv >= tp else (tp % kv):
        wrong.append(f"{kv} heads of keys and values")
    if wrong:
        key = f"{ROLLOUT}.tensor_model_parallel_size" if case.trainer == "verl" else "vllm_tensor_parallel_size"
        fits = [n for n in (2, 4, 5, 8, 10, 16) if model.heads % n == 0 and (kv % n == 0 if kv >= n else n % kv == 0)]
        yield _finding(
            case,
            "impossible",
            "tensor-parallel-heads",
            f"{' and '.join(wrong)} cannot be split over {tp} GPUs",
            f"{case.engine_name} ends with an assertion when it builds the model",
            f"{model.source}; sglang 0.4.6.post5, srt/models/llama.py:121 to 131 (vLLM's is the same)",
            f"{key}: 1" + (f" or {' or '.join(str(n) for n in fits if n <= 16)}" if fits else ""),
        )


def devices(case: Case, place: Surroundings) -> Iterator[Finding]:
    """GPUs that a stack or a trainer cannot use, or lacks."""
    said = int(case.workload.get("gpus_per_node") or 0)
    nodes = int(case.workload.get("nodes") or 1)
    if case.on_gpu != (said > 0):
        yield _finding(
            case,
            "impossible",
            "accelerator",
            f"stack {case.stack} is built for {'GPUs' if case.on_gpu else 'the CPU'}, and gpus_per_node is {said}",
            "the trainer would find no GPU" if case.on_gpu else "the GPUs would be reserved and never used",
            f"envs/{case.stack}/stack.yaml",
            "workload.gpus_per_node: the GPUs of a node"
            if case.on_gpu
            else "workload.gpus_per_node: 0, or another stack",
        )
    if case.trainer == "trl" and said * nodes > 1:
        yield _finding(
            case,
            "impossible",
            "trl-one-gpu",
            f"trainer trl on {said * nodes} GPUs",
            "its job is one process: Transformers would spread the batch over all visible GPUs of one node by "
            "DataParallel, and batch_size would no longer be what is trained",
            "trainers/trl/driver/train.py; docs/preflight.md#impossible",
            "workload.gpus_per_node: 1 and nodes: 1, or trainer verl",
        )
    of_site = place.site.gpus(case.workload) if place.site.profile is not None else None
    if of_site is not None and 0 < said * nodes != of_site and case.on_gpu:
        fewer = of_site < said * nodes
        yield _finding(
            case,
            "impossible" if fewer else "odd",
            "profile-gpus",
            f"{place.site.profile} asks Slurm for {of_site} GPUs, and the experiment trains on {said * nodes}",
            "the job would wait for GPUs that it never gets" if fewer else "the others are reserved and idle",
            f"{place.site.profile}/config.yaml, set-resources: train: gres and nodes",
            "gres and nodes of the profile, or workload.gpus_per_node and nodes: the same",
        )


def context(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Sequences beyond what the model was made for."""
    model = model_facts(str(case.workload["model"]["source"]))
    said = case.settings.int(f"{ROLLOUT}.max_model_len")
    asked = max(case.longest, said)
    if model is None or asked <= model.context:
        return
    scaled = case.place == V4 and model.rope_scaling
    cut = case.trainer == "verl" and case.version != "0.4.1" and said <= model.context
    lenient = case.engine == "transformers"
    if lenient:
        why = "nothing refuses it: the model goes on at positions that it has never seen"
    elif scaled:
        why = "verl 0.4.1 leaves the check out for a model with rope_scaling; what comes after is up to the model"
    elif cut:
        why = (
            f"verl {case.version} says nothing, and {case.engine_name} stops at the model's end: "
            "responses are cut short"
        )
    else:
        why = f"{case.engine_name} or verl refuses it when the engine is built"
    yield _finding(
        case,
        "odd" if lenient or scaled or cut else "impossible",
        "context",
        f"prompt and response may have {asked} tokens, and the model's positions end at {model.context}",
        why,
        f"{model.source}, max_position_embeddings; {_CONTEXT_CHECKED.get(case.place, 'the check of max_model_len')}",
        f"workload.max_prompt_length and max_response_length: together at most {model.context}",
    )


CHECKS = (
    eager_and_cache,
    graphs_may_hang,
    engine_kwargs,
    attention_backend,
    batched_tokens,
    rollout_mode,
    lora,
    ignore_eos,
    parallel,
    devices,
    context,
)
