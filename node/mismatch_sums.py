"""Measures how far an engine's log-probabilities are from the trainer's, for the tokens that were sampled."""

from __future__ import annotations

from typing import Any

ABS, KL = "mismatch/abs", "mismatch/k3"
"""Scalars of a step: means over its sampled tokens, of |d| and of exp(d) - d - 1, where d is the trainer's
log-probability minus the engine's. The second estimates the KL divergence of the engine's distribution from the
trainer's (k3, http://joschu.net/blog/kl-approx.html); as in ms-swift's and verl's `k3_kl` it is never negative."""


class MismatchSums:
    """Sums over the tokens of a step, on the trainer's device: nothing waits for a GPU before the step's end."""

    def __init__(self) -> None:
        self._sums: Any = 0.0

    def add(self, of_trainer: Any, of_engine: Any, mask: Any) -> None:
        """Add tokens: log-probabilities of one shape, of which `mask` marks those that the engine sampled.

        Tokens for which the engine has no number are left out.
        """
        import torch

        with torch.no_grad():
            difference = of_trainer.detach().float() - of_engine.float()
            known = mask.bool() & difference.isfinite()
            difference = difference.where(known, 0.0)
            of_kl = difference.expm1() - difference
            self._sums = self._sums + torch.stack([difference.abs().sum(), of_kl.sum(), known.sum()])

    def taken(self) -> dict[str, float]:
        """The scalars of the tokens since the last call; empty without any."""
        sums, self._sums = self._sums, 0.0
        if isinstance(sums, float):
            return {}
        distance, divergence, tokens = sums.tolist()
        return {ABS: distance / tokens, KL: divergence / tokens} if tokens else {}


def can_compare(args: Any) -> bool:
    """Whether tokens are sampled from the whole distribution, by the arguments of TRL or ms-swift; says so if not.

    Otherwise an engine's log-probabilities are of the filtered distribution: they differ from the trainer's by the
    logarithm of the share that was kept.
    """
    allowed: dict[str, tuple[Any, ...]] = {
        "top_p": (None, 1.0),
        "top_k": (None, 0, -1),
        "min_p": (None, 0.0),
        "repetition_penalty": (None, 1.0),
        "generation_kwargs": (None, {}),
    }
    for name, values in allowed.items():
        if (value := getattr(args, name, None)) not in values:
            print(f"mismatch/* are not logged: {name} is {value}, which changes what is sampled from", flush=True)
            return False
    return True
