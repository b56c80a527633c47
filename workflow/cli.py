"""The `rolloutbench` program: what people ask between runs, and what rules need of the controller.

Everything that makes a result is a Snakemake target; the commands marked "for rules" only serve those.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from common.errors import UserError
from common.files import ROOT, read_json, write_json, write_text
from common.messages import reporting_errors, unknown_name
from common.patience import LOOK_PATIENCE_S, patiently
from workflow.config.entry import require_readable, require_sources
from workflow.config.plan import load_plan
from workflow.config.reading import read_yaml
from workflow.config.schema import FILES_PAGE, REFERENCE_FILE, SCHEMA_FILE, config_schema, files_page, reference_page
from workflow.stacks.environment import run_in_stack

if TYPE_CHECKING:
    from workflow.cluster.experiment import Experiment

CONFIG = Path("config.yaml")


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when all went well, 1 after a message on stderr."""
    parser = argparse.ArgumentParser(prog="rolloutbench", description="Compare GRPO rollout engines.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (meaning, action, arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=meaning)
        command.set_defaults(action=action)
        for argument in arguments.split():
            command.add_argument(argument, **ARGUMENTS[argument])
    args = parser.parse_args(argv)
    try:
        status = reporting_errors(lambda: args.action(args))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `| head` has seen enough; what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def _only(args: argparse.Namespace) -> None:
    """Write the experiment with some arms alone: the same runs, since no run's fingerprint knows the others."""
    path, arms = args.config or CONFIG, args.arms
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
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    write_text(args.out, f"# Made from {path}: only {', '.join(chosen)}.\n{text}")


def _print_plan(args: argparse.Namespace) -> None:
    from workflow.cluster.outlook import plan_lines

    _require_pace(args.seconds_per_step)
    plan = load_plan(read_yaml(args.config or CONFIG))
    require_readable(plan)
    require_sources(plan)
    look = partial(plan_lines, plan, args.profile, args.seconds_per_step)
    print("\n".join(patiently(look, "the results", LOOK_PATIENCE_S, for_others=False)))


def _preflight(args: argparse.Namespace) -> None:
    from workflow.preflight.command import show_preflight

    _require_pace(args.seconds_per_step)
    show_preflight(read_yaml(args.config or CONFIG), args.profile, args.seconds_per_step, args.json)


def _resolve_settings(args: argparse.Namespace) -> None:
    from workflow.preflight.command import resolve_settings

    resolve_settings(args.request, args.stack, args.out)


def _write_preflight(args: argparse.Namespace) -> None:
    from workflow.preflight.command import write_preflight_of

    write_preflight_of(args.request, args.settings, args.out, args.imported)


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
        plan = load_plan(read_yaml(config or CONFIG))
        return patiently(lambda: of_plan(plan), "the inputs", LOOK_PATIENCE_S, for_others=False)
    if config is not None:
        raise UserError(f"give a configuration or --experiment, not both (got {config} and {name})")
    return patiently(lambda: of_name(name), "the plan", LOOK_PATIENCE_S, for_others=False)


def _compare(args: argparse.Namespace) -> None:
    from workflow.compare import compare

    compare(args)


def _doctor(args: argparse.Namespace) -> None:
    from workflow.doctor.diagnosis import doctor

    config = args.config or (CONFIG if CONFIG.is_file() else None)
    doctor(config, args.profile, args.across_nodes, args.json)


def _new(args: argparse.Namespace) -> None:
    from workflow.new_experiment import new_experiment

    new_experiment(args)


def _print_headline(args: argparse.Namespace) -> None:
    from analysis.verdict.arm_verdict import ArmVerdict
    from analysis.verdict.verdict_block import add_to_job_summary, escaped, print_verdict, verdict_markdown
    from common.contracts import VerdictFile, read_file

    plan = load_plan(read_yaml(args.config or CONFIG))
    folder = Path(plan.folder)
    if not (folder / "verdict.json").is_file():
        raise UserError(f"no report yet in {folder}; make it with: snakemake --profile profiles/local")
    if read_json(folder / "plan.json")["fingerprint"] != plan.fingerprint:
        raise UserError(
            f"the report in {folder} is of another configuration than this one; start snakemake with this one"
        )
    found: VerdictFile = read_file(VerdictFile, folder / "verdict.json", "the report", ("arms", "no_comparison"))
    verdicts = [ArmVerdict.from_json(dict(one)) for one in found["arms"]]
    add_to_job_summary(verdict_markdown(verdicts) or escaped(found["no_comparison"]))
    print_verdict(verdicts)
    print("\n".join(filter(None, [found["no_comparison"], f"report: {(folder / 'report.html').resolve()}"])))


def _schema(args: argparse.Namespace) -> None:
    if not args.write:
        print(config_schema(), end="")
        return
    write_text(ROOT / SCHEMA_FILE, config_schema())
    write_text(ROOT / REFERENCE_FILE, reference_page())
    write_text(ROOT / FILES_PAGE, files_page())


def _write_plan(args: argparse.Namespace) -> None:
    write_json(args.out, load_plan(args.request).as_json())


def _prepare_inputs(args: argparse.Namespace) -> None:
    folder = args.out.parent
    write_json(folder / "request.json", args.request)
    done = run_in_stack(args.stack, "node.inputs", "--request", folder / "request.json", "--out", folder)
    if not done or not args.out.is_file():
        # The job has said what is wrong, in one message of its own.
        raise UserError("data and model could not be prepared; nothing was trained (see the message above)")


# What argparse is told of each argument.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "config": {"type": Path, "nargs": "?", "help": "default: config.yaml"},
    "words": {"nargs": "*", "metavar": "CONFIG or RUN", "help": "a .yaml file first; runs (default: all)"},
    "arms": {"nargs": "+", "metavar": "ARM"},
    "request": {"type": json.loads, "help": "JSON"},
    "--profile": {"type": Path, "help": "whose GPUs, walltime and setup.sh (default: slurm, if it is there)"},
    "--seconds-per-step": {"type": float, "metavar": "X", "help": "for runs that were not measured yet"},
    "--json": {"action": "store_true", "help": "print it as JSON"},
    "sources": {"nargs": "+", "metavar": "RUN", "help": "a log, a folder, wandb:entity/project/id, or NAME=log1,log2"},
    "--names": {"metavar": "A,B", "help": "names of the arms; one that begins with an engine's says its engine"},
    "--trainer": {"help": "the trainer; in compare, of runs that do not say it"},
    "--release": {"help": "the trainer's release, of runs that do not say it"},
    "--mode": {"help": "the trainer's loop, of runs that do not say it (docs/import.md)"},
    "--warmup": {"type": int, "default": 1, "metavar": "N", "help": "first steps that do not count (default: 1)"},
    "--report": {"type": Path, "default": Path("comparison"), "metavar": "FOLDER", "help": "default: comparison"},
    "--verdict-only": {"action": "store_true", "help": "write no report"},
    "--open": {"action": "store_true", "help": "open the report in a browser"},
    "--save": {"type": Path, "metavar": "FILE", "help": "write the configuration that snakemake takes"},
    "--markdown": {"action": "store_true", "help": "print the verdict as Markdown"},
    "file": {"type": Path, "nargs": "?", "help": "what to write (default: my.yaml)"},
    "--gpus": {"metavar": "N", "help": "GPUs of a node for each run (default: 0, this machine's CPU)"},
    "--nodes": {"metavar": "N", "help": "nodes of each run (default: 1)"},
    "--engines": {"metavar": "A,B", "help": "what is compared, the baseline first (default: all of the trainer)"},
    "--model": {"metavar": "SOURCE", "help": "a folder, or a hub's id@commit"},
    "--data": {"metavar": "SOURCE", "help": "a .jsonl, .json or .parquet file, or a hub's id@commit"},
    "--columns": {"metavar": "PROMPT,ANSWER", "help": "the data's columns (default: by their names)"},
    "--rewards": {"metavar": "A,B", "help": "built-in rewards, or FILE.py:FUNCTION (docs/rewards.md)"},
    "--steps": {"metavar": "N", "help": "training steps of each run (default: 20)"},
    "--partition": {"metavar": "NAME", "help": "of Slurm; writes a profile beside profiles/slurm"},
    "--experiment": {"metavar": "NAME", "help": "read results/NAME/plan.json, not a configuration"},
    "--every": {"type": float, "metavar": "SECONDS", "help": "print it again and again until all is finished"},
    "--now": {"action": "store_true", "help": "on this machine: without finishing the step"},
    "--across-nodes": {"action": "store_true", "help": "with a job of seconds that tries locks and renames on a node"},
    "--write": {"action": "store_true", "help": "write the committed schema and docs page anew"},
    "--stack": {"type": Path, "required": True, "help": "the stack's verify.json"},
    "--settings": {"type": Path, "nargs": "*", "default": [], "help": "the resolved settings of all runs"},
    "--imported": {"type": Path, "nargs": "*", "default": [], "help": "what the imported runs' sources hold"},
    "--out": {"type": Path, "required": True},
}
# A command's meaning, its function and the names of its arguments.
COMMANDS: dict[str, tuple[str, Callable[[argparse.Namespace], None], str]] = {
    "compare": (
        "compare logs: prints the verdict, then writes the report",
        _compare,
        "sources --names --trainer --release --mode --warmup --report --verdict-only --open --save --json --markdown",
    ),
    "doctor": (
        "look at this machine and this site: what is missing, and its remedy",
        _doctor,
        "config --profile --across-nodes --json",
    ),
    "new": (
        "write a commented configuration: asks, or takes flags",
        _new,
        "file --gpus --nodes --trainer --engines --model --data --columns --rewards --steps --partition",
    ),
    "plan": (
        "list the runs that a configuration means, and what they will cost",
        _print_plan,
        "config --profile --seconds-per-step",
    ),
    "preflight": (
        "what is impossible, unequal or odd in an experiment, and why",
        _preflight,
        "config --profile --seconds-per-step --json",
    ),
    "status": ("what each run is doing, and why it waits", _status, "config --experiment --every"),
    "cancel": ("end an experiment's jobs, or those of some of its runs", _cancel, "words --experiment --now"),
    "only": ("write a configuration with some of another one's arms", _only, "config arms --out"),
    "headline": ("print a finished report's verdict and where it lies", _print_headline, "config"),
    "schema": ("print the configuration's JSON schema", _schema, "--write"),
    "write-plan": ("for rules: write plan.json", _write_plan, "request --out"),
    "prepare-inputs": (
        "for rules: prepare data and model with a stack's libraries",
        _prepare_inputs,
        "request --stack --out",
    ),
    "resolve-settings": (
        "for rules: all of a trainer's settings, by its stack",
        _resolve_settings,
        "request --stack --out",
    ),
    "write-preflight": ("for rules: write preflight.json", _write_preflight, "request --settings --imported --out"),
}


if __name__ == "__main__":
    sys.exit(main())
