"""Lists the settings that verl would stop at, though Hydra takes them: its own checks, and what it does not check.

Only the standard library: the job asks it of what Hydra composed in the stack, and the preflight of what is known
before. Each rule names its source in verl's code; paths are below `verl/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainers.verl.driver.overrides import ACTOR as _A
from trainers.verl.driver.overrides import MODEL as _M
from trainers.verl.driver.overrides import REF as _REF
from trainers.verl.driver.overrides import ROLLOUT as _R

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


@dataclass(frozen=True)
class Problem:
    """What is wrong with some settings, in one sentence; `code` is the preflight's."""

    code: str
    text: str


@dataclass(frozen=True)
class _Config:
    """A version's flat settings, with the numbers that several rules need."""

    version: str
    values: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def of(self, key: str) -> int:
        """A count; 1 where it is not given."""
        return int(self.get(key) or 1)

    @property
    def gpus(self) -> int:
        return self.of("trainer.nnodes") * self.of("trainer.n_gpus_per_node")

    @property
    def longest(self) -> int:
        """Tokens of a prompt with its completion."""
        return self.of("data.max_prompt_length") + self.of("data.max_response_length")

    @property
    def dynamic(self) -> bool:
        return bool(self.get(f"{_A}.use_dynamic_bsz"))


def problems(version: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong with flat settings; empty if verl can start with them, or its version is not known."""
    if version not in CHOICES:
        return []
    config = _Config(version, settings)
    wrong = [*_choices(config), *_counts(config)]
    if wrong:  # the arithmetic needs numbers
        return wrong
    return [*_batches(config), *_packing(config), *_sharding(config), *_engine(config), *_lora(config)]


def _choices(config: _Config) -> Iterator[Problem]:
    for key, allowed in CHOICES[config.version].items():
        value = config.get(key)
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            if one not in allowed:
                either = str(allowed[0]) if len(allowed) == 1 else "one of " + ", ".join(map(str, allowed))
                yield Problem(
                    "rollout-mode" if key == f"{_R}.mode" else "setting-choice", f"{key} must be {either} (got {one!r})"
                )


def _counts(config: _Config) -> Iterator[Problem]:
    for key in _COUNTS:
        value = config.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            yield Problem("setting-count", f"{key} must be a whole number of at least 1 (got {value!r})")
    share = config.get(f"{_R}.gpu_memory_utilization", 0.5)
    if not isinstance(share, int | float) or not 0 < share < 1:
        yield Problem("setting-count", f"{_R}.gpu_memory_utilization must be a share between 0 and 1 (got {share!r})")


def _batches(config: _Config) -> Iterator[Problem]:
    prompts, n, mini = config.of("data.train_batch_size"), config.of(f"{_R}.n"), config.of(f"{_A}.ppo_mini_batch_size")
    gpus, sp, dynamic = config.gpus, config.of(f"{_A}.ulysses_sequence_parallel_size"), config.dynamic
    if gpus % sp:
        yield Problem(
            "sequence-parallel", f"{_A}.ulysses_sequence_parallel_size must divide the {gpus} GPUs (got {sp})"
        )
        return
    if max(sp, config.of(f"{_REF}.ulysses_sequence_parallel_size")) > 1 and not config.get(f"{_M}.use_remove_padding"):
        key = f"{_A}.ulysses_sequence_parallel_size"
        yield Problem("sequence-parallel", f"{_M}.use_remove_padding must be true with {key} above 1 (got false)")
    # 0.4.1 trainer/ppo/ray_trainer.py:_validate_config; 0.9.1 pads the batch where it packs by tokens.
    if prompts * n % gpus and not (config.version == "0.9.1" and dynamic):
        yield Problem(
            "batch-over-gpus",
            f"data.train_batch_size x {_R}.n, the completions of a step, must be a multiple of the {gpus} GPUs "
            f"(got {prompts} x {n} = {prompts * n})",
        )
    if prompts < mini and not dynamic:
        yield Problem(
            "mini-batch",
            f"{_A}.ppo_mini_batch_size must be at most data.train_batch_size, both in prompts, unless "
            f"{_A}.use_dynamic_bsz is true (got {mini} and {prompts})",
        )
    # 0.4.1 workers/fsdp_workers.py divides and drops the rest; 0.9.1 workers/engine_workers.py asserts.
    groups = gpus // sp
    if mini * n % groups:
        yield Problem(
            "micro-batch",
            f"{_A}.ppo_mini_batch_size x {_R}.n must be a multiple of the {groups} data-parallel groups "
            f"(got {mini} x {n} = {mini * n})",
        )
    elif not dynamic or config.version == "0.4.1":
        yield from _micro_batches(config, mini * n // groups)


def _micro_batches(config: _Config, share: int) -> Iterator[Problem]:
    wanted = [f"{_A}.ppo_micro_batch_size_per_gpu", f"{_R}.log_prob_micro_batch_size_per_gpu"]
    if config.get(f"{_A}.use_kl_loss") or config.get("algorithm.use_kl_in_reward"):
        wanted.append(f"{_REF}.log_prob_micro_batch_size_per_gpu")
    for key in wanted:
        total = key.removesuffix("_per_gpu")
        micro, old = config.get(key), config.get(total)
        if micro is not None and old is not None:
            yield Problem("micro-batch", f"{key} and {total} must not both be given (got {micro} and {old})")
        elif micro is None and old is None:
            # A configuration that is not whole does not say it.
            if not config.dynamic and (key in config.values or total in config.values):
                yield Problem("micro-batch-missing", f"{key} must be given unless {_A}.use_dynamic_bsz is true")
        elif micro is not None and (not isinstance(micro, int) or micro < 1):
            yield Problem("micro-batch", f"{key} must be a whole number of at least 1 (got {micro!r})")
        elif micro is not None and key == wanted[0] and share % micro:
            yield Problem(
                "micro-batch",
                f"{key} must divide the {share} completions of a mini-batch on each data-parallel group (got {micro}); "
                "change workload.micro_batch_size or mini_batch_size",
            )


def _packing(config: _Config) -> Iterator[Problem]:
    longest, sp = config.longest, config.of(f"{_A}.ulysses_sequence_parallel_size")
    # utils/seqlen_balancing.py:rearrange_micro_batches
    for key, packs in (
        (f"{_A}.ppo_max_token_len_per_gpu", config.dynamic),
        (f"{_R}.log_prob_max_token_len_per_gpu", config.get(f"{_R}.log_prob_use_dynamic_bsz")),
        (f"{_REF}.log_prob_max_token_len_per_gpu", config.get(f"{_REF}.log_prob_use_dynamic_bsz")),
    ):
        room = config.get(key)
        if packs and key in config.values and (not isinstance(room, int) or room * sp < longest):
            over = f" over {sp} GPUs" if sp > 1 else ""
            yield Problem(
                "dynamic-tokens",
                f"{key} must hold one prompt with its completion, {longest} tokens{over} (got {room})",
            )
    packs = config.get(f"{_R}.log_prob_use_dynamic_bsz")
    if config.version == "0.9.1" and packs is not None and bool(packs) != config.dynamic:  # workers/engine_workers.py
        yield Problem(
            "dynamic-tokens",
            f"{_R}.log_prob_use_dynamic_bsz must be as {_A}.use_dynamic_bsz in verl 0.9.1 (got {bool(packs)})",
        )


def _sharding(config: _Config) -> Iterator[Problem]:
    # workers/fsdp_workers.py and workers/engine/fsdp: create_device_mesh
    for role in (_A, _REF):
        size, gpus = config.get(f"{role}.fsdp_config.fsdp_size", -1), config.gpus
        if not isinstance(size, int) or isinstance(size, bool) or size == 0 or (0 < size < gpus and gpus % size):
            yield Problem(
                "sharding", f"{role}.fsdp_config.fsdp_size must be -1 or divide the {gpus} GPUs (got {size!r})"
            )
    if config.get(f"{_A}.fsdp_config.offload_policy") and config.get(f"{_A}.strategy") == "fsdp":
        yield Problem("sharding", f"{_A}.fsdp_config.offload_policy needs {_A}.strategy fsdp2 (got fsdp)")


def _engine(config: _Config) -> Iterator[Problem]:
    nodes, per_node = config.of("trainer.nnodes"), config.of("trainer.n_gpus_per_node")
    dp = config.of(f"{_R}.data_parallel_size")
    replica = config.of(f"{_R}.tensor_model_parallel_size") * dp
    if nodes * per_node % replica or (per_node % replica and replica % per_node):
        yield Problem(
            "tensor-parallel-gpus",
            f"{_R}.tensor_model_parallel_size{' x data_parallel_size' if dp > 1 else ''} must divide the GPUs of a "
            f"node (got {replica}, with {nodes} node{'s' if nodes > 1 else ''} of {per_node}); verl's default is 2",
        )
    length = config.get(f"{_R}.max_model_len")
    if length is not None and (not isinstance(length, int) or length < config.longest):
        yield Problem(
            "model-length",
            f"{_R}.max_model_len must hold a prompt with its completion, {config.longest} tokens (got {length!r})",
        )
    old = config.version == "0.4.1"
    # workers/rollout/vllm_rollout/vllm_rollout_spmd.py stops with chunked prefill, vLLM itself without it.
    room, longest = config.get(f"{_R}.max_num_batched_tokens"), length or config.longest
    if old and config.get(f"{_R}.name") == "vllm" and room is not None and room < longest:
        yield Problem(
            "batched-tokens",
            f"{_R}.max_num_batched_tokens must be at least {longest}, the longest sequence, with vLLM in verl 0.4.1 "
            f"(got {room})",
        )
    if old and config.get(f"{_R}.enforce_eager") is False and config.get(f"{_R}.free_cache_engine"):
        yield Problem(
            "eager-and-cache",
            f"{_R}.free_cache_engine must be false where {_R}.enforce_eager is, in verl 0.4.1 (got true)",
        )
    if not old and config.of(f"{_R}.pipeline_model_parallel_size") > 1:
        yield Problem(
            "tensor-parallel-gpus",
            f"{_R}.pipeline_model_parallel_size must be 1 with vLLM and SGLang in verl 0.9.1 (got more)",
        )


def _lora(config: _Config) -> Iterator[Problem]:
    rank, engine, old = config.get(f"{_M}.lora_rank", 0), config.get(f"{_R}.name"), config.version == "0.4.1"
    if rank and old and engine == "sglang":
        yield Problem(
            "lora-sglang", f"{_M}.lora_rank must be 0 with SGLang in verl 0.4.1, which has no LoRA there (got {rank})"
        )
    # With dummy weights vLLM never gets the base model's once only the adapter is sent (sharding_manager/fsdp_vllm.py).
    load = config.get(f"{_R}.load_format")
    if rank and old and config.get(f"{_R}.layered_summon") and str(load).startswith("dummy"):
        text = f"{_R}.load_format must be safetensors with {_R}.layered_summon and LoRA (got {load})"
        yield Problem("lora-weights", text)
    # workers/rollout/vllm_rollout/utils.py:get_vllm_max_lora_rank; a merged adapter never reaches vLLM.
    if rank > 512 and not old and engine == "vllm" and not config.get(f"{_M}.lora.merge"):
        text = f"{_M}.lora_rank must be at most 512 with vLLM, unless {_M}.lora.merge is true (got {rank})"
        yield Problem("lora-weights", text)
