"""Compares logs in one command: detects their trainers and engines, and makes the report without Snakemake."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.imports.configurations import CONFIGURATION_CHANGED
from analysis.imports.import_run import CACHE, ONE_RUN, write_import
from analysis.imports.tree_by_data import BY_DATA
from analysis.report.content import Content, read_content
from analysis.runs import LEFT_OUT, Run
from analysis.sources.any_table import COLUMNS_TAKEN
from analysis.verdict.verdict_block import add_to_job_summary, escaped, print_verdict, verdict_markdown
from common.errors import UserError
from common.files import read_json, write_json, write_text_at
from common.messages import unknown_name
from common.shown import shown
from common.verdicts import count_of
from engines import UNKNOWN
from trainers.logs.hf_rows import SUPERVISED, TIMES_FROM_BARS
from trainers.logs.record import STEPS_LOGGED, Imported
from trainers.registry import trainer_named, trainers
from trainers.timers.own import MODE
from workflow.commands.compared_arms import ComparedArm, arms_of, detect, download_all, name_arms, require_release
from workflow.commands.run_parts import runs_of
from workflow.config.plan import Plan, load_plan
from workflow.preflight import write_preflight

READ_AS = (COLUMNS_TAKEN, SUPERVISED, TIMES_FROM_BARS, CONFIGURATION_CHANGED)
"""What was taken for the steps' seconds, and a log of another kind of training, stand beside the answer."""
MARK = "compared"
"""Marks a folder that this command may overwrite; it never writes into an experiment's results."""
SAVED = "# Written by rolloutbench compare; "


def compare(args: argparse.Namespace) -> None:
    """Run `rolloutbench compare`: print the verdict, then write the report."""
    arms = arms_of(args.sources, args.names)
    _require_values(args)
    download_all([source for arm in arms for source in arm.sources])
    for arm in arms:
        detect(arm, args.trainer, args.release, args.step_seconds)
    require_release(arms, args.release)
    name_arms(arms)
    _require_free(args)
    if args.verdict_only:
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), args, arms)
        return
    folder = args.report
    existed = folder.exists()
    mark = "Written by rolloutbench compare, which may write this folder again.\n"
    write_text_at(folder / MARK, mark, "give another folder with --report, or take --verdict-only")
    try:
        content = _compare(folder, args, arms)
    except UserError:
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    # Loading Altair takes seconds: print the verdict first.
    from analysis.report.__main__ import write_report

    write_report(content, folder)
    _say(f"report: {folder / 'report.html'}", args)
    if args.open:
        webbrowser.open((folder / "report.html").resolve().as_uri())


def _require_values(args: argparse.Namespace) -> None:
    """`UserError` for an impossible value of a flag, before any log is read."""
    modes = dict.fromkeys(tree.mode for trainer in trainers() for tree in trainer.logs.trees if tree.mode)
    if args.mode and args.mode not in ("sync", *modes):
        raise UserError(f"--mode: {unknown_name('mode', args.mode, ('sync', *modes))}")
    if args.warmup is not None and args.warmup < 0:
        raise UserError(f"--warmup must be 0 or more (got {args.warmup})")
    if args.spread is not None:
        number = args.spread.removesuffix("%")
        share = float(number) / 100 if re.fullmatch(r"\d{1,3}(\.\d+)?", number) else 0.0
        if not 0 < share < 1:
            raise UserError(f"--spread must be a share such as 8% (got {args.spread!r})")
        args.spread = share


def _require_free(args: argparse.Namespace) -> None:
    """`UserError` if an output file or folder holds something that this command did not write."""
    save, folder = args.save, args.report
    if save and save.exists() and not _begins_with(save, SAVED):
        raise UserError(f"{save} exists and was not written by this command; give another file with --save")
    if args.verdict_only or (folder / MARK).is_file() or not folder.exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise UserError(f"{folder} exists and holds no report of this command; give another folder with --report")


def _compare(folder: Path, args: argparse.Namespace, arms: Sequence[ComparedArm]) -> Content:
    """Import every run, save the configuration and print the verdict; returns the report's content."""
    among = {arm.name: runs_of(arm, args.step_seconds) for arm in arms}
    raw = _configuration(arms, args, {name: runs for name, (runs, _) in among.items()})
    plan = load_plan(raw)
    import_runs(plan, folder, {source: read for arm in arms for source, read in arm.read_sources().items()})
    if args.warmup is None and _has_one_step(plan, folder):
        # Leaving it out as a warm-up would leave nothing to compare.
        raw["warmup_steps"] = 0
        plan = load_plan(raw)
    if args.save:
        text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
        use = f"in a checkout: snakemake --profile profiles/local --configfile {shlex.quote(str(args.save))}"
        write_text_at(args.save, f"{SAVED}{use}\n{text}", "give another file with --save")
    content = imported_content(plan, folder)
    read = list(dict.fromkeys(content.read_verdicts))
    left_out = [verdict.text for verdict in read if verdict.code in LEFT_OUT]
    taken = [_without_source(verdict.text, arms) for verdict in read if verdict.code in READ_AS]
    taken += [f"{verdict.text}." for verdict in read if verdict.code == ONE_RUN]
    taken += [f"{name}: {text}." for name, (_, sentences) in among.items() for text in sentences]
    codes = {code for trainer in trainers() for code in trainer.logs.printed_verdicts}
    told = [f"{verdict.text}." for verdict in read if verdict.code in codes and verdict.level != "note"]
    if args.step_seconds and not any(verdict.code == COLUMNS_TAKEN for verdict in read):
        told.append("--step-seconds was not used: it names a column of a table, and no run was read from one.")
    for line in (*_summary(plan, content.runs), *left_out, *dict.fromkeys(taken), *told):
        _say(line, args)
    as_markdown = verdict_markdown(content.arm_verdicts) or escaped(content.no_comparison)
    add_to_job_summary(as_markdown)
    # What flags would add changes nothing where nothing can be compared.
    lacking = _not_in_logs(arms, content) if content.arm_verdicts else []
    if args.json:
        print(json.dumps(content.verdict_file, indent=1, ensure_ascii=False, allow_nan=False))
    elif args.markdown:
        print(as_markdown)
    elif content.arm_verdicts:
        print_verdict(content.arm_verdicts, lacking)
    else:
        print(shown(content.no_comparison))
    sys.stdout.flush()
    for line in lacking if args.json or args.markdown else ():
        _say(line, args)
    return content


def _without_source(text: str, arms: Sequence[ComparedArm]) -> str:
    """A finding without the name of the log that it begins with, which may have a colon itself."""
    named = [f"{Path(source).expanduser()}: " for arm in arms for source in arm.sources]
    return text.removeprefix(max(filter(text.startswith, named), key=len, default=""))


def _not_in_logs(arms: Sequence[ComparedArm], content: Content) -> list[str]:
    """What these logs do not name, after the answer: how it was read, and the flags that would add it."""
    lacking, flags, gains = [], [], []
    if guessed := [arm for arm in arms if arm.trainer_unknown and arm.trainer != UNKNOWN]:
        lacking.append(f"trainer (read as {guessed[0].trainer})")
        flags.append(f"--trainer {guessed[0].trainer}")
    if any(arm.engine == UNKNOWN for arm in arms):
        lacking.append("engine")
        flags.append(f"--names {','.join('ENGINE' if arm.engine == UNKNOWN else arm.name for arm in arms)}")
        gains.append("the engines' settings and floors")
    # Of a log with the step's seconds alone, every release says the same.
    phases = {run.arm: run.steps.groupby("kind", observed=True)["name"].nunique()["phase"] for run in content.runs}
    divided = {run.arm: run for run in content.runs if phases[run.arm] > 1}
    if unnamed := [divided[arm.name] for arm in arms if arm.release_unknown and arm.name in divided]:
        lacking.append("release")
        # A tree that several releases share has the names of all.
        flags.append(f"--release {unnamed[0].tree.series.rpartition(' ')[2]}")
        gains.append("the release's defaults")
    by_data = [verdict.text for verdict in content.read_verdicts if verdict.code == BY_DATA]
    # A release that is named but not declared is a doubt of its own.
    found = [f"{text}." for text in by_data[:1] if not unnamed]
    how = by_data[0].partition(". ")[2] if by_data and unnamed else ""
    how = f" {how}." if how else ""
    adds = f" would add: {', '.join(gains)}" if gains else " would make that certain"
    if any(arm.engine == UNKNOWN for arm in arms):
        adds = f" (with your engines, in the logs' order){adds}"
    return [*found, f"Not in these logs: {', '.join(lacking)}.{how} `{' '.join(flags)}`{adds}."] if lacking else found


def import_runs(plan: Plan, folder: Path, read: dict[str, Imported] | None = None) -> None:
    """Import a plan's runs into a folder with the workflow's layout; `read` are sources that were read before."""
    for run_id, run in plan.imports.items():
        write_import(run.spec, folder / "runs" / run_id / "steps.parquet", CACHE, read)


def imported_content(plan: Plan, folder: Path) -> Content:
    """The content of a report on a plan whose runs are imported into a folder."""
    write_json(folder / "plan.json", plan.as_json())
    write_preflight(plan, [], folder / "preflight.json", _imported_files(plan, folder))
    return read_content(folder / "plan.json", folder, None, None)


def _imported_files(plan: Plan, folder: Path) -> list[Path]:
    return [folder / "runs" / run_id / "imported.json" for run_id in plan.imports]


def _has_one_step(plan: Plan, folder: Path) -> bool:
    """Whether a run that warms up has only one step."""
    found = map(read_json, _imported_files(plan, folder))
    trainers_of = (trainer_named(str(run.spec["trainer"])) for run in plan.imports.values())
    return any(trainer.step_of == "step" and one["steps"] == 1 for trainer, one in zip(trainers_of, found, strict=True))


def _say(line: str, args: argparse.Namespace) -> None:
    """Print a line beside the verdict: on stderr if a program reads the verdict."""
    print(shown(line), file=sys.stderr if args.json or args.markdown else sys.stdout, flush=True)


def _summary(plan: Plan, runs: Sequence[Run]) -> list[str]:
    """A line per arm: its timer tree, engine, runs and steps."""
    lines = []
    for name in plan.config.arms:
        own = [run for run in runs if run.arm == name]
        if own:
            tables = [run.steps for run in own]
            steps = sum(map(_steps_of, tables))
            trees = ", ".join(dict.fromkeys(_source_of(run) for run in own))
            engine = plan.config.arms[name].engine
            engine = "engine not in its log" if engine == UNKNOWN else engine
            printed = trainer_named(plan.config.arms[name].trainer).logs.printed
            rows = f"{count_of(len(own), 'run')}, {count_of(steps, 'result' if printed else 'step')}"
            lines.append(f"{name}: {trees}, {engine}; {rows}")
            if numbers := [text for scalar, unit in printed.items() if (text := _range(tables, scalar, *unit))]:
                lines.append(f"  {', '.join(numbers)}")
    return lines


def _steps_of(table: pd.DataFrame) -> int:
    """The training steps that a run's rows stand for."""
    means = table[table["name"] == STEPS_LOGGED]
    return int(table["step"].nunique() + (means["value"].clip(upper=means["step"]) - 1).sum())


def _source_of(run: Run) -> str:
    """What a run was read from: its timer tree, a table, or a benchmark's format."""
    if trainer_named(run.tree.trainer).logs.printed:
        return str(run.done["sources"][0]["format"])
    return "a table" if run.tree.mode == MODE else run.tree.name


def _range(tables: Sequence[pd.DataFrame], scalar: str, unit: str, scale: float) -> str:
    """A scalar of runs' tidy steps with its unit, from its lowest to its highest; empty without it."""
    rows = (steps[(steps["kind"] == "scalar") & (steps["name"] == scalar)] for steps in tables)
    values = [scale * value for own in rows for value in own["value"]]
    ends = [f"{end(values):,.{3 if end(values) < 1000 else 4}g}" for end in (min, max)] if values else []
    return f"{' to '.join(dict.fromkeys(ends))} {unit}" if ends else ""


def _configuration(
    arms: Sequence[ComparedArm], args: argparse.Namespace, runs: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """The configuration for the workflow."""
    trained = [arm for arm in arms if trainer_named(arm.trainer).trains]
    given = {"mode": args.mode, "step_seconds": args.step_seconds}
    return {
        "experiment": (args.save or args.report).stem,
        # The tables and figures are of the baseline's kind, and a training has more of them.
        "baseline": (trained if len(trained) > 1 else arms)[0].name,
        "warmup_steps": 1 if args.warmup is None else args.warmup,
        **({"report": {"spread": args.spread}} if args.spread else {}),
        "arms": {
            arm.name: {
                "trainer": arm.trainer,
                "engine": arm.engine,
                "import": {
                    **({"version": arm.release} if arm.release else {}),
                    **{key: value for key, value in given.items() if value},
                    "runs": runs[arm.name],
                },
            }
            for arm in arms
        },
    }


def _begins_with(file: Path, text: str) -> bool:
    try:
        return file.read_text(encoding="utf-8").startswith(text)
    except (OSError, UnicodeDecodeError):
        return False
