"""The timers of verl's releases from 0.3 to 0.8, which are imported alone."""

from trainers.timers.tree import Phase, TimerTree
from trainers.verl.phases import (
    AFTER_WEIGHTS,
    AGENT_LOOP,
    BEFORE_V1,
    DUMP,
    GEN_MAX,
    GENERATE_SEQUENCES,
    GENERATION_TIMING,
    INSIDE_FIRST,
    OUTSIDE_FIRST,
    PROFILES,
    RESHARD,
    SLOWEST,
    STEP,
    gen,
    overlapping,
    reward,
    tree_of,
)


def _driver_only(series: str, more: str = "") -> TimerTree:
    """Releases whose workers timed nothing: `gen` has no children."""
    generate = gen("Driver wall clock: generation, and handing over the weights.")
    source = f"verl {series}{'' if series.count('.') > 1 else '.0'} trainer/ppo/ray_trainer.py (fit){more}"
    return tree_of(series, source, STEP, generate, GEN_MAX, reward(), *BEFORE_V1, DUMP, *INSIDE_FIRST)


def _one_loop(series: str, parts: tuple[Phase, ...], end: tuple[Phase, ...]) -> TimerTree:
    """A release between 0.4.1 and 0.9: one loop, with agent loops (rollout.mode=async) or without."""
    generate = gen(
        "Driver wall clock; its own time is what the slowest rank or sample does not explain: waiting for an engine, "
        "putting it to sleep, moving the batch, and up to 0.7.0 handing over the weights."
    )
    return tree_of(
        series,
        f"verl {series} trainer/ppo/ray_trainer.py (fit), experimental/agent_loop/agent_loop.py",
        *(STEP, generate, *parts, *SLOWEST, GEN_MAX, reward(), *BEFORE_V1, DUMP, *end),
        beside=(*AGENT_LOOP, *GENERATION_TIMING, *PROFILES),
    )


# Until 0.7.0 these loops were recipes beside the package.
_PLACES = {"0.5": "recipe", "0.6": "recipe", "0.7.0": "recipe", "0.7.1": "experimental", "0.8": "experimental"}

EARLIER = (
    _driver_only("0.3", "; rewards are computed inside adv"),
    _driver_only("0.4.0"),
    _one_loop("0.5", (GENERATE_SEQUENCES, RESHARD), INSIDE_FIRST),
    _one_loop("0.6", (GENERATE_SEQUENCES, RESHARD), OUTSIDE_FIRST),
    _one_loop("0.7.0", (GENERATE_SEQUENCES,), OUTSIDE_FIRST),
    _one_loop("0.7.1", (GENERATE_SEQUENCES,), AFTER_WEIGHTS),
    _one_loop("0.8", (), AFTER_WEIGHTS),
    *(
        overlapping(series, "one_step_off", f"{at}/one_step_off_policy/ray_trainer.py")
        for series, at in _PLACES.items()
    ),
    *(
        overlapping(series, "fully_async", f"{at}/fully_async_policy/fully_async_trainer.py")
        for series, at in _PLACES.items()
        if series != "0.5"
    ),
)
