"""Tells a step's number, its timers and its other numbers from a row that a trainer logs under names of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainers.logs.record import TIMERS

# Where a trainer times no step: the wall clock from one logged step to the next.
WALL = TIMERS + "wall"
# Marks the step behind an evaluation that no clock holds.
EVALUATION = "evaluation"
EVALUATED_STEP = TIMERS + EVALUATION


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """What a row tells: its step, counted from 1, its numbers, and whether it has the step's time."""

    step: int
    numbers: dict[str, float]
    timed: bool


@dataclass(frozen=True, slots=True)
class StepNames:
    """The names under which a trainer logs a step to wandb.

    `mark` is a name that each row of a step has, and no other trainer's; `counter` the step's number, whose first is
    `first`. `timers` are what stands before and behind the names of timers. `total` is the timer of the whole step,
    without these. `evaluated` is a name in the rows of an evaluation that no clock holds: the step behind it is marked
    by the timer `evaluation`, of no seconds. `derived` makes scalars of a row's numbers, which tell the loop.
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
        """Whether a step's time is the wall clock between two rows, as no timer holds it."""
        return self.total == WALL.removeprefix(TIMERS)

    def scalar_name(self, name: str) -> str:
        """What a logged name is called here: `timing_s/<name>` for a timer."""
        for before, behind in self.timers:
            if name.startswith(before) and name.endswith(behind) and len(name) > len(before) + len(behind):
                return TIMERS + name[len(before) : len(name) - len(behind)]
        return name

    def logged_step(self, numbers: Mapping[str, float], counted: float | None) -> LoggedStep | None:
        """What a row's numbers tell, `counted` being its counter's value; None where it is of no step."""
        if counted is None or not counted.is_integer() or counted < self.first:
            return None
        mine = {self.scalar_name(name): value for name, value in numbers.items() if name != self.counter}
        mine |= self.derived(mine)
        return LoggedStep(int(counted) + 1 - self.first, mine, self.by_the_wall or TIMERS + self.total in mine)
