"""Describes ms-swift: its driver, its log formats and its checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.findings import Finding
from common.verdicts import Verdict
from engines import Engine
from trainers import Spread, hf_server
from trainers.cases import Case, Variables
from trainers.hf_arguments import BOOKKEEPING, KEYS, weights_in_half
from trainers.logs.hf_rows import imported_rows, is_training_row, row_record
from trainers.logs.log_files import json_lines
from trainers.logs.record import Imported, StepRecord
from trainers.protocol import Driver, LogFormat, Logs, Rollout, Rules, Trainer
from trainers.swift.launch import LAUNCH
from trainers.swift.settings import SCHEDULER, trainer_args, trains_adapter
from trainers.swift.timers import ASYNC, RELEASES
from trainers.timers.tree import TimerTree
from trainers.trl import console
from trainers.trl.trainer import QUANTITIES, TRAINER_STATE

_JSONL = "swift-jsonl"


def read_swift_jsonl(path: Path) -> Imported:
    """The steps of ms-swift's log, under wandb's names, with the rounding of numbers written as texts.

    Evaluations and the summary at the end are skipped. A line that is no JSON gives a verdict, except a truncated last
    one.
    """
    verdicts: list[Verdict] = []

    def read_row(row: Any, line: int) -> StepRecord | None:
        if not isinstance(row, dict):
            raise TypeError(f"expected an object, got {type(row).__name__}")
        step = console.swift_step(row)
        return row_record(step, row, path, line) if step is not None and is_training_row(row) else None

    rows = list(json_lines(path, str(path), read_row, verdicts))
    return imported_rows(rows, path, _JSONL, verdicts)


def _rollout(settings: Mapping[str, Any], engine: Engine, tree: TimerTree | None) -> Rollout:
    asynchronous = replace(tree, mode="") if tree and tree.mode == ASYNC else tree
    hidden = {SCHEDULER: "a completion is several generations, one after another"}
    return replace(hf_server.rollout(settings, engine, asynchronous), iterations_hidden_by=hidden)


def _overlapping(case: Case, variables: Variables) -> Iterator[Finding]:
    """A loop that generates the next step's responses during training."""
    if case.settings.true("async_generate"):
        yield Finding(
            "odd",
            "trainer-mode",
            (case.arm,),
            "async_generate: True",
            "responses are generated during the step before, by weights that are one update older. The phases of a "
            "step do not add up to its time: the report has only its time and throughput. A resumed run repeats some "
            "prompts",
            "ms-swift 4.6.0, rlhf_trainers/rollout_mixin.py (_fast_infer, _prefetch)",
            "async_generate: false, to compare engines",
        )


def _weights_in_half(case: Case, variables: Variables) -> Iterator[Finding]:
    """An adapter's weights are always float32."""
    if not trains_adapter(case):
        yield from weights_in_half(case, "torch_dtype", False)


SWIFT = Trainer(
    name="swift",
    label="ms-swift",
    engines=("vllm", "transformers", "lmdeploy"),
    package="ms-swift",
    driver=Driver(
        job_module="trainers.swift.driver.train",
        resolver="trainers.swift.driver.train",
        trainer_args=trainer_args,
        rewards_in_settings=True,
        spread=Spread.TORCHRUN,
        server=lambda args: hf_server.to_spec("trainers.swift.driver.serve", args),
    ),
    launch=LAUNCH,
    keys=KEYS | {"max_model_len": ("vllm_max_model_len",)},
    logs=Logs(
        trees=tuple(tree for release in RELEASES for tree in release.trees),
        native="native",
        loop=lambda version, settings: ASYNC if settings.get("async_generate") is True else "",
        marks=("use_vllm",),
        formats=(
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
                is_row=lambda row: (
                    console.SWIFT_STEP in row or any(str(name).startswith("train_speed(") for name in row)
                ),
            ),
            TRAINER_STATE,
        ),
        quantities=QUANTITIES,
        discarded=("train/discarded_completions",),
        discards_if=("dynamic_sample",),
    ),
    rules=Rules(
        bookkeeping=BOOKKEEPING,
        engine_switches={"use_vllm": {True: "vllm", False: "transformers"}, "use_lmdeploy": {True: "lmdeploy"}},
        engine_specific=("use_vllm", "vllm_", "use_lmdeploy", "lmdeploy_"),
        checks=(_overlapping, _weights_in_half, hf_server.idle_gpus),
    ),
    rollout=_rollout,
)
