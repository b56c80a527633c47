"""Runs the doctor's checks side by side, each with a time limit, and prints what they found."""

from __future__ import annotations

import json
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from common.errors import UserError
from common.messages import colour_wanted
from workflow.cluster.estimate import default_profile
from workflow.cluster.site import Site, read_site
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config, read_yaml
from workflow.doctor import Action, CheckResult, DoctorCheck, Found, warning
from workflow.doctor.file_checks import file_checks
from workflow.doctor.machine_checks import machine_checks, token_checks
from workflow.doctor.slurm_checks import SlurmSite, slurm_checks
from workflow.doctor.stack_checks import stack_checks
from workflow.stacks import load_stack, stack_names

PATIENCE_S = 40.0
"""For all checks together: they run side by side."""
_COLOURS = {"passed": "\x1b[32m", "warning": "\x1b[33m", "failed": "\x1b[31m"}
_PLAIN = "\x1b[0m"
_WIDTH = 80
_MOST = 400
"""Characters of a check's line; --json has all of it."""


def doctor(config: Path | None, profile: Path | None, across_nodes: bool, as_json: bool) -> None:
    """Prints what every check found; `UserError` where one has failed.

    `config`: the experiment whose stacks this machine must carry; None: no stack must, and all are checked.
    """
    results = list(run_checks(checks_of(config, profile, across_nodes)))
    if as_json:
        print(json.dumps(as_dict(results), indent=1, ensure_ascii=False))
    else:
        print("\n".join(lines_of(results, colour_wanted())))
    failed = sum(result.level == "failed" for result in results)
    if failed:
        raise UserError(f"{failed} of {len(results)} checks failed; the list names each remedy")


def checks_of(config: Path | None, profile: Path | None, across_nodes: bool = False) -> list[DoctorCheck]:
    """The checks of this machine, for an experiment or for none."""
    asked: list[str] = []
    if config is not None:
        # Its data may lie elsewhere: this is about the machine.
        plan = plan_runs(parse_config(read_yaml(config)), cache(stack_facts))
        asked = list(dict.fromkeys(run.stack for run in plan.runs.values()))
        profile = profile or default_profile(plan)
    else:
        profile = profile or default_profile()
    stacks = [load_stack(name) for name in (stack_names() if config is None else asked)]
    asked_of = read_site(profile) if profile else Site()
    site = SlurmSite(asked_of if asked_of.on_slurm else None)
    return [
        *machine_checks(stacks, required=config is not None),
        *stack_checks(stacks, required=config is not None, on_cluster=site.is_here),
        *slurm_checks(site),
        *file_checks(Path("results"), site, across_nodes),
        *token_checks(),
    ]


def run_checks(checks: Sequence[DoctorCheck], patience_s: float = PATIENCE_S) -> Iterator[CheckResult]:
    """Each check's result, in their order; a check that fails itself, or takes too long, is a warning."""
    answers: list[list[Found]] = [[] for _ in checks]
    threads = []
    for check, answer in zip(checks, answers, strict=True):
        # A check that hangs on a dead file system must not keep the program.
        thread = threading.Thread(target=_answer, args=(check.action, answer), daemon=True)
        thread.start()
        threads.append(thread)
    give_up = time.monotonic() + patience_s
    for check, thread, answer in zip(checks, threads, answers, strict=True):
        thread.join(max(0.0, give_up - time.monotonic()))
        late = warning(f"could not look: no answer within {patience_s:g} s", "try again, or look by hand")
        level, found, remedy = answer[0] if answer else late
        yield CheckResult(check.group, check.name, level, found, remedy)


def _answer(action: Action, answer: list[Found]) -> None:
    try:
        answer.append(action())
    except Exception as error:  # whatever it is, the other checks go on
        why = " ".join(str(error).split()) or type(error).__name__
        answer.append(warning(f"could not look: {why}", "look by hand"))


def as_dict(results: Sequence[CheckResult]) -> dict[str, object]:
    """What `--json` prints: `checks`, each with group, name, level, found, remedy, and how many are of each level."""
    counts: dict[str, object] = {level: sum(one.level == level for one in results) for level in _COLOURS}
    return {"checks": [asdict(result) for result in results], **counts}


def lines_of(results: Sequence[CheckResult], colour: bool = False, width: int = _WIDTH) -> Iterator[str]:
    """A line for each check, with its remedy below; the count of each level last."""
    group = ""
    for result in results:
        if result.group != group:
            group = result.group
            yield group
        body = _wrapped(f"{result.level:8} {result.name}: {textwrap.shorten(result.found, _MOST)}", "  ", width)
        mark = f"  {result.level}"
        yield f"{_COLOURS[result.level]}{mark}{_PLAIN}{body[len(mark) :]}" if colour else body
        if result.remedy:
            yield _wrapped(f"-> {result.remedy}", " " * 11, width)
    counts = as_dict(results)
    passed, warnings, failed = (counts[level] for level in _COLOURS)
    yield f"{passed} passed, {warnings} {'warning' if warnings == 1 else 'warnings'}, {failed} failed"


def _wrapped(text: str, indent: str, width: int) -> str:
    later = " " * (14 if text.startswith("->") else 11)
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
