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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from analysis.imports.formats import WANDB, format_of, inspect_source, read_source
from analysis.imports.import_run import CACHE, write_import
from analysis.imports.source_check import engine_of_source, trainer_of_source
from analysis.sources.wandb_api import download
from common.errors import UserError
from common.files import write_json, write_text_at
from common.messages import unknown_name
from common.verdicts import count_of
from engines import engines
from trainers.logs.record import Imported
from trainers.registry import trainer_named, trainers
from trainers.section import NAME_PATTERN
from trainers.timers.lookup import releases
from trainers.timers.tree import release_of
from workflow.config.plan import Plan, load_plan
from workflow.preflight import write_preflight

if TYPE_CHECKING:
    from analysis.report.content import Content

_DOWNLOADS = 4
_USE = "rolloutbench compare A.log B.log"
MARK = "compared"
"""Marks a folder that this command may overwrite; it never writes into an experiment's results."""
SAVED = "# Written by rolloutbench compare; "


@dataclass
class ComparedArm:
    """One arm: its given name, its runs' sources, and what was detected in them."""

    name: str
    sources: list[str]
    trainer: str = ""
    engine: str = ""
    release: str = ""
    inspected: list[Imported] = field(default_factory=list)


def compare(args: argparse.Namespace) -> None:
    """Run `rolloutbench compare`: print the verdict, then write the report."""
    arms = _arms(args.sources, args.names)
    _require_values(args)
    _download([source for arm in arms for source in arm.sources])
    for arm in arms:
        _detect(arm, args)
    _name(arms)
    raw = _configuration(arms, args)
    plan = load_plan(raw)
    _require_free(args)
    if args.save:
        text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
        use = f"in a checkout: snakemake --profile profiles/local --configfile {shlex.quote(str(args.save))}"
        write_text_at(args.save, f"{SAVED}{use}\n{text}", "give another file with --save")
    if args.verdict_only:
        with tempfile.TemporaryDirectory() as folder:
            _compare(plan, Path(folder), args)
        return
    folder = args.report
    existed = folder.exists()
    mark = "Written by rolloutbench compare, which may write this folder again.\n"
    write_text_at(folder / MARK, mark, "give another folder with --report, or take --verdict-only")
    try:
        content = _compare(plan, folder, args)
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
    modes = dict.fromkeys(tree.mode for trainer in trainers() for tree in trainer.trees if tree.mode)
    if args.mode and args.mode not in ("sync", *modes):
        raise UserError(f"--mode: {unknown_name('mode', args.mode, ('sync', *modes))}")
    if args.warmup < 0:
        raise UserError(f"--warmup must be 0 or more (got {args.warmup})")


def _require_free(args: argparse.Namespace) -> None:
    """`UserError` if an output file or folder holds something that this command did not write."""
    save, folder = args.save, args.report
    if save and save.exists() and not _begins_with(save, SAVED):
        raise UserError(f"{save} exists and was not written by this command; give another file with --save")
    if args.verdict_only or (folder / MARK).is_file() or not folder.exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise UserError(f"{folder} exists and holds no report of this command; give another folder with --report")


def _compare(plan: Plan, folder: Path, args: argparse.Namespace) -> Content:
    """Import every run and print the verdict; returns the report's content."""
    from analysis.verdict.verdict_block import add_to_job_summary, escaped, print_verdict, verdict_markdown

    content = import_content(plan, folder)
    from analysis.runs import LEFT_OUT

    left_out = [verdict.text for verdict in content.verdicts if verdict.code in LEFT_OUT]
    for line in (*_summary(plan, content.runs), *left_out):
        _say(line, args)
    as_markdown = verdict_markdown(content.arm_verdicts) or escaped(content.no_comparison)
    add_to_job_summary(as_markdown)
    if args.json:
        print(json.dumps(content.verdict_file, indent=1, ensure_ascii=False, allow_nan=False))
    elif args.markdown:
        print(as_markdown)
    elif content.arm_verdicts:
        print_verdict(content.arm_verdicts)
    else:
        print(content.no_comparison)
    sys.stdout.flush()
    return content


def import_content(plan: Plan, folder: Path) -> Content:
    """Import a plan's runs into a folder with the workflow's layout, and read the report's content from it."""
    write_json(folder / "plan.json", plan.as_json())
    for run_id, run in plan.imports.items():
        write_import(run.spec, folder / "runs" / run_id / "steps.parquet", CACHE)
    imported = [folder / "runs" / run_id / "imported.json" for run_id in plan.imports]
    write_preflight(plan, [], folder / "preflight.json", imported)
    from analysis.report.content import read_content

    return read_content(folder / "plan.json", folder, None, None)


def _say(line: str, args: argparse.Namespace) -> None:
    """Print a line beside the verdict: on stderr if a program reads the verdict."""
    print(line, file=sys.stderr if args.json or args.markdown else sys.stdout, flush=True)


def _summary(plan: Plan, runs: Sequence[Any]) -> list[str]:
    """A line per arm: its timer tree, engine, runs and steps."""
    lines = []
    for name in plan.config.arms:
        own = [run for run in runs if run.arm == name]
        if own:
            steps = sum(run.steps["step"].nunique() for run in own)
            trees = ", ".join(dict.fromkeys(run.tree.name for run in own))
            engine = plan.config.arms[name].engine
            lines.append(f"{name}: {trees}, {engine}; {count_of(len(own), 'run')}, {count_of(steps, 'step')}")
    return lines


def _arms(given: Sequence[str], names: str | None) -> list[ComparedArm]:
    """The arms on the command line: `log`, `log1,log2`, or `NAME=log1,log2`."""
    arms = []
    for word in given:
        name, equals, rest = word.partition("=")
        if not equals or Path(word).exists() or not re.fullmatch(NAME_PATTERN, name):
            name, rest = "", word
        sources = [rest] if Path(rest).exists() else [one for one in rest.split(",") if one]
        arms.append(ComparedArm(name, [_source(one) for one in sources]))
    if len(arms) < 2:
        raise UserError(f"compare needs two runs or more (got {len(arms)}); give another log: {_USE}")
    if names is not None:
        listed = names.split(",")
        if len(listed) != len(arms):
            raise UserError(f"--names must name the {len(arms)} arms in order (got {names!r})")
        for arm, name in zip(arms, listed, strict=True):
            arm.name = name
    seen: dict[str, str] = {}
    for source in (source for arm in arms for source in arm.sources):
        same = source if source.startswith(WANDB) else str(Path(source).resolve())
        if same in seen and Path(source).suffix.lower() not in (".csv", ".tsv"):
            raise UserError(f"{seen[same]} and {source} are the same run; give the logs of two runs")
        seen[same] = source
    return arms


def _source(given: str) -> str:
    """A source for the import; a folder without a wandb run stands for the one log in it."""
    path = Path(given).expanduser()
    if given.startswith(WANDB) or not path.is_dir():
        return given
    if any(path.glob("**/*.wandb")):
        return given
    inside = [file for file in sorted(path.iterdir()) if file.is_file() and not file.name.startswith(".")]
    logs = [file for file in inside if _is_log(file)]
    if len(logs) != 1:
        if not logs:
            raise UserError(f"{given} holds no readable log; give a log or another folder")
        found = ", ".join(file.name for file in logs)
        raise UserError(
            f"{given} holds {len(logs)} logs ({found}); give one, or several separated by commas (seeds of one arm)"
        )
    return str(logs[0])


def _is_log(file: Path) -> bool:
    try:
        return bool(format_of(str(file)))
    except UserError:
        return False


def _download(sources: Sequence[str]) -> None:
    """Download runs from wandb into the cache, several at once: each mostly waits for the server."""
    with ThreadPoolExecutor(_DOWNLOADS) as pool:
        list(
            pool.map(lambda one: download(one.removeprefix(WANDB), CACHE), [s for s in sources if s.startswith(WANDB)])
        )


def _detect(arm: ComparedArm, args: argparse.Namespace) -> None:
    """Detect trainer, engine and release of an arm: from its sources, else from the flags."""
    for source in arm.sources:
        arm.inspected.append(_inspect(source, bool(args.release)))
    first = arm.sources[0]
    possible = [found[0] for source in arm.inspected if (found := trainer_of_source(source)) is not None]
    packages = {name for source in arm.inspected for name in source.versions}
    fitting = [name for name in (possible[0] if possible else ()) if not args.trainer or name == args.trainer]
    if len(fitting) > 1:
        fitting = [name for name in fitting if trainer_named(name).distribution in packages] or fitting
    if args.trainer and not fitting:
        if possible:
            raise UserError(
                f"{first} is a run of {' or '.join(possible[0])} (got --trainer {args.trainer}); omit --trainer"
            )
        fitting = [args.trainer]
    if len(fitting) != 1:
        among = f" ({' or '.join(fitting)})" if fitting else ""
        raise UserError(f"{first} does not name its trainer{among}; give --trainer NAME")
    arm.trainer = fitting[0]
    engine_names = [named[0] for source in arm.inspected if (named := engine_of_source(source)) is not None]
    by_name = _engine_named(arm.name)
    arm.engine = engine_names[0] if engine_names else by_name
    if by_name and arm.engine != by_name:
        raise UserError(
            f"{first} is a run of {arm.engine}, and its arm is named {arm.name}; swap the logs or rename it"
        )
    of_trainer = trainer_named(arm.trainer).engines or tuple(one.name for one in engines())
    if not arm.engine and len(of_trainer) == 1:
        arm.engine = of_trainer[0]
    if not arm.engine:
        known = ", ".join(of_trainer)
        raise UserError(f"{first} does not name its engine ({known}); name the arms by engine: --names vllm,sglang")
    package = trainer_named(arm.trainer).distribution
    versions = [v for found in arm.inspected if (v := found.versions.get(package) or found.versions.get(arm.trainer))]
    if not versions and not args.release and all(source.tree is None for source in arm.inspected):
        known_releases = releases(arm.trainer)
        raise UserError(
            f"{first} does not name its release of {arm.trainer} ({', '.join(known_releases)}); "
            f"give it: --release {known_releases[-1]}"
        )
    if versions and args.release and release_of(versions[0]) != release_of(args.release):
        raise UserError(f"{first} says {arm.trainer} {versions[0]} (got --release {args.release}); omit --release")
    arm.release = "" if versions else args.release or ""


def _inspect(source: str, versioned: bool) -> Imported:
    """What a source states beside its steps."""
    try:
        found = None if source.startswith(WANDB) else inspect_source(source, None, versioned)
        return found or read_source(source, None, (), CACHE)
    except UserError as error:
        # Omit the list of all formats: it is longer than the rest of the message.
        what, listed, _ = str(error).partition(" What can be imported:")
        raise UserError(f"{what} docs/import.md lists what can be read" if listed else what) from None


def _engine_named(name: str) -> str:
    """The engine that an arm's name begins with; else ""."""
    begins = name.lower().partition("-")[0]
    return next((one.name for one in engines() if begins in (one.name, *one.aliases)), "")


def _name(arms: Sequence[ComparedArm]) -> None:
    """Name the unnamed arms: by engine, else by trainer and engine, else by file."""
    for make in (
        lambda arm: arm.engine,
        lambda arm: f"{arm.trainer}-{arm.engine}",
        lambda arm: re.sub(r"[^A-Za-z0-9_.]+", "-", Path(arm.sources[0]).stem).strip("-.")[:40],
    ):
        names = [arm.name or make(arm) for arm in arms]
        if len(set(names)) == len(names):
            break
    else:
        names = [arm.name or f"{arm.engine}-{number}" for number, arm in enumerate(arms, 1)]
    for arm, name in zip(arms, names, strict=True):
        arm.name = name
    if len({arm.name for arm in arms}) < len(arms):
        raise UserError(
            f"two arms have the same name ({', '.join(arm.name for arm in arms)}); give other names with --names"
        )


def _configuration(arms: Sequence[ComparedArm], args: argparse.Namespace) -> dict[str, Any]:
    """The configuration for the workflow."""
    given = {"mode": args.mode, "format": None}
    return {
        "experiment": (args.save or args.report).stem,
        "baseline": arms[0].name,
        "warmup_steps": args.warmup,
        "arms": {
            arm.name: {
                "trainer": arm.trainer,
                "engine": arm.engine,
                "import": {
                    **({"version": arm.release} if arm.release else {}),
                    **{key: value for key, value in given.items() if value},
                    "runs": arm.sources,
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
