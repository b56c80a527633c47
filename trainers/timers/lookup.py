"""Which timers a trainer has, how they nest, and what each one means."""

from trainers.timers.declared import declared_trees, releases, tree_for, tree_named
from trainers.timers.exclusive import Overrun, exclusive_s, overruns, parents
from trainers.timers.flat import UNDECLARED, Nested, nested, places_of
from trainers.timers.mode import mode_of
from trainers.timers.tree import CATEGORIES, Phase, TimerTree, in_order

__all__ = [
    "CATEGORIES",
    "UNDECLARED",
    "Nested",
    "Overrun",
    "Phase",
    "TimerTree",
    "declared_trees",
    "exclusive_s",
    "in_order",
    "mode_of",
    "nested",
    "overruns",
    "parents",
    "places_of",
    "releases",
    "tree_for",
    "tree_named",
]
