"""The phases that verl's trainers share, under the flat keys that they log."""

from trainers.timers.tree import Phase, TimerTree

ENGINES = ("vllm", "sglang")
GEN = "step/gen"

REWARD = Phase("step/reward", "Reward", "The driver waits until every response is scored.", "rewards", ("reward",))
ADV = Phase("step/adv", "Advantages", "Group statistics and advantages, on the driver.", "other", ("adv",))
OLD_LOG_PROB = Phase(
    "step/old_log_prob",
    "Old log-probs",
    "Log-probabilities under the policy that wrote the responses, by the trainer; driver wall clock.",
    "log-probs",
    ("old_log_prob",),
)
REF = Phase(
    "step/ref",
    "Reference log-probs",
    "Log-probabilities under the frozen reference model; driver wall clock.",
    "log-probs",
    # Releases whose roles have no name of their own print the enumeration's member.
    ("ref", "Role.RefPolicy"),
)
VALUES = Phase("step/values", "Values", "The critic's values (none with GRPO).", "other", ("values",))
UPDATE_CRITIC = Phase("step/update_critic", "Update critic", "The critic's update.", "other", ("update_critic",))
UPDATE_ACTOR = Phase(
    "step/update_actor",
    "Update actor",
    "Forward, backward and the optimizer of every mini-batch, with offloading; driver wall clock.",
    "loss+backward",
    ("update_actor",),
)
DUMP = Phase(
    "step/dump_rollout_generations",
    "Dump generations",
    "Writes prompts and responses to files.",
    "other",
    ("dump_rollout_generations",),
)
SAVE_INSIDE = Phase(
    "step/save_checkpoint",
    "Save checkpoint",
    "The step waits for the checkpoint.",
    "other",
    ("save_checkpoint",),
    occasional=True,
)
SAVE_OUTSIDE = Phase(
    "save_checkpoint", "Save checkpoint", "Found outside the step: in no step's sum.", "other", ("save_checkpoint",)
)
TESTING_INSIDE = Phase(
    "step/testing", "Validation", "The step waits for the validation.", "other", ("testing",), occasional=True
)
TESTING_OUTSIDE = Phase("testing", "Validation", "Outside the step: in no step's sum.", "other", ("testing",))
UPDATE_WEIGHTS = Phase(
    "step/update_weights",
    "Update weights",
    "Wakes the engines and hands them the new weights; driver wall clock.",
    "weight sync",
    ("update_weights",),
)

STEP = Phase("step", "Step", "Wall clock of one training step on the driver.", "other", ("step",))
GEN_WORKERS = Phase(
    GEN,
    "Generate",
    "Driver wall clock; its own time is waiting for the slowest rank, putting the engine to sleep and "
    "moving the batch.",
    "generation",
    ("gen",),
)
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
GEN_MAX = Phase(
    "step/gen_max", "Greedy baseline", "ReMax's greedy responses and their reward.", "generation", ("gen_max",)
)
ADV_ASYNC_REWARD = Phase(
    "step/adv",
    "Advantages",
    "Group statistics and advantages, on the driver; with launch_reward_fn_async it waits for the rewards.",
    "other",
    ("adv",),
)
TRAINING = (OLD_LOG_PROB, REF, VALUES, ADV_ASYNC_REWARD, UPDATE_CRITIC, UPDATE_ACTOR)

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
GEN_LOOP = Phase(
    GEN,
    "Generate",
    "Driver wall clock; its own time is what the slowest rank or sample does not explain: waiting for an engine, "
    "putting it to sleep, moving the batch, and up to 0.7.0 handing over the weights.",
    "generation",
    ("gen",),
)
SLOWEST = (
    Phase(
        f"{GEN}/slowest_generate_sequences",
        "Slowest sample: generate",
        "The engine's part of the sample that took longest.",
        "generation",
        ("agent_loop/slowest/generate_sequences",),
    ),
    Phase(
        f"{GEN}/slowest_tool_calls",
        "Slowest sample: tools",
        "Tool calls of the sample that took longest.",
        "generation",
        ("agent_loop/slowest/tool_calls",),
    ),
    Phase(
        f"{GEN}/slowest_compute_score",
        "Slowest sample: reward",
        "Scoring of the sample that took longest.",
        "rewards",
        ("agent_loop/slowest/compute_score",),
    ),
)
INSIDE_FIRST = (TESTING_INSIDE, SAVE_INSIDE, TESTING_OUTSIDE, SAVE_OUTSIDE)
OUTSIDE_FIRST = (TESTING_OUTSIDE, SAVE_OUTSIDE, TESTING_INSIDE, SAVE_INSIDE)


# What only these loops log: recipe/ or experimental/ one_step_off_policy/ray_trainer.py, fully_async_policy/
# {fully_async_trainer,detach_utils}.py, trainer/ppo/v1/trainer_separate_async.py (where its engines may be lent GPUs).
_MARKS = {
    "one_step_off": ("timing_s/generate_async", "timing_s/wait_prev_gen", "timing_s/sync_rollout_weights"),
    "fully_async": ("fully_async/*", "timing_s/fully_async/*", "timing_s/*param_sync"),
    "separate_async": ("separate_async/*", "timing_s/switch_*"),
}


def overlapping(mode: str, source: str, why: str, series: str = "0.9.1") -> TimerTree:
    """A loop that generates while it trains: a step, and no phases."""
    return TimerTree(
        trainer="verl",
        series=series,
        mode=mode,
        engines=ENGINES,
        source=source,
        overlap=why,
        marks=_MARKS[mode],
        beside=(
            *AGENT_LOOP,
            ("agent_loop/slowest/*", "s", "*"),
            ("fully_async/*", "1", "*"),
            ("*", "s", "overlapping_s/*"),
        ),
        phases=(Phase("step", "Step", "Wall clock of one training step on the trainer.", "other", ("step",)),),
    )
