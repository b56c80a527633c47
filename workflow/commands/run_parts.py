"""Finds the runs in the logs of an arm: a run that was requeued, or logged twice, is one run."""

from __future__ import annotations

from typing import Any

from analysis.imports.formats import read_source
from analysis.imports.import_run import CACHE
from analysis.imports.one_run import runs_among
from workflow.commands.compared_arms import ComparedArm


def runs_of(arm: ComparedArm, step_seconds: str | None) -> tuple[list[Any], list[str]]:
    """The arm's runs as `import.runs` takes them: a log each, or the logs of a run; and what the arm's logs lack."""
    if len(arm.sources) < 2 or any(one.selected for one in arm.inspected):
        return list(arm.sources), []
    for place, (source, one) in enumerate(zip(arm.sources, arm.inspected, strict=True)):
        if not one.read.records:
            arm.inspected[place] = read_source(source, None, (arm.name,), CACHE, step_seconds, arm.trainer)
    runs, sentences = runs_among(dict(zip(arm.sources, arm.inspected, strict=True)))
    return [{"source": run} if len(run) > 1 else run[0] for run in runs], sentences
