"""Runs the doctor's checks in parallel with a time limit, and prints their results."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.messages import colour_wanted
from common.shown import own_stream, shown
from workflow.config.plan import CONFIG, plan_runs, stack_facts
from workflow.config.reading import parse_config, read_yaml
from workflow.doctor import CheckResult, DoctorCheck, Outcome, failed_if, warning
from workflow.doctor.machine_checks import file_checks, machine_checks
from workflow.doctor.slurm_checks import SlurmSite, slurm_checks
from workflow.doctor.stack_checks import stack_checks
from workflow.head.train_rule import exposed
from workflow.slurm.site import Site, site_for
from workflow.stacks import found_names, load_stack, stack_names

PATIENCE_S = 40.0  # limit for all checks together: they run in parallel
_COLOURS = {"passed": "\x1b[32m", "warning": "\x1b[33m", "failed": "\x1b[31m"}
_PLAIN = "\x1b[0m"
_WIDTH = 80
_MOST = 400  # maximum characters of a check's result; --json has all of them


def doctor(args: argparse.Namespace) -> None:
    """Run `rolloutbench doctor`: print the result of every check; raise a `UserError` if one failed.

    A configuration's stacks must work on this machine; without one all stacks are checked, and none must work.
    """
    config = args.config or (CONFIG if CONFIG.is_file() else None)
    checks, judged = checks_of(config, args.profile, args.across_nodes)
    results = list(run_checks(checks))
    if args.json:
        print(json.dumps({"judged": judged, **as_dict(results)}, indent=1, ensure_ascii=False))
    else:
        coloured = colour_wanted()
        print(
            "\n".join([shown(judged), *lines_of(results, coloured)]), file=own_stream(sys.stdout) if coloured else None
        )
    failed = sum(result.level == "failed" for result in results)
    if failed:
        raise UserError(f"{failed} of {len(results)} checks failed; the list above has a remedy for each")


def checks_of(config: Path | None, profile: Path | None, across_nodes: bool = False) -> tuple[list[DoctorCheck], str]:
    """The checks of this machine, for an experiment or for none, and by what they judge."""
    names, runs, experiment = [*stack_names(), *found_names()], [], ""
    if config is not None:
        # The data may be elsewhere: only the machine is checked.
        plan = plan_runs(parse_config(read_yaml(config)), cache(stack_facts))
        names = list(dict.fromkeys(run.stack for run in plan.runs.values() if run.stack))
        runs, experiment = [run.spec for run in plan.runs.values()], plan.config.experiment
    stacks = [load_stack(name) for name in names]
    request = site_for(profile, experiment)
    site = SlurmSite(request if request.on_slurm else None, runs)
    checks = [
        *machine_checks(stacks, config is not None, site),
        *_open_ports(request, runs),
        *stack_checks(stacks, required=config is not None, on_cluster=site.is_here),
        *slurm_checks(site),
        *file_checks(Path("results"), site, across_nodes),
    ]
    return checks, request.label


def _open_ports(site: Site, runs: Sequence[Mapping[str, Any]]) -> list[DoctorCheck]:
    """Why no run may start on this machine by its profile, or without one; of Slurm's the check `request` says it."""
    found = {} if site.on_slurm else exposed(site, runs)
    required = site.profile is not None
    return [DoctorCheck("machine", "ports", partial(failed_if, required, what, remedy)) for what, remedy in found]


def run_checks(checks: Sequence[DoctorCheck], patience_s: float = PATIENCE_S) -> Iterator[CheckResult]:
    """Each check's result, in their order; a check that raises an error or takes too long is a warning."""
    outcomes: dict[int, Outcome] = {}

    def run_check(number: int) -> None:
        try:
            outcomes[number] = checks[number].action()
        except Exception as error:  # the other checks continue after any error
            why = " ".join(str(error).split()) or type(error).__name__
            outcomes[number] = warning(f"could not check: {why}", "check by hand")

    # Daemon threads: a check that hangs on a dead file system must not block the program's end.
    threads = [threading.Thread(target=run_check, args=(number,), daemon=True) for number in range(len(checks))]
    for thread in threads:
        thread.start()
    give_up = time.monotonic() + patience_s
    for number, (check, thread) in enumerate(zip(checks, threads, strict=True)):
        thread.join(max(0.0, give_up - time.monotonic()))
        late = warning(f"could not check: no answer within {patience_s:g} s", "try again, or check by hand")
        yield CheckResult(check.group, check.name, *outcomes.get(number, late))


def as_dict(results: Sequence[CheckResult]) -> dict[str, object]:
    """The output of `--json`: `checks`, each with group, name, level, found and remedy, and the count of each level."""
    counts: dict[str, object] = {level: sum(result.level == level for result in results) for level in _COLOURS}
    return {"checks": [asdict(result) for result in results], **counts}


def lines_of(results: Sequence[CheckResult], colour: bool = False) -> Iterator[str]:
    """A line for each check with its remedy below, then the count of each level."""
    group = ""
    for result in results:
        if result.group != group:
            group = result.group
            yield group
        found = shown(textwrap.shorten(result.found, _MOST))
        body = _wrapped(f"{result.level:8} {result.name}: {found}", "  ")
        mark = f"  {result.level}"
        yield f"{_COLOURS[result.level]}{mark}{_PLAIN}{body[len(mark) :]}" if colour else body
        if result.remedy:
            yield _wrapped(f"-> {shown(result.remedy)}", " " * 11)
    counts = as_dict(results)
    passed, warnings, failed = (counts[level] for level in _COLOURS)
    yield f"{passed} passed, {warnings} {'warning' if warnings == 1 else 'warnings'}, {failed} failed"


def _wrapped(text: str, indent: str) -> str:
    later = " " * (14 if text.startswith("->") else 11)
    return textwrap.fill(
        text, _WIDTH, initial_indent=indent, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
