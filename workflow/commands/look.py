"""Looks at the verdicts after a pair of runs; once they are resolved, withdraws the jobs that still wait for more."""

from __future__ import annotations

from pathlib import Path

from analysis.verdict.look_at import look_at
from common.errors import UserError
from common.files import write_json
from common.messages import print_message
from common.verdicts import count_of
from workflow.commands.cancel import cancel
from workflow.config.plan import Plan
from workflow.runs.experiment import planned_experiment
from workflow.runs.run_state import run_states


def look(plan: Plan, plan_file: Path, pairs: int, out: Path) -> None:
    """Write the file of the look after so many pairs of runs."""
    wanted = plan.first_pairs(pairs)
    found = look_at(plan_file, Path(plan.folder), list(wanted))
    left = found["most"] - pairs
    if found["more"]:
        print_message(f"{count_of(pairs, 'run pair')}: not resolved; about {found['more']} more of at most {left}")
    else:
        known = all(one["verdict"] in "+-=" for one in found["verdicts"])
        why = "the verdict is known" if known else "more runs do not resolve it"
        print_message(f"{count_of(pairs, 'run pair')}: {why}; {left} of {found['most']} are not needed")
        withdraw(plan, set(plan.runs) - set(wanted))
    write_json(out, found)


def withdraw(plan: Plan, unneeded: set[str]) -> None:
    """Cancel the jobs of runs that are not needed and have not begun, such as those of an earlier start."""
    experiment = planned_experiment(plan)
    states, _ = run_states(experiment)
    waiting = [one.run_id for one in states if one.run_id in unneeded and one.live and one.state == "waiting"]
    if waiting:
        try:
            for line in cancel(experiment, waiting):
                print_message(f"not needed any more: {line}")
        except UserError as error:
            print_message(f"jobs that are not needed any more are still in the queue: {error}")
