"""Chooses the timer tree of a run whose release is not in its log, or not declared, by the run's own timers.

A declared tree is possible if in nearly all steps no phase is shorter than its parts, beyond rounding: then what no
timer covers is not negative, and the sums close. Of the possible trees the one that knows most of the run's timers is
used, of several as good the newest or nearest. A timer that these place differently is in no sum: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from common.errors import UserError
from common.verdicts import Verdict
from trainers.logs.record import TIMERS, SourceRead
from trainers.registry import releases, trainer_named, trainers
from trainers.timers.exclusive import overruns
from trainers.timers.flat import nest_timers, timer_name, timer_places
from trainers.timers.tree import TimerTree

BY_DATA = "release-by-data"
# In this share of the steps the sums must close.
CLOSING_SHARE = 0.95
# More steps tell nothing new.
MOST_STEPS = 400

TreeOf = Callable[[str], tuple[TimerTree, list[Verdict]]]
_Step = tuple[Mapping[str, float], Mapping[str, float]]
"""A step's numbers, and their rounding."""


@dataclass(frozen=True)
class _Fit:
    """How a tree takes a run's timers."""

    series: str
    tree: TimerTree
    closing: float
    """The share of the steps whose sums close."""
    placed: dict[str, str]
    """Timer -> its path in the tree."""
    verdicts: list[Verdict]
    """What the choice of its loop says."""

    @property
    def possible(self) -> bool:
        return self.closing >= CLOSING_SHARE


def trainers_by_data(read: SourceRead) -> list[str]:
    """The trainers whose declared timers are most of a source's; none if they are fewer than half of them."""
    first = next(iter(read.records.values()), None)
    if first is None:
        return []
    timers = [name for name in first.scalars if name.startswith(TIMERS)]
    counts = {
        trainer.name: max((len(nest_timers(first.scalars, tree).phases) for tree in trainer.logs.trees), default=0)
        for trainer in trainers()
    }
    most = max(counts.values(), default=0)
    return [name for name, count in counts.items() if count == most] if most and 2 * most >= len(timers) else []


def tree_by_data(
    trainer: str, run_id: str, order: Sequence[str], tree_of: TreeOf, read: SourceRead, why: str
) -> tuple[TimerTree, list[Verdict]]:
    """The tree for a run's timers; `tree_of` gives a release's tree, `order` has the releases, the preferred first.

    `why` begins the verdict: `its log names no release of verl`. `UserError` if no release has a tree for the run.
    """
    steps = list(read.records.values())[:: max(1, len(read.records) // MOST_STEPS)]
    fits, refused = [], None
    for series in order:
        try:
            tree, verdicts = tree_of(series)
        except UserError as error:
            refused = refused or error
            continue
        fits.append(_fit(series, tree, verdicts, [(step.scalars, step.rounding) for step in steps]))
    if not fits:
        raise refused or UserError(f"{run_id}: no timers of {trainer} are declared")
    # Of a loop that the settings or the timers show, other releases know more timers only by misreading them.
    fits = [fit for fit in fits if fit.tree.mode not in ("", trainer_named(trainer).logs.native)] or fits
    possible = [fit for fit in fits if fit.possible]
    most = max((len(fit.placed) for fit in possible), default=0)
    best = [fit for fit in possible if len(fit.placed) == most]
    if not best:
        best = [max(fits, key=lambda fit: fit.closing)]
        text = (
            f"{run_id}: {why}, and its timers close under no declared release: in {best[0].tree.name}, the nearest, a "
            f"phase is longer than its parent in {1 - best[0].closing:.0%} of the steps"
        )
        return best[0].tree, [Verdict("warning", BY_DATA, text), *best[0].verdicts]
    # Of releases that are as good, one whose loop is not in doubt.
    best.sort(key=lambda fit: any(verdict.level == "warning" for verdict in fit.verdicts))
    tree, apart = _coarser(best)
    return tree, [Verdict("note", BY_DATA, _text(run_id, why, best, apart)), *best[0].verdicts]


def _fit(series: str, tree: TimerTree, verdicts: list[Verdict], steps: Sequence[_Step]) -> _Fit:
    placed: dict[str, str] = {}
    closing, count = 0, 0
    # Where the seconds show the place of a timer, releases that declare another one are no doubt.
    places, _ = timer_places([scalars for scalars, _ in steps], tree, "", [rounding for _, rounding in steps])
    for scalars, rounding in steps:
        nested = nest_timers(scalars, tree, places)
        paths = {key: name.removeprefix(TIMERS) for key, name in nested.names.items() if name.startswith(TIMERS)}
        placed.update(paths)
        halves: dict[str, float] = {}
        for key, path in paths.items():
            halves[path] = halves.get(path, 0.0) + rounding.get(key, 0.0)
        count += 1
        closing += not overruns(nested.phases, halves)
    return _Fit(series, tree, closing / count if count else 1.0, placed, verdicts)


def _coarser(best: Sequence[_Fit]) -> tuple[TimerTree, list[str]]:
    """The first tree, without the timers that the others place elsewhere, and their names."""
    first = best[0]
    apart = sorted(key for key, path in first.placed.items() if any(fit.placed.get(key) != path for fit in best[1:]))
    if not apart:
        return first.tree, []
    paths = {path for key in apart for path in first.tree.paths_by_key[timer_name(key) or key]}
    phases = tuple(phase for phase in first.tree.phases if phase.path not in paths)
    series = f"{best[-1].series} or {first.series}"
    return replace(first.tree, series=series, phases=phases), apart


def _text(run_id: str, why: str, best: Sequence[_Fit], apart: Sequence[str]) -> str:
    every = releases(best[0].tree.trainer)
    of_best = sorted({fit.series for fit in best}, key=every.index)
    inside = every.index(of_best[-1]) - every.index(of_best[0]) + 1 == len(of_best)
    named = of_best[0] if len(of_best) == 1 else f"{of_best[0]} to {of_best[-1]}" if inside else ", ".join(of_best)
    alike = ", whose timers are the same here" if len(of_best) > 1 and not apart else ""
    text = f"{run_id}: {why}. Its timers are read as those of {best[0].tree.trainer} {named}{alike}: their sums close"
    if apart:
        shown = ", ".join(key.partition("/")[2] for key in apart)
        text += f". These releases place {shown} differently: it is in no sum"
    return text
