"""The timers of TRL's GRPO trainer, as our driver emits them."""

from analysis.timers.tree import Phase, TimerTree

_INPUTS = "step/training_step/prepare_inputs"

TRL_1_16 = TimerTree(
    trainer="trl",
    series="1.16",
    engines=("transformers", "vllm"),
    source="TRL 1.16 grpo_trainer.py (profiling decorators) and transformers' Trainer callbacks",
    phases=(
        Phase(
            "step",
            "Step",
            "Wall clock of one training step, from the trainer's on_step_begin to its on_step_end.",
            "other",
        ),
        Phase(
            "step/training_step",
            "Training step",
            "Prepare inputs, forward and backward; its own time is what lies between those.",
            "other",
        ),
        Phase(
            _INPUTS,
            "Prepare inputs",
            "Everything from prompts to scored completions; its own time is tokenising, padding, advantages.",
            "other",
        ),
        Phase(
            f"{_INPUTS}/sync_weights",
            "Sync weights",
            "Hands the policy's new weights to the rollout engine.",
            "weight sync",
        ),
        Phase(f"{_INPUTS}/generate", "Generate", "The rollout engine writes the completions.", "generation"),
        Phase(
            f"{_INPUTS}/old_log_prob",
            "Old log-probs",
            "Log-probabilities of the completions under the policy that wrote them.",
            "log-probs",
        ),
        Phase(
            f"{_INPUTS}/ref_log_prob",
            "Reference log-probs",
            "Log-probabilities under the frozen reference model, for the KL term.",
            "log-probs",
        ),
        Phase(f"{_INPUTS}/rewards", "Rewards", "Scores the completions with every reward function.", "rewards"),
        Phase(f"{_INPUTS}/rewards/*", "Reward: *", "One reward function.", "rewards"),
        Phase(
            "step/training_step/compute_loss",
            "Compute loss",
            "Forward pass and the GRPO loss; its own time is the loss without the log-probabilities.",
            "loss+backward",
        ),
        Phase(
            "step/training_step/compute_loss/policy_log_prob",
            "Policy log-probs",
            "Log-probabilities under the policy being trained, with gradients.",
            "log-probs",
        ),
        Phase("step/training_step/backward", "Backward", "Gradients of the loss.", "loss+backward"),
        Phase(
            "step/optimizer_step",
            "Optimizer step",
            "The parameters' update (clipping the gradients is in the residual).",
            "optimizer",
        ),
    ),
)
