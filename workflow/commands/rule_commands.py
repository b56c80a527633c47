"""The commands for rules, and `schema` for editors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UserError
from common.files import write_json
from common.messages import print_message
from common.verdicts import count_of

if TYPE_CHECKING:
    from workflow.config.plan import Plan


def schema(args: argparse.Namespace) -> None:
    from workflow.config.model import config_schema

    print(config_schema(), end="")


def write_plan(args: argparse.Namespace) -> None:
    from workflow.config.plan import load_plan

    write_json(args.out, load_plan(args.request).as_json())


def write_look(args: argparse.Namespace) -> None:
    """Write the file of a look; once the verdicts are resolved, withdraw the jobs that still wait for more."""
    from analysis.verdict.look_at import look_at
    from workflow.config.plan import load_plan

    plan, pairs = load_plan(args.request), args.pairs
    wanted = plan.first_pairs(pairs)
    found = look_at(args.plan, Path(plan.folder), list(wanted))
    left = found["most"] - pairs
    if found["more"]:
        print_message(f"{count_of(pairs, 'run pair')}: not resolved; about {found['more']} more of at most {left}")
    else:
        known = all(one["verdict"] in "+-=" for one in found["verdicts"])
        why = "the verdict is known" if known else "more runs do not resolve it"
        print_message(f"{count_of(pairs, 'run pair')}: {why}; {left} of {found['most']} are not needed")
        withdraw(plan, set(plan.runs) - set(wanted))
    write_json(args.out, found)


def withdraw(plan: Plan, unneeded: set[str]) -> None:
    """Cancel the jobs of runs that are not needed and have not begun, such as those of an earlier start."""
    from workflow.commands.cancel import cancel
    from workflow.runs.experiment import planned_experiment
    from workflow.runs.run_state import run_states

    experiment = planned_experiment(plan)
    states, _ = run_states(experiment)
    new = [one for one in states if one.live and one.state == "waiting" and one.attempt is None]
    waiting = [one.run_id for one in new if one.run_id in unneeded]
    if waiting:
        try:
            for line in cancel(experiment, waiting):
                print_message(f"not needed any more: {line}")
        except UserError as error:
            print_message(f"jobs that are not needed any more are still in the queue: {error}")


def prepare_inputs(args: argparse.Namespace) -> None:
    from workflow.stacks.environment import run_in_stack

    folder = args.out.parent
    write_json(folder / "request.json", args.request)
    done = run_in_stack(args.stack, "node.inputs", "--request", folder / "request.json", "--out", folder)
    if not done or not args.out.is_file():
        # The job has already printed the reason.
        raise UserError("data and model could not be prepared; nothing was trained (see the message above)")
