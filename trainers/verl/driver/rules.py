"""Finds settings that Hydra accepts and every release of verl refuses, and those that one release refuses.

Uses only the standard library: the job calls it with Hydra's configuration in the stack, the preflight with the
settings that it knows. Each rule names its source in verl's code; paths are below `verl/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from trainers.verl.driver.overrides import ACTOR as _A
from trainers.verl.driver.overrides import MODEL as _M
from trainers.verl.driver.overrides import REF as _REF
from trainers.verl.driver.overrides import ROLLOUT as _R
from trainers.verl.releases import Release, shared
from trainers.verl.releases.release import FlatConfig, RefusedSetting

# Counts that verl divides by or loops over.
_COUNTS = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *(f"{_A}.ppo_mini_batch_size", f"{_A}.ppo_epochs", f"{_R}.n", f"{_R}.tensor_model_parallel_size"),
    *(f"{_A}.ulysses_sequence_parallel_size", f"{_REF}.ulysses_sequence_parallel_size"),
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_training_steps", "trainer.total_epochs"),
    *(f"{_R}.max_num_batched_tokens", f"{_R}.max_num_seqs"),
)
_mode = partial(
    RefusedSetting,
    "rollout-mode",
    why="this release does not have the mode, or it was removed (sync in 0.9.1); verl {version} ends with an error",
    change=f"remove {_R}.mode",
)


def problems(release: Release, settings: Mapping[str, Any]) -> list[RefusedSetting]:
    """All refusals of flat settings; empty if verl can start with them, or the release is unknown."""
    if not release.choices:
        return []
    config = FlatConfig(settings)
    wrong = [*_choices(release, config), *_counts(config)]
    if wrong:  # the other rules need valid numbers
        return wrong
    padded = release.pads_packed_batches and config.dynamic
    return [
        *_batches(config, padded),
        *_checkpoints(config),
        *_packing(config),
        *_sharding(config),
        *_engine(config),
        *release.problems(config),
    ]


def _choices(release: Release, config: FlatConfig) -> Iterator[RefusedSetting]:
    for key, allowed in release.choices.items():
        value = config.get(key)
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            if one not in allowed:
                either = str(allowed[0]) if len(allowed) == 1 else "one of " + ", ".join(map(str, allowed))
                text = f"{key} must be {either} (got {one!r})"
                yield _mode(text) if key == f"{_R}.mode" else RefusedSetting("setting-choice", text)


def _counts(config: FlatConfig) -> Iterator[RefusedSetting]:
    for key in _COUNTS:
        value = config.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            yield RefusedSetting("setting-count", f"{key} must be a whole number of at least 1 (got {value!r})")
    share = config.get(f"{_R}.gpu_memory_utilization", 0.5)
    if not isinstance(share, int | float) or not 0 < share < 1:
        yield RefusedSetting(
            "setting-count", f"{_R}.gpu_memory_utilization must be a share between 0 and 1 (got {share!r})"
        )


def _checkpoints(config: FlatConfig) -> Iterator[RefusedSetting]:
    # utils/checkpoint/fsdp_checkpoint_manager.py, load_checkpoint: missing contents are silently left unchanged.
    for key in (f"{_A}.checkpoint.save_contents", f"{_A}.checkpoint.load_contents"):
        required, found = ("model", "optimizer", "extra"), config.get(key)
        if found is not None and not {*required} <= {*found}:
            yield RefusedSetting(
                "setting-choice",
                f"{key} must have {', '.join(required)} (got {', '.join(found) or 'none'})",
                "a stopped run would resume without its optimizer's moments, or start again",
                f"remove {key}, or add what is missing",
            )


def _batches(config: FlatConfig, padded: bool) -> Iterator[RefusedSetting]:
    prompts, n, mini = (
        config.count("data.train_batch_size"),
        config.count(f"{_R}.n"),
        config.count(f"{_A}.ppo_mini_batch_size"),
    )
    gpus, sp, dynamic = config.gpus, config.count(f"{_A}.ulysses_sequence_parallel_size"), config.dynamic
    if gpus % sp:
        yield RefusedSetting(
            "sequence-parallel", f"{_A}.ulysses_sequence_parallel_size must divide the {gpus} GPUs (got {sp})"
        )
        return
    if max(sp, config.count(f"{_REF}.ulysses_sequence_parallel_size")) > 1 and not config.get(
        f"{_M}.use_remove_padding"
    ):
        key = f"{_A}.ulysses_sequence_parallel_size"
        yield RefusedSetting(
            "sequence-parallel", f"{_M}.use_remove_padding must be true with {key} above 1 (got false)"
        )
    # 0.4.1 trainer/ppo/ray_trainer.py:_validate_config; 0.9.1 pads the batch if it packs by tokens.
    if prompts * n % gpus and not padded:
        yield RefusedSetting(
            "batch-over-gpus",
            f"data.train_batch_size x {_R}.n, the completions of a step, must be a multiple of the {gpus} GPUs "
            f"(got {prompts} x {n} = {prompts * n})",
            "an assertion ends verl: each GPU takes the same number",
            "workload.batch_size: a multiple of the GPUs",
        )
    if prompts < mini and not dynamic:
        yield RefusedSetting(
            "mini-batch",
            f"{_A}.ppo_mini_batch_size must be at most data.train_batch_size, both in prompts, unless "
            f"{_A}.use_dynamic_bsz is true (got {mini} and {prompts})",
            "an assertion ends verl if use_dynamic_bsz is off",
            "workload.mini_batch_size: at most batch_size, or null for the whole batch",
        )
    # 0.4.1 workers/fsdp_workers.py divides and drops the remainder; 0.9.1 workers/engine_workers.py asserts.
    groups = gpus // sp
    if mini * n % groups:
        yield shared.micro_batch(
            f"{_A}.ppo_mini_batch_size x {_R}.n must be a multiple of the {groups} data-parallel groups "
            f"(got {mini} x {n} = {mini * n})",
        )
    elif not padded:
        yield from _micro_batches(config, mini * n // groups)


def _micro_batches(config: FlatConfig, share: int) -> Iterator[RefusedSetting]:
    wanted = [f"{_A}.ppo_micro_batch_size_per_gpu", f"{_R}.log_prob_micro_batch_size_per_gpu"]
    if config.get(f"{_A}.use_kl_loss") or config.get("algorithm.use_kl_in_reward"):
        wanted.append(f"{_REF}.log_prob_micro_batch_size_per_gpu")
    for key in wanted:
        total = key.removesuffix("_per_gpu")
        micro, old = config.get(key), config.get(total)
        if micro is not None and old is not None:
            yield shared.micro_batch(f"{key} and {total} must not both be given (got {micro} and {old})")
        elif micro is None and old is None:
            # An incomplete configuration has neither key.
            if not config.dynamic and (key in config.values or total in config.values):
                yield RefusedSetting(
                    "micro-batch-missing",
                    f"{key} must be given unless {_A}.use_dynamic_bsz is true",
                    "verl refuses to start without it if use_dynamic_bsz is off",
                    "workload.micro_batch_size: completions per pass and GPU",
                )
        elif micro is not None and (not isinstance(micro, int) or micro < 1):
            yield shared.micro_batch(f"{key} must be a whole number of at least 1 (got {micro!r})")
        elif micro is not None and key == wanted[0] and share % micro:
            yield shared.micro_batch(
                f"{key} must divide the {share} completions of a mini-batch on each data-parallel group (got {micro}); "
                "change workload.micro_batch_size or mini_batch_size",
            )


def _packing(config: FlatConfig) -> Iterator[RefusedSetting]:
    longest, sp = config.longest, config.count(f"{_A}.ulysses_sequence_parallel_size")
    # utils/seqlen_balancing.py:rearrange_micro_batches
    for key, packs in (
        (f"{_A}.ppo_max_token_len_per_gpu", config.dynamic),
        (f"{_R}.log_prob_max_token_len_per_gpu", config.get(f"{_R}.log_prob_use_dynamic_bsz")),
        (f"{_REF}.log_prob_max_token_len_per_gpu", config.get(f"{_REF}.log_prob_use_dynamic_bsz")),
    ):
        room = config.get(key)
        if packs and key in config.values and (not isinstance(room, int) or room * sp < longest):
            over = f" over {sp} GPUs" if sp > 1 else ""
            yield shared.dynamic_tokens(
                f"{key} must hold one prompt with its completion, {longest} tokens{over} (got {room})",
            )


def _sharding(config: FlatConfig) -> Iterator[RefusedSetting]:
    # workers/fsdp_workers.py and workers/engine/fsdp: create_device_mesh
    for role in (_A, _REF):
        size, gpus = config.get(f"{role}.fsdp_config.fsdp_size", -1), config.gpus
        if not isinstance(size, int) or isinstance(size, bool) or size == 0 or (0 < size < gpus and gpus % size):
            yield RefusedSetting(
                "sharding", f"{role}.fsdp_config.fsdp_size must be -1 or divide the {gpus} GPUs (got {size!r})"
            )
    if config.get(f"{_A}.fsdp_config.offload_policy") and config.get(f"{_A}.strategy") == "fsdp":
        yield RefusedSetting("sharding", f"{_A}.fsdp_config.offload_policy needs {_A}.strategy fsdp2 (got fsdp)")


def _engine(config: FlatConfig) -> Iterator[RefusedSetting]:
    nodes, per_node = config.count("trainer.nnodes"), config.count("trainer.n_gpus_per_node")
    dp = config.count(f"{_R}.data_parallel_size")
    replica = config.count(f"{_R}.tensor_model_parallel_size") * dp
    if nodes * per_node % replica or (per_node % replica and replica % per_node):
        yield shared.tensor_parallel(
            f"{_R}.tensor_model_parallel_size{' x data_parallel_size' if dp > 1 else ''} must divide the GPUs of a "
            f"node (got {replica}, with {nodes} node{'s' if nodes > 1 else ''} of {per_node}); verl's default is 2",
        )
    length = config.get(f"{_R}.max_model_len")
    if length is not None and (not isinstance(length, int) or length < config.longest):
        yield RefusedSetting(
            "model-length",
            f"{_R}.max_model_len must hold a prompt with its completion, {config.longest} tokens (got {length!r})",
        )
