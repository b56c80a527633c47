"""Declares the timers of TRL's GRPO trainer, those that our driver logs and TRL's own, and a row for each release.

A new release that has the same timers is one more series in a row.
"""

from collections.abc import Mapping

from trainers.timers.tree import NATIVE, HfRelease, Phase, TimerTree

_TRAINING_STEP = "step/training_step"
PREPARE_INPUTS = f"{_TRAINING_STEP}/prepare_inputs"


def _input_phase(name: str, label: str, description: str, category: str, *keys: str) -> Phase:
    return Phase(f"{PREPARE_INPUTS}/{name}", label, description, category, keys)


def _inputs(own_time: str, *keys: str) -> Phase:
    description = f"Everything from prompts to scored completions; its own time is {own_time}."
    return Phase(PREPARE_INPUTS, "Prepare inputs", description, "other", keys)


def sync_weights(within: str, *keys: str) -> Phase:
    """The weight sync of TRL or ms-swift."""
    return Phase(f"{within}/sync_weights", "Sync weights", "Sends the new weights to the engine.", "weight sync", keys)


def generate(within: str, *keys: str, more: str = "") -> Phase:
    """The engine's generation of TRL or ms-swift."""
    description = f"The trainer waits for the engine, from handing over prompts to having token ids{more}."
    return Phase(f"{within}/generate", "Generate", description, "generation", keys)


_REWARDS = ("rewards", "Rewards", "Scores the completions with all reward functions.", "rewards")

DRIVEN_PHASES = (
    Phase("step", "Step", "Wall clock of one step, from the Trainer's on_step_begin to its on_step_end.", "other"),
    Phase(_TRAINING_STEP, "Training step", "Prepares inputs; forward and backward pass.", "other"),
    _inputs("tokenising, padding, advantages"),
    sync_weights(PREPARE_INPUTS),
    _input_phase(
        "sync_weights/merge_adapter",
        "Merge the adapter",
        "Merges a LoRA adapter into the weights that are sent, and removes it again.",
        "weight sync",
    ),
    generate(PREPARE_INPUTS),
    _input_phase(
        "extract",
        "Extract log-probs",
        "Takes the log-probabilities out of the engine's answer, when the token ids are there.",
        "other",
    ),
    _input_phase("wait", "Wait", "Waits for the slowest engine, if several processes generate.", "generation"),
    _input_phase(
        "sleep",
        "Engine sleeps and wakes",
        "The engine frees its memory for the update, or takes it again.",
        "other",
    ),
    _input_phase("old_log_prob", "Old log-probs", "Under the policy that wrote the completions.", "log-probs"),
    _input_phase("ref_log_prob", "Reference log-probs", "Under the reference model, for the KL term.", "log-probs"),
    _input_phase(*_REWARDS),
    _input_phase("rewards/*", "Reward: *", "One reward function.", "rewards"),
    Phase(
        f"{_TRAINING_STEP}/compute_loss",
        "Compute loss",
        "Forward pass and the GRPO loss; its own time is the loss without the log-probabilities.",
        "loss+backward",
    ),
    Phase(
        f"{_TRAINING_STEP}/compute_loss/policy_log_prob",
        "Policy log-probs",
        "Under the policy that is trained, with gradients.",
        "log-probs",
    ),
    Phase(f"{_TRAINING_STEP}/backward", "Backward", "Gradients of the loss.", "loss+backward"),
    Phase(
        "step/optimizer_step",
        "Optimizer step",
        "Updates the parameters (gradient clipping is in the residual).",
        "optimizer",
    ),
)


def driven_tree(series: str) -> TimerTree:
    """The timers that our driver logs."""
    return TimerTree(
        trainer="trl",
        series=series,
        engines=("transformers", "vllm", "sglang"),
        source=f"TRL {series} grpo_trainer.py (profiling decorators) and transformers' Trainer callbacks",
        phases=DRIVEN_PHASES,
    )


_NATIVE_PHASES = (
    Phase(
        "step",
        "Step",
        "TRL's step_time: all training_steps of one update on the main process, without optimizer, logging and "
        "checkpoints. If the log has none, the wall clock from one logged step to the next.",
        "other",
        ("train/step_time", "wall"),
    ),
    Phase(_TRAINING_STEP, "Training step", "Not timed: the step above is its time.", "other"),
    _inputs("the log-probabilities of old policy and reference, tokenising, advantages", "_prepare_inputs"),
    sync_weights(PREPARE_INPUTS, "sync_weights"),
    generate(PREPARE_INPUTS, "vLLM.generate", "transformers.generate", "transformers.generate_batch"),
    _input_phase(*_REWARDS, "_calculate_rewards"),
    Phase(
        f"{_TRAINING_STEP}/compute_loss",
        "Compute loss",
        "Forward pass and the GRPO loss, with the policy's log-probabilities.",
        "loss+backward",
        ("compute_loss",),
    ),
)


def native_tree(series: str) -> TimerTree:
    """TRL without our driver: `step_time` in its logs, and its profiling points in wandb."""
    return TimerTree(
        trainer="trl",
        series=series,
        mode=NATIVE,
        engines=("transformers", "vllm"),
        source=f"TRL {series} grpo_trainer.py (training_step, profiling decorators), generation/vllm_generation.py",
        # One name covers passes in prepare_inputs (old policy, reference) and in compute_loss (policy); the log only
        # has their sum. Reward functions that are coroutines run at the same time. Neither can be in a sum.
        not_summed=(
            ("_get_per_token_logps_and_entropies", "s", "all_log_probs_s"),
            ("_get_last_hidden_state", "s", "last_hidden_state_s"),
        ),
        not_summed_if=(("train/rewards/*/mean", "s", "reward_function_s/*"),),
        phases=_NATIVE_PHASES,
    )


TIMERS: Mapping[str, str] = {
    "_prepare_inputs": "prepare_inputs",
    "sync_weights": "sync_weights",
    "vLLM.generate": "generate",
    "SGLang.generate": "generate",
    "SGLang.extract": "extract",
    "transformers.generate": "generate",
    "transformers.generate_batch": "generate",
    "_calculate_rewards": "rewards",
    "compute_loss": "compute_loss",
}
"""As in the profiling contexts of TRL's GRPOTrainer (1.8 to 1.16); those of SGLang are our own."""

# Their profiling points are the same. Our driver needs what 1.16 has (hooks.py); other logs are imported.
_IMPORTED = ("0.28", "0.29", *(f"1.{minor}" for minor in range(16)))
RELEASES = (
    HfRelease("1.16", (driven_tree("1.16"), native_tree("1.16")), TIMERS),
    *(HfRelease(series, (native_tree(series),)) for series in _IMPORTED),
)
