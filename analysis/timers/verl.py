"""The timers of verl's trainers: one tree for each version and loop, from the flat keys that they log."""

from analysis.timers.tree import Phase, TimerTree

_ENGINES = ("vllm", "sglang")
_GEN = "step/gen"

_REWARD = Phase("step/reward", "Reward", "The driver waits until every response is scored.", "rewards", ("reward",))
_ADV = Phase("step/adv", "Advantages", "Group statistics and advantages, on the driver.", "other", ("adv",))
_OLD_LOG_PROB = Phase(
    "step/old_log_prob",
    "Old log-probs",
    "Log-probabilities under the policy that wrote the responses, by the trainer; driver wall clock.",
    "log-probs",
    ("old_log_prob",),
)
_REF = Phase(
    "step/ref",
    "Reference log-probs",
    "Log-probabilities under the frozen reference model; driver wall clock.",
    "log-probs",
    # Releases whose roles have no name of their own print the enumeration's member.
    ("ref", "Role.RefPolicy"),
)
_VALUES = Phase("step/values", "Values", "The critic's values (none with GRPO).", "other", ("values",))
_UPDATE_CRITIC = Phase("step/update_critic", "Update critic", "The critic's update.", "other", ("update_critic",))
_UPDATE_ACTOR = Phase(
    "step/update_actor",
    "Update actor",
    "Forward, backward and the optimizer of every mini-batch, with offloading; driver wall clock.",
    "loss+backward",
    ("update_actor",),
)
_DUMP = Phase(
    "step/dump_rollout_generations",
    "Dump generations",
    "Writes prompts and responses to files.",
    "other",
    ("dump_rollout_generations",),
)
_SAVE_INSIDE = Phase(
    "step/save_checkpoint",
    "Save checkpoint",
    "The step waits for the checkpoint.",
    "other",
    ("save_checkpoint",),
    occasional=True,
)
_SAVE_OUTSIDE = Phase(
    "save_checkpoint", "Save checkpoint", "Found outside the step: in no step's sum.", "other", ("save_checkpoint",)
)
_TESTING_INSIDE = Phase(
    "step/testing", "Validation", "The step waits for the validation.", "other", ("testing",), occasional=True
)
_TESTING_OUTSIDE = Phase("testing", "Validation", "Outside the step: in no step's sum.", "other", ("testing",))
_UPDATE_WEIGHTS = Phase(
    "step/update_weights",
    "Update weights",
    "Wakes the engines and hands them the new weights; driver wall clock.",
    "weight sync",
    ("update_weights",),
)

_STEP = Phase("step", "Step", "Wall clock of one training step on the driver.", "other", ("step",))
_GEN_WORKERS = Phase(
    _GEN,
    "Generate",
    "Driver wall clock; its own time is waiting for the slowest rank, putting the engine to sleep and "
    "moving the batch.",
    "generation",
    ("gen",),
)
_GENERATE_SEQUENCES = Phase(
    f"{_GEN}/generate_sequences",
    "Generate sequences",
    "Inside the workers, the mean over ranks, so that a straggler hides. SGLang ends it with a barrier of "
    "all ranks and vLLM does not: compare Generate across engines, not this. With rollout.mode=async it "
    "is the driver's wall clock.",
    "generation",
    ("generate_sequences",),
)
_RESHARD = Phase(
    f"{_GEN}/reshard",
    "Reshard",
    "Inside the workers, the mean over ranks: wakes the engine and hands it the new weights. Nested in "
    "Generate; absent with rollout.mode=async.",
    "weight sync",
    ("reshard",),
)
_GEN_MAX = Phase(
    "step/gen_max", "Greedy baseline", "ReMax's greedy responses and their reward.", "generation", ("gen_max",)
)
_ADV_ASYNC_REWARD = Phase(
    "step/adv",
    "Advantages",
    "Group statistics and advantages, on the driver; with launch_reward_fn_async it waits for the rewards.",
    "other",
    ("adv",),
)
_TRAINING = (_OLD_LOG_PROB, _REF, _VALUES, _ADV_ASYNC_REWARD, _UPDATE_CRITIC, _UPDATE_ACTOR)

VERL_0_4_1 = TimerTree(
    trainer="verl",
    series="0.4.1",
    engines=_ENGINES,
    source="verl 0.4.1 trainer/ppo/ray_trainer.py (fit), workers/fsdp_workers.py, workers/sharding_manager/",
    phases=(
        _STEP,
        _GEN_WORKERS,
        _GENERATE_SEQUENCES,
        _RESHARD,
        _GEN_MAX,
        _REWARD,
        *_TRAINING,
        _DUMP,
        _TESTING_INSIDE,
        _SAVE_INSIDE,
        _TESTING_OUTSIDE,
        _SAVE_OUTSIDE,
    ),
)


def _driver_only(series: str, source: str) -> TimerTree:
    """Releases whose workers timed nothing: `gen` has no children."""
    return TimerTree(
        trainer="verl",
        series=series,
        engines=_ENGINES,
        source=source,
        phases=(
            _STEP,
            Phase(
                _GEN, "Generate", "Driver wall clock: generation, and handing over the weights.", "generation", ("gen",)
            ),
            _GEN_MAX,
            _REWARD,
            *_TRAINING,
            _DUMP,
            _TESTING_INSIDE,
            _SAVE_INSIDE,
            _TESTING_OUTSIDE,
            _SAVE_OUTSIDE,
        ),
    )


VERL_BEFORE_0_4_1 = (
    _driver_only("0.3", "verl 0.3.0 trainer/ppo/ray_trainer.py (fit); rewards are computed inside adv"),
    _driver_only("0.4.0", "verl 0.4.0 trainer/ppo/ray_trainer.py (fit)"),
)

# min, max and mean are three numbers about samples that run at the same time: no sum holds them. The slowest
# sample bounds the batch, so that its parts, one after the other, are what lies inside gen.
_AGENT_LOOP = (
    ("agent_loop/num_preempted/*", "1", "*"),
    ("agent_loop/slowest/num_preempted", "1", "*"),
    ("agent_loop/slowest/*_length", "tokens", "*"),
    ("agent_loop/generate_sequences/*", "s", "*"),
    ("agent_loop/tool_calls/*", "s", "*"),
    ("agent_loop/compute_score/*", "s", "*"),
)

_PROFILES = (
    ("start_profile", "s", "outside_step_s/*"),
    ("stop_profile", "s", "outside_step_s/*"),
)
# The fastest and the slowest rank, and the share of ranks near the slowest: no parts of gen.
_GENERATION_TIMING = (
    ("generation_timing/topk_ratio", "1", "*"),
    ("generation_timing/*", "s", "*"),
)
_GEN_LOOP = Phase(
    _GEN,
    "Generate",
    "Driver wall clock; its own time is what the slowest rank or sample does not explain: waiting for an engine, "
    "putting it to sleep, moving the batch, and up to 0.7.0 handing over the weights.",
    "generation",
    ("gen",),
)
_SLOWEST = (
    Phase(
        f"{_GEN}/slowest_generate_sequences",
        "Slowest sample: generate",
        "The engine's part of the sample that took longest.",
        "generation",
        ("agent_loop/slowest/generate_sequences",),
    ),
    Phase(
        f"{_GEN}/slowest_tool_calls",
        "Slowest sample: tools",
        "Tool calls of the sample that took longest.",
        "generation",
        ("agent_loop/slowest/tool_calls",),
    ),
    Phase(
        f"{_GEN}/slowest_compute_score",
        "Slowest sample: reward",
        "Scoring of the sample that took longest.",
        "rewards",
        ("agent_loop/slowest/compute_score",),
    ),
)
_INSIDE_FIRST = (_TESTING_INSIDE, _SAVE_INSIDE, _TESTING_OUTSIDE, _SAVE_OUTSIDE)
_OUTSIDE_FIRST = (_TESTING_OUTSIDE, _SAVE_OUTSIDE, _TESTING_INSIDE, _SAVE_INSIDE)


def _between(series: str, *, gen: tuple[Phase, ...], end: tuple[Phase, ...]) -> TimerTree:
    """A release between 0.4.1 and 0.9: one loop, with agent loops (rollout.mode=async) or without."""
    return TimerTree(
        trainer="verl",
        series=series,
        engines=_ENGINES,
        source=f"verl {series} trainer/ppo/ray_trainer.py (fit), experimental/agent_loop/agent_loop.py",
        beside=(*_AGENT_LOOP, *_GENERATION_TIMING, *_PROFILES),
        phases=(_STEP, _GEN_LOOP, *gen, *_SLOWEST, _GEN_MAX, _REWARD, *_TRAINING, _DUMP, *end),
    )


_END_0_7_1 = (_SAVE_INSIDE, _UPDATE_WEIGHTS, _TESTING_OUTSIDE, _TESTING_INSIDE, _SAVE_OUTSIDE)
VERL_BETWEEN = (
    _between("0.5", gen=(_GENERATE_SEQUENCES, _RESHARD), end=_INSIDE_FIRST),
    _between("0.6", gen=(_GENERATE_SEQUENCES,), end=_OUTSIDE_FIRST),
    _between("0.7.0", gen=(_GENERATE_SEQUENCES,), end=_OUTSIDE_FIRST),
    _between("0.7.1", gen=(_GENERATE_SEQUENCES,), end=_END_0_7_1),
    _between("0.8", gen=(), end=_END_0_7_1),
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
    _OLD_LOG_PROB,
    _REF,
    _VALUES,
    _ADV,
    _UPDATE_CRITIC,
    _UPDATE_ACTOR,
    _SAVE_INSIDE,
    _UPDATE_WEIGHTS,
    _TESTING_OUTSIDE,
    _TESTING_INSIDE,
    _SAVE_OUTSIDE,
)

VERL_0_9_1 = TimerTree(
    trainer="verl",
    series="0.9.1",
    engines=_ENGINES,
    source="verl 0.9.1 trainer/ppo/v1/trainer_base.py (fit, _step_once) and trainer_sync.py",
    phases=(_V1_STEP, Phase(_GEN, "Generate", _V1_GEN_WORDS, "generation", ("gen",)), *_V1_AFTER_GEN),
)

VERL_0_9_1_COLOCATE_ASYNC = TimerTree(
    trainer="verl",
    series="0.9.1",
    mode="colocate_async",
    engines=_ENGINES,
    source="verl 0.9.1 trainer/ppo/v1/trainer_base.py and trainer_colocate_async.py",
    phases=(
        _V1_STEP,
        Phase(
            _GEN,
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
    engines=_ENGINES,
    source="verl 0.9.1 trainer/ppo/ray_trainer.py (fit, use_v1=False), experimental/agent_loop/agent_loop.py",
    beside=(*_AGENT_LOOP, *_PROFILES),
    phases=(
        _STEP,
        Phase(
            _GEN,
            "Generate",
            "Driver wall clock; its own time is what the slowest sample does not explain: waiting for an engine, "
            "putting it to sleep, moving the batch.",
            "generation",
            ("gen",),
        ),
        *_SLOWEST,
        Phase("step/reward", "Reward", "Collects the scores; a reward model scores here.", "rewards", ("reward",)),
        _OLD_LOG_PROB,
        _REF,
        _VALUES,
        _ADV,
        _UPDATE_CRITIC,
        _UPDATE_ACTOR,
        _SAVE_INSIDE,
        _UPDATE_WEIGHTS,
        _DUMP,
        _TESTING_OUTSIDE,
        _TESTING_INSIDE,
        _SAVE_OUTSIDE,
    ),
)


def _overlapping(mode: str, source: str, why: str, series: str = "0.9.1") -> TimerTree:
    return TimerTree(
        trainer="verl",
        series=series,
        mode=mode,
        engines=_ENGINES,
        source=source,
        overlap=why,
        beside=(
            *_AGENT_LOOP,
            ("agent_loop/slowest/*", "s", "*"),
            ("fully_async/*", "1", "*"),
            ("*", "s", "overlapping_s/*"),
        ),
        phases=(Phase("step", "Step", "Wall clock of one training step on the trainer.", "other", ("step",)),),
    )


VERL_0_9_1_OVERLAPPING = (
    _overlapping(
        "separate_async",
        "verl 0.9.1 trainer/ppo/v1/trainer_separate_async.py",
        "engines on GPUs of their own generate while the trainer trains",
    ),
    _overlapping(
        "one_step_off",
        "verl 0.9.1 experimental/one_step_off_policy/ray_trainer.py",
        "the next step's responses are generated while this step trains",
    ),
    _overlapping(
        "fully_async",
        "verl 0.9.1 experimental/fully_async_policy/fully_async_trainer.py",
        "generation never waits for training, and a step takes what is ready",
    ),
)
VERL_EARLIER_OVERLAPPING = tuple(
    _overlapping(mode, f"verl {series} {source}", why, series)
    for series in ("0.7.1", "0.8")
    for mode, source, why in (
        (
            "one_step_off",
            "experimental/one_step_off_policy/ray_trainer.py",
            "the next step's responses are generated while this step trains",
        ),
        (
            "fully_async",
            "experimental/fully_async_policy/fully_async_trainer.py",
            "generation never waits for training, and a step takes what is ready",
        ),
    )
)
