"""What do people ask between runs, and what do rules need of the controller? The `rolloutbench` program.

Everything that makes a result is a Snakemake target; the commands marked "for rules" only serve those.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from analysis.errors import UserError
from workflow.files import ROOT, read_json, write_json, write_text
from workflow.messages import reporting_errors
from workflow.plan import Plan, load_plan
from workflow.reading import check_yaml
from workflow.schema import REFERENCE_FILE, SCHEMA_FILE, config_schema, reference_page


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when all went well, 1 after a message on stderr."""
    parser = argparse.ArgumentParser(prog="rolloutbench", description="Compare GRPO rollout engines.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("plan", help="list the runs that a configuration means")
    command.add_argument("config", type=Path, nargs="?", default=Path("config.yaml"))
    command.set_defaults(action=lambda args: _print_plan(load_plan(_read_yaml(args.config))))

    command = commands.add_parser("headline", help="print a finished report's headline and where it lies")
    command.add_argument("config", type=Path, nargs="?", default=Path("config.yaml"))
    command.set_defaults(action=lambda args: _print_headline(load_plan(_read_yaml(args.config))))

    command = commands.add_parser("schema", help="print the configuration's JSON schema")
    command.add_argument("--write", action="store_true", help="write the committed schema and docs page anew")
    command.set_defaults(action=lambda args: _schema(args.write))

    command = commands.add_parser("write-plan", help="for rules: write plan.json")
    command.add_argument("config", type=json.loads)
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(action=lambda args: write_json(args.out, load_plan(args.config).as_json()))

    command = commands.add_parser("prepare-inputs", help="for rules: prepare data and model with a stack's libraries")
    command.add_argument("request", type=json.loads)
    command.add_argument("--stack", type=Path, required=True, help="the stack's verify.json")
    command.add_argument("--out", type=Path, required=True, help="inputs.json")
    command.set_defaults(action=lambda args: _prepare_inputs(args.request, args.stack, args.out))

    args = parser.parse_args(argv)
    return reporting_errors(lambda: args.action(args))


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"no such configuration: {path}; the default is config.yaml, more are in experiments/")
    check_yaml(path)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2020-13-45
        raise UserError(f"{path} is not YAML: {error}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a mapping (got {type(raw).__name__})")
    return raw


def _print_plan(plan: Plan) -> None:
    rows = [("run", "trainer", "engine", "stack", "steps", "fingerprint")]
    for run in plan.runs.values():
        spec = run.spec
        steps = str(spec["workload"]["steps"])
        rows.append((run.run_id, spec["trainer"], spec["engine"], run.stack, steps, run.fingerprint[:12]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"{len(plan.runs)} runs of experiment {plan.config.experiment}")


def _print_headline(plan: Plan) -> None:
    summary = Path(plan.folder) / "report.md"
    if not summary.is_file():
        raise UserError(f"no report yet in {plan.folder}; make it with: snakemake --profile profiles/local")
    reported = read_json(Path(plan.folder) / "plan.json")
    if reported["fingerprint"] != plan.fingerprint:
        raise UserError(
            f"the report in {plan.folder} is of another configuration than this one; start snakemake with this one"
        )
    paragraphs = [line for line in summary.read_text(encoding="utf-8").splitlines() if line.strip()]
    print(next(line for line in paragraphs if not line.startswith("#")).replace("**", ""))
    print(f"report: {(Path(plan.folder) / 'report.html').resolve()}")


def _schema(write: bool) -> None:
    if not write:
        print(config_schema(), end="")
        return
    write_text(ROOT / SCHEMA_FILE, config_schema())
    write_text(ROOT / REFERENCE_FILE, reference_page())


def _prepare_inputs(request: dict[str, Any], stack: Path, out: Path) -> None:
    write_json(out.parent / "request.json", request)
    python = stack.parent / "env" / "bin" / "python"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    request_file, folder = str(out.parent / "request.json"), str(out.parent)
    command = [str(python), "-m", "workflow.jobs.inputs", "--request", request_file, "--out", folder]
    finished = subprocess.run(command, env=env, check=False)
    if finished.returncode != 0 or not out.is_file():
        # The job has said what is wrong, in one message of its own.
        raise UserError("data and model could not be prepared; nothing was trained (see the message above)")


if __name__ == "__main__":
    sys.exit(main())
