"""Declares verl's phases under the flat keys that its loops log, and the timer trees of its releases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainers.timers.tree import Phase, TimerTree, keyed, overlapping_tree

_ENGINES = ("vllm", "sglang")
GEN = "step/gen"


def tree_of(series: str, source: str, *phases: Phase, **more: Any) -> TimerTree:
    """The timers of one loop of a release."""
    return TimerTree("verl", series, _ENGINES, phases, source, **more)


def gen(description: str, polled_s: float = 0.0) -> Phase:
    """The generation. Its own time is the driver's, around the engine's."""
    return Phase(GEN, "Generate", description, "generation", ("gen",), polled_s=polled_s)


def reward(description: str = "The driver waits until every response is scored.") -> Phase:
    """The wait for rewards."""
    return keyed("reward", "Reward", description, "rewards")


ADV = keyed("adv", "Advantages", "Group statistics and advantages, on the driver.")
ADV_ASYNC_REWARD = keyed(
    "adv",
    "Advantages",
    "Group statistics and advantages, on the driver; with launch_reward_fn_async it waits for the rewards.",
)
OLD_LOG_PROB = keyed(
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
    # Releases whose roles have no name print the enumeration's member.
    ("ref", "Role.RefPolicy"),
)
VALUES = keyed("values", "Values", "The critic's values (none with GRPO).")
UPDATE_CRITIC = keyed("update_critic", "Update critic", "The critic's update.")
UPDATE_ACTOR = keyed(
    "update_actor",
    "Update actor",
    "Forward, backward and the optimizer of every mini-batch, with offloading; driver wall clock.",
    "loss+backward",
)
DUMP = keyed("dump_rollout_generations", "Dump generations", "Writes prompts and responses to files.")
UPDATE_WEIGHTS = keyed(
    "update_weights",
    "Update weights",
    "Wakes the engines and sends them the new weights; driver wall clock.",
    "weight sync",
)
GEN_MAX = keyed("gen_max", "Greedy baseline", "ReMax's greedy responses and their reward.", "generation")
SAVE_INSIDE = keyed("save_checkpoint", "Save checkpoint", "The step waits for the checkpoint.", occasional=True)
SAVE_OUTSIDE = Phase(
    "save_checkpoint", "Save checkpoint", "Found outside the step: in no step's sum.", "other", ("save_checkpoint",)
)
TESTING_INSIDE = keyed("testing", "Validation", "The step waits for the validation.", occasional=True)
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
    "Inside the workers, the mean over ranks: wakes the engine and sends it the new weights. Nested in "
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
# min, max and mean describe samples that run at the same time, and are in no sum. The slowest sample bounds the
# batch: its parts, one after the other, lie inside gen.
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
# The fastest and the slowest rank, and the share of ranks near the slowest; not parts of gen.
GENERATION_TIMING = (
    ("generation_timing/topk_ratio", "1", "*"),
    ("generation_timing/*", "s", "*"),
)

# Keys that only these loops log: recipe/ or experimental/ one_step_off_policy/ray_trainer.py, fully_async_policy/
# {fully_async_trainer,detach_utils}.py, trainer/ppo/v1/trainer_separate_async.py (its engines may borrow GPUs).
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
    """The tree of a loop that generates while it trains: a step without phases."""
    return overlapping_tree(
        "verl",
        series,
        _ENGINES,
        f"verl {series} {file}",
        ("step",),
        "Wall clock of one training step on the trainer.",
        overlap=_OVERLAP[mode],
        mode=mode,
        marks=_MARKS[mode],
        not_summed=(*AGENT_LOOP, ("agent_loop/slowest/*", "s", "*"), ("fully_async/*", "1", "*")),
    )


def loop_before_v1(
    series: str,
    source: str,
    generation: str,
    parts: tuple[Phase, ...],
    end: tuple[Phase, ...],
    not_summed: tuple[tuple[str, str, str], ...] = (),
) -> TimerTree:
    """The tree of `fit` in trainer/ppo/ray_trainer.py; `parts` are inside `gen`."""
    phases = (STEP, gen(generation), *parts, GEN_MAX, reward(), *BEFORE_V1, DUMP, *end)
    return tree_of(series, source, *phases, not_summed=not_summed)


def _agent_loop(series: str, parts: tuple[Phase, ...], end: tuple[Phase, ...]) -> TimerTree:
    """A release with agent loops (rollout.mode=async) or without, in one loop."""
    return loop_before_v1(
        series,
        f"verl {series} trainer/ppo/ray_trainer.py (fit), experimental/agent_loop/agent_loop.py",
        "Driver wall clock; its own time is what the slowest rank or sample does not explain: waiting for an engine, "
        "putting it to sleep, moving the batch, and up to 0.7.0 sending the weights.",
        (*parts, *SLOWEST),
        end,
        (*AGENT_LOOP, *GENERATION_TIMING, *PROFILES),
    )


_V1_STEP = Phase(
    "step",
    "Step",
    "Wall clock of one training step on the driver; its residual contains the dispatch of prompts and the balancing of "
    "the batch.",
    "other",
    ("step",),
)
_V1_GEN = (
    "The driver waits until the replay buffer has the batch, which verl checks every 2 s (every 0.1 s in runs of "
    "rolloutbench), then puts the engines to sleep. Rewards by rule are computed inside."
)


def _v1_loop(files: str, more: str = "", mode: str = "") -> TimerTree:
    scored = reward("Only with a reward model on the training GPUs.")
    phases = (_V1_STEP, gen(_V1_GEN + more, polled_s=2.0), scored, *TRAINING, *AFTER_WEIGHTS)
    return tree_of("0.9.1", f"verl 0.9.1 trainer/ppo/v1/trainer_base.py {files}", *phases, mode=mode, padded=True)


OF_0_9_1 = (
    _v1_loop("(fit, _step_once) and trainer_sync.py"),
    _v1_loop(
        "and trainer_colocate_async.py",
        " Responses may have begun in an earlier step: its seconds and its tokens are not of the same work.",
        mode="colocate_async",
    ),
    tree_of(
        "0.9.1",
        "verl 0.9.1 trainer/ppo/ray_trainer.py (fit, use_v1=False), experimental/agent_loop/agent_loop.py",
        STEP,
        gen(
            "Driver wall clock; its own time is what the slowest sample does not explain: waiting for an engine, "
            "putting it to sleep, moving the batch."
        ),
        *(*SLOWEST, reward("Collects the scores; a reward model scores here."), *TRAINING),
        *(*AFTER_WEIGHTS[:2], DUMP, *AFTER_WEIGHTS[2:]),
        mode="legacy",
        not_summed=(*AGENT_LOOP, *PROFILES),
    ),
    replace(overlapping("0.9.1", "separate_async", "trainer/ppo/v1/trainer_separate_async.py"), padded=True),
    overlapping("0.9.1", "one_step_off", "experimental/one_step_off_policy/ray_trainer.py"),
    overlapping("0.9.1", "fully_async", "experimental/fully_async_policy/fully_async_trainer.py"),
)
"""The trees of 0.9.1's loops."""

# Until 0.7.0 these loops were recipes outside the package.
_PLACES = {"0.5": "recipe", "0.6": "recipe", "0.7.0": "recipe", "0.7.1": "experimental", "0.8": "experimental"}
# The workers of 0.3 and 0.4.0 time nothing: `gen` has no children.
_DRIVER_ONLY = "Driver wall clock: generation, and sending the weights."
_FIT = "trainer/ppo/ray_trainer.py (fit)"

EARLIER = (
    loop_before_v1("0.3", f"verl 0.3.0 {_FIT}; rewards are computed inside adv", _DRIVER_ONLY, (), INSIDE_FIRST),
    loop_before_v1("0.4.0", f"verl 0.4.0 {_FIT}", _DRIVER_ONLY, (), INSIDE_FIRST),
    _agent_loop("0.5", (GENERATE_SEQUENCES, RESHARD), INSIDE_FIRST),
    _agent_loop("0.6", (GENERATE_SEQUENCES, RESHARD), OUTSIDE_FIRST),
    _agent_loop("0.7.0", (GENERATE_SEQUENCES,), OUTSIDE_FIRST),
    _agent_loop("0.7.1", (GENERATE_SEQUENCES,), AFTER_WEIGHTS),
    _agent_loop("0.8", (), AFTER_WEIGHTS),
    *(
        overlapping(series, "one_step_off", f"{place}/one_step_off_policy/ray_trainer.py")
        for series, place in _PLACES.items()
    ),
    *(
        overlapping(series, "fully_async", f"{place}/fully_async_policy/fully_async_trainer.py")
        for series, place in _PLACES.items()
        if series != "0.5"
    ),
)
"""The trees of releases that are only imported."""
