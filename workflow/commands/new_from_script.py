"""Writes an experiment from a launch script (`rolloutbench new --from run.sh`), and lists what it does not have of it.

The script is read and never run. The experiment's own arm is planned and its settings are compared with the script's,
key by key: every difference is in the list.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT
from common.messages import join_first, short_repr, unknown_name
from common.redaction import without_secrets
from common.verdicts import count_of
from node.built_in_rewards import ROW
from node.hub import DATA_SUFFIXES, commit_command, source_kind
from node.own_reward import ARGUMENTS
from trainers.launching import Left
from trainers.section import NO_COMMIT
from trainers.workload import Workload
from workflow.commands.new import (
    columns_in,
    commented,
    given_flags,
    name_of,
    new_experiment,
    print_next,
    shipped_stacks,
    source_of,
    usual_columns,
    write_experiment,
)
from workflow.commands.site_profile import NEEDED, profile_of, unrequested
from workflow.config.plan import Plan, plan_runs, stack_facts
from workflow.config.reading import parse_config
from workflow.launch_scripts.launch import LaunchScript, read_launch_script
from workflow.launch_scripts.script import train_keys
from workflow.stacks import Stack
from workflow.stacks.found import record

# The script's folder at its start: paths are looked for there.
_WORKING_FOLDER = re.compile(r"^(\$PWD|\$\{PWD\}|\$\(pwd\))/")


def new(args: argparse.Namespace) -> None:
    """Run `rolloutbench new`: write experiment, profile and setup of a launch script, and what they lack of it."""
    if args.from_ is None:
        new_experiment(args)
        return
    script: Path = args.from_
    file: Path = args.file or Path(f"{script.stem}.yaml")
    name = name_of(file)
    folder = Path("profiles") / name
    given = given_flags(args, ("nodes", "gpus", "steps", "partition"))
    read = read_launch_script(script, int(given.get("nodes", 0)), int(given.get("gpus", 0)))
    if args.partition:
        read.request["slurm_partition"] = args.partition
    stacks = _stacks(read, args)
    raw = _experiment(read, stacks, name, script, args)
    plan = _planned(raw, stacks, read)
    raw["arms"] = {arm: raw["arms"][arm] for arm in plan.config.arms}
    read.left += differences(read, plan)
    writes = {file: commented(raw, f"rolloutbench new {file} --from {script}")}
    first = [
        f"write the commit of {section['source']} into workload.{key}.revision of {file}"
        for key, section in raw["workload"].items()
        if isinstance(section, dict) and section.get("revision") == NO_COMMIT
    ]
    first += [f"in {file}: {todo}" for word, todo in read.launched.to_write.items() if word not in given]
    if read.request:
        setup = folder / "setup.sh"
        # A profile's paths are seen from the checkout.
        seen = setup if Path.cwd() == ROOT else setup.absolute()
        keys = train_keys(read.request)
        writes[folder / "config.yaml"], note = profile_of({**keys, "setup": str(seen)}, folder)
        writes[setup] = _setup_script(read, script)
        missing, where = unrequested(read.request), f"into {folder}/config.yaml"
        read.left += [Left(0, key, f"no #SBATCH line has it, {missing[key]}", f"write it {where}") for key in missing]
        needed = " and ".join(key for key, why in missing.items() if why == NEEDED)
        first += [*([f"write {needed} {where}"] * bool(needed)), *([note] * bool(note))]
    else:
        why = "only a profile's setup script can have it, and no #SBATCH line asks for a profile"
        read.left += [Left(0, line, why, "--partition NAME writes one") for line in read.setup]
    write_experiment(writes, plan, int(raw["workload"]["steps"]))
    _print_left(read.left)
    print_next(file, folder if read.request else None, plan, raw["workload"], first)


def _stacks(read: LaunchScript, args: argparse.Namespace) -> dict[str, Stack]:
    """A stack for each engine, the script's own first; a `UserError` if its own or a wanted one has none."""
    trainer, launched = read.trainer, read.launched
    on_gpus = bool(launched.workload["gpus_per_node"])
    if args.stack_python is not None:
        return _found_stacks(read, args)
    known = [one for one in reversed(shipped_stacks(on_gpus)) if one.trainer == trainer.name]
    # The script's release, else the newest.
    known.sort(key=lambda one: one.trainer_version != launched.release)
    of_engine: dict[str, Stack] = {}
    for one in known:
        of_engine.setdefault(one.engine, one)
    given = args.engines.split(",") if args.engines else []
    for engine in (launched.engine, *given):
        if engine not in of_engine:
            whose = "--engines" if engine in given else "the script's engine"
            error = unknown_name("engine", engine, of_engine)
            here = f"stacks of {trainer.label or trainer.name} here"
            raise UserError(f"{whose}: {error} ({here}); `rolloutbench ab` runs a script as it is")
    # Without --engines the arms with another engine have the same release of the trainer.
    release = of_engine[launched.engine].trainer_version
    alike = [one for one, stack in of_engine.items() if stack.trainer_version == release]
    others = given or [one for one in (*read.engines, *trainer.engines) if one in alike]
    return {engine: of_engine[engine] for engine in dict.fromkeys([launched.engine, *others])}


def _found_stacks(read: LaunchScript, args: argparse.Namespace) -> dict[str, Stack]:
    """The environments of --stack-python, recorded as they are: one for all engines, or one for each."""
    engines = args.engines.split(",") if args.engines else [read.launched.engine]
    pythons = args.stack_python.split(",")
    if len(pythons) not in (1, len(engines)):
        raise UserError(
            f"--stack-python names {len(pythons)} environments for {count_of(len(engines), 'engine')} "
            f"({', '.join(engines)}); give one, or one for each of --engines in its order (nothing was written)"
        )
    # The script's own arm comes first; without its engine there is none to compare the settings with.
    pairs = dict(zip(engines, pythons * len(engines), strict=False))
    if read.launched.engine not in pairs:
        raise UserError(f"--engines must have {read.launched.engine}, the script's own engine (got {args.engines})")
    name = name_of(args.file or args.from_)
    stacks = {}
    try:
        for one in (read.launched.engine, *engines):
            stacks[one] = record(f"{name}-{one}", Path(pairs[one]).expanduser(), trainer=read.trainer.name, engine=one)
        return stacks
    except UserError as error:
        raise UserError(str(error).replace("--python", "--stack-python")) from None


def _experiment(
    read: LaunchScript, stacks: Mapping[str, Stack], name: str, script: Path, args: argparse.Namespace
) -> dict[str, Any]:
    launched = read.launched
    workload = {key: value for key, value in launched.workload.items() if value is not None}
    workload["steps"] = int(args.steps or workload["steps"])
    workload["save_steps"] = min(workload["save_steps"], workload["steps"])
    for key in ("model", "data"):
        if (given := getattr(args, key)) is not None:
            # The script's revision and validation file belong to its own source.
            others = {name: value for name, value in workload[key].items() if name not in ("revision", "test_source")}
            workload[key] = others | source_of(given)
        _require_source(workload[key], key, read, script)
    for reward in workload["rewards"]:
        if "source" in reward:
            reward["source"] = _located(reward["source"], f"reward {reward['function']}", read, script)
    _columns(workload)
    if all(stack.accelerator == "cpu" for stack in stacks.values()):
        workload |= {"gpus_per_node": 0, "dtype": "float32"}
        read.left.append(Left(0, "dtype", "float32 and no GPU: the environment's torch is the build for CPUs"))
    arms = {
        engine: {"trainer": read.trainer.name, "engine": engine, "stack": stack.name}
        | ({"options": launched.engine_options[engine]} if engine in launched.engine_options else {})
        for engine, stack in stacks.items()
    }
    shared = {key: value for key, value in (("options", launched.options), ("env", read.env)) if value}
    return {
        "experiment": name,
        "baseline": launched.engine,
        "arms": arms,
        "workload": _in_order(workload),
        **({"shared": {read.trainer.name: shared}} if shared else {}),
        "seeds": [0, 1],
        "warmup_steps": min(2, workload["steps"] - 1),
    }


def _columns(workload: Mapping[str, Any]) -> None:
    """The data's columns, as far as a file here shows them: the prompt's, the answer's, and those that rewards take."""
    data = workload["data"]
    known = columns_in(data["source"])
    if not known:
        return
    if "prompt_column" not in data:
        data["prompt_column"], data["answer_column"] = usual_columns(known)
    taken = {name for reward in workload["rewards"] for name in _parameters(reward)}
    others = (data["prompt_column"], data["answer_column"], *ARGUMENTS, *ROW)
    if more := [name for name in known if name in taken and name not in others]:
        data["columns"] = more


def _parameters(reward: Mapping[str, Any]) -> set[str]:
    """The parameters of all functions in a reward's file; none if it cannot be read here."""
    path = Path(reward.get("source", "")).expanduser()
    try:
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (SyntaxError, ValueError, OSError):
        tree = None
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} if tree else set()


def _in_order(workload: Mapping[str, Any]) -> dict[str, Any]:
    first = ("model", "data", "rewards", "steps", "batch_size", "num_generations", "mini_batch_size")
    return {key: workload[key] for key in dict.fromkeys((*first, *workload)) if key in workload}


def _require_source(section: dict[str, Any], what: str, read: LaunchScript, script: Path) -> None:
    """A path from where the script has it, or a hub's id with a commit; a doubt in the list, where there is one."""
    source = section["source"] = _WORKING_FOLDER.sub("", section["source"])
    if not source or source == "None" or (source.startswith("$") and source_kind(source) == "hub"):
        got = f" (got {source}, which it does not set)" if source.startswith("$") else ""
        raise UserError(f"{script} names no {what}{got}; give it: --{what} SOURCE (nothing was written)")
    if what == "data" and source_kind(source) == "local" and not source.endswith(DATA_SUFFIXES):
        kinds = ", ".join(DATA_SUFFIXES)
        raise UserError(
            f"{script}: its data {source!r} is no {kinds} file; give one: --data FILE (nothing was written)"
        )
    if (validation := section.get("test_source")) is not None:
        section["test_source"] = _located(_WORKING_FOLDER.sub("", validation), "validation", read, script)
        if not validation.endswith(DATA_SUFFIXES):
            read.left.append(
                Left(0, section.pop("test_source"), "no file for validation: the training's rows are used")
            )
    if source_kind(source) == "local":
        section["source"] = _located(source, what, read, script)
    elif source_kind(source) == "hub" and not section.get("revision"):
        section["revision"] = NO_COMMIT
        why = "an experiment needs the commit of a hub's id, so that it cannot change under a result"
        do = f"write it into workload.{what}.revision: {commit_command(source, what == 'data')}"
        read.left.append(Left(0, source, why, do))


def _located(source: str, what: str, read: LaunchScript, script: Path) -> str:
    """A path as it is found from here; one that exists nowhere stays, and the list says so."""
    path = Path(source).expanduser()
    folders = [one.words[-1].text for one in read.script.commands if one.words and one.words[0].text == "cd"]
    for folder in ("", *folders, str(script.parent)):
        if (Path(folder).expanduser() / path).exists():
            return str(Path(folder).expanduser() / path) if folder else source
    read.left.append(Left(0, source, f"{what}: no such path on this machine; it was kept", "correct it if it is wrong"))
    return source


def _planned(raw: dict[str, Any], stacks: Mapping[str, Stack], read: LaunchScript) -> Plan:
    """The plan of the arms that can be planned; a `UserError` if the script's own cannot."""

    def planned(some: Mapping[str, Any]) -> Plan:
        return plan_runs(parse_config(some), stack_facts)

    here = [one for one in raw["workload"]["rewards"] if Path(one.get("source", "")).expanduser().exists()]
    checked = {**raw, "workload": {**raw["workload"], "rewards": here or [{"name": "accuracy"}]}}
    # Any commit will do for a plan.
    checked = json.loads(json.dumps(checked).replace(NO_COMMIT, "0" * 40))
    for engine in stacks:
        if engine != raw["baseline"]:
            try:
                planned({**checked, "arms": {name: raw["arms"][name] for name in (raw["baseline"], engine)}})
            except UserError as error:
                why = f"no arm with this engine: {' '.join(str(error).split())}"
                read.left.append(Left(0, engine, why))
                checked["arms"] = {name: arm for name, arm in checked["arms"].items() if name != engine}
    try:
        return planned(checked)
    except UserError as error:
        unknown = [f"; {one.what}: {one.why}; {one.do}" for one in read.left if one.why.startswith("not set in")]
        raise UserError(
            f"{' '.join(str(error).split())}{''.join(unknown)} (nothing was written; `rolloutbench ab` runs a script "
            "as it is)"
        ) from None


def differences(read: LaunchScript, plan: Plan) -> list[Left]:
    """Settings of the script that the experiment's own arm has otherwise, except those that the list names already."""
    launch, trainer = read.trainer.launch, read.trainer
    assert launch is not None
    run = next(run for run in plan.runs.values() if run.spec["arm"] == plan.config.baseline)
    args = run.spec["trainer_args"]
    theirs = launch.settings(read.words, read.around, str(args.get("version", "")))
    ours = trainer.settings(args, None).values
    named = {name for one in read.left for name in re.findall(r"[\w.]+", one.what)}
    found = []
    for key, value in theirs.items():
        last = key.rpartition(".")[2]
        if launch.not_compared(key) or named & {key, last} or key in trainer.bookkeeping:
            continue
        if _plain(ours.get(key)) != _plain(value):
            line = next((word.line for word in read.words if key in word.text), 0)
            owner = read.launched.owners.get(key, "")
            decides = f"workload.{owner}" if owner in Workload.model_fields else owner or "for all arms alike"
            has = f"the experiment has {short_repr(ours.get(key))} ({decides})"
            found.append(Left(line, f"{key}={short_repr(value)}", has))
    return found


def _plain(value: Any) -> Any:
    """A setting's value for comparing: 1.0 is 1, and a list of one item is the item."""
    if isinstance(value, list | tuple):
        return _plain(value[0]) if len(value) == 1 else [_plain(item) for item in value]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _setup_script(read: LaunchScript, script: Path) -> str:
    lines = "\n".join(read.setup)
    return (
        f"# From {script}. Sourced in every training job, on its first node, before the trainer starts.\n"
        "# A command that fails here ends the job; where that is no harm, add `|| true`.\n"
        + (f"{lines}\n" if lines else "")
    )


def _print_left(left: Iterable[Left]) -> None:
    """The list: the script's lines in order, then what the script does not say; equal reasons once."""
    groups: dict[tuple[str, str], list[Left]] = {}
    for one in sorted(dict.fromkeys(left), key=lambda one: one.line or 10**9):
        groups.setdefault((one.why, one.do), []).append(one)
    if groups:
        print("not in the experiment, or otherwise in it:")
    for (why, do), members in groups.items():
        lines = join_first([str(line) for line in dict.fromkeys(one.line for one in members if one.line)], 4)
        place = f"line{'s' * (',' in lines)} {lines}: " if lines else ""
        text = f"{place}{', '.join(one.what for one in members)}: {why}" + (f"; {do}" if do else "")
        text = without_secrets(text)
        shown = textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False, subsequent_indent="    ")
        print(f"  {shown}")
