"""Describes ms-swift: translates a workload into RLHFArguments (4.6), as equal to TRL's as swift allows, and lists its
formats and checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.verdicts import Verdict
from trainers import Spread, hf_server
from trainers.cases import Case, rules_in
from trainers.described import trainer_of
from trainers.engine_checks import context
from trainers.hf_arguments import (
    BOOKKEEPING,
    completed,
    half_format,
    require_equal_shares,
    require_one_process,
    require_one_update,
    require_sharing,
    workload_arguments,
)
from trainers.logs.hf_rows import imported_rows, is_training_row, row_record
from trainers.logs.hf_work import Samples, samples_of
from trainers.logs.log_files import json_lines
from trainers.logs.record import Imported, StepRecord
from trainers.protocol import OFF, Driver, LogFormat, StackFacts
from trainers.swift.launch import LAUNCH, TABLE
from trainers.timers.tree import TimerTree
from trainers.trl import console
from trainers.trl.trainer import TRAINER_STATE
from trainers.workload import TrainedArm, Workload

_JSONL = "swift-jsonl"


def read_swift_jsonl(path: Path) -> Imported:
    """The steps of ms-swift's log, under wandb's names, with the rounding of numbers written as texts.

    Evaluations and the summary at the end are skipped. A line that is no JSON gives a verdict, except a truncated last
    one.
    """
    verdicts: list[Verdict] = []
    samples: Samples | None = None

    def read_row(row: Any, line: int) -> StepRecord | None:
        nonlocal samples
        if not isinstance(row, dict):
            raise TypeError(f"expected an object, got {type(row).__name__}")
        samples = samples_of(row, path, line) or samples
        step = console.swift_step(row)
        return row_record(step, row, path, line) if step is not None and is_training_row(row) else None

    rows = list(json_lines(path, str(path), read_row, verdicts))
    return imported_rows(rows, path, _JSONL, verdicts, samples=samples)


def _undecoded(settings: Mapping[str, Any], tree: TimerTree) -> Iterator[str]:
    if settings.get(SCHEDULER) not in OFF:
        yield f"the floor with {SCHEDULER}: a completion is several generations, one after another"


def _turns_in_the_trainer(case: Case) -> object:
    return case.settings.get(SCHEDULER) if case.engine.in_trainer else None


def _weights_in_half(case: Case) -> object:
    return None if str(case.settings.get("tuner_type")) == "lora" else half_format(case, "torch_dtype")


SERVER_GPUS = (hf_server.TENSOR_PARALLEL, hf_server.DATA_PARALLEL)
"""Settings whose product is a server's GPUs."""
SCHEDULER, MAX_TURNS = "multi_turn_scheduler", "max_turns"
# Not tried with FSDP. A process whose conversations have ended would not answer processes that gather its share.
_NOT_SHARDED = ("offload_model", "offload_optimizer", SCHEDULER)
SCHEDULERS: Mapping[str, str] = TABLE["options"]["schedulers"]
"""The schedulers of ms-swift that the driver does not support, and why."""


def trainer_args(arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
    """RLHFArguments for one run, from the workload and the arm's options."""
    processes = hf_server.training_processes(arm, workload, SERVER_GPUS)
    _require_supported(arm, workload, stack, processes)
    fixed = workload_arguments(workload, seed, processes) | {
        "max_length": _longest(arm, workload),
        # Without it swift uses float16 if bf16 is off.
        "fp16": False,
        # Prompts use the tokenizer's own chat template; swift's template of a model may add a system message.
        "template": "dummy",
        "template_backend": "jinja",
    }
    # TRL's defaults; swift's own are other Adam settings (0.95, 0.1), bfloat16 weights and LoRA.
    defaults = {"tuner_type": "full", "torch_dtype": "float32", "adam_beta2": 0.999, "weight_decay": 0.0}
    defaults["dataloader_num_workers"] = 0
    return completed(fixed, defaults | _engine(arm, workload, stack), arm, stack, TABLE["options"]["owned"])


def _engine(arm: TrainedArm, workload: Workload, stack: StackFacts) -> dict[str, Any]:
    """The engine's defaults, as TRL 1.16 builds its vLLM (trl/generation/vllm_generation.py)."""
    if arm.engine != "vllm":
        return {}
    engine: dict[str, Any] = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_len": _longest(arm, workload),
        "vllm_engine_kwargs": {"max_num_batched_tokens": 4096},
    }
    if hf_server.is_server_arm(arm):
        # The whole step, as colocated; the server's own default is lower than a large batch.
        engine["vllm_max_num_seqs"] = workload.batch_size
        return engine | hf_server.settings(arm, workload, SERVER_GPUS)
    if stack.accelerator == "cuda":
        # Level 2 drops the engine's weights, and each sync sends them again; an adapter's does not send the base's.
        engine |= {"vllm_gpu_memory_utilization": 0.3, "sleep_level": 1 if arm.options.get("vllm_enable_lora") else 2}
    return engine


def _longest(arm: TrainedArm, workload: Workload) -> int:
    """Tokens of the longest conversation, if each turn is at most one longest prompt and response."""
    return (workload.max_prompt_length + workload.max_response_length) * int(arm.options.get(MAX_TURNS, 1))


def _require_turns(arm: TrainedArm) -> None:
    """`UserError` for a conversation without a scheduler or a limit of turns."""
    scheduler, turns = arm.options.get(SCHEDULER), arm.options.get(MAX_TURNS)
    if scheduler is None and turns is None:
        return
    if scheduler is None:
        raise UserError(f"options.{MAX_TURNS} does nothing without options.{SCHEDULER}; give that, or remove it")
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
        raise UserError(f"options.{MAX_TURNS} must be a whole number from 1 with {SCHEDULER} (got {turns!r})")
    if why := SCHEDULERS.get(str(scheduler)):
        raise UserError(
            f"options.{SCHEDULER} cannot be {scheduler} here: {why}. Use math_tip_trick, or your own class "
            "(docs/swift.md#several-turns)"
        )
    own = isinstance(scheduler, Mapping) and scheduler.keys() - {"sha256", "code"} == {"source", "class"}
    if not isinstance(scheduler, str) and not own:
        raise UserError(
            f"options.{SCHEDULER} must be a scheduler's name in ms-swift, or "
            f"{{source: my_scheduler.py, class: MyScheduler}} (got {scheduler!r})"
        )


def _require_supported(arm: TrainedArm, workload: Workload, stack: StackFacts, processes: int) -> None:
    """`UserError` for options that ms-swift or the driver does not support."""
    require_one_update("swift", workload)
    require_equal_shares("swift", workload, processes)
    _require_turns(arm)
    if hf_server.is_server_arm(arm):
        # swift accepts them and ignores them.
        hf_server.reject_options(arm, "sleep_level", "offload_model", "offload_optimizer")
    else:
        for option in TABLE["options"]["of_a_server"]:
            if option in arm.options:
                raise UserError(
                    f"options.{option} does nothing with trainer swift without a server: ms-swift passes it only to "
                    "`swift rollout`; remove it, or set vllm_mode: server"
                )
        if arm.engine == "vllm" and stack.accelerator == "cpu":
            require_one_process("swift with engine vllm on a CPU", workload)
    tuner = arm.options.get("tuner_type", "full")
    untried = (*_NOT_SHARDED, *(("tuner_type",) if tuner != "full" else ()))
    require_sharing("swift", arm, stack, processes, arm.options.get("torch_dtype"), untried)
    if arm.engine == "vllm" and tuner not in ("full", "lora"):
        raise UserError(
            "options.tuner_type must be full or lora with trainer swift and engine vllm "
            f"(got {tuner}): no other is tried with it"
        )
    for option, why in TABLE["options"]["not_driven"].items():
        if arm.options.get(option):
            raise UserError(
                f"options.{option} cannot be used with trainer swift: {why}. Runs with it can be imported and compared "
                "(docs/import.md)"
            )


SWIFT = trainer_of(
    "swift",
    TABLE,
    (
        LogFormat(
            console.SWIFT,
            "ms-swift's console log, with lines {'loss': ..., 'global_step/max_steps': '3/25'}",
            console.read_trl_console,
            is_step=lambda part: console.format_of_row(part) == console.SWIFT,
        ),
        LogFormat(
            _JSONL,
            "ms-swift's logging.jsonl",
            read_swift_jsonl,
            is_row=lambda row: console.SWIFT_STEP in row or any(str(name).startswith("train_speed(") for name in row),
        ),
        TRAINER_STATE,
    ),
    driver=Driver(
        job_module="trainers.swift.driver.train",
        trainer_args=trainer_args,
        spread=Spread.TORCHRUN,
        needs=lambda args, workload: hf_server.needs("trainers.swift.driver.serve", args),
    ),
    launch=LAUNCH,
    bookkeeping=BOOKKEEPING,
    engine_options=lambda engine, release: (f"{engine}_",),
    checks=(
        *rules_in(Path(__file__).with_name("checks.toml"), globals()),
        context,
    ),
    gpus_beside=hf_server.gpus_beside,
    undecoded=_undecoded,
)
