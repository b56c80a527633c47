"""Composes all settings of a run with its stack, in whose words a misspelt option is refused."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Container, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import read_json, write_json
from trainers import driver_module
from trainers.registry import trainer_named
from workflow.checks import Outcome, SiteCheck, Unchecked
from workflow.config.plan import Plan
from workflow.config.planned_run import PlannedRun
from workflow.preflight.cases import settings_request, settings_requests
from workflow.preflight.texts import finding
from workflow.stacks.definition import require_closed, require_own_stacks
from workflow.stacks.verification import run_in_stack

LIMIT_S = 120.0
"""For a check; a stack's first import of its libraries takes most of it."""


def resolve_settings(request: dict[str, Any], stack: Path, out: Path, **options: Any) -> None:
    """Resolve a trainer's settings with its stack's Python; `UserError` if the trainer rejects them.

    `options` are those of subprocess.run.
    """
    driver = trainer_named(request["trainer"]).driver
    assert driver is not None
    request_file = out.with_suffix(".request.json")
    write_json(request_file, request)
    resolver = driver_module(driver.job_module)
    words = ("--with", resolver, "--request", request_file, "--out", out)
    done = run_in_stack(stack, "trainers.resolve", *words, **options)
    request_file.unlink(missing_ok=True)
    if not done or not out.is_file():
        raise UserError("the trainer rejects these settings; nothing was trained (see the message above)")


def compose_checks(plan: Plan, composed: dict[str, Any], starting: Container[str]) -> Iterator[SiteCheck]:
    """A check for each request of runs that start now, and whose stack is built; it adds what it composes."""
    locks = dict.fromkeys((run.stack, run.lock_id) for run in plan.runs.values() if run.stack)
    for name, run in settings_requests(plan).items():
        stack = Path(plan.stack_file(run.run_id))
        if name not in composed and run.run_id in starting and stack.is_file():
            yield SiteCheck(f"settings of {run.spec['arm']}", partial(_compose, name, run, stack, [*locks], composed))


def _compose(
    name: str, run: PlannedRun, stack: Path, locks: Sequence[tuple[str, str]], composed: dict[str, Any]
) -> Outcome:
    require_own_stacks()
    for stack_name, lock in locks:
        require_closed(stack_name, lock)
    with tempfile.TemporaryDirectory(prefix="rolloutbench-") as folder:
        out, log = Path(folder, "settings.json"), Path(folder, "log")
        try:
            with log.open("w") as file:
                quiet = {"stdout": file, "stderr": subprocess.STDOUT, "timeout": LIMIT_S}
                resolve_settings(settings_request(run), stack, out, **quiet)
        except subprocess.TimeoutExpired:
            raise Unchecked(f"the stack did not compose them within {LIMIT_S:g} s") from None
        except UserError:
            said = log.read_text(encoding="utf-8", errors="replace").rpartition("error: ")[2]
            return [finding("setting-refused", run.spec["arm"], what=" ".join(said.split()), stack=run.stack)]
        composed[name] = read_json(out)
    return "composed"
