"""Declares the timers of ms-swift's GRPO trainer, those of our driver and swift's own, and a row for each release."""

import dataclasses

from trainers.timers.tree import NATIVE, HfRelease, Phase, TimerTree, keyed, overlapping_tree
from trainers.trl.timers import DRIVEN_PHASES, PREPARE_INPUTS, generate, sync_weights

_ROLLOUT = "step/rollout"

_DESCRIPTIONS = {
    PREPARE_INPUTS: "Everything from prompts to scored completions; its own time is encoding, padding, advantages.",
    f"{PREPARE_INPUTS}/generate": "The trainer waits for the engine's whole answer, with its log-probabilities.",
    f"{PREPARE_INPUTS}/old_log_prob": "Under the policy that wrote the completions; swift computes them in every step, "
    "although a step with one update does not need them.",
}


def _driven() -> tuple[Phase, ...]:
    """TRL's phases with swift's descriptions, and the phases that only swift has."""
    phases: list[Phase] = []
    for phase in DRIVEN_PHASES:
        if phase.path == f"{PREPARE_INPUTS}/extract":
            continue  # swift has it in generate
        phases.append(dataclasses.replace(phase, description=_DESCRIPTIONS.get(phase.path, phase.description)))
        if phase.path == f"{PREPARE_INPUTS}/rewards/*":
            phases += _SWIFT_ALONE
    return tuple(phases)


_SWIFT_ALONE = (
    Phase(f"{PREPARE_INPUTS}/log_completions", "Log completions", "Decodes and gathers texts for the log.", "other"),
    Phase(
        f"{PREPARE_INPUTS}/offload",
        "Offload the trainer",
        "Moves the policy and its moments off the GPU for the generation, and back (offload_model, offload_optimizer).",
        "other",
    ),
)


def _last_calls(*timers: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((timer, "s", "last_call_s/*") for timer in timers)


def driven_tree(series: str) -> TimerTree:
    """The timers that our driver logs."""
    return TimerTree(
        trainer="swift",
        series=series,
        engines=("transformers", "vllm"),
        source="ms-swift 4.6.0 rlhf_trainers/{grpo_trainer,rollout_mixin,utils}.py (profiling contexts) and "
        "transformers' Trainer callbacks",
        phases=_driven(),
    )


ASYNC = "async"


def async_tree(series: str) -> TimerTree:
    """The timers that our driver logs with async_generate."""
    return overlapping_tree(
        "swift",
        series,
        ("vllm",),
        "ms-swift 4.6.0 rlhf_trainers/rollout_mixin.py (_fast_infer, async_generate_rollout)",
        (),
        DRIVEN_PHASES[0].description,
        overlap="the next step's responses are generated while this step trains (async_generate)",
        mode=ASYNC,
    )


_NATIVE_PHASES = (
    Phase(
        "step",
        "Step",
        "TRL's step_time: all training_steps of one update on the main process, without the optimizer. If the "
        "log has none, the wall clock from one logged step to the next.",
        "other",
        ("train/step_time", "wall"),
    ),
    Phase(
        _ROLLOUT,
        "Rollout",
        "Everything from prompts to scored completions; its own time is gathering samples, advantages.",
        "other",
        ("_generate_and_score_completions",),
    ),
    sync_weights(_ROLLOUT, "_move_model_to_vllm"),
    generate(_ROLLOUT, "generate", more="; with several turns or dynamic_sample, the last call"),
    keyed(
        "_score_completions",
        "Score completions",
        "Rewards; with dynamic_sample also the generation of further completions.",
        "rewards",
        within=_ROLLOUT,
        name="score",
    ),
    keyed(
        "_prepare_batch_inputs",
        "Prepare batch",
        "Encodes the samples; log-probabilities of the old policy and the reference.",
        "log-probs",
        within=_ROLLOUT,
        name="prepare_batch",
    ),
    keyed("log_metrics", "Log completions", "Decodes and gathers texts for the log.", "other", _ROLLOUT, "log"),
)


def native_tree(series: str) -> TimerTree:
    """swift without our driver: its profiling contexts in wandb."""
    return TimerTree(
        trainer="swift",
        series=series,
        mode=NATIVE,
        engines=("transformers", "vllm"),
        source="ms-swift 4.6.0 rlhf_trainers/{grpo_trainer,rollout_mixin,utils}.py, trainers/patcher.py, on TRL 0.29.1",
        # swift logs each call to wandb without a row of its own (commit=False), so only a step's last call remains.
        # These run for every micro-batch, and with gradient accumulation only the first one generates. With
        # dynamic_sample the last two contain each other's calls.
        not_summed=_last_calls(
            *("_prepare_inputs", "compute_loss", "_get_per_token_logps_and_entropies", "_get_last_hidden_state"),
            *("resample_encode_failed_inputs", "_compute_rewards_per_func", "_dynamic_sampling"),
        ),
        phases=_NATIVE_PHASES,
    )


def native_tree_of_3(series: str) -> TimerTree:
    """As `native_tree`, of swift 3."""
    return TimerTree(
        trainer="swift",
        series=series,
        mode=NATIVE,
        engines=("transformers", "vllm", "lmdeploy"),
        source="ms-swift 3.4.1.post1 rlhf_trainer/grpo_trainer.py (profiling decorators), on TRL 0.17.0's "
        "extras/profiling.py",
        # Each call has its own row in wandb; these run for every micro-batch.
        not_summed=_last_calls("_prepare_inputs", "compute_loss", "_get_per_token_logps"),
        phases=(
            Phase(
                "step",
                "Step",
                "The wall clock from one logged step to the next: this release logs no step time and does not time "
                "its generation.",
                "other",
                ("wall",),
            ),
            sync_weights("step", "_move_model_to_vllm_lmdeploy"),
        ),
    )


RELEASES = (
    HfRelease(
        "4.6",
        (driven_tree("4.6"), async_tree("4.6"), native_tree("4.6")),
        {
            "_prepare_inputs": "prepare_inputs",
            "_move_model_to_vllm": "sync_weights",
            "generate": "generate",
            "_compute_rewards_per_func": "rewards",
            "log_metrics": "log_completions",
            "compute_loss": "compute_loss",
            # These contain the phases above and almost no time of their own: encoding is the rest of prepare_inputs, as
            # in TRL.
            **dict.fromkeys(("_generate_and_score_completions", "_score_completions"), ""),
            **dict.fromkeys(("_dynamic_sampling", "_prepare_batch_inputs"), ""),
        },
    ),
    HfRelease("3.4", (native_tree_of_3("3.4"),)),
)
