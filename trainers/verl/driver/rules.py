"""Which settings would verl stop at, though Hydra takes them? Its own checks said again, and what it does not check.

Only the standard library. Each rule names its source in verl's code; paths are below `verl/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_A = "actor_rollout_ref.actor"
_R = "actor_rollout_ref.rollout"
_REF = "actor_rollout_ref.ref"
_M = "actor_rollout_ref.model"

# utils/torch_dtypes.py
_PRECISIONS = ("fp32", "float32", "bf16", "bfloat16", "fp16", "float16")
_CONTENTS = ("model", "optimizer", "extra", "hf_model")
# trainer/ppo/core_algos.py: kl_penalty; "full" is in the comments, and raises NotImplementedError.
_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
_LOADS = ("auto", "safetensors", "pt", "npcache", "dummy")

_CHOICES_ALIKE: Mapping[str, tuple[Any, ...]] = {
    # The arm's engine. verl has others (hf, trtllm), which no stack here can run.
    f"{_R}.name": ("vllm", "sglang"),
    # megatron and its like are not in the stacks.
    f"{_A}.strategy": ("fsdp", "fsdp2"),
    f"{_REF}.strategy": ("fsdp", "fsdp2"),
    f"{_R}.dtype": ("bfloat16", "float16", "half", "auto"),
    f"{_A}.fsdp_config.model_dtype": _PRECISIONS,
    f"{_REF}.fsdp_config.model_dtype": _PRECISIONS,
    "algorithm.adv_estimator": ("grpo",),
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "data.truncation": ("error", "left", "right", "middle"),
    f"{_A}.checkpoint.save_contents": _CONTENTS,
    f"{_A}.checkpoint.load_contents": _CONTENTS,
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "trainer.device": ("cuda",),
}
CHOICES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "0.4.1": {
        **_CHOICES_ALIKE,
        f"{_R}.mode": ("sync", "async"),
        # Whatever begins with "dummy" is "dummy" to the engine; the rest goes to it as it is (workers/rollout).
        f"{_R}.load_format": (*_LOADS, "dummy_dtensor", "dummy_hf"),
        f"{_A}.loss_agg_mode": ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
        f"{_A}.policy_loss.loss_mode": ("vanilla", "clip_cov", "kl_cov"),
        f"{_A}.kl_loss_type": _KL,
        "algorithm.kl_penalty": _KL,
        f"{_A}.optim.warmup_style": ("constant", "cosine"),
        "trainer.logger": ("console", "wandb", "tensorboard", "mlflow", "swanlab", "vemlp_wandb", "clearml"),
        "reward_model.reward_manager": ("naive", "prime", "batch", "dapo"),
    },
    "0.9.1": {
        **_CHOICES_ALIKE,
        # workers/config/rollout.py refuses sync, and only warns of others.
        f"{_R}.mode": ("async",),
        # No more "dummy_dtensor": it goes to the engine as it is.
        f"{_R}.load_format": _LOADS,
        f"{_A}.loss_agg_mode": (
            *("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
        ),
        f"{_A}.policy_loss.loss_mode": (
            *("vanilla", "clip_cov", "kl_cov", "gspo", "sapo", "gpg", "geo_mean", "dro", "cispo"),
            *("dppo_tv", "dppo_kl", "bypass_mode"),
        ),
        f"{_A}.kl_loss_type": (*_KL, *(f"{kind}+" for kind in _KL)),
        "algorithm.kl_penalty": (*_KL, *(f"{kind}+" for kind in _KL)),
        f"{_A}.optim.lr_scheduler_type": ("constant", "cosine"),
        f"{_A}.fsdp_config.dtype": ("bfloat16", "float16"),
        "trainer.logger": (
            *("console", "wandb", "file", "tensorboard", "mlflow", "swanlab", "vemlp_wandb", "clearml"),
            *("trackio", "rl_insight"),
        ),
        "trainer.v1.trainer_mode": ("sync", "colocate_async", "separate_async"),
        "trainer.v1.sampler.max_off_policy_strategy": ("drop", "wait"),
        "reward.reward_manager.source": ("register", "importlib"),
        # Those of SGLang 0.5.12's ServerArgs that an NVIDIA GPU can run.
        f"{_R}.engine_kwargs.sglang.attention_backend": (
            *("fa3", "fa4", "flashinfer", "triton", "torch_native", "flex_attention", "nsa", "dsa", "dsv4"),
            *("flashmla", "cutlass_mla", "trtllm_mla", "trtllm_mha", "cutedsl_mla", "tokenspeed_mla"),
            *("dual_chunk_flash_attn", "compressed"),
        ),
    },
}
"""By version: a key, and the values it may have, each of them if it is a list."""

# Counts that verl divides by, or makes a loop of.
_COUNTS = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *(f"{_A}.ppo_mini_batch_size", f"{_A}.ppo_epochs", f"{_R}.n", f"{_R}.tensor_model_parallel_size"),
    *(f"{_A}.ulysses_sequence_parallel_size", f"{_REF}.ulysses_sequence_parallel_size"),
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_training_steps", "trainer.total_epochs"),
    *(f"{_R}.max_num_batched_tokens", f"{_R}.max_num_seqs"),
)


def problems(version: str, config: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a composed configuration, one sentence each; empty if verl can start with it."""
    wrong = [*_choices(version, config), *_counts(config)]
    if wrong:  # the arithmetic needs numbers
        return wrong
    return [*_arithmetic(version, config), *_engine(version, config), *_lora(version, config)]


def get(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """The value at a dotted key."""
    at: Any = config
    for part in key.split("."):
        if not isinstance(at, Mapping) or part not in at:
            return default
        at = at[part]
    return at


def _choices(version: str, config: Mapping[str, Any]) -> Iterator[str]:
    for key, allowed in CHOICES[version].items():
        value = get(config, key)
        if value is None:
            continue
        for one in value if isinstance(value, list) else [value]:
            if one not in allowed:
                yield f"{key} must be {_either(allowed)} (got {one!r})"


def _either(allowed: tuple[Any, ...]) -> str:
    return str(allowed[0]) if len(allowed) == 1 else "one of " + ", ".join(map(str, allowed))


def _counts(config: Mapping[str, Any]) -> Iterator[str]:
    for key in _COUNTS:
        value = get(config, key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            yield f"{key} must be a whole number of at least 1 (got {value!r})"
    share = get(config, f"{_R}.gpu_memory_utilization")
    if not isinstance(share, int | float) or not 0 < share < 1:
        yield f"{_R}.gpu_memory_utilization must be a share between 0 and 1 (got {share!r})"


def _arithmetic(version: str, config: Mapping[str, Any]) -> Iterator[str]:
    def of(key: str) -> int:
        return int(get(config, key) or 1)

    gpus = of("trainer.nnodes") * of("trainer.n_gpus_per_node")
    prompts, n, mini = of("data.train_batch_size"), of(f"{_R}.n"), of(f"{_A}.ppo_mini_batch_size")
    sp = of(f"{_A}.ulysses_sequence_parallel_size")
    dynamic = bool(get(config, f"{_A}.use_dynamic_bsz"))
    if gpus % sp:
        yield f"{_A}.ulysses_sequence_parallel_size must divide the {gpus} GPUs (got {sp})"
        return
    groups = gpus // sp
    # 0.4.1 trainer/ppo/ray_trainer.py:_validate_config; 0.9.1 pads the batch where it packs by tokens.
    if prompts * n % gpus and not (version == "0.9.1" and dynamic):
        yield (
            f"data.train_batch_size x {_R}.n, the completions of a step, must be a multiple of the {gpus} GPUs "
            f"(got {prompts} x {n} = {prompts * n})"
        )
    if prompts < mini and not dynamic:
        yield (
            f"{_A}.ppo_mini_batch_size must be at most data.train_batch_size, both in prompts, unless "
            f"{_A}.use_dynamic_bsz is true (got {mini} and {prompts})"
        )
    # 0.4.1 workers/fsdp_workers.py divides and drops the rest; 0.9.1 workers/engine_workers.py asserts.
    if mini * n % groups:
        yield (
            f"{_A}.ppo_mini_batch_size x {_R}.n must be a multiple of the {groups} data-parallel groups "
            f"(got {mini} x {n} = {mini * n})"
        )
        return
    share = mini * n // groups
    if not dynamic or version == "0.4.1":
        yield from _micro_batches(config, share, dynamic)
    yield from _packing(version, config, sp, dynamic)
    yield from _sharding(config, gpus)
    if (sp > 1 or of(f"{_REF}.ulysses_sequence_parallel_size") > 1) and not get(config, f"{_M}.use_remove_padding"):
        yield f"{_M}.use_remove_padding must be true with {_A}.ulysses_sequence_parallel_size above 1 (got false)"


def _micro_batches(config: Mapping[str, Any], share: int, dynamic: bool) -> Iterator[str]:
    wanted = [(f"{_A}.ppo_micro_batch_size_per_gpu", True), (f"{_R}.log_prob_micro_batch_size_per_gpu", False)]
    if get(config, f"{_A}.use_kl_loss") or get(config, "algorithm.use_kl_in_reward"):
        wanted.append((f"{_REF}.log_prob_micro_batch_size_per_gpu", False))
    for key, divides in wanted:
        micro, old = get(config, key), get(config, key.removesuffix("_per_gpu"))
        if micro is not None and old is not None:
            yield f"{key} and {key.removesuffix('_per_gpu')} must not both be given (got {micro} and {old})"
        elif micro is None and old is None and not dynamic:
            yield f"{key} must be given unless {_A}.use_dynamic_bsz is true"
        elif micro is not None and (not isinstance(micro, int) or micro < 1):
            yield f"{key} must be a whole number of at least 1 (got {micro!r})"
        elif micro is not None and divides and share % micro:
            yield (
                f"{key} must divide the {share} completions of a mini-batch on each data-parallel group (got {micro}); "
                "change workload.micro_batch_size or mini_batch_size"
            )


def _packing(version: str, config: Mapping[str, Any], sp: int, dynamic: bool) -> Iterator[str]:
    longest = get(config, "data.max_prompt_length") + get(config, "data.max_response_length")
    # utils/seqlen_balancing.py:rearrange_micro_batches
    keys = [
        (f"{_A}.ppo_max_token_len_per_gpu", dynamic),
        (f"{_R}.log_prob_max_token_len_per_gpu", get(config, f"{_R}.log_prob_use_dynamic_bsz")),
        (f"{_REF}.log_prob_max_token_len_per_gpu", get(config, f"{_REF}.log_prob_use_dynamic_bsz")),
    ]
    for key, packs in keys:
        room = get(config, key)
        if packs and (not isinstance(room, int) or room * sp < longest):
            yield (
                f"{key} must hold one prompt with its completion, {longest} tokens"
                f"{f' over {sp} GPUs' if sp > 1 else ''} (got {room})"
            )
    # 0.9.1 workers/engine_workers.py
    if version == "0.9.1" and bool(get(config, f"{_R}.log_prob_use_dynamic_bsz")) != dynamic:
        yield f"{_R}.log_prob_use_dynamic_bsz must be as {_A}.use_dynamic_bsz in verl 0.9.1 (got {not dynamic})"


def _sharding(config: Mapping[str, Any], gpus: int) -> Iterator[str]:
    # workers/fsdp_workers.py and workers/engine/fsdp: create_device_mesh
    for role in (_A, _REF):
        size = get(config, f"{role}.fsdp_config.fsdp_size", -1)
        if not isinstance(size, int) or isinstance(size, bool) or size == 0 or (0 < size < gpus and gpus % size):
            yield f"{role}.fsdp_config.fsdp_size must be -1 or divide the {gpus} GPUs (got {size!r})"
    if get(config, f"{_A}.fsdp_config.offload_policy") and get(config, f"{_A}.strategy") == "fsdp":
        yield f"{_A}.fsdp_config.offload_policy needs {_A}.strategy fsdp2 (got fsdp)"


def _engine(version: str, config: Mapping[str, Any]) -> Iterator[str]:
    engine = get(config, f"{_R}.name")
    nodes, per_node = get(config, "trainer.nnodes"), get(config, "trainer.n_gpus_per_node")
    tp, dp = get(config, f"{_R}.tensor_model_parallel_size"), get(config, f"{_R}.data_parallel_size", 1)
    replica = tp * dp
    if nodes * per_node % replica or (per_node % replica and replica % per_node):
        yield (
            f"{_R}.tensor_model_parallel_size{' x data_parallel_size' if dp > 1 else ''} must divide the GPUs of a "
            f"node (got {replica}, with {nodes} node{'s' if nodes > 1 else ''} of {per_node}); verl's default is 2"
        )
    longest = get(config, "data.max_prompt_length") + get(config, "data.max_response_length")
    length = get(config, f"{_R}.max_model_len")
    if length is not None and (not isinstance(length, int) or length < longest):
        yield f"{_R}.max_model_len must hold a prompt with its completion, {longest} tokens (got {length!r})"
    if engine == "vllm" and version == "0.4.1":
        # workers/rollout/vllm_rollout/vllm_rollout_spmd.py stops with chunked prefill, vLLM itself without it.
        room = get(config, f"{_R}.max_num_batched_tokens")
        if room < (length or longest):
            yield (
                f"{_R}.max_num_batched_tokens must be at least {length or longest}, the longest sequence, with vLLM in "
                f"verl 0.4.1 (got {room})"
            )
    if version == "0.4.1" and not get(config, f"{_R}.enforce_eager") and get(config, f"{_R}.free_cache_engine"):
        yield f"{_R}.free_cache_engine must be false where {_R}.enforce_eager is, in verl 0.4.1 (got true)"
    if version == "0.9.1" and get(config, f"{_R}.pipeline_model_parallel_size", 1) > 1:
        yield f"{_R}.pipeline_model_parallel_size must be 1 with vLLM and SGLang in verl 0.9.1 (got more)"


def _lora(version: str, config: Mapping[str, Any]) -> Iterator[str]:
    rank = get(config, f"{_M}.lora_rank") or 0
    if rank and version == "0.4.1" and get(config, f"{_R}.name") == "sglang":
        yield f"{_M}.lora_rank must be 0 with SGLang in verl 0.4.1, which has no LoRA there (got {rank})"
    # With dummy weights vLLM never gets the base model's once only the adapter is sent (sharding_manager/fsdp_vllm.py).
    if rank and version == "0.4.1" and get(config, f"{_R}.layered_summon"):
        load = get(config, f"{_R}.load_format")
        if str(load).startswith("dummy"):
            yield f"{_R}.load_format must be safetensors with {_R}.layered_summon and LoRA (got {load})"
    # workers/rollout/vllm_rollout/utils.py:get_vllm_max_lora_rank; a merged adapter never reaches vLLM.
    if (
        rank > 512
        and version == "0.9.1"
        and get(config, f"{_R}.name") == "vllm"
        and not get(config, f"{_M}.lora.merge")
    ):
        yield f"{_M}.lora_rank must be at most 512 with vLLM, unless {_M}.lora.merge is true (got {rank})"
