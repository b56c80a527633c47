"""The commands that only rules call."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UserError
from common.files import write_json
from common.messages import print_message
from common.shown import shown
from common.verdicts import count_of

if TYPE_CHECKING:
    from workflow.config.plan import Plan


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
    from workflow.stacks.verification import run_in_stack

    folder = args.out.parent
    write_json(folder / "request.json", args.request)
    done = run_in_stack(args.stack, "node.inputs", "--request", folder / "request.json", "--out", folder)
    if not done or not args.out.is_file():
        # The job has already printed the reason.
        raise UserError("data and model could not be prepared; nothing was trained (see the message above)")


def write_and_summarize(args: argparse.Namespace) -> None:
    """Write preflight.json from the settings that the stacks resolved, and print a line per finding.

    What was printed before the training is not printed again.
    """
    from common.findings import read_preflight
    from workflow.commands.finding_lines import summary_lines
    from workflow.config.plan import load_plan
    from workflow.config.to_train import clear
    from workflow.preflight import write_preflight

    plan = load_plan(args.request)
    found = write_preflight(plan, args.settings, args.out, args.imported, args.setup)
    before = read_preflight(args.before, plan.config.experiment) if args.before else None
    for line in summary_lines(found, before.findings if before else ()):
        print_message(shown(line))
    if found.impossible:
        # Composed settings can show what the defaults did not: fail here rather than in the queue.
        reasons = "; ".join(f"{', '.join(one.arms)}: {one.what} ({one.why}); {one.change}" for one in found.impossible)
        raise UserError(f"{found.refusal}: {reasons}")
    if args.clear:
        clear(plan)


def resolve(args: argparse.Namespace) -> None:
    """Run the rule `settings`."""
    from workflow.preflight.composed import resolve_settings

    resolve_settings(args.request, args.stack, args.out)
