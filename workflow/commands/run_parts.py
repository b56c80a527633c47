"""Joins the logs of one arm that continue each other: a run that was requeued is one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.imports.formats import WANDB, read_source
from analysis.imports.import_run import CACHE
from workflow.commands.compared_arms import ComparedArm

Span = tuple[int, int]


def runs_of(arm: ComparedArm, step_seconds: str | None) -> list[Any]:
    """The arm's runs as `import.runs` takes them: a log each, or the logs of a run in the sequence of its steps.

    A log continues another one if it begins with the step after the other's last one; of several such logs, the one in
    the same folder.
    """
    if len(arm.sources) < 2 or any(one.selected for one in arm.inspected):
        return list(arm.sources)
    spans = {source: _span(source, arm, step_seconds) for source in arm.sources}
    chains = _chains([source for source in arm.sources if spans[source]], {k: v for k, v in spans.items() if v})
    first = {chain[0]: chain for chain in chains}
    continued = {source for chain in chains for source in chain[1:]}
    runs = [first.get(source, [source]) for source in arm.sources if source not in continued]
    return [{"source": run} if len(run) > 1 else run[0] for run in runs]


def _span(source: str, arm: ComparedArm, step_seconds: str | None) -> Span | None:
    """The first and the last step of a log; None where it has none."""
    before = arm.read_sources().get(source)
    if before is None and source.startswith(WANDB):
        return None
    found = before or read_source(source, None, (arm.name,), CACHE, step_seconds, arm.trainer)
    steps = found.read.records
    return (min(steps), max(steps)) if steps else None


def _chains(sources: Sequence[str], spans: dict[str, Span]) -> list[list[str]]:
    chains: list[list[str]] = []
    for source in sorted(sources, key=lambda one: (*spans[one], one)):
        before = [chain for chain in chains if spans[chain[-1]][1] + 1 == spans[source][0]]
        here = [chain for chain in before if Path(chain[-1]).parent == Path(source).parent]
        continues = here or before
        if len(continues) == 1:
            continues[0].append(source)
        else:
            chains.append([source])
    return chains
