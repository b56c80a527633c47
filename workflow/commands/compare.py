"""Compares logs in one command: detects their trainers and engines, and makes the report without Snakemake."""

from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import yaml

from analysis.imports.import_run import with_hashes, write_facts
from analysis.imports.one_run import ONE_RUN
from analysis.imports.which_tree import NEAREST
from analysis.published_means import published, published_file, published_lines
from analysis.report.arm_lines import arm_lines, of_results, rows_of_kind
from analysis.report.content import Content
from analysis.runs import LEFT_OUT, Run
from analysis.sources.plain_table import COLUMNS_TAKEN
from analysis.steps import write_steps
from analysis.verdict.verdict_block import add_to_job_summary, escaped, print_verdict, verdict_markdown
from common.errors import UserError
from common.files import write_json, write_text_at
from common.messages import unknown_name
from common.shown import shown, shown_lines
from engines import UNKNOWN
from trainers.logs.hf_rows import SUPERVISED, TIMES_FROM_BARS
from trainers.registry import trainers
from workflow.commands.compared_arms import ComparedArm, arms_of, detect, download_all, name_arms, require_release
from workflow.commands.compared_runs import compared_content, divide

if TYPE_CHECKING:
    from workflow.config.plan import Plan

READ_AS = (COLUMNS_TAKEN, SUPERVISED, TIMES_FROM_BARS)
"""What was taken for the steps' seconds, and a log of another kind of training, stand beside the answer."""
MARK = "compared"
"""Marks a folder that this command may overwrite; it never writes into an experiment's results."""
SAVED = "# Written by rolloutbench compare; "


def compare(args: argparse.Namespace) -> None:
    """Run `rolloutbench compare`: print the verdict, then write the report."""
    if args.published:
        held = [one for path in args.sources for one in published(Path(path))]
        text = json.dumps(published_file(held), indent=1) if args.json else "\n".join(published_lines(held))
        print(text if args.json else shown_lines(text))
        return
    arms = arms_of(args.sources, args.names)
    _require_values(args)
    download_all([source for arm in arms for source in arm.sources])
    left_out = [detect(arm, args.trainer, args.release, args.step_seconds, args.unit) for arm in arms]
    require_release(arms, args.release)
    name_arms(arms)
    _require_free(args)
    sentences = [f"{arm.name}: {text}" for arm, texts in zip(arms, left_out, strict=True) for text in texts]
    sentences += divide(arms)
    content = compared_content(arms, args)
    folder = args.report
    plan = None
    if raw := _configuration(arms, args, content):
        from workflow.config.plan import load_plan  # loads the configuration's model

        plan = load_plan(raw)
    if args.save:
        from workflow.commands.start_runs import run_line

        text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
        write_text_at(args.save, f"{SAVED}{run_line(args.save)}\n{text}", "give another file with --save")
    if not args.verdict_only:
        mark = "Written by rolloutbench compare, which may write this folder again.\n"
        write_text_at(folder / MARK, mark, "give another folder with --report, or take --verdict-only")
    _answer(content, arms, args, sentences)
    if args.verdict_only:
        return
    # Loading Altair takes seconds: print the verdict first.
    from analysis.report.__main__ import write_report

    _write_runs(content, plan, folder)
    write_report(content, folder)
    _say(f"report: {folder / 'report.html'}", args)
    if args.open:
        webbrowser.open((folder / "report.html").resolve().as_uri())


def _write_runs(content: Content, plan: Plan | None, folder: Path) -> None:
    """Write the files that the workflow leaves of these runs."""
    for run in content.runs:
        write_facts(run.spec, with_hashes(run.done), folder / "runs" / run.run_id)
        write_steps(run.written, folder / "runs" / run.run_id / "steps.parquet")
    if plan is not None and content.preflight is not None:
        write_json(folder / "plan.json", plan.as_json())
        write_json(folder / "preflight.json", content.preflight.as_json())


def _require_values(args: argparse.Namespace) -> None:
    """`UserError` for an impossible value of a flag, before any log is read."""
    if args.mode:
        modes = (
            "sync",
            *dict.fromkeys(tree.mode for trainer in trainers() for tree in trainer.logs.trees if tree.mode),
        )
        if args.mode not in modes:
            raise UserError(f"--mode: {unknown_name('mode', args.mode, modes)}")


def _require_free(args: argparse.Namespace) -> None:
    """`UserError` if an output file or folder holds something that this command did not write."""
    save, folder = args.save, args.report
    if save and save.exists() and not _begins_with(save, SAVED):
        raise UserError(f"{save} exists and was not written by this command; give another file with --save")
    if args.verdict_only or (folder / MARK).is_file() or not folder.exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise UserError(f"{folder} exists and holds no report of this command; give another folder with --report")


def _answer(content: Content, arms: Sequence[ComparedArm], args: argparse.Namespace, sentences: Sequence[str]) -> None:
    """Print how the logs were read, and the verdict."""
    # Errors and warnings are caveats of the verdict, where there is one.
    read = [one for one in dict.fromkeys(content.read_verdicts) if one.level == "note" or not content.arm_verdicts]
    left_out = [verdict.text for verdict in read if verdict.code in LEFT_OUT]
    taken = [_without_source(verdict.text, arms) for verdict in read if verdict.code in READ_AS]
    taken += [f"{verdict.text}." for verdict in read if verdict.code == ONE_RUN]
    # Of a single result all doubts are told: there is no verdict whose caveats they would be.
    results = any(of_results(run) for run in content.runs)
    told = [f"{verdict.text}." for verdict in read if results and verdict.level != "note"]
    if (args.step_seconds or args.unit) and not any(verdict.code == COLUMNS_TAKEN for verdict in read):
        flag = "--step-seconds" if args.step_seconds else "--unit"
        told.append(f"{flag} was not used: it is of a column of a table, and no run was read from one.")
    unnamed = _without_release(arms, content)
    for line in (*arm_lines(content, unnamed), *left_out, *sentences, *dict.fromkeys(taken), *told):
        _say(line, args)

    def as_markdown() -> str:
        return verdict_markdown(content.arm_verdicts) or escaped(content.no_comparison)

    add_to_job_summary(as_markdown)
    # What flags would add changes nothing where nothing can be compared.
    lacking = _not_in_logs(arms, content, [*unnamed.values()]) if content.arm_verdicts else []
    if args.json:
        print(json.dumps(content.verdict_file, indent=1, ensure_ascii=False, allow_nan=False))
    elif args.markdown:
        print(as_markdown())
    elif content.arm_verdicts:
        print_verdict(content.arm_verdicts, lacking)
    else:
        print(shown(content.no_comparison))
    sys.stdout.flush()
    for line in lacking if args.json or args.markdown else ():
        _say(line, args)


def _without_source(text: str, arms: Sequence[ComparedArm]) -> str:
    """A finding without the name of the log that it begins with, which may have a colon itself."""
    named = [f"{Path(source).expanduser()}: " for arm in arms for source in arm.sources]
    return text.removeprefix(max(filter(text.startswith, named), key=len, default=""))


def _not_in_logs(arms: Sequence[ComparedArm], content: Content, unnamed: Sequence[Run]) -> list[str]:
    """What these logs do not name, after the answer: how it was read, and the flags that would add it.

    `unnamed`: the runs of `_without_release`.
    """
    lacking, flags, gains = [], [], []
    if guessed := [arm for arm in arms if arm.trainer_unknown and arm.trainer != UNKNOWN]:
        lacking.append(f"trainer (read as {guessed[0].trainer})")
        flags.append(f"--trainer {guessed[0].trainer}")
    if any(arm.engine == UNKNOWN for arm in arms):
        lacking.append("engine")
        flags.append(f"--names {','.join('ENGINE' if arm.engine == UNKNOWN else arm.name for arm in arms)}")
        gains.append("the engines' settings and floors")
    if unnamed:
        lacking.append("release")
        # The guess is no hint: who takes it over makes it a fact.
        flags.append("--release RELEASE")
        gains.append("the release's defaults")
    # A release that is named but not declared is a doubt of its own.
    nearest = [one.text for one in content.read_verdicts if (one.level, one.code) == ("note", NEAREST)]
    found = [f"{text}." for text in nearest[:1] if not unnamed]
    how = f" Its timers are read as those of {unnamed[0].tree.name}." if unnamed else ""
    adds = f" would add: {', '.join(gains)}" if gains else " would make that certain"
    yours = ["your engines, in the logs' order"] if any(arm.engine == UNKNOWN for arm in arms) else []
    yours += ["your release"] if unnamed else []
    adds = f" (with {', and '.join(yours)}){adds}" if yours else adds
    return [*found, f"Not in these logs: {', '.join(lacking)}.{how} `{' '.join(flags)}`{adds}."] if lacking else found


def _without_release(arms: Sequence[ComparedArm], content: Content) -> dict[str, Run]:
    """A run of each arm whose logs do not name their release, though its timers depend on it."""
    # Of a log with the step's seconds alone, every release says the same.
    divided = {run.arm: run for run in content.runs if len(pc.unique(rows_of_kind(run, "phase")["name"])) > 1}
    return {arm.name: divided[arm.name] for arm in arms if arm.release_unknown and arm.name in divided}


def _say(line: str, args: argparse.Namespace) -> None:
    """Print a line beside the verdict: on stderr if a program reads the verdict."""
    print(shown(line), file=sys.stderr if args.json or args.markdown else sys.stdout, flush=True)


def _configuration(arms: Sequence[ComparedArm], args: argparse.Namespace, content: Content) -> dict[str, Any]:
    """The configuration for the workflow; {} where only the verdict is wanted."""
    if args.verdict_only and not args.save:
        return {}
    given = {"mode": args.mode, "step_seconds": args.step_seconds, "unit": args.unit}
    return {
        "experiment": content.plan.experiment,
        "baseline": content.plan.baseline,
        "warmup_steps": content.plan.warmup_steps,
        **({"report": {"spread": args.spread}} if args.spread else {}),
        "arms": {
            arm.name: {
                "trainer": arm.trainer,
                "engine": arm.engine,
                "import": {
                    **({"version": arm.release} if arm.release else {}),
                    **{key: value for key, value in given.items() if value},
                    "runs": [{"source": run} if len(run) > 1 else run[0] for run in arm.runs],
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
