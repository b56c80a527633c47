"""Puts the timers of ms-swift's GRPO trainer on a clock, so that a step has the sum of their calls.

Read from ms-swift 4.6.0 rlhf_trainers/{grpo_trainer,rollout_mixin,utils}.py. swift hands each call to wandb by itself,
where the last one of a step stands. Its phases have the names of TRL's (trainers/trl/driver/timers.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from node.phase_clock import sanitized
from trainers.trl.driver.timers import LOG_PROB, TrlTimers

_PHASES = {
    "_prepare_inputs": "prepare_inputs",
    "_move_model_to_vllm": "sync_weights",
    "generate": "generate",
    "_compute_rewards_per_func": "rewards",
    "log_metrics": "log_completions",
    "compute_loss": "compute_loss",
}
# They hold those above and next to nothing of their own: encoding is the rest of prepare_inputs, as with TRL.
_WHOLES = frozenset({"_generate_and_score_completions", "_score_completions", "_prepare_batch_inputs"})


class SwiftTimers(TrlTimers):
    """TRL's hooks, with swift's profiling contexts in place of TRL's own."""

    def install(self, trainer: Any) -> None:
        """Hook swift's profiling contexts, its rewards, and what it does not time."""
        super().install(trainer)

        def log_metric(name: str, value: float) -> None:
            trainer._metrics["train"][name].append(value)

        trainer.reward_funcs = [self._timed_reward(function, log_metric) for function in trainer.reward_funcs]

    def _hook_profiling_contexts(self) -> None:
        from swift.rlhf_trainers import grpo_trainer, rollout_mixin, utils

        @contextmanager
        def profiling_context(trainer: Any, name: str) -> Iterator[None]:
            if name in _WHOLES:
                yield
                return
            with self._clock.phase(self._log_prob if name == LOG_PROB else _PHASES.get(name) or sanitized(name)):
                yield

        for module in (utils, grpo_trainer, rollout_mixin):
            module.profiling_context = profiling_context

    def _timed_reward(self, function: Any, log_metric: Any) -> Any:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._clock.phase(sanitized(function.__name__)):
                return function(*args, log_metric=log_metric, **kwargs)

        return timed


def count_tokens(trainer: Any, log: Any) -> None:
    """Tell a `StepLog` of every completion's tokens as they are made."""
    original = trainer._engine_infer

    def infer(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        made = [output.response for output in outputs]
        log.generated(
            (response.usage.prompt_tokens for response in made), (len(one.choices[0].token_ids) for one in made)
        )
        return outputs

    trainer._engine_infer = infer
