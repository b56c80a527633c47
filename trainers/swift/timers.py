"""The timers of ms-swift's GRPO trainer, as our driver emits them and as swift itself does."""

import dataclasses

from trainers.timers.tree import Phase, TimerTree, overlapping_tree
from trainers.trl.timers import PREPARE_INPUTS, TRL_1_16, generate, sync_weights

_ROLLOUT = "step/rollout"

_OWN_WORDS = {
    PREPARE_INPUTS: "Everything from prompts to scored completions; its own time is encoding, padding, advantages.",
    f"{PREPARE_INPUTS}/old_log_prob": "Log-probabilities of the completions under the policy that wrote them; swift "
    "computes them in every step, though a step of one update needs none.",
}


def _driven() -> tuple[Phase, ...]:
    """TRL's phases, with swift's words for them, and those that TRL does not have."""
    phases = [
        dataclasses.replace(phase, description=_OWN_WORDS.get(phase.path, phase.description))
        for phase in TRL_1_16.phases
    ]
    after = next(place for place, phase in enumerate(phases) if phase.path == f"{PREPARE_INPUTS}/rewards/*")
    own = (
        Phase(
            f"{PREPARE_INPUTS}/log_completions", "Log completions", "Decodes and gathers texts for its log.", "other"
        ),
        Phase(
            f"{PREPARE_INPUTS}/offload",
            "Offload the trainer",
            "The policy and its moments leave the GPU for the generation, and come back (offload_model, "
            "offload_optimizer).",
            "other",
        ),
    )
    return (*phases[: after + 1], *own, *phases[after + 1 :])


SWIFT_DRIVEN = TimerTree(
    trainer="swift",
    series="4.6",
    engines=("transformers", "vllm"),
    source="ms-swift 4.6.0 rlhf_trainers/{grpo_trainer,rollout_mixin,utils}.py (profiling contexts) and transformers' "
    "Trainer callbacks",
    phases=_driven(),
)

ASYNC = "async"
SWIFT_ASYNC = overlapping_tree(
    "swift",
    "4.6",
    ("vllm",),
    "ms-swift 4.6.0 rlhf_trainers/rollout_mixin.py (_fast_infer, async_generate_rollout)",
    (),
    "Wall clock of one training step, from the trainer's on_step_begin to its on_step_end.",
    overlap="the next step's responses are generated while this step trains (async_generate)",
    mode=ASYNC,
)

SWIFT_4_6 = TimerTree(
    trainer="swift",
    series="4.6",
    mode="native",
    engines=("transformers", "vllm"),
    source="ms-swift 4.6.0 rlhf_trainers/{grpo_trainer,rollout_mixin,utils}.py, trainers/patcher.py, on TRL 0.29.1",
    # It hands each call to wandb without a row of its own (commit=False): of several calls in a step the last one
    # stands. These are called for every micro-batch, and with gradient accumulation only the first one generates.
    beside=(
        ("_prepare_inputs", "s", "last_call_s/*"),
        ("compute_loss", "s", "last_call_s/*"),
        ("_get_per_token_logps_and_entropies", "s", "last_call_s/*"),
        ("_get_last_hidden_state", "s", "last_call_s/*"),
        ("resample_encode_failed_inputs", "s", "last_call_s/*"),
        # With dynamic_sample these hold one another's calls.
        ("_compute_rewards_per_func", "s", "last_call_s/*"),
        ("_dynamic_sampling", "s", "last_call_s/*"),
    ),
    phases=(
        Phase(
            "step",
            "Step",
            "TRL's step_time: all training_steps of one update on the main process, without the optimizer. Where the "
            "log has none, the wall clock from one logged step to the next.",
            "other",
            ("train/step_time", "wall"),
        ),
        Phase(
            _ROLLOUT,
            "Rollout",
            "Everything from prompts to scored completions; its own time is moving and gathering samples, advantages.",
            "other",
            ("_generate_and_score_completions",),
        ),
        sync_weights(_ROLLOUT, "_move_model_to_vllm"),
        generate(_ROLLOUT, "generate", more="; with several turns or dynamic_sample, the last call"),
        Phase(
            f"{_ROLLOUT}/score",
            "Score completions",
            "Rewards; with dynamic_sample also the completions that are generated again.",
            "rewards",
            ("_score_completions",),
        ),
        Phase(
            f"{_ROLLOUT}/prepare_batch",
            "Prepare batch",
            "Encodes the samples, and computes the log-probabilities of the old policy and the reference.",
            "log-probs",
            ("_prepare_batch_inputs",),
        ),
        Phase(
            f"{_ROLLOUT}/log", "Log completions", "Decodes and gathers texts for its log.", "other", ("log_metrics",)
        ),
    ),
)

SWIFT_3_4 = TimerTree(
    trainer="swift",
    series="3.4",
    mode="native",
    engines=("transformers", "vllm", "lmdeploy"),
    source="ms-swift 3.4.1.post1 rlhf_trainer/grpo_trainer.py (profiling decorators), on TRL 0.17.0's "
    "extras/profiling.py",
    # Each call is a row of its own in wandb, and these are called for every micro-batch.
    beside=(
        ("_prepare_inputs", "s", "last_call_s/*"),
        ("compute_loss", "s", "last_call_s/*"),
        ("_get_per_token_logps", "s", "last_call_s/*"),
    ),
    phases=(
        Phase(
            "step",
            "Step",
            "The wall clock from one logged step to the next: this release logs no step time, and no timer is around "
            "its generation.",
            "other",
            ("wall",),
        ),
        sync_weights("step", "_move_model_to_vllm_lmdeploy"),
    ),
)
