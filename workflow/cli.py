"""Runs a command of the `rolloutbench` program; `workflow/commands/table.py` describes the commands.

Every result is a Snakemake target, and some commands only serve rules. A command's modules are imported when it runs,
so help and completion answer at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UserError
from common.files import ROOT, is_checkout, read_json, write_json, write_text, write_text_at
from common.messages import report_errors, unknown_name
from common.retry import READ_PATIENCE_S, retry_io
from workflow.commands.table import completion, parser
from workflow.start import loading

if TYPE_CHECKING:
    from workflow.config.plan import Plan
    from workflow.runs.experiment import Experiment

CONFIG = Path("config.yaml")


def main(argv: list[str] | None = None) -> int:
    """The command line; an exit code of `workflow.commands.table.EXIT_CODES`."""
    try:
        program = parser()
        args = program.parse_args(argv)
        if args.command is None:
            program.print_help(sys.stderr)
            return 2
        action, modules = ACTIONS[args.command]
        with loading():
            for module in modules.split():
                importlib.import_module(module)
        status = report_errors(lambda: action(args))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader has ended, such as `| head`: discard the rest of the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def _plan(config: Path | None) -> Plan:
    """The plan of a configuration file."""
    from workflow.config.plan import load_plan
    from workflow.config.reading import read_yaml

    return load_plan(read_yaml(config or CONFIG))


def _only(args: argparse.Namespace) -> None:
    """Write a configuration with some of the arms. Its runs are the same: no fingerprint depends on other arms."""
    import yaml

    from workflow.config.plan import load_plan
    from workflow.config.reading import read_yaml

    path, arms = args.config or CONFIG, args.arms
    raw = dict(read_yaml(path))
    every = raw.get("arms")
    if not isinstance(every, dict):
        raise UserError(f"{path} has no arms to choose from")
    for arm in arms:
        if arm not in every:
            raise UserError(f"{path}: {unknown_name('arm', arm, list(every))}")
    chosen = {name: arm for name, arm in every.items() if name in arms}
    raw |= {"arms": chosen, "baseline": raw["baseline"] if raw.get("baseline") in chosen else next(iter(chosen))}
    if sweep := raw.get("sweep"):
        others = tuple(f"arms.{name}." for name in every if name not in arms)
        raw["sweep"] = {path: values for path, values in sweep.items() if not str(path).startswith(others)}
    load_plan(raw)
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    write_text_at(args.out, f"# Made from {path}: only {', '.join(chosen)}.\n{text}", "give another file with --out")


def _print_plan(args: argparse.Namespace) -> None:
    from workflow.commands.estimate import plan_lines
    from workflow.config.entry import require_readable, require_sources

    _require_pace(args.seconds_per_step)
    plan = _plan(args.config)
    require_readable(plan)
    require_sources(plan)
    lines = partial(plan_lines, plan, args.profile, args.seconds_per_step)
    print("\n".join(retry_io(lines, "the results", READ_PATIENCE_S, for_others=False)))


def _preflight(args: argparse.Namespace) -> None:
    from workflow.config.reading import read_yaml
    from workflow.preflight.command import show_preflight

    _require_pace(args.seconds_per_step)
    show_preflight(read_yaml(args.config or CONFIG), args.profile, args.seconds_per_step, args.json)


def _resolve_settings(args: argparse.Namespace) -> None:
    from workflow.preflight.command import resolve_settings

    resolve_settings(args.request, args.stack, args.out)


def _write_preflight(args: argparse.Namespace) -> None:
    from workflow.preflight.command import write_and_summarize

    write_and_summarize(args.request, args.settings, args.out, args.imported)


def _require_pace(seconds_per_step: float | None) -> None:
    if seconds_per_step is not None and not 0 < seconds_per_step < float("inf"):
        raise UserError(f"--seconds-per-step must be more than 0 (got {seconds_per_step:g})")


def _status(args: argparse.Namespace) -> None:
    from workflow.commands.status import EVERY_S, show_status, watch

    if args.every is not None and not 0 < args.every < float("inf"):
        raise UserError(f"--every must be more than 0 seconds (got {args.every:g})")
    find = _experiment(args.config, args.experiment)
    if args.watch:
        watch(find, args.every or EVERY_S)
    else:
        show_status(find, args.every)


def _cancel(args: argparse.Namespace) -> None:
    from workflow.commands.cancel import cancel

    given: list[str] = args.words
    first = Path(given[0] if given else "")
    is_config = bool(given) and (first.suffix in (".yaml", ".yml", ".json") or first.is_file())
    config, runs = (first, given[1:]) if is_config else (None, given)
    experiment = retry_io(_experiment(config, args.experiment), "the experiment", READ_PATIENCE_S, for_others=False)
    print("\n".join(cancel(experiment, runs, args.now)))


def _experiment(config: Path | None, name: str | None) -> Callable[[], Experiment]:
    """A function that reads the experiment's current files; a configuration is read once, now."""
    from workflow.runs.experiment import named_experiment, planned_experiment

    if name is None:
        plan = _plan(config)
        return lambda: planned_experiment(plan)
    if config is not None:
        raise UserError(f"give a configuration or --experiment, not both (got {config} and {name})")
    return lambda: named_experiment(name)


def _compare(args: argparse.Namespace) -> None:
    from workflow.commands.compare import compare

    compare(args)


def _ab(args: argparse.Namespace) -> None:
    from workflow.commands.ab import ab

    ab(args)


def _doctor(args: argparse.Namespace) -> None:
    from workflow.doctor.diagnosis import doctor

    config = args.config or (CONFIG if CONFIG.is_file() else None)
    doctor(config, args.profile, args.across_nodes, args.json)


def _new(args: argparse.Namespace) -> None:
    if args.from_ is not None:
        from workflow.commands.new_from_script import new_from_script

        new_from_script(args)
        return
    from workflow.commands.new import new_experiment

    new_experiment(args)


def require_report(plan: Plan, config: Path) -> Path:
    """The folder of a plan's finished report; `UserError` if it is missing or of another configuration."""
    folder = Path(plan.folder)
    if not (folder / "verdict.json").is_file():
        on_gpus = any(run.spec["workload"]["gpus_per_node"] for run in plan.runs.values())
        profile = "slurm" if on_gpus else "profiles/local"
        use = f"snakemake --profile {profile} --configfile {shlex.quote(str(config))}"
        raise UserError(f"no report yet in {folder}; create it with: {use}")
    if read_json(folder / "plan.json")["fingerprint"] != plan.fingerprint:
        raise UserError(f"the report in {folder} was made from another configuration; run snakemake with this one")
    return folder


def _print_verdict(args: argparse.Namespace) -> None:
    from analysis.verdict.arm_verdict import ArmVerdict
    from analysis.verdict.verdict_block import add_to_job_summary, escaped, print_verdict, verdict_markdown
    from common.contracts import VerdictFile, read_file

    plan = _plan(args.config)
    folder = require_report(plan, args.config or CONFIG)
    found: VerdictFile = read_file(VerdictFile, folder / "verdict.json", "the report", ("arms", "no_comparison"))
    verdicts = [ArmVerdict.from_json(dict(one)) for one in found["arms"]]
    add_to_job_summary(verdict_markdown(verdicts) or escaped(found["no_comparison"]))
    print_verdict(verdicts)
    print("\n".join(filter(None, [found["no_comparison"], f"report: {folder / 'report.html'}"])))


def _schema(args: argparse.Namespace) -> None:
    from workflow.config.schema import (
        FILES_PAGE,
        REFERENCE_FILE,
        SCHEMA_FILE,
        config_schema,
        files_page,
        reference_page,
    )

    if not args.write:
        print(config_schema(), end="")
        return
    if not is_checkout():
        raise UserError("schema --write needs a checkout, and this is an installation; run it in a checkout")
    write_text(ROOT / SCHEMA_FILE, config_schema())
    write_text(ROOT / REFERENCE_FILE, reference_page())
    write_text(ROOT / FILES_PAGE, files_page())


def _completion(args: argparse.Namespace) -> None:
    print(completion(args.shell))


def _write_plan(args: argparse.Namespace) -> None:
    from workflow.config.plan import load_plan

    write_json(args.out, load_plan(args.request).as_json())


def _prepare_inputs(args: argparse.Namespace) -> None:
    from workflow.stacks.environment import run_in_stack

    folder = args.out.parent
    write_json(folder / "request.json", args.request)
    done = run_in_stack(args.stack, "node.inputs", "--request", folder / "request.json", "--out", folder)
    if not done or not args.out.is_file():
        # The job has already printed the reason.
        raise UserError("data and model could not be prepared; nothing was trained (see the message above)")


# Command -> its function, and the modules that are slow to load.
ACTIONS: dict[str, tuple[Callable[[argparse.Namespace], None], str]] = {
    "compare": (_compare, "workflow.commands.compare"),
    "ab": (_ab, "workflow.commands.ab"),
    "new": (_new, "workflow.commands.new"),
    "doctor": (_doctor, "workflow.doctor.diagnosis"),
    "preflight": (_preflight, "workflow.preflight.command"),
    "plan": (_print_plan, "workflow.commands.estimate workflow.config.entry"),
    "status": (_status, "workflow.commands.status workflow.config.plan"),
    "cancel": (_cancel, "workflow.commands.cancel workflow.config.plan"),
    "verdict": (_print_verdict, "analysis.verdict.verdict_block workflow.config.plan"),
    "headline": (_print_verdict, "analysis.verdict.verdict_block workflow.config.plan"),
    "only": (_only, "workflow.config.plan"),
    "schema": (_schema, "workflow.config.schema"),
    "completion": (_completion, "shtab"),
    "write-plan": (_write_plan, "workflow.config.plan"),
    "prepare-inputs": (_prepare_inputs, "workflow.stacks.environment"),
    "resolve-settings": (_resolve_settings, "workflow.preflight.command"),
    "write-preflight": (_write_preflight, "workflow.preflight.command"),
}


if __name__ == "__main__":
    sys.exit(main())
