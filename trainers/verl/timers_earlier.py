"""The timers of verl's other releases, from 0.3 to 0.8, whose runs are imported."""

from trainers.timers.tree import Phase, TimerTree
from trainers.verl.phases import (
    AGENT_LOOP,
    DUMP,
    ENGINES,
    GEN,
    GEN_LOOP,
    GEN_MAX,
    GENERATE_SEQUENCES,
    GENERATION_TIMING,
    INSIDE_FIRST,
    OUTSIDE_FIRST,
    PROFILES,
    RESHARD,
    REWARD,
    SAVE_INSIDE,
    SAVE_OUTSIDE,
    SLOWEST,
    STEP,
    TESTING_INSIDE,
    TESTING_OUTSIDE,
    TRAINING,
    UPDATE_WEIGHTS,
    overlapping,
)


def _driver_only(series: str, source: str) -> TimerTree:
    """Releases whose workers timed nothing: `gen` has no children."""
    return TimerTree(
        trainer="verl",
        series=series,
        engines=ENGINES,
        source=source,
        phases=(
            STEP,
            Phase(
                GEN, "Generate", "Driver wall clock: generation, and handing over the weights.", "generation", ("gen",)
            ),
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


VERL_BEFORE_0_4_1 = (
    _driver_only("0.3", "verl 0.3.0 trainer/ppo/ray_trainer.py (fit); rewards are computed inside adv"),
    _driver_only("0.4.0", "verl 0.4.0 trainer/ppo/ray_trainer.py (fit)"),
)


def _between(series: str, *, gen: tuple[Phase, ...], end: tuple[Phase, ...]) -> TimerTree:
    """A release between 0.4.1 and 0.9: one loop, with agent loops (rollout.mode=async) or without."""
    return TimerTree(
        trainer="verl",
        series=series,
        engines=ENGINES,
        source=f"verl {series} trainer/ppo/ray_trainer.py (fit), experimental/agent_loop/agent_loop.py",
        beside=(*AGENT_LOOP, *GENERATION_TIMING, *PROFILES),
        phases=(STEP, GEN_LOOP, *gen, *SLOWEST, GEN_MAX, REWARD, *TRAINING, DUMP, *end),
    )


_END_0_7_1 = (SAVE_INSIDE, UPDATE_WEIGHTS, TESTING_OUTSIDE, TESTING_INSIDE, SAVE_OUTSIDE)
VERL_BETWEEN = (
    _between("0.5", gen=(GENERATE_SEQUENCES, RESHARD), end=INSIDE_FIRST),
    _between("0.6", gen=(GENERATE_SEQUENCES, RESHARD), end=OUTSIDE_FIRST),
    _between("0.7.0", gen=(GENERATE_SEQUENCES,), end=OUTSIDE_FIRST),
    _between("0.7.1", gen=(GENERATE_SEQUENCES,), end=_END_0_7_1),
    _between("0.8", gen=(), end=_END_0_7_1),
)

_PLACES = {"0.5": "recipe", "0.6": "recipe", "0.7.0": "recipe", "0.7.1": "experimental", "0.8": "experimental"}
_ONE_STEP_OFF = "the next step's responses are generated while this step trains"
_FULLY_ASYNC = "generation never waits for training, and a step takes what is ready"
# Until 0.7.0 these loops were recipes beside the package.
VERL_EARLIER_OVERLAPPING = (
    *(
        overlapping("one_step_off", f"verl {series} {where}/one_step_off_policy/ray_trainer.py", _ONE_STEP_OFF, series)
        for series, where in _PLACES.items()
    ),
    *(
        overlapping(
            "fully_async", f"verl {series} {where}/fully_async_policy/fully_async_trainer.py", _FULLY_ASYNC, series
        )
        for series, where in _PLACES.items()
        if series != "0.5"
    ),
)
