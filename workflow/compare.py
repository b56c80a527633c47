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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from analysis.imports.formats import WANDB, format_of, inspect_source, read_source
from analysis.imports.import_run import CACHE, write_import
from analysis.imports.source_check import engine_of_source, trainer_of_source
from analysis.imports.tree_by_data import BY_DATA, trainers_by_data
from analysis.sources.any_table import COLUMNS_TAKEN
from analysis.sources.phases_csv import FORMAT as PHASES
from analysis.sources.wandb_api import download
from common.errors import UserError
from common.files import write_json, write_text_at
from common.messages import unknown_name
from common.verdicts import count_of
from engines import UNKNOWN, engines
from trainers.logs.record import Imported
from trainers.registry import trainer_named, trainers
from trainers.section import NAME_PATTERN
from trainers.timers.own import MODE
from trainers.timers.tree import release_of
from workflow.config.plan import Plan, load_plan
from workflow.preflight import write_preflight

if TYPE_CHECKING:
    from analysis.report.content import Content

_DOWNLOADS = 4
# A log of one step is shorter.
_SHORT_BYTES = 64_000
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
    trainer_unknown: bool = False
    """Whether its sources may be of another trainer, too."""
    release_unknown: bool = False
    """Whether neither its sources nor a flag name its release."""
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
            _compare(plan, Path(folder), args, arms)
        return
    folder = args.report
    existed = folder.exists()
    mark = "Written by rolloutbench compare, which may write this folder again.\n"
    write_text_at(folder / MARK, mark, "give another folder with --report, or take --verdict-only")
    try:
        content = _compare(plan, folder, args, arms)
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
    if args.warmup is not None and args.warmup < 0:
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


def _compare(plan: Plan, folder: Path, args: argparse.Namespace, arms: Sequence[ComparedArm]) -> Content:
    """Import every run and print the verdict; returns the report's content."""
    from analysis.verdict.verdict_block import add_to_job_summary, escaped, print_verdict, verdict_markdown

    content = import_content(plan, folder)
    from analysis.runs import LEFT_OUT

    left_out = [verdict.text for verdict in content.verdicts if verdict.code in LEFT_OUT]
    taken = [verdict.text.partition(": ")[2] for verdict in content.verdicts if verdict.code == COLUMNS_TAKEN]
    for line in (*_summary(plan, content.runs), *left_out, *dict.fromkeys(taken)):
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
    for line in _not_in_logs(arms, content):
        _say(line, args)
    return content


def _not_in_logs(arms: Sequence[ComparedArm], content: Content) -> list[str]:
    """What these logs do not name, after the answer: how it was read, and the flags that would add it."""
    lacking, flags, gains = [], [], []
    if guessed := [arm for arm in arms if arm.trainer_unknown and arm.trainer != UNKNOWN]:
        lacking.append(f"trainer (read as {guessed[0].trainer})")
        flags.append(f"--trainer {guessed[0].trainer}")
    if any(arm.engine == UNKNOWN for arm in arms):
        lacking.append("engine")
        flags.append(f"--names {','.join(_example_names(arms))}")
        gains.append("the engines' settings and floors")
    # Of a log with the step's seconds alone, every release says the same.
    phases = {run.arm: run.steps.loc[run.steps["kind"] == "phase", "name"].nunique() for run in content.runs}
    divided = {run.arm: run for run in content.runs if phases[run.arm] > 1}
    if unnamed := [divided[arm.name] for arm in arms if arm.release_unknown and arm.name in divided]:
        lacking.append("release")
        flags.append(f"--release {unnamed[0].tree.series}")
        gains.append("the release's defaults")
    by_data = [verdict.text for verdict in content.verdicts if verdict.code == BY_DATA]
    if not lacking:
        return [f"{text}." for text in by_data[:1]]
    how = f" {by_data[0].partition('. ')[2]}." if by_data and unnamed else ""
    adds = f" would add: {', '.join(gains)}" if gains else " would make that certain"
    return [f"Not in these logs: {', '.join(lacking)}.{how} `{' '.join(flags)}`{adds}."]


def _example_names(arms: Sequence[ComparedArm]) -> list[str]:
    """Names for the arms by engines of their trainer, so that no two are equal."""
    of_trainer = trainer_named(arms[0].trainer).engines
    known = [one.name for one in engines() if one.name in of_trainer or not of_trainer]
    rounds = [f"-{at // len(known) + 1}" if at >= len(known) else "" for at in range(len(arms))]
    return [known[at % len(known)] + number for at, number in enumerate(rounds)]


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
            trees = ", ".join(dict.fromkeys("a table" if run.tree.mode == MODE else run.tree.name for run in own))
            engine = plan.config.arms[name].engine
            engine = "engine not in its log" if engine == UNKNOWN else engine
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
    if not fitting and any(source.tree is not None for source in arm.inspected):
        fitting = [UNKNOWN]
    if not fitting and arm.inspected[0].format == PHASES:
        fitting = trainers_by_data(read_source(first, PHASES, (), CACHE).read)
    if not fitting:
        raise UserError(f"{first} does not name its trainer; give --trainer NAME")
    # Those that one file may be of log the same numbers.
    arm.trainer, arm.trainer_unknown = fitting[0], len(fitting) > 1 or not possible
    engine_names = [named[0] for source in arm.inspected if (named := engine_of_source(source)) is not None]
    by_name = _engine_named(arm.name)
    arm.engine = engine_names[0] if engine_names else by_name
    if by_name and arm.engine != by_name:
        raise UserError(
            f"{first} is a run of {arm.engine}, and its arm is named {arm.name}; swap the logs or rename it"
        )
    of_trainer = trainer_named(arm.trainer).engines
    if not arm.engine:
        arm.engine = of_trainer[0] if len(of_trainer) == 1 else UNKNOWN
    package = trainer_named(arm.trainer).distribution
    versions = [v for found in arm.inspected if (v := found.versions.get(package) or found.versions.get(arm.trainer))]
    if versions and args.release and release_of(versions[0]) != release_of(args.release):
        raise UserError(f"{first} says {arm.trainer} {versions[0]} (got --release {args.release}); omit --release")
    arm.release = "" if versions else args.release or ""
    arm.release_unknown = not versions and not args.release and all(source.tree is None for source in arm.inspected)


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
    """The engine that an arm's name begins with (`vllm-eager`, `vllm2`); else ""."""
    begins = re.match(r"[a-z]*", name.lower())
    return next((one.name for one in engines() if begins and begins[0] in (one.name, *one.aliases)), "")


def _name(arms: Sequence[ComparedArm]) -> None:
    """Name the unnamed arms: by engine, else by trainer and engine, else by the shortest paths that differ."""
    known = all(arm.name or arm.engine != UNKNOWN for arm in arms)
    deepest = max(len(Path(arm.sources[0]).parts) for arm in arms)
    for make in (
        *((lambda arm: arm.engine, lambda arm: f"{arm.trainer}-{arm.engine}") if known else ()),
        *(partial(_file_name, parts=parts) for parts in range(1, deepest + 1)),
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


def _file_name(arm: ComparedArm, parts: int) -> str:
    """The last parts of the path of an arm's first source, as a name."""
    path = Path(arm.sources[0])
    text = "-".join([*path.parent.parts[len(path.parent.parts) - parts + 1 :], path.stem])
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[-40:]


def _configuration(arms: Sequence[ComparedArm], args: argparse.Namespace) -> dict[str, Any]:
    """The configuration for the workflow."""
    given = {"mode": args.mode, "step_seconds": args.step_seconds}
    return {
        "experiment": (args.save or args.report).stem,
        "baseline": arms[0].name,
        "warmup_steps": (0 if _has_one_step(arms, args) else 1) if args.warmup is None else args.warmup,
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


def _has_one_step(arms: Sequence[ComparedArm], args: argparse.Namespace) -> bool:
    """Whether a short log has only one step: leaving it out as a warm-up would leave nothing to compare."""
    for arm in arms:
        for source, inspected in zip(arm.sources, arm.inspected, strict=True):
            records = inspected.read.records
            if not records and Path(source).is_file() and Path(source).stat().st_size <= _SHORT_BYTES:
                records = read_source(source, None, (arm.name, arm.engine), CACHE, args.step_seconds).read.records
            if len(records) == 1:
                return True
    return False


def _begins_with(file: Path, text: str) -> bool:
    try:
        return file.read_text(encoding="utf-8").startswith(text)
    except (OSError, UnicodeDecodeError):
        return False
