"""Compares the engine's log-probabilities with those of the policy's own training pass, as under TRL.

ms-swift's own `log_rollout_offpolicy_metrics` gathers 14 numbers from all processes in each pass, and lacks the mean
distance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.transformers.log_probs import recording
from node.mismatch_sums import MismatchSums, can_compare
from trainers.swift import hooks
from trainers.swift.driver.pipeline import last_turn


def log_mismatch(trainer: Any, log: Any) -> None:
    """Report the mismatch of each step to a `StepLog`, unless tokens are sampled from a filtered distribution."""
    if not can_compare(trainer.args):
        return
    # Turns of a conversation are generations of their own.
    if not trainer.args.use_vllm and not trainer.multi_turn_scheduler:
        _record_own_generation(trainer)
    mismatch = MismatchSums()

    def compared(compute: Callable[..., Any], model: Any, inputs: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        passed = compute(model, inputs, batch, *args, **kwargs)
        # Only the policy's training pass has gradients.
        if torch.is_grad_enabled() and batch.rollout_per_token_logps is not None:
            mismatch.add(passed[0], batch.rollout_per_token_logps, batch.completion_mask)
        return passed

    hooks.LOG_PROB.wrap(compared, trainer)
    log.at_step_end(mismatch.taken)


def _record_own_generation(trainer: Any) -> None:
    def generated(generate: Callable[..., Any], samples: Any) -> Any:
        with recording(trainer.model, trainer.args.temperature) as recorder:
            found = generate(samples)
        rows = recorder.rows(last_turn(sample.response_token_ids) for sample in found)
        for sample, row in zip(found, rows, strict=True):
            sample.rollout_logprobs = [row]
        return found

    hooks.BATCH.wrap(generated, trainer)
