"""Which timers a trainer has, how they nest, and what each one means."""

from analysis.timers.declared import declared_trees, tree_for
from analysis.timers.exclusive import Overrun, exclusive_s, overruns, parents
from analysis.timers.tree import CATEGORIES, Phase, TimerTree

__all__ = [
    "CATEGORIES",
    "Overrun",
    "Phase",
    "TimerTree",
    "declared_trees",
    "exclusive_s",
    "overruns",
    "parents",
    "tree_for",
]
