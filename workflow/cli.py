"""What do people ask between runs, and what do rules need of the controller? The `rolloutbench` program.

Everything that makes a result is a Snakemake target; the commands marked "for rules" only serve those.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from common.errors import UserError
from common.files import ROOT, read_json, write_json, write_text
from common.messages import reporting_errors, unknown_name
from common.patience import LOOK_PATIENCE_S, patiently
from workflow.config.import_sources import require_sources
from workflow.config.local_sources import require_readable
from workflow.config.plan import Plan, load_plan
from workflow.config.reading import read_yaml
from workflow.config.schema import REFERENCE_FILE, SCHEMA_FILE, config_schema, reference_page
from workflow.stacks.in_stack import run_in_stack

if TYPE_CHECKING:
    from workflow.cluster.experiment import Experiment


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when all went well, 1 after a message on stderr."""
    parser = argparse.ArgumentParser(prog="rolloutbench", description="Compare GRPO rollout engines.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("plan", help="list the runs that a configuration means, and what they will cost")
    command.add_argument("config", type=Path, nargs="?", default=Path("config.yaml"))
    command.add_argument("--profile", type=Path, help="whose GPUs and walltime (default: slurm, if it is there)")
    command.add_argument("--seconds-per-step", type=float, metavar="X", help="for runs that were not measured yet")
    command.set_defaults(action=_print_plan)

    command = commands.add_parser("preflight", help="what is impossible, unequal or odd in an experiment, and why")
    command.add_argument("config", type=Path, nargs="?", default=Path("config.yaml"))
    command.add_argument("--profile", type=Path, help="whose walltime and setup.sh (default: slurm, if it is there)")
    command.add_argument("--seconds-per-step", type=float, metavar="X", help="for runs that were not measured yet")
    command.add_argument("--json", action="store_true", help="print what preflight.json holds")
    command.set_defaults(action=_preflight)

    command = commands.add_parser("status", help="what each run is doing, and why it waits")
    command.add_argument("config", type=Path, nargs="?", help="default: config.yaml")
    command.add_argument("--experiment", metavar="NAME", help="read results/NAME/plan.json, not a configuration")
    command.add_argument(
        "--every", type=float, metavar="SECONDS", help="print it again and again until all is finished"
    )
    command.set_defaults(action=_status)

    command = commands.add_parser("cancel", help="end an experiment's jobs, or those of some of its runs")
    command.add_argument("words", nargs="*", metavar="CONFIG or RUN", help="a .yaml file first; runs (default: all)")
    command.add_argument("--experiment", metavar="NAME", help="read results/NAME/plan.json, not a configuration")
    command.add_argument("--now", action="store_true", help="on this machine: without finishing the step")
    command.set_defaults(action=_cancel)

    command = commands.add_parser("only", help="write a configuration with some of another one's arms")
    command.add_argument("config", type=Path)
    command.add_argument("arms", nargs="+", metavar="ARM")
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(action=lambda args: write_text(args.out, _only(args.config, args.arms)))

    command = commands.add_parser("headline", help="print a finished report's headline and where it lies")
    command.add_argument("config", type=Path, nargs="?", default=Path("config.yaml"))
    command.set_defaults(action=lambda args: _print_headline(load_plan(read_yaml(args.config))))

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

    command = commands.add_parser("resolve-settings", help="for rules: all of a trainer's settings, by its stack")
    command.add_argument("request", type=json.loads)
    command.add_argument("--stack", type=Path, required=True, help="the stack's verify.json")
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(action=lambda args: _resolve_settings(args.request, args.stack, args.out))

    command = commands.add_parser("write-preflight", help="for rules: write preflight.json")
    command.add_argument("config", type=json.loads)
    command.add_argument("--settings", type=Path, nargs="*", default=[], help="the resolved settings of all runs")
    command.add_argument("--imported", type=Path, nargs="*", default=[], help="what the imported runs' sources hold")
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(action=lambda args: _write_preflight(args.config, args.settings, args.out, args.imported))

    args = parser.parse_args(argv)
    try:
        status = reporting_errors(lambda: args.action(args))
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def _only(path: Path, arms: list[str]) -> str:
    """The experiment with those arms alone, as YAML: the same runs, since no run's fingerprint knows the others."""
    raw = dict(read_yaml(path))
    there = raw.get("arms")
    if not isinstance(there, dict):
        raise UserError(f"{path} has no arms to choose from")
    for arm in arms:
        if arm not in there:
            raise UserError(f"{path}: {unknown_name('arm', arm, list(there))}")
    chosen = {name: arm for name, arm in there.items() if name in arms}
    sweep = raw.get("sweep") or {}
    left = {f"arms.{name}." for name in there if name not in arms}
    raw |= {
        "arms": chosen,
        "baseline": raw["baseline"] if raw.get("baseline") in chosen else next(iter(chosen)),
        **({"sweep": {k: v for k, v in sweep.items() if not str(k).startswith(tuple(left))}} if sweep else {}),
    }
    load_plan(raw)
    return f"# Made from {path}: only {', '.join(chosen)}.\n{yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)}"


def _print_plan(args: argparse.Namespace) -> None:
    from workflow.cluster.outlook import plan_lines

    _require_pace(args.seconds_per_step)
    plan = load_plan(read_yaml(args.config))
    require_readable(plan)
    require_sources(plan)
    look = partial(plan_lines, plan, args.profile, args.seconds_per_step)
    print("\n".join(patiently(look, "the results", LOOK_PATIENCE_S, for_others=False)))


def _preflight(args: argparse.Namespace) -> None:
    from workflow.preflight.command import show_preflight

    _require_pace(args.seconds_per_step)
    show_preflight(read_yaml(args.config), args.profile, args.seconds_per_step, args.json)


def _resolve_settings(request: dict[str, Any], stack: Path, out: Path) -> None:
    from workflow.preflight.command import resolve_settings

    resolve_settings(request, stack, out)


def _write_preflight(config: dict[str, Any], settings: list[Path], out: Path, imported: list[Path]) -> None:
    from workflow.preflight.command import write_preflight_of

    write_preflight_of(config, settings, out, imported)


def _require_pace(seconds_per_step: float | None) -> None:
    if seconds_per_step is not None and not 0 < seconds_per_step < float("inf"):
        raise UserError(f"--seconds-per-step must be more than 0 (got {seconds_per_step:g})")


def _status(args: argparse.Namespace) -> None:
    from workflow.cluster.status import show_status

    if args.every is not None and not 0 < args.every < float("inf"):
        raise UserError(f"--every must be more than 0 seconds (got {args.every:g})")
    show_status(_experiment(args.config, args.experiment), args.every)


def _cancel(args: argparse.Namespace) -> None:
    from workflow.cluster.cancel import cancel

    words: list[str] = args.words
    first = Path(words[0] if words else "")
    is_config = bool(words) and (first.suffix in (".yaml", ".yml", ".json") or first.is_file())
    config, runs = (first, words[1:]) if is_config else (None, words)
    print("\n".join(cancel(_experiment(config, args.experiment), runs, args.now)))


def _experiment(config: Path | None, name: str | None) -> Experiment:
    from workflow.cluster.experiment import of_name, of_plan

    if name is None:
        plan = load_plan(read_yaml(config or Path("config.yaml")))
        return patiently(lambda: of_plan(plan), "the inputs", LOOK_PATIENCE_S, for_others=False)
    if config is not None:
        raise UserError(f"give a configuration or --experiment, not both (got {config} and {name})")
    return patiently(lambda: of_name(name), "the plan", LOOK_PATIENCE_S, for_others=False)


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
    asked = out.parent / "request.json"
    write_json(asked, request)
    done = run_in_stack(stack, "node.inputs", "--request", asked, "--out", out.parent)
    if not done or not out.is_file():
        # The job has said what is wrong, in one message of its own.
        raise UserError("data and model could not be prepared; nothing was trained (see the message above)")


if __name__ == "__main__":
    sys.exit(main())
