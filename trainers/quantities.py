"""What does each trainer call the quantities that a report compares?"""

from __future__ import annotations

from collections.abc import Iterable

# verl's share of responses as long as its padded batch; what the V1 loops of 0.9.1 pad to: analysis/wide.py.
VERL_CLIPPED = "response_length/clip_ratio"
# Prompts whose completions verl 0.9.1 (trainer/ppo/v1/replay_buffer.py) threw away in a step: they are in its seconds,
# and not in its tokens and lengths.
DISCARDED = (
    "training/filter_groups/evicted_samples",
    "training/filter_groups/discarded_surplus_samples",
    "training/off_policy/evicted_samples",
    "training/rollout_failure/evicted_samples",
)

# Our name: what the trainers call it, the first that a run has. TRL's names begin with `train/`, the others
# are verl's. verl's score is the reward before any KL penalty, as TRL's is.
QUANTITIES: dict[str, tuple[str, ...]] = {
    "reward": ("train/reward", "critic/score/mean", "critic/rewards/mean"),
    "mean_response_length": ("train/completions/mean_length", "response_length/mean"),
    "max_response_length": ("train/completions/max_length", "response_length/max"),
    "truncated_share": ("train/completions/clipped_ratio", VERL_CLIPPED),
    "reference_kl": ("train/kl", "actor/kl_loss"),
    "policy_entropy": ("train/entropy", "actor/entropy"),
    # Three measures of how far the engine's probabilities are from the trainer's for the same tokens: none is another.
    "rollout_kl": ("rollout_corr/kl", "train/rollout_correction/kl"),
    "rollout_logp_gap": ("train/sampling/sampling_logp_difference/mean",),
    "rollout_probability_gap": ("training/rollout_probs_diff_mean",),
    "gradient_norm": ("train/grad_norm", "actor/grad_norm"),
}


def logged_as(quantity: str, names: Iterable[str]) -> str | None:
    """The name among `names` under which a trainer logged a quantity; None where it did not."""
    have = set(names)
    return next((name for name in QUANTITIES[quantity] if name in have), None)
