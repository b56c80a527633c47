"""Prints a finished report's verdict and path."""

from __future__ import annotations

import argparse
from pathlib import Path

from common.contracts import read_file
from common.errors import UserError
from common.files import read_json
from common.shown import print_lines
from common.verdicts import VerdictFile
from workflow.commands.start_runs import run_line
from workflow.config.plan import Plan, config_here, plan_of


def require_report(plan: Plan, config: Path) -> Path:
    """The folder of a plan's finished report; `UserError` if it is missing or of another configuration."""
    folder = Path(plan.folder)
    if not (folder / "verdict.json").is_file():
        raise UserError(f"no report yet in {folder}; when the runs have finished, this makes it: {run_line(config)}")
    if read_json(folder / "plan.json")["fingerprint"] != plan.fingerprint:
        raise UserError(
            f"the report in {folder} was made from another configuration; start it with this one: {run_line(config)}"
        )
    return folder


def report(args: argparse.Namespace) -> None:
    """Run `rolloutbench report`."""
    from analysis.verdict.arm_verdict import ArmVerdict
    from analysis.verdict.verdict_block import add_to_job_summary, escaped, print_verdict, verdict_markdown

    config = args.config or config_here()
    plan = plan_of(config)
    folder = require_report(plan, config)
    found: VerdictFile = read_file(VerdictFile, folder / "verdict.json", "the report", ("arms", "no_comparison"))
    verdicts = [ArmVerdict.from_json(dict(one)) for one in found["arms"]]
    add_to_job_summary(lambda: verdict_markdown(verdicts) or escaped(found["no_comparison"]))
    print_verdict(verdicts)
    print_lines(filter(None, [found["no_comparison"], f"report: {folder / 'report.html'}"]))
