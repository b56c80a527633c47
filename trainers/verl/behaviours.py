"""Lists the confounders: what each release and engine makes of the same setting.

One row per confounder. A new one is a row here and a test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from common.gpus import gpu_of
from common.model_facts import model_facts
from trainers.behaviour import Behaviour, Does, Tell
from trainers.cases import Case
from trainers.memory_estimate import MemoryEstimate, estimate_of
from trainers.verl.driver.overrides import MODEL, ROLLOUT

V4, S4 = "verl 0.4.1 vllm", "verl 0.4.1 sglang"
V9, S9 = "verl 0.9.1 vllm", "verl 0.9.1 sglang"
_W4, _W9 = "verl 0.4.1, workers", "verl 0.9.1, workers"
_VLLM4 = f"{_W4}/rollout/vllm_rollout/vllm_rollout_spmd.py"
_SGLANG4 = f"{_W4}/rollout/sglang_rollout/sglang_rollout.py"
_VLLM9 = f"{_W9}/rollout/vllm_rollout/vllm_async_server.py"
_SGLANG9 = f"{_W9}/rollout/sglang_rollout/async_sglang_server.py"
# sglang 0.4.6.post5, srt/utils.py:2096: where it takes FlashAttention 3 on Hopper of its own accord.
_FA3_OF_SGLANG_0_4_6 = (
    *("Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "LlamaForCausalLM"),
    *("Llama4ForConditionalGeneration", "Gemma2ForCausalLM", "Gemma3ForConditionalGeneration"),
)
_HOPPER = ("h100", "h200", "h800", "h20-", "gh200")
_BLACKWELL = ("b100", "b200", "b300", "gb200", "gb300")

# SGLang's own way to a fixed length; read in its code, not tried on a GPU.
PREFERRED = f"+{ROLLOUT}.engine_kwargs.sglang.preferred_sampling_params: {{ignore_eos: true}}"


def _always(text: str) -> Tell:
    return lambda case: text


def _rollout(case: Case, name: str) -> object:
    return case.settings.get(f"{ROLLOUT}.{name}")


def _engine_kwarg(case: Case, name: str) -> object:
    return case.settings.get(f"{ROLLOUT}.engine_kwargs.{case.engine.name}.{name}")


def _is_async(case: Case) -> bool:
    return _rollout(case, "mode") == "async"


def _first_told(*values: object) -> str | None:
    """The first of some numbers that is there; None where none is, as in a configuration that is not whole."""
    return next((str(value) for value in values if value), None)


def _graphs(case: Case) -> str | None:
    eager = _rollout(case, "enforce_eager")
    return None if not isinstance(eager, bool) else "off" if eager else "on"


def _graphs_v9(case: Case) -> str | None:
    """engine_kwargs come after verl's own arguments, and win."""
    mode = _engine_kwarg(case, "compilation_config.cudagraph_mode")
    if isinstance(mode, str) and mode.upper() == "NONE":
        return "off"
    eager = _engine_kwarg(case, "enforce_eager")
    return ("off" if eager else "on") if isinstance(eager, bool) else _graphs(case)


def _graphs_s9(case: Case) -> str | None:
    disabled = _engine_kwarg(case, "disable_cuda_graph")
    return ("off" if disabled else "on") if isinstance(disabled, bool) else _graphs(case)


def _attention_v4(case: Case) -> str | None:
    backend = case.env.get("VLLM_ATTENTION_BACKEND")
    return _attention_name(backend) if backend else "FlashAttention"


def _attention_s4(case: Case) -> str | None:
    model = model_facts(str(case.workload["model"]["source"]))
    if model is None:
        return None
    if model.architecture not in _FA3_OF_SGLANG_0_4_6:
        return "flashinfer"
    gpu = str(case.workload.get("gpu") or "").lower()
    return None if not gpu else "FlashAttention" if gpu.startswith(_HOPPER) else "flashinfer"


def _attention_v9(case: Case) -> str | None:
    backend = _engine_kwarg(case, "attention_backend") or _engine_kwarg(case, "attention_config.backend")
    if backend and str(backend).lower() != "auto":
        return _attention_name(str(backend))
    return "flashinfer" if str(case.workload.get("gpu") or "").lower().startswith(_BLACKWELL) else "FlashAttention"


def _attention_s9(case: Case) -> str | None:
    backend = _engine_kwarg(case, "attention_backend")
    if backend:
        return _attention_name(str(backend))
    told = case.told.packages.get("sglang")
    if told is None:
        return None
    return "flashinfer" if _release(told) >= (0, 5, 12) else "FlashAttention"


def _attention_name(backend: str) -> str:
    plain = backend.lower().replace("_", "").replace("-", "")
    if plain.startswith("flashinfer"):
        return "flashinfer"
    return "FlashAttention" if plain.startswith(("flashattn", "fa3", "fa2", "flashattention")) else backend


def _release(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")[:3]
    return tuple(int("".join(filter(str.isdigit, part.split("rc")[0].split("post")[0])) or 0) for part in parts)


def _all_reduce(case: Case) -> str:
    """Both engines leave it out where an engine spans nodes."""
    if case.tensor_parallel > case.settings.int("trainer.n_gpus_per_node", case.tensor_parallel):
        return "off"
    return "off" if case.version != "0.4.1" and _engine_kwarg(case, "disable_custom_all_reduce") is True else "on"


def _share(of: str) -> Tell:
    def tell(case: Case) -> str | None:
        room = (
            _engine_kwarg(case, "num_gpu_blocks_override")
            if case.version != "0.4.1" or case.engine.name == "vllm"
            else None
        )
        if isinstance(room, int):
            return f"a cache of {room * 16} tokens"
        if case.version != "0.4.1" and isinstance(tokens := _engine_kwarg(case, "max_total_tokens"), int):
            return f"a cache of {tokens} tokens"
        share = _rollout(case, "gpu_memory_utilization")
        return None if share is None else f"{share} of {of}"

    return tell


def _sequences_v4(case: Case) -> str | None:
    """vLLM 0.8.5 chooses by the GPU's memory what verl does not pass."""
    given = None if _is_async(case) else _engine_kwarg(case, "max_num_seqs")
    return str(given) if given else _by_memory(case, ((70, 256), (math.inf, 1024))) or "vLLM's own (256 or 1024)"


def _sequences_v9(case: Case) -> str | None:
    return _first_told(_engine_kwarg(case, "max_num_seqs"), _rollout(case, "max_num_seqs"))


def _sequences_s9(case: Case) -> str | None:
    return _first_told(_engine_kwarg(case, "max_running_requests"), _rollout(case, "max_num_seqs"))


def _prefill_v(case: Case) -> str | None:
    return _first_told(_engine_kwarg(case, "max_num_batched_tokens"), _rollout(case, "max_num_batched_tokens"))


def _by_memory(case: Case, steps: Sequence[tuple[float, int]]) -> str | None:
    """What SGLang chooses by the GPU's memory: the number of the first step (below so many GiB) that holds it."""
    gpu = gpu_of(case.workload.get("gpu"))
    return None if gpu is None else str(next(number for below, number in steps if gpu.memory_gib < below))


def _prefill_s4(case: Case) -> str | None:
    return _by_memory(case, ((24.5, 2048), (math.inf, 8192)))


def _prefill_s9(case: Case) -> str | None:
    given = _engine_kwarg(case, "chunked_prefill_size")
    return str(given) if given else _by_memory(case, ((35, 2048), (60, 4096), (160, 8192), (math.inf, 16384)))


def _captured_v9(case: Case) -> str | None:
    sizes = _rollout(case, "cudagraph_capture_sizes")
    if isinstance(sizes, list) and sizes:
        return str(max(sizes))
    limits = [told for told in (_sequences_v9(case), _prefill_v(case)) if told and told.isdigit()]
    return str(min(2 * int(limits[0]), 512, int(limits[1]))) if len(limits) == 2 else None


def _captured_s4(case: Case) -> str | None:
    few = 8 if case.tensor_parallel < 4 else 80
    return _by_memory(case, ((24.5, few), (96.5, 160), (math.inf, 256)))


def _captured_s9(case: Case) -> str | None:
    if given := _engine_kwarg(case, "cuda_graph_max_bs"):
        return str(given)
    wide = case.tensor_parallel >= 4
    sizes = (80, 160, 512, 512) if wide else (24, 32, 256, 512)
    return _by_memory(case, tuple(zip((35, 60, 160, math.inf), sizes, strict=True)))


def _graphs_suffice(cases: Sequence[Case]) -> str:
    sizes = [int(GRAPH_SIZES.of(case) or 0) for case in cases]
    at_once = [min(case.per_replica, _most_at_once(case)) for case in cases]
    if all(most <= size for most, size in zip(at_once, sizes, strict=True)):
        return f"a replica decodes at most {max(at_once)} sequences at once, which the graphs of every arm cover"
    return ""


def _prefix_v9(case: Case) -> str | None:
    given = _engine_kwarg(case, "enable_prefix_caching")
    on = given if isinstance(given, bool) else _rollout(case, "enable_prefix_caching")
    return None if not isinstance(on, bool) else "on" if on else "off"


def _prefix_s9(case: Case) -> str:
    return "off" if _engine_kwarg(case, "disable_radix_cache") is True else "on"


def _seed_v4(case: Case) -> str | None:
    if _is_async(case):
        return "fixed: the replica's number"
    # The engine runs in the worker's own process, where verl sets the state that is drawn from before each rollout:
    # the engine's own seed of 0 never tells. rollout.seed would be the seed of every request: the adapter refuses it.
    return "fixed: 1000 + the replica's number, whatever the run's seed"


def _seed_v9(case: Case) -> str | None:
    given = _engine_kwarg(case, "seed")
    # The adapter puts the run's seed into rollout.seed; no option may.
    return "fixed: the run's seed + the replica's number" if given is None else f"fixed: {given} in every replica"


def _seed_s9(case: Case) -> str:
    seed = _engine_kwarg(case, "random_seed")
    return "random at each start" if seed is None else f"fixed: {seed} in every replica"


def _sleep_v9(case: Case) -> str | None:
    frees = _rollout(case, "free_cache_engine")
    if frees is not True:
        return "stays awake" if frees is False else None
    if case.lora and not case.settings.true(f"{MODEL}.lora.merge"):
        return "cache dropped, weights copied to the CPU and back"
    return "weights and cache dropped"


def _sleep_s9(case: Case) -> str | None:
    frees = _rollout(case, "free_cache_engine")
    if frees is not True:
        return "stays awake" if frees is False else None
    if case.lora and not case.settings.true(f"{MODEL}.lora.merge"):
        return "cache dropped, weights stay"
    return "cache dropped, weights copied to the CPU and back"


def _stop(case: Case) -> str | None:
    ignores = _rollout(case, "ignore_eos")
    return (
        None if not isinstance(ignores, bool) else "goes on to the full length" if ignores else "stops at the end token"
    )


def _stop_s9(case: Case) -> str | None:
    """verl passes no ignore_eos on; SGLang's own preference stands where a request says nothing."""
    wanted = _engine_kwarg(case, "preferred_sampling_params.ignore_eos")
    said = _engine_kwarg(case, "preferred_sampling_params")
    if isinstance(said, str):
        try:
            parsed = json.loads(said)
        except ValueError:
            return None
        wanted = parsed.get("ignore_eos") if isinstance(parsed, Mapping) else None
    return "goes on to the full length" if wanted is True else "stops at the end token"


def _known(case: Case, key: str) -> str | None:
    value = _rollout(case, key)
    return None if value is None else str(value)


def cache_never_full(cases: Sequence[Case]) -> str:
    """Whether no engine's cache can fill, so that its size cannot matter: the words for it, or nothing."""
    estimates = [estimate_of(case) for case in cases]
    if all(isinstance(one, MemoryEstimate) and one.kv_never_full for one in estimates):
        return (
            "by estimate all sequences that an engine decodes at once fit its cache at full length, with room to "
            "spare, in every arm: its size cannot change the speed"
        )
    return ""


def _few_sequences(cases: Sequence[Case]) -> str:
    most = max(case.per_replica for case in cases)
    if most <= min(_limit(case) for case in cases):
        return f"a replica gets {most} sequences in a step, no more than any limit"
    return ""


def _limit(case: Case) -> int:
    """The limit, or the least that it can be: vLLM 0.8.5 takes 256 by itself, SGLang 0.4.6.post5 2048."""
    told = SEQUENCES.of(case) or ""
    return int(told) if told.isdigit() else 2048 if case.place == S4 else 256


def _most_at_once(case: Case) -> int:
    """The limit, or the most that it can be."""
    told = SEQUENCES.of(case) or ""
    return int(told) if told.isdigit() else case.per_replica


def _short_prefill(cases: Sequence[Case]) -> str:
    """Prefill is a small part where responses are long: under a twentieth of the tokens, and in one or two passes."""
    case = cases[0]
    prompt, response = int(case.workload["max_prompt_length"]), int(case.workload["max_response_length"])
    tokens = max(one.per_replica for one in cases) * prompt
    limits = [int(text) for one in cases if (text := PREFILL.of(one)) and text.isdigit()]
    if prompt * 20 <= response and tokens <= 2 * min([*limits, 8192]):
        return f"a replica's prompts are at most {tokens:,} tokens in a step, read in a pass or two"
    return ""


def _drawn_again(cases: Sequence[Case]) -> str:
    fixed = all((SEED.of(case) or "").startswith("fixed") for case in cases)
    return "drawn from fixed seeds in all arms" if fixed else ""


def _graphs_change(cases: Sequence[Case]) -> str:
    if any(case.version == "0.4.1" for case in cases):
        return (
            f"in the arms without graphs: {ROLLOUT}.enforce_eager: False, with {ROLLOUT}.free_cache_engine: False (an "
            "assertion of 0.4.1 wants both; vLLM sleeps between rollouts all the same). SGLang of 0.4.1 cannot be "
            "told to leave them out"
        )
    return f"{ROLLOUT}.enforce_eager: the same in all arms"


def _attention_change(cases: Sequence[Case]) -> str:
    if any(case.place == S4 for case in cases):
        return (
            "verl 0.9.1, which passes both engines a choice: 0.4.1 passes SGLang none. In the vLLM arms' env, "
            "VLLM_ATTENTION_BACKEND: FLASHINFER wants a stack of your own that pins flashinfer-python; verl04-vllm "
            "does not, and vLLM ends with an error"
        )
    return (
        f"+{ROLLOUT}.engine_kwargs.<engine>.attention_backend: the same kernel in all arms (FLASHINFER and flashinfer)"
    )


def _all_reduce_change(cases: Sequence[Case]) -> str:
    if any(case.version == "0.4.1" for case in cases):
        return (
            f"{ROLLOUT}.tensor_model_parallel_size: 1, where the model fits one GPU: nothing is reduced then. 0.4.1 "
            "has no setting for it, 0.9.1 leaves it on in both engines"
        )
    return f"+{ROLLOUT}.engine_kwargs.<engine>.disable_custom_all_reduce: the same in all arms"


def _share_change(cases: Sequence[Case]) -> str:
    if any(case.version == "0.4.1" for case in cases):
        return (
            f"choose {ROLLOUT}.gpu_memory_utilization in each arm so that the engines report about the same number of "
            "cached tokens in their first lines, or lower the batch until every sequence fits"
        )
    return (
        f"the same cache by number: +{ROLLOUT}.engine_kwargs.vllm.num_gpu_blocks_override (blocks of 16 tokens) and "
        f"+{ROLLOUT}.engine_kwargs.sglang.max_total_tokens"
    )


GRAPHS = Behaviour(
    code="cuda-graphs",
    name="CUDA graphs while decoding",
    keys=(
        f"{ROLLOUT}.enforce_eager",
        f"{ROLLOUT}.engine_kwargs.vllm.enforce_eager",
        f"{ROLLOUT}.engine_kwargs.sglang.disable_cuda_graph",
    ),
    does={
        V4: Does(_graphs, f"{_VLLM4}:155; default True in ppo_trainer.yaml; on by default since 0.6.0 (verl PR 2956)"),
        S4: Does(_always("on"), f"{_SGLANG4}:390, which never passes the flag (only asserted on, :288; verl PR 3456)"),
        V9: Does(_graphs_v9, f"{_VLLM9}:339"),
        S9: Does(_graphs_s9, f"{_SGLANG9}:318"),
    },
    why=(
        "without graphs each of the hundreds of small kernels of a decoded token is launched by "
        "the CPU, and vLLM 0.8.5 "
        "leaves out torch.compile as well (vllm/config.py:3884); decoding is most of a step. Seen in public, with a "
        "model of 0.5B on two A100s: 273 tokens/s of vLLM as configured, 504 tuned (verl issue 1133)"
    ),
    change=_graphs_change,
)
GRAPH_SIZES = Behaviour(
    code="graph-sizes",
    name="the largest batch that graphs are captured for, where they are on",
    keys=(f"{ROLLOUT}.cudagraph_capture_sizes", f"{ROLLOUT}.engine_kwargs.sglang.cuda_graph_max_bs"),
    does={
        V4: Does(_always("512"), "vLLM 0.8.5, vllm/config.py, _set_cudagraph_sizes"),
        S4: Does(
            _captured_s4, "sglang 0.4.6.post5, srt/model_executor/cuda_graph_runner.py:127, srt/server_args.py:298"
        ),
        V9: Does(_captured_v9, f"{_VLLM9}:321; vLLM, vllm/config/vllm.py, _set_cudagraph_sizes"),
        S9: Does(_captured_s9, "sglang 0.5.12, srt/server_args.py:1401"),
    },
    why="an engine decodes larger batches than that without graphs, the other one still with them",
    change=lambda cases: (
        "fewer completions per replica and step (a smaller batch_size, or more GPUs): 0.4.1 passes SGLang no size"
        if any(case.version == "0.4.1" for case in cases)
        else f"+{ROLLOUT}.engine_kwargs.sglang.cuda_graph_max_bs: what a replica decodes at once, or more"
        if any(case.place == S9 for case in cases)
        else f"{ROLLOUT}.max_num_seqs or cudagraph_capture_sizes: the same in all arms"
    ),
    moot=_graphs_suffice,
)
ATTENTION = Behaviour(
    code="attention-kernels",
    name="attention kernels",
    keys=(
        f"{ROLLOUT}.engine_kwargs.vllm.attention_backend",
        f"{ROLLOUT}.engine_kwargs.sglang.attention_backend",
    ),
    does={
        V4: Does(
            _attention_v4,
            "vLLM 0.8.5, vllm/platforms/cuda.py:220: FlashAttention from Ampere on, unless VLLM_ATTENTION_BACKEND says "
            "otherwise",
        ),
        S4: Does(_attention_s4, "sglang 0.4.6.post5, srt/model_executor/model_runner.py:317 and srt/utils.py:2096"),
        V9: Does(
            _attention_v9,
            "vLLM 0.24.0, vllm/platforms/cuda.py:144: FlashAttention, on Blackwell flashinfer; "
            f"{_VLLM9}:349 passes another one on. VLLM_ATTENTION_BACKEND is no longer read",
        ),
        S9: Does(_attention_s9, f"{_SGLANG9}:289: flashinfer from sglang 0.5.12 on"),
    },
    why="attention over long sequences is most of the work of a late decode step, and the two kernels differ in speed",
    change=_attention_change,
)
ALL_REDUCE = Behaviour(
    code="custom-all-reduce",
    name="custom all-reduce between the engine's GPUs",
    keys=(
        f"{ROLLOUT}.engine_kwargs.vllm.disable_custom_all_reduce",
        f"{ROLLOUT}.engine_kwargs.sglang.disable_custom_all_reduce",
    ),
    does={
        V4: Does(_always("off"), f"{_VLLM4}:157, hard-coded"),
        S4: Does(_all_reduce, f"{_SGLANG4}:390, SGLang's default"),
        V9: Does(_all_reduce, f"{_VLLM9}:325, vLLM's default"),
        S9: Does(_all_reduce, f"{_SGLANG9}:314, SGLang's default"),
    },
    why=(
        "two all-reduces per layer and token are small and bound by latency, where the engines' own kernel is faster "
        "than NCCL's"
    ),
    change=_all_reduce_change,
    moot=lambda cases: (
        "" if any(case.tensor_parallel > 1 for case in cases) else "one GPU per engine: nothing is reduced"
    ),
)
SHARE = Behaviour(
    code="memory-share",
    name="memory for keys and values",
    keys=(
        f"{ROLLOUT}.gpu_memory_utilization",
        f"{ROLLOUT}.engine_kwargs.vllm.num_gpu_blocks_override",
        f"{ROLLOUT}.engine_kwargs.sglang.max_total_tokens",
    ),
    does={
        V4: Does(_share("all memory"), f"{_VLLM4}:156; vLLM 0.8.5, vllm/v1/worker/gpu_worker.py:208"),
        S4: Does(
            _share("the memory free at its start"),
            f"{_SGLANG4}:393 as mem_fraction_static; sglang 0.4.6.post5, srt/model_executor/model_runner.py:816",
        ),
        V9: Does(_share("all memory"), f"{_VLLM9}:340; vLLM 0.24.0, vllm/v1/worker/utils.py:410"),
        S9: Does(
            _share("the memory free at its start"),
            f"{_SGLANG9}:317; sglang 0.5.12, srt/model_executor/model_runner_kv_cache_mixin.py:70",
        ),
    },
    why=(
        "the same number leaves the engines different room, and one whose cache is full makes "
        "sequences wait or computes "
        "them again"
    ),
    change=_share_change,
    moot=cache_never_full,
    equal_if_moot=False,
)
SEQUENCES = Behaviour(
    code="sequence-limit",
    name="sequences that one engine decodes at once",
    keys=(
        f"{ROLLOUT}.max_num_seqs",
        f"{ROLLOUT}.engine_kwargs.vllm.max_num_seqs",
        f"{ROLLOUT}.engine_kwargs.sglang.max_running_requests",
    ),
    does={
        V4: Does(
            _sequences_v4,
            f"{_VLLM4}:149, which passes no max_num_seqs; vLLM 0.8.5, vllm/engine/arg_utils.py:1596: 1024 from 70 GiB "
            "on",
        ),
        S4: Does(_always("SGLang's own (2048 or more)"), f"{_SGLANG4}:390; sglang 0.4.6.post5, model_runner.py:845"),
        V9: Does(_sequences_v9, f"{_VLLM9}:333"),
        S9: Does(_sequences_s9, f"{_SGLANG9}:329 as max_running_requests"),
    },
    why="an engine with the lower limit makes sequences wait, and its decode steps are smaller and more",
    change=lambda cases: (
        f"fewer completions per replica and step (a smaller batch_size, or more GPUs): 0.4.1 passes SGLang no limit; "
        f"vLLM's is +{ROLLOUT}.engine_kwargs.vllm.max_num_seqs"
        if any(case.version == "0.4.1" for case in cases)
        else f"{ROLLOUT}.max_num_seqs: the same in all arms"
    ),
    moot=_few_sequences,
)
PREFILL = Behaviour(
    code="prefill-limit",
    name="tokens that one prefill pass reads",
    keys=(
        f"{ROLLOUT}.max_num_batched_tokens",
        f"{ROLLOUT}.enable_chunked_prefill",
        f"{ROLLOUT}.engine_kwargs.vllm.max_num_batched_tokens",
        f"{ROLLOUT}.engine_kwargs.sglang.chunked_prefill_size",
    ),
    does={
        V4: Does(_prefill_v, f"{_VLLM4}:162"),
        S4: Does(
            _prefill_s4,
            f"{_SGLANG4}:390, which passes none; sglang 0.4.6.post5, srt/server_args.py:271",
        ),
        V9: Does(_prefill_v, f"{_VLLM9}:335"),
        S9: Does(_prefill_s9, f"{_SGLANG9}:314, which maps none; sglang 0.5.12, srt/server_args.py:1459"),
    },
    why="with many or long prompts the passes differ in number and size, and decoding waits for them",
    change=lambda cases: (
        f"{ROLLOUT}.max_num_batched_tokens in the vLLM arms at what SGLang takes by itself (8192 on GPUs of 80 GB)"
        if any(case.version == "0.4.1" for case in cases)
        else f"+{ROLLOUT}.engine_kwargs.sglang.chunked_prefill_size at {ROLLOUT}.max_num_batched_tokens of the others"
    ),
    moot=_short_prefill,
)
PREFIX = Behaviour(
    code="prefix-cache",
    name="cache of common beginnings",
    keys=(
        f"{ROLLOUT}.enable_prefix_caching",
        f"{ROLLOUT}.engine_kwargs.vllm.enable_prefix_caching",
        f"{ROLLOUT}.engine_kwargs.sglang.disable_radix_cache",
    ),
    does={
        V4: Does(_always("on"), f"{_VLLM4}:164, hard-coded"),
        S4: Does(_always("on"), f"{_SGLANG4}:390, SGLang's default (radix cache)"),
        V9: Does(_prefix_v9, f"{_VLLM9}:336"),
        S9: Does(
            _prefix_s9, f"{_SGLANG9}:314, which does not map enable_prefix_caching: SGLang's default (radix cache)"
        ),
    },
    why="with several completions per prompt only the engine with the cache reads each prompt once",
    change=lambda cases: (
        f"{ROLLOUT}.enable_prefix_caching and, in the SGLang arms, "
        f"+{ROLLOUT}.engine_kwargs.sglang.disable_radix_cache: "
        "the opposite"
    ),
    moot=lambda cases: (
        "every prompt is completed once" if all(int(c.workload["num_generations"]) == 1 for c in cases) else ""
    ),
)
SEED = Behaviour(
    code="sampling-seed",
    name="the engine's sampling seed",
    keys=(
        f"{ROLLOUT}.seed",
        f"{ROLLOUT}.engine_kwargs.vllm.seed",
        f"{ROLLOUT}.engine_kwargs.sglang.random_seed",
    ),
    does={
        V4: Does(
            _seed_v4,
            f"{_W4}/sharding_manager/fsdp_vllm.py:90 and :204; vLLM 0.8.5, vllm/config.py:1726 (no process of its "
            f"own); in mode async {_W4}/rollout/vllm_rollout/vllm_async_server.py:183",
        ),
        S4: Does(_always("random at each start"), f"{_SGLANG4}:390; sglang 0.4.6.post5, srt/server_args.py:241"),
        V9: Does(_seed_v9, f"{_VLLM9}:343"),
        S9: Does(_seed_s9, f"{_SGLANG9}:314; sglang 0.5.12, srt/server_args.py:1174"),
    },
    why=(
        "a step waits for its longest response: responses that nobody can draw again differ in length from run to run, "
        "and so does the time"
    ),
    change=lambda cases: (
        "several seeds, and read response lengths beside every time: 0.4.1 passes SGLang no seed"
        if any(case.version == "0.4.1" for case in cases)
        else f"+{ROLLOUT}.engine_kwargs.sglang.random_seed: a number; and several seeds of the experiment"
    ),
    level="odd",
    moot=_drawn_again,
)
SLEEP = Behaviour(
    code="sleep",
    name="weights and cache between rollouts",
    keys=(f"{ROLLOUT}.free_cache_engine",),
    does={
        V4: Does(
            _always("cache dropped, weights copied to the CPU and back"),
            f"{_W4}/sharding_manager/fsdp_vllm.py:215, whatever free_cache_engine says (level 1)",
        ),
        S4: Does(
            _always("weights and cache dropped"),
            f"{_W4}/sharding_manager/fsdp_sglang.py:187, whatever free_cache_engine says",
        ),
        V9: Does(_sleep_v9, f"{_VLLM9}:853 and :1289 (level 2; with an adapter level 1)"),
        S9: Does(_sleep_s9, f"{_SGLANG9}:387 and :516"),
    },
    why=(
        "copying the weights costs time in every step: to the CPU at the end of gen, back in reshard (0.4.1) or "
        "update_weights (0.9.1), which the report shows apart"
    ),
    change=lambda cases: (
        "nothing: 0.4.1 has no setting for it. reshard is timed apart, the copy to the CPU only within gen"
        if any(case.version == "0.4.1" for case in cases)
        else f"{ROLLOUT}.free_cache_engine: False, where the engine fits beside the trainer"
    ),
    level="odd",
)
IGNORE_EOS = Behaviour(
    code="ignore-eos",
    name="the end token",
    keys=(f"{ROLLOUT}.ignore_eos", f"{ROLLOUT}.engine_kwargs.sglang.preferred_sampling_params.ignore_eos"),
    does={
        V4: Does(_stop, f"{_VLLM4}:185"),
        S4: Does(_stop, f"{_SGLANG4}:430"),
        V9: Does(_stop, f"{_VLLM9}:624"),
        S9: Does(
            _stop_s9,
            "verl 0.9.1, trainer/ppo/v1/agent_loop_tq.py:64: no ignore_eos in it; sglang 0.5.12, "
            "srt/managers/tokenizer_manager.py:983",
        ),
    },
    why="one arm generates to the full length and the other does not: not the same work",
    change=lambda cases: (
        f"{ROLLOUT}.ignore_eos: False in all arms, and compare at equal work; or, beside it, in the SGLang arms "
        f"{PREFERRED}"
    ),
)
MODE = Behaviour(
    code="rollout-mode",
    name="synchronous or server rollout",
    keys=(f"{ROLLOUT}.mode",),
    does={
        V4: Does(lambda case: _known(case, "mode"), "verl 0.4.1, workers/fsdp_workers.py:430"),
        S4: Does(lambda case: _known(case, "mode"), "verl 0.4.1, trainer/main_ppo.py:105"),
        V9: Does(_always("async"), "verl 0.9.1, workers/config/rollout.py: sync has been removed"),
        S9: Does(_always("async"), "verl 0.9.1, workers/config/rollout.py: sync has been removed"),
    },
    why="a server takes requests one by one: other batches, other overheads, other timers",
    change=lambda cases: f"{ROLLOUT}.mode: the same in all arms",
)
ENGINE_ENVIRONMENT = Behaviour(
    code="engine-environment",
    name="variables that the engine sets for the trainer's process, too",
    keys=(),
    does={
        V4: Does(
            _always("NCCL_CUMEM_ENABLE=0, TORCHINDUCTOR_COMPILE_THREADS=1"),
            "vLLM 0.8.5, vllm/env_override.py, where it is imported",
        ),
        S4: Does(_always("CUDA_DEVICE_MAX_CONNECTIONS=4, NCCL_CUMEM_ENABLE=0, NCCL_NVLS_ENABLE=0"), f"{_SGLANG4}:88"),
    },
    why="the effect on training is not known; compare update_actor and old_log_prob, which no engine should change",
    change=lambda cases: "nothing",
    level=None,
    effect_known=False,
)

BEHAVIOURS: tuple[Behaviour, ...] = (
    GRAPHS,
    GRAPH_SIZES,
    ATTENTION,
    ALL_REDUCE,
    SHARE,
    SEQUENCES,
    PREFILL,
    PREFIX,
    IGNORE_EOS,
    MODE,
    SEED,
    SLEEP,
    ENGINE_ENVIRONMENT,
)
