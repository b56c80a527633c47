"""Writes the experiment of `rolloutbench ab`: a user's script, run as it is, once for each value of what varies."""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError
from common.messages import did_you_mean
from common.redaction import without_secrets
from common.shown import print_lines
from common.verdicts import count_of
from engines import UNKNOWN, engine_of_name, engines
from trainers.command.driver import edited, environment_of
from trainers.launching import Left
from trainers.section import NAME_PATTERN, given_names
from workflow.commands.new import given_flags, name_of
from workflow.commands.own_checkpoints import own_checkpoints, shared_checkpoints
from workflow.commands.rewriting import kept_plan, line_blocks, write_unless_edited
from workflow.commands.site_profile import profile_of, unrequested
from workflow.commands.start_runs import run_line, start
from workflow.config.plan import load_plan
from workflow.launch_scripts.script import (
    Script,
    ShellCommand,
    keys_of,
    options_of_script,
    train_keys,
    training_command,
)
from workflow.launch_scripts.shell import read_script
from workflow.launch_scripts.words import OWN_VALUE, Changes, changes_of, is_slip, read_text
from workflow.slurm.sbatch import gpus_of_gres
from workflow.slurm.site import read_site

MARK = "# Written by rolloutbench ab"
_VARY = "--vary "
_ACTIVATES = re.compile(
    r"(conda|mamba|micromamba|pyenv) (activate|shell)\b|(source|\.) \S*activate\b|module load \S*(python|conda)"
)
_FILE = re.compile(r"(?!/|~|-)[\w./-]+\.(py|sh|ya?ml|jsonl?|parquet)")
# Of #SBATCH lines: without an effect on a run.
_NAMES_ONLY = ("job-name", "output", "error", "open-mode", "requeue", "no-requeue", "ntasks", "ntasks-per-node")


@dataclass
class AbArm:
    """What one arm has of its own."""

    engine: str
    words: list[str]
    options: dict[str, Any]
    changes: Changes
    """What the script's copy has instead."""


def ab(args: argparse.Namespace) -> None:
    """Run `rolloutbench ab`: write the configuration and on Slurm a profile; say what each arm changes, and doubts."""
    text = read_text(args.script)
    script = read_script(text, args.arguments)
    _require_one_job(args.script, script)
    file: Path = args.save or Path(f"{args.script.stem}-ab.yaml")
    arms = _arms(args, text, name_of(file), training_command(script))
    options = options_of_script(text)
    request, left = keys_of(options)
    has_slurm = shutil.which("sbatch") is not None
    on_slurm = bool(args.partition or (has_slurm and request.get("slurm_partition")))
    if args.image and not on_slurm:
        raise UserError("--image is for srun --container-image (pyxis); it needs Slurm: give --partition")
    shared = {"script": str(args.script), "arguments": args.arguments, **_shared(args, script)}
    # On this machine the #SBATCH lines are comments.
    asked = (request, {name: value for _, name, value in options}) if on_slurm else ({}, {})
    shared |= _places(args, *asked)
    raw = _configuration(file, arms, shared, args.seeds)
    plan = load_plan(raw)
    profile, note = Path("profiles", name_of(file)), ""
    use = run_line(file)
    writes = {file: yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)}
    if on_slurm:
        writes[profile / "config.yaml"], note = profile_of(_train_keys(args, request, shared), profile)
    if file in write_unless_edited(writes, MARK, use):
        plan = kept_plan(file, raw, use)
    print_lines([*_changes_of(arms), *_lines_of_copies(arms, text)])
    doubts = [*dict.fromkeys(doubt for arm in arms.values() for doubt in arm.changes.doubts)]
    doubts += [*_doubts(args, script, text, [word for arm in arms.values() for word in arm.words])]
    if has_slurm and not on_slurm:
        doubts.append("the runs start on this machine, as no #SBATCH line names a partition; --partition NAME submits")
    if on_slurm:
        doubts += [*_requests_left_out(left), *_unrequested(request, shared, profile), *([note] * bool(note))]
    print_lines(f"? {without_secrets(doubt)}" for doubt in doubts)
    in_turn = sorted(plan.runs, key=lambda run_id: -plan.priorities[run_id])
    print(f"{count_of(len(plan.runs), 'run')}, in this order: {', '.join(in_turn)}")
    if not args.start:
        print(f"next: {use}")
        return
    start(file, [])


def _unrequested(request: Mapping[str, str], shared: Mapping[str, Any], profile: Path) -> Iterator[str]:
    """What no `#SBATCH` line asks for, and a job needs."""
    given = read_site(profile).train  # a user may have edited it
    for key, why in unrequested(request).items():
        if given.get(key, "") in ("", "0"):
            yield f"no #SBATCH line has {key}, {why}: write it into {profile}/config.yaml"
    if not shared.get("gpus_per_node"):
        yield "no GPU is requested: no #SBATCH line of the script asks for one; --gpus 8 does"


def _configuration(file: Path, arms: Mapping[str, AbArm], shared: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    raw = {
        "experiment": name_of(file),
        "baseline": next(iter(arms)),
        "arms": {
            name: {"trainer": "command", "engine": arm.engine, "options": {**shared, "words": arm.words, **arm.options}}
            for name, arm in arms.items()
        },
        "seeds": list(range(seeds)),
    }
    found: dict[str, Any] = json.loads(json.dumps(raw))  # without shared lists, which YAML would write as references
    return found


def _changes_of(arms: Mapping[str, AbArm]) -> list[str]:
    """What is changed in the script, with the arms of each change."""
    sentences = dict.fromkeys(sentence for arm in arms.values() for sentence in arm.changes.sentences)
    whose = {one: [name for name, arm in arms.items() if one in arm.changes.sentences] for one in sentences}
    return [f"{', '.join(names)}: {sentence}" for sentence, names in whose.items()]


def _lines_of_copies(arms: Mapping[str, AbArm], text: str) -> Iterator[str]:
    """The script's lines that any arm's copy has otherwise, each with all arms' own."""
    copies = {name: edited(text.encode(), arm.changes.edits).decode() for name, arm in arms.items()}
    blocks = [*line_blocks(text, [*copies.values()])]
    width = max(len(", ".join(arms)), len(f"line {max((line for line, *_ in blocks), default=0)}"))
    for line, before, afters in blocks:
        found: dict[str, list[str]] = {}
        for name, after in zip(arms, afters, strict=True):
            found.setdefault(after, []).append(name)
        for whose, lines in ((f"line {line}", before), *((", ".join(names), after) for after, names in found.items())):
            for number, one in enumerate(without_secrets(lines).splitlines()):
                yield f"  {'' if number else whose:>{width}} | {one}"


def _arms(args: argparse.Namespace, text: str, experiment: str, command: ShellCommand | None) -> dict[str, AbArm]:
    """The arms by name, with their changes of the script; `UserError` where values are missing or do not fit."""
    columns: dict[str, list[str]] = {}
    for given in args.vary or ():
        name, equals, listed = _flag(given)
        if not equals:
            raise UserError(f"--vary {given}: write KEY=A,B, such as actor_rollout_ref.rollout.name=vllm,sglang")
        columns[_VARY + name] = _values(_VARY + name, listed)
    keys = [_flag(given)[0] for given in (*(args.vary or ()), *(args.set or ()))]
    if twice := next((key for key in keys if keys.count(key) > 1), ""):
        raise UserError(f"{twice} is given twice; give it once, with --vary or with --set (nothing was written)")
    columns |= {f"--{key}": _values(f"--{key}", given) for key in ("python", "image") if (given := getattr(args, key))}
    if not columns:
        raise UserError("nothing varies: give --vary KEY=A,B, --python A,B or --image A,B")
    count = max(map(len, columns.values()))
    for flag, values in columns.items():
        if count == 1:
            raise UserError(f"{flag} has one value ({values[0]}); give two or more, separated by commas")
        if len(values) != count and (len(values) > 1 or flag.startswith(_VARY)):
            raise UserError(f"{flag} has {count_of(len(values), 'value')}, and another flag {count}: one for each arm")
    rows = [{flag: values[at % len(values)] for flag, values in columns.items()} for at in range(count)]
    arms = {}
    for name, row in zip(_names(args.names, rows), rows, strict=True):
        words = [f"{flag.removeprefix(_VARY)}={value}" for flag, value in row.items() if flag.startswith(_VARY)]
        words += args.set or []
        words += own_checkpoints(text, command, words, args.arguments, experiment, anew=args.resume == "restart")
        engine = next(filter(None, map(engine_of_name, row.values())), UNKNOWN)
        options = _environment(row["--python"]) if "--python" in row else {}
        options |= {"image": row["--image"]} if "--image" in row else {}
        try:
            arms[name] = AbArm(engine, words, options, changes_of(text, words, args.arguments))
            for word, meant in arms[name].changes.misspelt.items():
                raise UserError(
                    f"{word} is not in the script, which has {meant}; to add it all the same, write it there"
                )
        except UserError as error:
            raise UserError(f"{name}: {error} (nothing was written)") from None
    return arms


def _flag(given: str) -> tuple[str, str, str]:
    """`--flag=A,B` or `--flag A,B`, as the script may have it."""
    name, separator, values = re.sub(r"^(-+[\w.-]+)\s+", r"\1=", given).partition("=")
    return name, separator, values


def _values(flag: str, text: str) -> list[str]:
    """Values separated by commas; a value with a comma stands in double quotes."""
    found = next(csv.reader([text]), [])
    if not found or "" in found:
        raise UserError(f"{flag} has an empty value (got {text!r})")
    return found


def _names(given: str | None, rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The arms' names: as given, else by the first flag whose values differ."""
    if given is not None:
        return given_names(given, len(rows))
    for flag in rows[0]:
        # An environment has its folder's name, not that of its interpreter.
        texts = [re.sub(r"(/bin/[^/]+)?/*$", "", row[flag]).rpartition("/")[2] for row in rows]
        names = [re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:40] for text in texts]
        if len(set(names)) == len(names) and all(re.fullmatch(NAME_PATTERN, name) for name in names):
            return names
    return [f"arm{number}" for number in range(1, len(rows) + 1)]


def _environment(python: str) -> dict[str, str]:
    path, prefix = Path(python).expanduser(), environment_of(python)
    if not path.exists() or not (prefix / "bin").is_dir():
        raise UserError(f"--python {python} is no environment: give its interpreter (env/bin/python) or its folder")
    found = sorted(one.name for one in prefix.glob("lib/python3*/site-packages/*.dist-info"))
    return {"python": str(path.absolute()), "packages": hashlib.sha256("\n".join(found).encode()).hexdigest()[:12]}


def _shared(args: argparse.Namespace, script: Script) -> dict[str, Any]:
    """The options that all arms share, without those that are as by default."""
    found: dict[str, Any] = {"read": [*(args.read or _redirected(training_command(script)))]}
    found |= {"resume": "" if args.resume == "restart" else args.resume, "cwd": str(args.cwd or "")}
    return {key: value for key, value in found.items() if value}


def _places(args: argparse.Namespace, request: Mapping[str, str], options: Mapping[str, str]) -> dict[str, int]:
    """Nodes, GPUs and tasks of a run, from the flags, else from the script."""
    given = given_flags(args, ("nodes", "gpus"))
    if "gpus" in given and not given["gpus"].strip("0"):
        raise UserError("--gpus must be 1 or more; without a GPU omit it (got 0)")
    nodes = max(1, _number("--nodes", given.get("nodes", request.get("nodes")), 1))
    each = _number("--ntasks", options.get("ntasks"), nodes) // nodes
    found = {
        "nodes": nodes,
        "gpus_per_node": _number("--gpus", given.get("gpus"), gpus_of_gres(request.get("gres", ""))),
        "tasks_per_node": _number("--ntasks-per-node", options.get("ntasks-per-node"), each),
    }
    return {key: value for key, value in found.items() if value > (key != "gpus_per_node")}


def _number(flag: str, text: str | None, default: int) -> int:
    if text is not None and not text.isdigit():
        raise UserError(f"{flag} must be a whole number (got {text!r})")
    return default if text is None else int(text)


def _train_keys(args: argparse.Namespace, request: Mapping[str, str], shared: Mapping[str, Any]) -> dict[str, str]:
    """A profile's keys of `train`: what the script requests, else the partition's defaults."""
    gpus = shared.get("gpus_per_node", 0)
    # The script loads its modules itself, and rarely needs long for its end.
    keys = {"setup": "", "stop_grace_s": "120", **train_keys(request)}
    if args.gpus is not None or not request.get("gres"):
        keys["gres"] = f"gpu:{gpus}" if gpus else ""
    if args.partition:
        keys["slurm_partition"] = args.partition
    return {key: value for key, value in keys.items() if key != "nodes"}


def _require_one_job(file: Path, script: Script) -> None:
    for command in script.commands:
        words = [word.text for word in command.words]
        if words and words[0].rpartition("/")[2] in ("sbatch", "salloc"):
            inner = next((word for word in words[1:] if not word.startswith("-")), "what it submits, as a script")
            raise UserError(
                f"{file}, line {command.line}: the script submits itself ({' '.join(words)[:60]}), and rolloutbench "
                f"submits each run; give {inner} instead"
            )


def _doubts(args: argparse.Namespace, script: Script, text: str, words: Sequence[str]) -> Iterator[str]:
    """What may not be as the user expects, and the remedy."""
    for word in dict.fromkeys(words):
        name, _, value = word.partition("=")
        known = ["{run}", "{arm}", "{seed}"]
        yield from (f"{word}: {one} stays as it is{did_you_mean(one, known)}" for one in _other_braces(value))
        if meant := next((one.name for one in engines() if is_slip(value, one.name) and not engine_of_name(value)), ""):
            yield f"{name}={value}: no engine has this name (did you mean {meant}?)"
        if re.search(r"\$\(|`", word):
            yield f"{word}: a command in a value is text and does not run; {OWN_VALUE} keeps the script's own value"
    for one in script.commands if args.python else ():
        if _ACTIVATES.match(line := " ".join(word.text for word in one.words)):
            yield f"line {one.line}: `{line[:60]}` comes after --python and wins; remove it there, or omit --python"
    if (command := training_command(script)) is not None:
        yield from _doubts_of_training(args, command, script, text, words)
    if args.seeds > 1 and not any("{seed}" in word for word in words):
        yield "all runs of an arm have the script's own seed; --set 'KEY={seed}' gives each its number"
    if args.resume == "restart":
        yield "a time limit or a preemption starts a run over; --resume script if it continues from its own checkpoint"


def _other_braces(value: str) -> list[str]:
    """The words in braces that a run does not replace; those of Hydra and bash have a `$` in front."""
    found = re.findall(r"(?<!\$)\{\w+\}", value)
    return [one for one in found if one not in ("{run}", "{arm}", "{seed}", OWN_VALUE)]


def _requests_left_out(left: Sequence[Left]) -> Iterator[str]:
    """Options of `#SBATCH` lines that a run does not have, without those that only name a job and its output."""
    for one in left:
        option = one.what.removeprefix("--").partition("=")[0]
        if option == "signal":
            yield f"line {one.line}: {one.what}: the script gets SIGTERM, stop_grace_s of the profile before its end"
        elif option not in _NAMES_ONLY:
            yield f"line {one.line}: {one.what}: {one.why}{f'; {one.do}' * bool(one.do)}"


def _not_there(args: argparse.Namespace, command: ShellCommand, script: Script) -> Iterator[str]:
    """Files of the training that are not where the script starts; unknown where it changes its folder."""
    start = args.cwd or args.script.parent
    if any(one.words and one.words[0].text in ("cd", "pushd") for one in script.commands):
        return
    for word in command.words:
        value = word.text.rpartition("=")[2]
        if _FILE.fullmatch(value) and not word.unknown and not (start / value).exists():
            do = f"--cwd {Path.cwd()} has it" if Path(value).exists() else "--cwd sets another folder"
            yield f"line {word.line}: there is no {value} in {start}, where the script starts; {do}"


def _doubts_of_training(
    args: argparse.Namespace, command: ShellCommand, script: Script, text: str, words: Sequence[str]
) -> Iterator[str]:
    where, source = f"line {command.line}", text.encode()
    if loops := [one for one in command.context if one.startswith(("for ", "while"))]:
        yield f"{where}: the training is in a loop ({loops[0]}), and each run goes through all of it"
    behind = source[command.end :].partition(b"\n")[0] if command.end >= 0 else b""
    waits = any(one.words and one.words[0].text == "wait" for one in script.commands)
    if re.search(rb"(?<![&>])&\s*$", behind) and not waits:
        yield f"{where}: the training runs in the background and no `wait` follows: the run would end at once"
    if any(word.text == "--no-wait" for word in command.words):
        yield f"{where}: `ray job submit --no-wait` does not wait, and the run would end at once; remove it"
    yield from _not_there(args, command, script)
    if not args.read and (files := _redirected(command)):
        yield f"{where}: its output goes to {files[0]}, which is read instead of the console"
    yield from shared_checkpoints(command, words)


def _redirected(command: ShellCommand | None) -> list[str]:
    """The file that gets all of the training's output: then the console has nothing."""
    found = [re.fullmatch(r"[1&]?>>?\s*([\w./-]+)", one) for one in (command.redirects if command else ())]
    return [match[1] for match in found if match is not None and match[1] != "/dev/null"]
