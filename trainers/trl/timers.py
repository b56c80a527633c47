"""The timers of TRL's GRPO trainer, as our driver emits them and as TRL itself does."""

from trainers.timers.tree import Phase, TimerTree

_TRAINING_STEP = "step/training_step"
PREPARE_INPUTS = f"{_TRAINING_STEP}/prepare_inputs"


def _inputs(own_time: str, *keys: str) -> Phase:
    described = f"Everything from prompts to scored completions; its own time {own_time}."
    return Phase(PREPARE_INPUTS, "Prepare inputs", described, "other", keys)


def sync_weights(within: str, *keys: str) -> Phase:
    """The weights on their way to the engine, of ms-swift, too."""
    described = "Hands the policy's new weights to the rollout engine."
    return Phase(f"{within}/sync_weights", "Sync weights", described, "weight sync", keys)


def generate(within: str, *keys: str, more: str = "") -> Phase:
    """The engine's part, of ms-swift, too."""
    described = f"The rollout engine writes the completions{more}."
    return Phase(f"{within}/generate", "Generate", described, "generation", keys)


def _rewards(*keys: str) -> Phase:
    described = "Scores the completions with every reward function."
    return Phase(f"{PREPARE_INPUTS}/rewards", "Rewards", described, "rewards", keys)


TRL_1_16 = TimerTree(
    trainer="trl",
    series="1.16",
    engines=("transformers", "vllm", "sglang"),
    source="TRL 1.16 grpo_trainer.py (profiling decorators) and transformers' Trainer callbacks",
    phases=(
        Phase(
            "step",
            "Step",
            "Wall clock of one training step, from the trainer's on_step_begin to its on_step_end.",
            "other",
        ),
        Phase(
            _TRAINING_STEP,
            "Training step",
            "Prepare inputs, forward and backward; its own time is what lies between those.",
            "other",
        ),
        _inputs("is tokenising, padding, advantages"),
        sync_weights(PREPARE_INPUTS),
        Phase(
            f"{PREPARE_INPUTS}/sync_weights/merge_adapter",
            "Merge the adapter",
            "Merges a LoRA adapter into the weights that are sent, all of them, and takes it out again.",
            "weight sync",
        ),
        generate(PREPARE_INPUTS),
        Phase(
            f"{PREPARE_INPUTS}/wait",
            "Wait",
            "Waits for the slowest engine; only where several processes generate.",
            "generation",
        ),
        Phase(
            f"{PREPARE_INPUTS}/sleep",
            "Engine sleeps and wakes",
            "The engine gives its cache and weights back to the update, and takes memory again.",
            "other",
        ),
        Phase(
            f"{PREPARE_INPUTS}/old_log_prob",
            "Old log-probs",
            "Log-probabilities of the completions under the policy that wrote them.",
            "log-probs",
        ),
        Phase(
            f"{PREPARE_INPUTS}/ref_log_prob",
            "Reference log-probs",
            "Log-probabilities under the frozen reference model, for the KL term.",
            "log-probs",
        ),
        _rewards(),
        Phase(f"{PREPARE_INPUTS}/rewards/*", "Reward: *", "One reward function.", "rewards"),
        Phase(
            f"{_TRAINING_STEP}/compute_loss",
            "Compute loss",
            "Forward pass and the GRPO loss; its own time is the loss without the log-probabilities.",
            "loss+backward",
        ),
        Phase(
            f"{_TRAINING_STEP}/compute_loss/policy_log_prob",
            "Policy log-probs",
            "Log-probabilities under the policy being trained, with gradients.",
            "log-probs",
        ),
        Phase(f"{_TRAINING_STEP}/backward", "Backward", "Gradients of the loss.", "loss+backward"),
        Phase(
            "step/optimizer_step",
            "Optimizer step",
            "The parameters' update (clipping the gradients is in the residual).",
            "optimizer",
        ),
    ),
)

# Passes under one name that lie in prepare_inputs (old policy, reference) and in compute_loss (policy): the log sums
# them, and the two cannot be told apart. The user's reward functions lie in rewards; those that are coroutines run at
# the same time. Neither is a part of a sum.
_NATIVE_BESIDE = (
    ("_get_per_token_logps_and_entropies", "s", "all_log_probs_s"),
    ("_get_last_hidden_state", "s", "last_hidden_state_s"),
)
_NATIVE_REWARDS = (("train/rewards/*/mean", "s", "reward_function_s/*"),)
_NATIVE_PHASES = (
    Phase(
        "step",
        "Step",
        "TRL's step_time: all training_steps of one update on the main process. The optimizer, logging and "
        "checkpoints are not in it.",
        "other",
        ("train/step_time",),
    ),
    Phase(_TRAINING_STEP, "Training step", "Not timed by itself: the step above is its time.", "other"),
    _inputs(
        "holds the log-probabilities of the old policy and the reference, tokenising, advantages", "_prepare_inputs"
    ),
    sync_weights(PREPARE_INPUTS, "sync_weights"),
    generate(PREPARE_INPUTS, "vLLM.generate", "transformers.generate", "transformers.generate_batch"),
    _rewards("_calculate_rewards"),
    Phase(
        f"{_TRAINING_STEP}/compute_loss",
        "Compute loss",
        "Forward pass and the GRPO loss, with the policy's log-probabilities.",
        "loss+backward",
        ("compute_loss",),
    ),
)


def _native(series: str) -> TimerTree:
    """TRL without our driver: `step_time` in its logs, and in wandb its profiling points."""
    return TimerTree(
        trainer="trl",
        series=series,
        mode="native",
        engines=("transformers", "vllm"),
        source=f"TRL {series} grpo_trainer.py (training_step, profiling decorators), generation/vllm_generation.py",
        beside=_NATIVE_BESIDE,
        beside_if=_NATIVE_REWARDS,
        phases=_NATIVE_PHASES,
    )


# Their profiling points are the same; 1.10 to 1.15 were not read.
TRL_NATIVE = tuple(_native(series) for series in ("0.28", "0.29", *(f"1.{n}" for n in range(10)), "1.16"))
