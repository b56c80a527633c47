"""verl as a `Trainer`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.dotted import positive_int
from common.verdicts import Verdict
from trainers import Spread
from trainers.cases import Settings
from trainers.described import trainer_of
from trainers.logs.log_files import json_lines
from trainers.logs.record import TIMERS, Imported, StepRecord, as_number
from trainers.logs.restarts import steps_in_sequence
from trainers.logs.sync_cycles import training_steps
from trainers.protocol import OFF, Driver, LogFormat
from trainers.timers.tree import TimerTree, release_of
from trainers.verl import console
from trainers.verl.checks import CHECKS
from trainers.verl.driver.overrides import BOOKKEEPING, ROLLOUT
from trainers.verl.given import KEYS, TABLE, pools_beside, settings_of
from trainers.verl.launch import LAUNCH
from trainers.verl.releases import release_named
from trainers.verl.settings import least_cpus, trainer_args

_JSONL = "verl-jsonl"


def read_verl_jsonl(path: Path) -> Imported:
    """The steps of verl's file logger (0.6 and later), every number in full under verl's name.

    A line without any timer (a validation) is skipped. A line that is not JSON gives a verdict, except a truncated last
    one. `UserError` if the file contains several runs.
    """
    verdicts: list[Verdict] = []
    records = list(json_lines(path, str(path), lambda row, number: _record(row, path, number), verdicts))
    records, more = training_steps(records, str(path))
    read = steps_in_sequence(records, path)
    read.verdicts = [*verdicts, *more, *read.verdicts]
    return Imported(read, _JSONL)


def _record(row: Any, path: Path, number: int) -> StepRecord | None:
    if not isinstance(row, dict) or not isinstance(row.get("data"), dict):
        raise TypeError('expected {"step": ..., "data": {...}}')
    step = row.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step must be a whole number from 0 (got {step!r})")
    scalars = {}
    for name, value in row["data"].items():
        # orjson writes NaN and infinity as null.
        number_read = float("nan") if value is None else as_number(value)
        if number_read is not None:
            scalars[name] = number_read
    if step == 0 or not any(name.startswith(TIMERS) for name in scalars):
        return None
    return StepRecord(step, {}, scalars, {}, None, path, number)


def _loop(version: str, settings: Mapping[str, Any]) -> str:
    """The mode of a release's loop; since 0.5 settings select it (trainer.toml)."""
    if release_of(version).startswith("0.4."):
        return ""
    if str(settings.get("trainer.use_v1", True)).lower() in ("false", "0", "no", "off"):
        return "legacy"
    mode = str(settings.get("trainer.v1.trainer_mode") or "sync")
    return "" if mode == "sync" else mode


def _engine_options(engine: str, release: str) -> tuple[str, ...]:
    if engine in release_named(release).engines_without_options:
        return ()
    own = f"{ROLLOUT}.engine_kwargs.{engine}."
    # Settings of the rollout have vLLM's own names.
    return (f"{ROLLOUT}.", own) if engine == "vllm" else (own,)


def _undecoded(settings: Mapping[str, Any], tree: TimerTree) -> Iterator[str]:
    on = [f"{key}." for key, value in settings.items() if value not in OFF]
    for option, why in _HIDDEN.items():
        if any(key.startswith(f"{option}.") for key in on):
            yield f"the floor with {option}: {why}"
    if tree.mode == "colocate_async":
        yield _EARLIER_RESPONSES


def _engine_gpus(settings: Mapping[str, Any], tree: TimerTree) -> int | None:
    """The GPUs that only the engines use; None if no setting says so."""
    pairs = list(zip(KEYS["engine_nodes"], KEYS["engine_gpus_per_node"], strict=True))
    for nodes, per_node in pairs[1:] if tree.mode == "separate_async" else pairs:
        if gpus := (positive_int(settings.get(nodes)) or 0) * (positive_int(settings.get(per_node)) or 0):
            return gpus
    # Without GPUs of their own, the engines of `fully_async` share the trainer's.
    return 0 if str(settings.get("rollout.nnodes")) == "0" and tree.mode == "fully_async" else None


def _gpus_beside(settings: Mapping[str, Any], tree: TimerTree, separate: bool) -> int | None:
    of_engines = _engine_gpus(settings, tree) if separate else 0
    others = sum(pools_beside(Settings(settings, frozenset())).values())
    return None if of_engines is None else of_engines + others


_HIDDEN = {
    f"{ROLLOUT}.multi_turn.enable": "response lengths include the tools' answers",
    f"{ROLLOUT}.mtp.enable": "one iteration generates several tokens",
    f"{ROLLOUT}.mtp.enable_rollout": "one iteration generates several tokens",
    f"{ROLLOUT}.quantization": "the rollout's weights are quantised",
}
_EARLIER_RESPONSES = "which tokens a step's seconds went to: responses may have begun in an earlier step"


_FORMATS = (
    LogFormat(
        console.FORMAT,
        "verl's console log, with lines `step:3 - timing_s/gen:382.913 - ...`",
        console.read_verl_console,
        is_step=console.is_step,
    ),
    LogFormat(
        _JSONL,
        'the file of verl\'s file logger, with lines {"step": 3, "data": {...}}',
        read_verl_jsonl,
        is_row=lambda row: "data" in row and "step" in row,
    ),
)

VERL = trainer_of(
    "verl",
    TABLE,
    _FORMATS,
    loop=_loop,
    driver=Driver(
        job_module="workflow.jobs.verl_grpo",
        trainer_args=trainer_args,
        spread=Spread.RAY,
        needs=lambda args, workload: {"least_cpus": least_cpus(args, workload)},
    ),
    launch=LAUNCH,
    settings=settings_of,
    # verl repeats its names elsewhere (actor_rollout_ref.rollout.trace.experiment_name): the last part decides.
    bookkeeping=frozenset(key.rpartition(".")[2] for key in BOOKKEEPING) | {"rewards_file"},
    engine_options=_engine_options,
    checks=CHECKS,
    gpus_beside=_gpus_beside,
    undecoded=_undecoded,
)
