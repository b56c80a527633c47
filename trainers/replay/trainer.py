"""Describes replay: a trainer that only runs an engine, so that engines do equal work by construction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.dotted import as_mapping
from common.errors import UserError
from common.files import file_sha256, read_json_object
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
        _require_same_texts(lengths["source"], workload)
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
        "engine": dict(arm.options.get("engine") or {}),
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


def _require_same_texts(source: str, workload: Workload) -> None:
    """`UserError` if the source run had another model (and perhaps another tokenizer) or other data.

    The spec.json in the folder of its steps shows it; without that file, or a workload in it, nothing is checked.
    """
    path = Path(source).expanduser().with_name("spec.json")
    theirs = as_mapping(read_json_object(path, "the plan").get("workload")) if path.is_file() else {}
    ours = workload.for_spec()
    for part, why in (("model", "another tokenizer's tokens are other texts"), ("data", "they answer other prompts")):
        there, here = (as_mapping(one.get(part)).get("source") for one in (theirs, ours))
        if there and there != here:
            raise UserError(
                f"options.lengths.source: {source} is of a run with workload.{part}.source {there}, this replay has "
                f"{here}: {why}. Use a run with the same {part}, or numbers (mean, shortest, longest)"
            )


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
