"""Runs `rolloutbench preflight` and the preflight's rules."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import read_json, write_json
from common.messages import print_message
from trainers.registry import trainer_named
from workflow.cluster.estimate import default_profile, estimates_of
from workflow.cluster.site import read_site
from workflow.config.plan import Plan, load_plan, plan_runs, stack_facts
from workflow.config.reading import parse_config
from workflow.preflight import preflight, write_preflight
from workflow.preflight.cases import settings_requests
from workflow.preflight.checks import LaunchContext, variables_of
from workflow.preflight.show import preflight_lines, summary_lines
from workflow.stacks.environment import run_in_stack


def show_preflight(raw: Mapping[str, Any], profile: Path | None, step_s: float | None, as_json: bool) -> None:
    """Print an experiment's preflight; a `UserError` at the end if anything in it is impossible.

    Data and model need not be here: an experiment can be looked at on any machine.
    """
    plan = plan_runs(parse_config(raw), functools.cache(stack_facts))
    files = [Path(plan.folder) / "settings" / f"{one}.json" for one in settings_requests(plan)]
    composed = {file.stem: read_json(file) for file in files if file.is_file()}
    found = preflight(plan, place_of(plan, profile, step_s), composed, imported=_read_before(plan))
    if as_json:
        print(json.dumps(found.as_json(), indent=1, ensure_ascii=False))
    else:
        print("\n".join(preflight_lines(found)))
    if found.impossible:
        raise UserError(
            f"{found.refusal}: {len(found.impossible)} of the findings {'is' if len(found.impossible) == 1 else 'are'} "
            "impossible"
        )


def _read_before(plan: Plan) -> dict[str, dict[str, Any]]:
    """run_id -> imported.json, of the imported runs that were read as the plan wants them."""
    files = {run.run_id: Path(plan.folder) / "runs" / run.run_id / "imported.json" for run in plan.imports.values()}
    there = {run_id: read_json(file) for run_id, file in files.items() if file.is_file()}
    return {run_id: one for run_id, one in there.items() if one["fingerprint"] == plan.imports[run_id].fingerprint}


def place_of(plan: Plan, profile: Path | None, step_s: float | None) -> LaunchContext:
    """What is known of where the runs would go, and of how long a step takes: from earlier runs, or as given."""
    profile = profile or default_profile(plan)
    if profile is None:
        return LaunchContext(variables=variables_of(None))
    site = read_site(profile)
    estimates, _ = estimates_of(plan, site, step_s)
    paces = {one.run.spec["arm"]: one.pace.step_s for one in reversed(estimates) if one.pace.step_s is not None}
    return LaunchContext(site, paces, variables_of(profile))


def write_preflight_of(
    raw: Mapping[str, Any], settings_files: list[Path], out: Path, imported_files: list[Path]
) -> None:
    """Write preflight.json from the settings that the stacks resolved, and say the findings in short."""
    place = LaunchContext(variables=variables_of(None))
    found = write_preflight(load_plan(raw), settings_files, out, place, imported_files)
    for line in summary_lines(found):
        print_message(line)
    if found.impossible:
        # The settings as composed tell more than the defaults did: better here than in the queue.
        told = "; ".join(f"{', '.join(one.arms)}: {one.what} ({one.why}); {one.change}" for one in found.impossible)
        raise UserError(f"{found.refusal}: {told}")


def resolve_settings(request: dict[str, Any], stack: Path, out: Path) -> None:
    """Let a stack's Python resolve a trainer's settings; a `UserError` if it refuses them."""
    driver = trainer_named(request["trainer"]).driver
    assert driver is not None
    asked = out.with_suffix(".request.json")
    write_json(asked, request)
    done = run_in_stack(stack, "trainers.resolve", "--with", driver.resolver, "--request", asked, "--out", out)
    asked.unlink(missing_ok=True)
    if not done or not out.is_file():
        raise UserError("the trainer does not take these settings; nothing was trained (see the message above)")
