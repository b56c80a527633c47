"""Finds the scalar under which a trainer logs a quantity."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainers.registry import trainers

# verl's score is the reward before any KL penalty, like TRL's. rollout_kl, rollout_logp_gap and
# rollout_probability_gap are three different measures of how far the engine's probabilities are from the trainer's for
# the same tokens.
QUANTITIES = (
    *("reward", "mean_response_length", "max_response_length", "truncated_share", "reference_kl", "policy_entropy"),
    *("rollout_kl", "rollout_logp_gap", "rollout_probability_gap", "gradient_norm"),
)


def discarded() -> tuple[str, ...]:
    """Scalars that count discarded completions: in a step's seconds, not in its tokens and lengths."""
    return tuple(name for one in trainers() for name in one.logs.discarded)


def generation_batches() -> tuple[str, ...]:
    """Scalars that count a step's batches of completions; with several, tokens and lengths are not of all of them."""
    return tuple(name for one in trainers() for name in one.logs.generation_batches)


def discards_if() -> tuple[str, ...]:
    """Settings with which a trainer discards completions, in a number that only its counts tell."""
    return tuple(name for one in trainers() for name in one.logs.discards_if)


# TRL under wandb's train/; ms-swift, and verl by the driver's hooks, without.
_OF_A_REWARD = re.compile(r"(?:train/)?rewards/([^/]+)/(mean|failed)")


def single_rewards(names: Iterable[str], kind: str = "mean") -> dict[str, list[str]]:
    """Each reward's name -> its scalars of one kind: `mean`, or `failed`, the number of failed completions."""
    found: dict[str, list[str]] = {}
    for name in names:
        if (match := _OF_A_REWARD.fullmatch(name)) and match[2] == kind:
            found.setdefault(match[1], []).append(name)
    return found


def scalars_of(quantity: str) -> tuple[str, ...]:
    """The scalars of a quantity, of all trainers."""
    return tuple(dict.fromkeys(name for one in trainers() for name in one.logs.quantities.get(quantity, ())))


def logged_as(quantity: str, names: Iterable[str]) -> str | None:
    """The scalar among `names` that is a quantity; None if there is none."""
    have = set(names)
    return next((name for name in scalars_of(quantity) if name in have), None)
