"""Would it fit a GPU's memory? An estimate in parts, each said to be counted or assumed.

Per GPU, in GiB, at the two peaks of a step: while the engine generates, and while the policy is updated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from common.gpus import KNOWN_GPUS, gpu_of
from common.model_facts import ModelFacts, model_facts
from trainers.cases import ACTOR, MODEL, REF, ROLLOUT, Case

GIB = 2**30
_BYTES: Mapping[str, int] = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
# What CUDA's context, NCCL's buffers and captured graphs take beside the tensors: seen as 2 to 4 GiB.
_CONTEXT_GIB = 3.0
# A cache is called never full only with a fifth to spare: its room is an estimate.
_SPARE = 1.2


@dataclass(frozen=True, slots=True)
class Part:
    """One thing in memory, GiB; `counted` follows from sizes, the others are assumptions."""

    name: str
    gib: float
    counted: bool


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """A GPU's memory at both peaks of a step."""

    gpu: str
    gib: float
    update: tuple[Part, ...]
    rollout: tuple[Part, ...]
    kv_tokens: int | None
    """Tokens that the engine's cache has room for, over its GPUs; None where the engine decides in its own way."""
    kv_wanted: int
    """Tokens that the sequences which it decodes at once hold at their longest."""
    model: ModelFacts

    @property
    def kv_never_full(self) -> bool:
        """Whether every sequence fits the cache at full length, so that its size cannot change the speed."""
        return self.kv_tokens is not None and self.kv_tokens >= _SPARE * self.kv_wanted

    @staticmethod
    def sum(parts: tuple[Part, ...], counted_only: bool = False) -> float:
        return sum(part.gib for part in parts if part.counted or not counted_only)

    def as_dict(self) -> dict[str, object]:
        return {
            "gpu": self.gpu,
            "gib": self.gib,
            "update": [{"part": part.name, "gib": round(part.gib, 2), "counted": part.counted} for part in self.update],
            "rollout": [
                {"part": part.name, "gib": round(part.gib, 2), "counted": part.counted} for part in self.rollout
            ],
            "kv_tokens": self.kv_tokens,
            "kv_wanted": self.kv_wanted,
            "model": self.model.source,
        }


def estimate_of(case: Case) -> MemoryEstimate | str:
    """A case's estimate, or what is not known that it would need."""
    if not case.on_gpu:
        return "it trains on the CPU"
    gpu = gpu_of(case.workload.get("gpu"))
    if gpu is None:
        said = case.workload.get("gpu")
        return (
            f"workload.gpu {'is not given' if said is None else f'{said!r} is unknown'}; known: {', '.join(KNOWN_GPUS)}"
        )
    source = str(case.workload["model"]["source"])
    model = model_facts(source)
    if model is None or model.parameters is None:
        return (
            f"the sizes of model {source} are not known here; point workload.model.source to a local folder with "
            "its config.json"
        )
    return _verl(case, gpu.memory_gib, model) if case.trainer == "verl" else _trl(case, gpu.memory_gib, model)


def _verl(case: Case, gib: float, model: ModelFacts) -> MemoryEstimate:
    settings, parameters = case.settings, model.parameters or 0
    ways = settings.int(f"{ACTOR}.fsdp_config.fsdp_size", -1)
    ways = case.gpus if ways < 1 else min(ways, case.gpus)
    told = settings.get(f"{ACTOR}.fsdp_config.model_dtype") or "fp32"  # fsdp_workers.py:216 of 0.4.1
    width = _BYTES.get(str(told), 4)
    lora = case.lora
    shard = parameters * width / ways / GIB
    streamed = settings.true(f"{ACTOR}.fsdp_config.offload_policy")
    # verl's own offload brings both back for the update: it empties the GPU for the rollout only.
    update = [] if streamed else [Part(f"weights, 1/{ways}, {width} bytes each", shard, True)]
    if not lora:
        where = [] if streamed else [Part(f"AdamW's two moments, 1/{ways}", 2 * shard, True)]
        update += [Part(f"gradients, 1/{ways}", 0 if streamed else shard, True), *where]
    update += _working(case, model, _tokens_per_pass(case))
    tp = case.tensor_parallel
    share = settings.number(f"{ROLLOUT}.gpu_memory_utilization") or 0.5
    weights = parameters * 2 / tp / GIB
    left = []
    if not settings.true(f"{ACTOR}.fsdp_config.param_offload") and not streamed:
        left.append(Part("the trainer's weights, not offloaded", shard, True))
    # AdamW makes its moments in the first update: they are not there yet when the engine is built.
    at_start = MemoryEstimate.sum(tuple(left)) + _CONTEXT_GIB
    if not settings.true(f"{ACTOR}.fsdp_config.optimizer_offload") and not streamed and not lora:
        left.append(Part("the trainer's moments, not offloaded", 2 * shard, True))
    # vLLM's share is of all memory, SGLang's of what is free when it starts. vLLM takes from it what it uses beside
    # the weights; 0.8.5 also what the trainer holds, whose process it is in (vllm/v1/worker/gpu_worker.py:203).
    budget = share * (gib if case.engine != "sglang" else max(0.0, gib - at_start))
    prefill = _prefill_gib(case, model) if case.engine == "vllm" else 0.0
    pool = budget - weights - prefill
    if case.engine == "vllm":
        pool -= at_start if case.version == "0.4.1" else _CONTEXT_GIB
    rollout = [
        Part(f"the engine's weights, 1/{tp}", weights, True),
        Part("room for keys and values", max(0.0, pool), False),
        *([Part("vLLM's largest pass", prefill, False)] if prefill else []),
        *left,
        Part("CUDA context, NCCL, graphs", _CONTEXT_GIB, False),
    ]
    sleeps = case.version == "0.4.1" or settings.true(f"{ROLLOUT}.free_cache_engine")
    if not sleeps:
        update.append(Part("the engine, awake all the time (free_cache_engine: False)", max(0.0, budget), True))
    elif lora and case.place == "verl 0.9.1 sglang" and not settings.true(f"{MODEL}.lora.merge"):
        update.append(Part("the engine's weights, which stay beside an adapter", weights, True))
    if (
        case.version != "0.4.1"
        and not lora  # the policy without its adapter is the reference
        and settings.true(f"{ACTOR}.use_kl_loss")
        and settings.get(f"{ACTOR}.strategy") != "fsdp2"
    ):
        offloaded = settings.true(f"{REF}.fsdp_config.param_offload")
        if not offloaded:
            update.append(Part(f"the reference's weights, 1/{ways}", parameters * 4 / ways / GIB, False))
    per_token = model.kv_bytes / min(tp, model.kv_heads)
    return MemoryEstimate(
        gpu=str(case.workload.get("gpu")),
        gib=gib,
        update=tuple(update),
        rollout=tuple(rollout),
        kv_tokens=int(max(0.0, pool) * GIB / per_token),
        kv_wanted=min(case.per_replica, _at_once(case)) * case.longest,
        model=model,
    )


def _at_once(case: Case) -> int:
    """Sequences that 0.9.1 lets an engine decode at once; all of them where verl passes no limit (0.4.1)."""
    limit = case.settings.int(f"{ROLLOUT}.max_num_seqs") if case.version != "0.4.1" else 0
    own = {"vllm": "max_num_seqs", "sglang": "max_running_requests"}.get(case.engine)
    given = case.settings.int(f"{ROLLOUT}.engine_kwargs.{case.engine}.{own}")
    return (limit if case.engine == "sglang" and case.version == "0.4.1" else given or limit) or case.per_replica


def _trl(case: Case, gib: float, model: ModelFacts) -> MemoryEstimate:
    """One process on one GPU; the job loads the policy's weights in float32."""
    whole = (model.parameters or 0) * 4 / GIB
    update = [
        Part("weights, 4 bytes each", whole, True),
        Part("gradients", whole, True),
        Part("AdamW's two moments", 2 * whole, True),
        *_working(
            case, model, int(case.workload.get("micro_batch_size") or case.workload["batch_size"]) * case.longest
        ),
    ]
    if float(case.workload.get("beta") or 0) > 0:
        update.append(Part("the reference's weights", whole, True))
    rollout = [Part("the trainer, not offloaded", MemoryEstimate.sum(tuple(update[:3])), True)]
    wanted = int(case.workload["batch_size"]) * case.longest
    tokens = None
    if case.engine == "vllm":
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
    return MemoryEstimate(str(case.workload.get("gpu")), gib, tuple(update), tuple(rollout), tokens, wanted, model)


def _tokens_per_pass(case: Case) -> int:
    """Tokens of one forward and backward pass on one GPU, at the most."""
    settings = case.settings
    parallel = max(1, settings.int(f"{ACTOR}.ulysses_sequence_parallel_size", 1))
    if settings.true(f"{ACTOR}.use_dynamic_bsz"):
        return settings.int(f"{ACTOR}.ppo_max_token_len_per_gpu", case.longest)
    micro = settings.int(f"{ACTOR}.ppo_micro_batch_size_per_gpu", 1)
    return micro * case.longest // parallel


def _working(case: Case, model: ModelFacts, tokens: int) -> list[Part]:
    """What a pass needs beside the weights: rough, and said to be."""
    layer = (model.parameters or 0) / model.layers * 2 * 2 / GIB
    checkpointed = case.settings.get(f"{MODEL}.enable_gradient_checkpointing", True) is not False
    kept = 1 if checkpointed else 16
    activations = tokens * model.hidden * 2 * (model.layers * kept + 34) / GIB
    logits = tokens * model.vocabulary * 2 * 2 / GIB
    return [
        Part("two layers' whole weights, bfloat16", layer, False),
        Part(f"activations of {tokens:,} tokens" + ("" if checkpointed else ", all kept"), activations, False),
        Part(f"logits of {tokens:,} tokens and their gradient, bfloat16", logits, False),
        Part("CUDA context, NCCL", _CONTEXT_GIB, False),
    ]


def _prefill_gib(case: Case, model: ModelFacts) -> float:
    """What vLLM sets aside for the largest pass that it may be asked for."""
    return case.settings.int(f"{ROLLOUT}.max_num_batched_tokens", 8192) * model.hidden * 2 * 12 / GIB
