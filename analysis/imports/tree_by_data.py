"""Recognises a trainer by the timers of a source."""

from __future__ import annotations

from trainers.logs.record import TIMERS, SourceRead
from trainers.registry import trainers
from trainers.timers.flat import nest_timers


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
