"""Adds to a step what verl's loops do not log of their batch: mismatch, and responses that the engine cut short."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from node.mismatch_sums import MismatchSums, can_compare
from node.over_ranks import SHORTENED
from trainers.verl import hooks


class BatchNumbers:
    """Numbers of a step's batch, in the process of verl's loop, which has the whole batch on its CPU."""

    def __init__(self) -> None:
        self._mismatch: MismatchSums | None = None
        self._compared = False
        self._shortened: int | None = None
        self._longest, self._end_ids = 0, list[int]()

    def install(self) -> None:
        """Hook verl's comparison of log-probabilities; 0.4.1 has them in the batch of its metrics."""
        with suppress(ModuleNotFoundError):
            hooks.OFF_POLICY.wrap(self._compare)

    def start(self, trainer: Any) -> None:
        """Take the settings of the trainer whose loop begins."""
        rollout = trainer.config.actor_rollout_ref.rollout
        self._mismatch = MismatchSums() if can_compare(rollout) and not _bypasses(trainer.config) else None
        # A tool's answer does not end with an end token.
        if not rollout.multi_turn.enable:
            self._longest, self._end_ids = int(rollout.response_length), list(trainer.tokenizer.all_special_ids)

    def note(self, batch: Any, lengths: Any) -> None:
        """Read the batch of a step's metrics, and the tokens of its responses."""
        import torch

        tensors = batch.batch
        # 0.9.1's legacy loop has them here, too.
        if self._mismatch and not self._compared and {"rollout_log_probs", "old_log_probs"} <= set(tensors.keys()):
            self._mismatch.add(tensors["old_log_probs"], tensors["rollout_log_probs"], tensors["response_mask"])
        if self._longest:
            last = tensors["responses"].gather(1, (lengths.long() - 1).clamp(min=0)[:, None])[:, 0]
            ended = torch.isin(last, torch.tensor(self._end_ids))
            self._shortened = int(((lengths < self._longest) & ~ended).sum())

    def taken(self) -> dict[str, float]:
        """The scalars of the step that ends."""
        shortened, self._shortened, self._compared = self._shortened, None, False
        scalars = self._mismatch.taken() if self._mismatch else {}
        if shortened:
            print(f"the engine shortened {shortened} responses of this step: its cache is too small", flush=True)
            scalars[SHORTENED] = shortened
        return scalars

    def _compare(self, original: Callable[..., Any], **given: Any) -> Any:
        if self._mismatch and given["rollout_log_prob"] is not None:
            self._mismatch.add(given["old_log_prob"], given["rollout_log_prob"], given["response_mask"])
            self._compared = True
        return original(**given)


def _bypasses(config: Any) -> bool:
    """Whether the engine's log-probabilities are the trainer's old ones: verl then logs `actor/rollout_corr/*` itself,
    of the update's own pass."""
    from omegaconf import OmegaConf

    return bool(OmegaConf.select(config, "algorithm.rollout_correction.bypass_mode", default=False))


def with_log_probs(rollout: dict[str, Any]) -> None:
    """Have the engine's log-probabilities kept, which both engines of 0.4.1 compute anyway.

    They are the trainer's only at temperature 1: vLLM 0.8.5 takes them before it divides by the temperature.
    """
    if rollout["temperature"] == 1 and not rollout["multi_turn"]["enable"]:
        rollout["calculate_log_probs"] = True
