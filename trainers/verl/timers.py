"""The timers of the verl releases that we run: one tree for each version and loop."""

from trainers.timers.tree import Phase, TimerTree
from trainers.verl.phases import (
    ADV,
    AGENT_LOOP,
    DUMP,
    ENGINES,
    GEN,
    GEN_MAX,
    GEN_WORKERS,
    GENERATE_SEQUENCES,
    OLD_LOG_PROB,
    PROFILES,
    REF,
    RESHARD,
    REWARD,
    SAVE_INSIDE,
    SAVE_OUTSIDE,
    SLOWEST,
    STEP,
    TESTING_INSIDE,
    TESTING_OUTSIDE,
    TRAINING,
    UPDATE_ACTOR,
    UPDATE_CRITIC,
    UPDATE_WEIGHTS,
    VALUES,
    overlapping,
)

VERL_0_4_1 = TimerTree(
    trainer="verl",
    series="0.4.1",
    engines=ENGINES,
    source="verl 0.4.1 trainer/ppo/ray_trainer.py (fit), workers/fsdp_workers.py, workers/sharding_manager/",
    phases=(
        STEP,
        GEN_WORKERS,
        GENERATE_SEQUENCES,
        RESHARD,
        GEN_MAX,
        REWARD,
        *TRAINING,
        DUMP,
        TESTING_INSIDE,
        SAVE_INSIDE,
        TESTING_OUTSIDE,
        SAVE_OUTSIDE,
    ),
)


_V1_STEP = Phase(
    "step",
    "Step",
    "Wall clock of one training step on the driver; its residual holds the handing out of prompts and the "
    "balancing of the batch.",
    "other",
    ("step",),
)
_V1_GEN_WORDS = (
    "The driver waits until the replay buffer holds the batch, which it looks up every 2 s, then puts the engines "
    "to sleep. Rewards by rule are computed inside."
)
_V1_AFTER_GEN = (
    Phase("step/reward", "Reward", "Only with a reward model on the training GPUs.", "rewards", ("reward",)),
    OLD_LOG_PROB,
    REF,
    VALUES,
    ADV,
    UPDATE_CRITIC,
    UPDATE_ACTOR,
    SAVE_INSIDE,
    UPDATE_WEIGHTS,
    TESTING_OUTSIDE,
    TESTING_INSIDE,
    SAVE_OUTSIDE,
)

VERL_0_9_1 = TimerTree(
    trainer="verl",
    series="0.9.1",
    engines=ENGINES,
    source="verl 0.9.1 trainer/ppo/v1/trainer_base.py (fit, _step_once) and trainer_sync.py",
    phases=(_V1_STEP, Phase(GEN, "Generate", _V1_GEN_WORDS, "generation", ("gen",)), *_V1_AFTER_GEN),
)

VERL_0_9_1_COLOCATE_ASYNC = TimerTree(
    trainer="verl",
    series="0.9.1",
    mode="colocate_async",
    engines=ENGINES,
    source="verl 0.9.1 trainer/ppo/v1/trainer_base.py and trainer_colocate_async.py",
    phases=(
        _V1_STEP,
        Phase(
            GEN,
            "Generate",
            _V1_GEN_WORDS + " Responses may have begun in an earlier step: its seconds and its tokens are not of "
            "the same work.",
            "generation",
            ("gen",),
        ),
        *_V1_AFTER_GEN,
    ),
)

VERL_0_9_1_LEGACY = TimerTree(
    trainer="verl",
    series="0.9.1",
    mode="legacy",
    engines=ENGINES,
    source="verl 0.9.1 trainer/ppo/ray_trainer.py (fit, use_v1=False), experimental/agent_loop/agent_loop.py",
    beside=(*AGENT_LOOP, *PROFILES),
    phases=(
        STEP,
        Phase(
            GEN,
            "Generate",
            "Driver wall clock; its own time is what the slowest sample does not explain: waiting for an engine, "
            "putting it to sleep, moving the batch.",
            "generation",
            ("gen",),
        ),
        *SLOWEST,
        Phase("step/reward", "Reward", "Collects the scores; a reward model scores here.", "rewards", ("reward",)),
        OLD_LOG_PROB,
        REF,
        VALUES,
        ADV,
        UPDATE_CRITIC,
        UPDATE_ACTOR,
        SAVE_INSIDE,
        UPDATE_WEIGHTS,
        DUMP,
        TESTING_OUTSIDE,
        TESTING_INSIDE,
        SAVE_OUTSIDE,
    ),
)


VERL_0_9_1_OVERLAPPING = (
    overlapping(
        "separate_async",
        "verl 0.9.1 trainer/ppo/v1/trainer_separate_async.py",
        "engines on GPUs of their own generate while the trainer trains",
    ),
    overlapping(
        "one_step_off",
        "verl 0.9.1 experimental/one_step_off_policy/ray_trainer.py",
        "the next step's responses are generated while this step trains",
    ),
    overlapping(
        "fully_async",
        "verl 0.9.1 experimental/fully_async_policy/fully_async_trainer.py",
        "generation never waits for training, and a step takes what is ready",
    ),
)
