"""The phases that verl's trainers share, under the flat keys that they log, and how a tree is made of them."""

from typing import Any

from trainers.timers.tree import Phase, TimerTree

GEN = "step/gen"


def tree_of(series: str, source: str, *phases: Phase, **more: Any) -> TimerTree:
    """The timers of one loop of a release."""
    return TimerTree("verl", series, ("vllm", "sglang"), phases, source, **more)


def _timed(key: str, label: str, description: str, category: str = "other", **more: Any) -> Phase:
    """A timer within the step, under the key's own name."""
    return Phase(f"step/{key}", label, description, category, (key,), **more)


def gen(description: str) -> Phase:
    """The generation, whose own time is what lies around the engine's."""
    return Phase(GEN, "Generate", description, "generation", ("gen",))


def reward(description: str = "The driver waits until every response is scored.") -> Phase:
    """The wait for rewards."""
    return _timed("reward", "Reward", description, "rewards")


ADV = _timed("adv", "Advantages", "Group statistics and advantages, on the driver.")
ADV_ASYNC_REWARD = _timed(
    "adv",
    "Advantages",
    "Group statistics and advantages, on the driver; with launch_reward_fn_async it waits for the rewards.",
)
OLD_LOG_PROB = _timed(
    "old_log_prob",
    "Old log-probs",
    "Log-probabilities under the policy that wrote the responses, by the trainer; driver wall clock.",
    "log-probs",
)
REF = Phase(
    "step/ref",
    "Reference log-probs",
    "Log-probabilities under the frozen reference model; driver wall clock.",
    "log-probs",
    # Releases whose roles have no name of their own print the enumeration's member.
    ("ref", "Role.RefPolicy"),
)
VALUES = _timed("values", "Values", "The critic's values (none with GRPO).")
UPDATE_CRITIC = _timed("update_critic", "Update critic", "The critic's update.")
UPDATE_ACTOR = _timed(
    "update_actor",
    "Update actor",
    "Forward, backward and the optimizer of every mini-batch, with offloading; driver wall clock.",
    "loss+backward",
)
DUMP = _timed("dump_rollout_generations", "Dump generations", "Writes prompts and responses to files.")
UPDATE_WEIGHTS = _timed(
    "update_weights",
    "Update weights",
    "Wakes the engines and hands them the new weights; driver wall clock.",
    "weight sync",
)
GEN_MAX = _timed("gen_max", "Greedy baseline", "ReMax's greedy responses and their reward.", "generation")
SAVE_INSIDE = _timed("save_checkpoint", "Save checkpoint", "The step waits for the checkpoint.", occasional=True)
SAVE_OUTSIDE = Phase(
    "save_checkpoint", "Save checkpoint", "Found outside the step: in no step's sum.", "other", ("save_checkpoint",)
)
TESTING_INSIDE = _timed("testing", "Validation", "The step waits for the validation.", occasional=True)
TESTING_OUTSIDE = Phase("testing", "Validation", "Outside the step: in no step's sum.", "other", ("testing",))
STEP = Phase("step", "Step", "Wall clock of one training step on the driver.", "other", ("step",))
GENERATE_SEQUENCES = Phase(
    f"{GEN}/generate_sequences",
    "Generate sequences",
    "Inside the workers, the mean over ranks, so that a straggler hides. SGLang ends it with a barrier of "
    "all ranks and vLLM does not: compare Generate across engines, not this. With rollout.mode=async it "
    "is the driver's wall clock.",
    "generation",
    ("generate_sequences",),
)
RESHARD = Phase(
    f"{GEN}/reshard",
    "Reshard",
    "Inside the workers, the mean over ranks: wakes the engine and hands it the new weights. Nested in "
    "Generate; absent with rollout.mode=async.",
    "weight sync",
    ("reshard",),
)
BEFORE_V1 = (OLD_LOG_PROB, REF, VALUES, ADV_ASYNC_REWARD, UPDATE_CRITIC, UPDATE_ACTOR)
TRAINING = (OLD_LOG_PROB, REF, VALUES, ADV, UPDATE_CRITIC, UPDATE_ACTOR)
INSIDE_FIRST = (TESTING_INSIDE, SAVE_INSIDE, TESTING_OUTSIDE, SAVE_OUTSIDE)
AFTER_WEIGHTS = (SAVE_INSIDE, UPDATE_WEIGHTS, TESTING_OUTSIDE, TESTING_INSIDE, SAVE_OUTSIDE)
OUTSIDE_FIRST = (TESTING_OUTSIDE, SAVE_OUTSIDE, TESTING_INSIDE, SAVE_INSIDE)


def _slowest(name: str, what: str, description: str, category: str) -> Phase:
    label = f"Slowest sample: {what}"
    return Phase(f"{GEN}/slowest_{name}", label, description, category, (f"agent_loop/slowest/{name}",))


SLOWEST = (
    _slowest("generate_sequences", "generate", "The engine's part of the sample that took longest.", "generation"),
    _slowest("tool_calls", "tools", "Tool calls of the sample that took longest.", "generation"),
    _slowest("compute_score", "reward", "Scoring of the sample that took longest.", "rewards"),
)
# min, max and mean are three numbers about samples that run at the same time: no sum holds them. The slowest
# sample bounds the batch, so that its parts, one after the other, are what lies inside gen.
AGENT_LOOP = (
    ("agent_loop/num_preempted/*", "1", "*"),
    ("agent_loop/slowest/num_preempted", "1", "*"),
    ("agent_loop/slowest/*_length", "tokens", "*"),
    ("agent_loop/generate_sequences/*", "s", "*"),
    ("agent_loop/tool_calls/*", "s", "*"),
    ("agent_loop/compute_score/*", "s", "*"),
)
PROFILES = (
    ("start_profile", "s", "outside_step_s/*"),
    ("stop_profile", "s", "outside_step_s/*"),
)
# The fastest and the slowest rank, and the share of ranks near the slowest: no parts of gen.
GENERATION_TIMING = (
    ("generation_timing/topk_ratio", "1", "*"),
    ("generation_timing/*", "s", "*"),
)

# What only these loops log: recipe/ or experimental/ one_step_off_policy/ray_trainer.py, fully_async_policy/
# {fully_async_trainer,detach_utils}.py, trainer/ppo/v1/trainer_separate_async.py (where its engines may be lent GPUs).
_MARKS = {
    "one_step_off": ("timing_s/generate_async", "timing_s/wait_prev_gen", "timing_s/sync_rollout_weights"),
    "fully_async": ("fully_async/*", "timing_s/fully_async/*", "timing_s/*param_sync"),
    "separate_async": ("separate_async/*", "timing_s/switch_*"),
}
_OVERLAP = {
    "one_step_off": "the next step's responses are generated while this step trains",
    "fully_async": "generation never waits for training, and a step takes what is ready",
    "separate_async": "engines on GPUs of their own generate while the trainer trains",
}


def overlapping(series: str, mode: str, file: str) -> TimerTree:
    """A loop that generates while it trains: a step, and no phases."""
    return tree_of(
        series,
        f"verl {series} {file}",
        Phase("step", "Step", "Wall clock of one training step on the trainer.", "other", ("step",)),
        mode=mode,
        overlap=_OVERLAP[mode],
        marks=_MARKS[mode],
        beside=(
            *AGENT_LOOP,
            ("agent_loop/slowest/*", "s", "*"),
            ("fully_async/*", "1", "*"),
            ("*", "s", "overlapping_s/*"),
        ),
    )
