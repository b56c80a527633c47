"""Describes replay: a trainer that only runs an engine, so that engines do equal work by construction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import file_sha256
from engines import engine_named
from node.tiny import SHAPES, WITHOUT_WEIGHTS
from trainers.described import table_in, trainer_of
from trainers.engine_checks import attention_kernels, context, sglang_speed_on_cpu
from trainers.protocol import Driver, StackFacts
from trainers.replay import makes_weights
from trainers.replay.lengths import check_lengths
from trainers.workload import TrainedArm, Workload, require_words


def _trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    if unknown := sorted(set(arm.options) - {"lengths", "engine", "tensor_parallel"}):
        raise UserError(
            f"options.{unknown[0]} is no option of a replay; it has lengths, engine (the engine's own settings) and "
            "tensor_parallel"
        )
    rules = (
        ("nodes", workload.nodes > 1, "1", "it runs on one node"),
        ("samples", workload.samples > 0, "0", "its policy does not learn"),
    )
    require_words("replay", workload, rules)
    shards = _tensor_parallel(arm, workload)
    _require_weights(arm, workload)
    lengths = check_lengths(arm.options.get("lengths"), workload.max_response_length)
    if "source" in lengths:
        lengths["sha256"] = _sha256(lengths["source"])
    return {
        "steps": workload.steps,
        "prompts": workload.batch_size // workload.num_generations,
        "num_generations": workload.num_generations,
        "max_prompt_length": workload.max_prompt_length,
        "max_response_length": workload.max_response_length,
        "temperature": workload.temperature,
        "top_p": workload.top_p,
        "dtype": workload.dtype,
        "seed": seed,
        "lengths": lengths,
        "engine": _engine_options(arm),
        # Left out for one GPU: older runs keep their fingerprints.
        **({"tensor_parallel": shards} if shards > 1 else {}),
    }


def _tensor_parallel(arm: TrainedArm, workload: Workload) -> int:
    """GPUs of the engine, which are all of the run's; `UserError` for another number, or an engine that has one."""
    option, gpus = "options.tensor_parallel", max(1, workload.gpus_per_node)
    if (given := arm.options.get("tensor_parallel", gpus)) != gpus:
        raise UserError(
            f"{option} must be workload.gpus_per_node ({gpus}): a replay is one engine on all GPUs of its run "
            f"(got {given!r}); give it as many GPUs as an engine of the training has"
        )
    if gpus > 1 and engine_named(arm.engine).in_trainer:
        raise UserError(f"workload.gpus_per_node must be 1 with engine {arm.engine}, which is not split (got {gpus})")
    return gpus


def _engine_options(arm: TrainedArm) -> dict[str, Any]:
    """The engine's own settings; `UserError` for one that the workload decides, or for any of an engine without."""
    engine, given = engine_named(arm.engine), dict(arm.options.get("engine") or {})
    for name in given:
        if engine.in_trainer or name in engine.workload_options:
            why = (
                f"{engine.label} has no settings of its own"
                if engine.in_trainer
                else "the replay's other settings set it"
            )
            raise UserError(f"options.engine.{name} is not free: {why}; remove it")
    return given


def _require_weights(arm: TrainedArm, workload: Workload) -> None:
    """`UserError` if the engine would load weights that the model lacks, or could not make its own."""
    source, options = workload.model.source, dict(arm.options.get("engine") or {})
    if not makes_weights(options):
        if source in WITHOUT_WEIGHTS:
            raise UserError(
                f"workload.model.source {source} has no weights; set options.engine.load_format: dummy in all arms, or "
                f"use a model with weights ({', '.join(SHAPES)}, a folder, a hub id)"
            )
    elif engine_named(arm.engine).in_trainer or options.get("enable_sleep_mode") or options.get("enable_memory_saver"):
        raise UserError(
            "options.engine.load_format: dummy is for vllm and sglang without sleep (enable_sleep_mode, "
            f"enable_memory_saver): random weights are made once, at the start (got engine {arm.engine})"
        )


def _sha256(source: str) -> str:
    path = Path(source).expanduser()
    if not path.is_file():
        raise UserError(
            f"options.lengths.source: no such file: {source} (in {Path.cwd()}); give the steps.parquet of a collected "
            "run: snakemake writes it when the run has finished"
        )
    return file_sha256(path)


REPLAY = trainer_of(
    "replay",
    table_in(Path(__file__).parent),
    (),
    step="step of generation alone",
    driver=Driver(
        job_module="trainers.replay.driver",
        trainer_args=_trainer_args,
    ),
    engine_options=lambda engine, release: ("engine.",),
    checks=(attention_kernels, sglang_speed_on_cpu, context),
)
