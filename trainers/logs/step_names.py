"""Finds a step's number, timers and other numbers in a row that a trainer logs under its own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainers.logs.record import TIMERS

# The wall clock from one logged step to the next, for trainers that time no step.
WALL = TIMERS + "wall"
# Marks the step after an evaluation that no timer covers.
EVALUATION = "evaluation"
EVALUATED_STEP = TIMERS + EVALUATION


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A step's number, counted from 1, its numbers, and whether its time is among them."""

    step: int
    numbers: dict[str, float]
    timed: bool


@dataclass(frozen=True, slots=True)
class StepNames:
    """The names under which a trainer logs a step to wandb.

    - `mark`: a name in every row of a step that no other trainer logs.
    - `counter`: the step's number; it starts at `first`.
    - `timers`: prefixes and suffixes of timer names. `total` is the timer of the whole step, without them.
    - `evaluated`: a name in the rows of an evaluation that no timer covers. The step after it gets the timer
      `evaluation` with 0 seconds.
    - `derived` computes further scalars from a row's numbers; they identify the loop.
    """

    mark: str
    counter: str
    total: str
    timers: tuple[tuple[str, str], ...]
    first: int = 1
    evaluated: str = ""
    derived: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda numbers: {}

    @property
    def by_the_wall(self) -> bool:
        """Whether a step's time is the wall clock between two rows, because no timer covers it."""
        return self.total == WALL.removeprefix(TIMERS)

    def scalar_name(self, name: str) -> str:
        """The project's name of a logged number: `timing_s/<name>` for a timer, else the same."""
        for prefix, suffix in self.timers:
            if name.startswith(prefix) and name.endswith(suffix) and len(name) > len(prefix) + len(suffix):
                return TIMERS + name[len(prefix) : len(name) - len(suffix)]
        return name

    def logged_step(self, numbers: Mapping[str, float], counted: float | None) -> LoggedStep | None:
        """The step of a row; `counted` is its counter's value. None if the row belongs to no step."""
        if counted is None or not counted.is_integer() or counted < self.first:
            return None
        mine = {self.scalar_name(name): value for name, value in numbers.items() if name != self.counter}
        mine |= self.derived(mine)
        return LoggedStep(int(counted) + 1 - self.first, mine, self.by_the_wall or TIMERS + self.total in mine)
