"""Lists the checks of a machine and a site, and runs them at once with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow.checks import SiteCheck, SiteResult, Unchecked
from workflow.checks.machine_checks import file_checks, machine_checks
from workflow.checks.slurm_checks import SlurmSite, slurm_checks
from workflow.checks.stack_checks import stack_checks
from workflow.slurm.site import Site
from workflow.stacks import Stack

PATIENCE_S = 40.0
"""The limit for all checks together: they run at once."""


def site_checks(
    request: Site, stacks: Sequence[Stack], runs: Sequence[Mapping[str, Any]], required: bool, across_nodes: bool
) -> list[SiteCheck]:
    """The checks of a site for runs and their stacks; `required`: an experiment needs these stacks."""
    site = SlurmSite(request if request.on_slurm else None, runs)
    return [
        *machine_checks(stacks, required, site),
        *stack_checks(stacks, required, on_cluster=request.on_slurm),
        *slurm_checks(request, site, required),
        *file_checks(Path("results"), site, across_nodes, unasked=required and not request.on_slurm),
    ]


def start_checks(checks: Sequence[SiteCheck], patience_s: float = PATIENCE_S) -> Callable[[], SiteResult]:
    """Starts the checks; a function that waits for their results, in their order.

    One that raises an error or takes too long is unchecked.
    """
    outcomes: dict[int, Any] = {}

    def run_check(number: int) -> None:
        try:
            outcomes[number] = checks[number].action()
        except Exception as error:  # the other checks continue after any error
            outcomes[number] = error

    # Daemon threads: a check that hangs on a dead file system must not block the program's end.
    threads = [threading.Thread(target=run_check, args=(number,), daemon=True) for number in range(len(checks))]
    for thread in threads:
        thread.start()
    give_up = time.monotonic() + patience_s

    def results() -> SiteResult:
        found, unchecked = SiteResult(), dict[str, list[str]]()
        for number, (check, thread) in enumerate(zip(checks, threads, strict=True)):
            thread.join(max(0.0, give_up - time.monotonic()))
            outcome = outcomes.get(number, Unchecked(f"no answer within {patience_s:g} s; try again"))
            if isinstance(outcome, str):
                found.passed[check.name] = outcome
            elif isinstance(outcome, Exception):
                why = " ".join(str(outcome).split()) or type(outcome).__name__
                unchecked.setdefault(why, []).append(check.name)
            else:
                found.findings += outcome
        found.unchecked = [f"{', '.join(names)}: {why}" for why, names in unchecked.items()]
        return found

    return results
