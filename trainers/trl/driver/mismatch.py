"""Compares the engine's log-probabilities with those of the policy's own training pass, which TRL has anyway.

TRL logs `sampling/sampling_logp_difference` only with its correction of the difference, which changes the loss and
needs a pass of its own. A step has one update, so the training pass has the weights that sampled the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.transformers.log_probs import recording, recording_batch
from node.mismatch_sums import MismatchSums, can_compare
from trainers.trl import hooks


def log_mismatch(trainer: Any, log: Any) -> None:
    """Report the mismatch of each step to a `StepLog`, unless tokens are sampled from a filtered distribution."""
    args = trainer.args
    if not can_compare(args):
        return
    if not (args.use_vllm or trainer.rollout_func):
        _record_own_generation(trainer)
    mismatch, learned = MismatchSums(), list[Any]()

    def compute_loss(compute: Callable[..., Any], model: Any, inputs: Any) -> Any:
        learned.append(inputs)
        try:
            return compute(model, inputs)
        finally:
            learned.clear()

    def compared(compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        passed = compute(*args, **kwargs)
        if learned and (of_engine := learned[0].get("sampling_per_token_logps")) is not None:
            mask = learned[0]["completion_mask"] * learned[0].get("tool_mask", 1)
            mismatch.add(passed[0], of_engine, mask)
        return passed

    hooks.LOSS.wrap(compute_loss, trainer)
    hooks.LOG_PROB.wrap(compared, trainer)
    log.at_step_end(mismatch.taken)


def _record_own_generation(trainer: Any) -> None:
    """Have transformers' generations return log-probabilities, as those of engines do."""
    if (continuous := hooks.CONTINUOUS.get(trainer)) is not None:
        continuous.return_logprobs = True

    def generated(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if continuous is not None:
            with recording_batch(trainer.model) as rows:
                ids, _ = generate(*args, **kwargs)
            return ids, rows
        with recording(trainer.model, trainer.args.temperature) as recorder:
            ids, _ = generate(*args, **kwargs)
        return ids, recorder.rows(ids)

    hooks.BATCH.wrap(generated, trainer)
