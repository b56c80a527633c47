"""verl as a `Trainer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from common.dotted import positive_int
from engines import Engine
from trainers import Spread
from trainers.protocol import Driver, LogFormat, Trainer
from trainers.timers.tree import TimerTree, release_of
from trainers.verl import console, file_logger
from trainers.verl.behaviours import behaviours
from trainers.verl.checks import CHECKS, context
from trainers.verl.driver.overrides import ACTOR, BOOKKEEPING, MODEL, ROLLOUT
from trainers.verl.launch import LAUNCH
from trainers.verl.packaged import settings_of
from trainers.verl.releases import Release, release_named, releases
from trainers.verl.settings import least_cpus, trainer_args, without_seed
from trainers.verl.sync_cycles import training_steps
from trainers.verl.terms import verl_terms
from trainers.verl.timers import EARLIER

_KEYS = {
    "engine": (f"{ROLLOUT}.name",),
    "model": (f"{MODEL}.path",),
    "steps": ("trainer.total_training_steps",),
    "prompts": ("data.train_batch_size",),
    "num_generations": (f"{ROLLOUT}.n",),
    "max_prompt_length": ("data.max_prompt_length",),
    "max_response_length": ("data.max_response_length",),
    "temperature": (f"{ROLLOUT}.temperature",),
    "top_p": (f"{ROLLOUT}.top_p",),
    "learning_rate": (f"{ACTOR}.optim.lr",),
    "dtype": (f"{ROLLOUT}.dtype",),
    "nodes": ("trainer.nnodes",),
    "gpus_per_node": ("trainer.n_gpus_per_node",),
    # `one_step_off` and `fully_async` (verl 0.7.1 to 0.9.1: experimental/) have the engines' own GPUs under `rollout`;
    # 0.9.1 copies them to the keys of `separate_async` (trainer/ppo/v1/trainer_separate_async.py).
    "engine_nodes": ("rollout.nnodes", f"{ROLLOUT}.nnodes"),
    "engine_gpus_per_node": ("rollout.n_gpus_per_node", f"{ROLLOUT}.n_gpus_per_node"),
    "tensor_parallel": (f"{ROLLOUT}.tensor_model_parallel_size",),
    "pipeline_parallel": (f"{ROLLOUT}.pipeline_model_parallel_size",),
    "max_model_len": (f"{ROLLOUT}.max_model_len",),
    "lora_rank": (f"{MODEL}.lora_rank", f"{MODEL}.lora.rank"),
}


def _loop(version: str, settings: Mapping[str, Any]) -> str:
    """The mode of a release's loop; since 0.5 settings select it (trainers/verl/timers.py)."""
    if release_of(version).startswith("0.4."):
        return ""
    if str(settings.get("trainer.use_v1", True)).lower() in ("false", "0", "no", "off"):
        return "legacy"
    mode = str(settings.get("trainer.v1.trainer_mode") or "sync")
    return "" if mode == "sync" else mode


def _release_of(tree: TimerTree) -> Release:
    """The release of a tree; one that is only imported has all defaults."""
    known = (one for one in releases() if any(own.series == tree.series for own in one.trees))
    return next(known, Release(tree.series))


def _sequence_limit(tree: TimerTree, engine: Engine, settings: Mapping[str, Any], held: Mapping[str, Any]) -> object:
    """The engine's own argument, else the setting that a known release passes on."""
    release = _release_of(tree)
    if engine.name in release.engines_without_options:
        return None
    given = positive_int(settings.get(f"{ROLLOUT}.engine_kwargs.{engine.name}.{engine.max_sequences_option}"))
    return given or (settings.get(release.sequence_limit) if release.trees else None)


def _engine_gpus(mode: str, settings: Mapping[str, Any]) -> int | None:
    """The GPUs that only the engines use; None if no setting says so."""
    pairs = list(zip(_KEYS["engine_nodes"], _KEYS["engine_gpus_per_node"], strict=True))
    for nodes, per_node in pairs[1:] if mode == "separate_async" else pairs:
        if gpus := (positive_int(settings.get(nodes)) or 0) * (positive_int(settings.get(per_node)) or 0):
            return gpus
    # Without GPUs of their own, the engines of `fully_async` share the trainer's.
    return 0 if str(settings.get("rollout.nnodes")) == "0" and mode == "fully_async" else None


def _clipped_at_longest(tree: TimerTree) -> str:
    """The loops of trainer/ppo/v1 in 0.9.1 pad a batch to its longest response."""
    return _CLIPPED if tree.mode in _release_of(tree).padded_loops else ""


_CLIPPED = "response_length/clip_ratio"

_ALIKE = Trainer(
    name="verl",
    engines=("vllm", "sglang"),
    engines_without_stack={"trtllm": "TensorRT-LLM", "hf": "transformers' own generation"},
    driver=Driver(
        job_module="workflow.jobs.verl_grpo",
        resolver="trainers.verl.driver.composed",
        trainer_args=trainer_args,
        spread=Spread.RAY,
        least_cpus=least_cpus,
        without_seed=without_seed,
    ),
    launch=LAUNCH,
    keys=_KEYS,
    marks=("actor_rollout_ref",),
    # verl repeats its names elsewhere (actor_rollout_ref.rollout.trace.experiment_name): the last part decides.
    bookkeeping=frozenset(key.rpartition(".")[2] for key in BOOKKEEPING),
    engine_options=f"{ROLLOUT}.engine_kwargs.{{engine}}.",
    settings=settings_of,
    checks=CHECKS,
    context=context,
    terms=verl_terms,
    reads_engine_options=lambda case: case.engine.name not in release_named(case.version).engines_without_options,
    loop=_loop,
    formats=(
        LogFormat(
            console.FORMAT,
            "verl's console log, with lines `step:3 - timing_s/gen:382.913 - ...`",
            console.read_verl_console,
            is_step=console.is_step,
            preview=console.preview,
        ),
        LogFormat(
            file_logger.FORMAT,
            'the file of verl\'s file logger, with lines {"step": 3, "data": {...}}',
            file_logger.read_verl_jsonl,
            is_row=lambda row: "data" in row and "step" in row,
        ),
    ),
    training_steps=training_steps,
    quantities={
        "reward": ("critic/score/mean", "critic/rewards/mean"),
        "mean_response_length": ("response_length/mean",),
        "max_response_length": ("response_length/max",),
        "truncated_share": (_CLIPPED,),
        "reference_kl": ("actor/kl_loss",),
        "policy_entropy": ("actor/entropy",),
        "rollout_kl": ("rollout_corr/kl",),
        "rollout_probability_gap": ("training/rollout_probs_diff_mean",),
        "gradient_norm": ("actor/grad_norm",),
    },
    # Prompts whose completions 0.9.1 discards in a step (trainer/ppo/v1/replay_buffer.py).
    discarded=(
        "training/filter_groups/evicted_samples",
        "training/filter_groups/discarded_surplus_samples",
        "training/off_policy/evicted_samples",
        "training/rollout_failure/evicted_samples",
    ),
    # recipe/dapo's trainer: its timers add up over all batches that it generates for a step.
    generation_batches=("train/num_gen_batches",),
    discards_if=("algorithm.filter_groups.enable",),
    clipped_at_longest=_clipped_at_longest,
    iterations_hidden_by={
        f"{ROLLOUT}.multi_turn.enable": "response lengths include the tools' answers",
        f"{ROLLOUT}.mtp.enable": "one iteration generates several tokens",
        f"{ROLLOUT}.mtp.enable_rollout": "one iteration generates several tokens",
        f"{ROLLOUT}.quantization": "the rollout's weights are quantised",
    },
    started_earlier={
        "colocate_async": "which tokens a step's seconds went to: responses may have begun in an earlier step"
    },
    sequence_limit=_sequence_limit,
    engine_gpus=_engine_gpus,
)


def verl() -> Trainer:
    """verl with all registered releases."""
    trees = (*EARLIER, *(tree for release in releases() for tree in release.trees))
    return replace(
        _ALIKE,
        releases=tuple(release.version for release in releases()),
        behaviours=behaviours(),
        trees=tuple(sorted(trees, key=lambda tree: [int(part) for part in tree.series.split(".")])),
    )


VERL = verl()
