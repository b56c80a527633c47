"""Reads from the files of its looks how many pairs of runs an experiment with `seeds: {until, most}` wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.verdicts import FIRST_LOOK, looks_so_far, resolving_look
from workflow.config.plan import Plan
from workflow.config.planned_run import PlannedRun
from workflow.runs.history import read_object


def pairs_wanted(plan: Plan, look: Callable[[int], Mapping[str, Any]]) -> int:
    """The pairs of runs that are wanted after the looks so far (`look`: of `looks_so_far`)."""
    until = plan.config.until
    if until is None or not plan.runs:
        return len(plan.config.every_seed)
    wanted = FIRST_LOOK
    for pairs, found in looks_so_far(look, until.until, until.most):
        if not found["more"]:
            return pairs
        wanted = pairs + 1
    return wanted


def wanted_runs(plan: Plan, checkpoints: Any) -> dict[str, PlannedRun]:
    """All runs, or those of the pairs that are wanted after the looks so far; `checkpoints` is Snakemake's object.

    Its `get` raises Snakemake's exception for a look that is still to be made, or to be made again.
    """

    def look(pairs: int) -> Mapping[str, Any]:
        return read_object(Path(checkpoints.look.get(pairs=pairs).output[0]))

    return plan.first_pairs(pairs_wanted(plan, look))


def pairs_that_resolved(folder: Path, until: float, most: int) -> int | None:
    """The pairs of runs after which the looks in an experiment's folder want no more; None while they do."""
    found = resolving_look(lambda pairs: read_object(folder / "looks" / f"{pairs}.json"), until, most)
    return None if found is None else found[0]


@dataclass(frozen=True, slots=True)
class Outlook:
    """The pairs of runs of an experiment as far as its looks tell."""

    wanted: int
    """Those that are trained in any case."""
    likely: int | None
    """Those that are likely to resolve the verdicts; None before the first look."""
    known: bool
    """Whether the verdicts are resolved."""


def outlook(plan: Plan) -> Outlook:
    """What the files of the looks say."""

    def look(pairs: int) -> Mapping[str, Any]:
        return read_object(Path(plan.folder) / "looks" / f"{pairs}.json")

    wanted = pairs_wanted(plan, look)
    if (last := look(wanted)) and not last["more"]:
        return Outlook(wanted, wanted, known=True)
    before = look(wanted - 1)
    return Outlook(wanted, before["pairs"] + before["more"] if before else None, known=False)
