"""Finds in a launch script what trains, what prepares the node, and what is requested from Slurm."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from common.errors import UserError
from common.messages import shortened
from common.published import check_option_name, check_text, check_variable
from common.redaction import has_secret, without_secrets
from trainers.launching import Launched, Left, Surroundings, as_count
from trainers.protocol import Trainer
from trainers.registry import trainers as all_trainers
from workflow.launch_scripts.script import Script, ShellCommand, Word, keys_of, options_of_script, trainings
from workflow.launch_scripts.shell import read_script
from workflow.launch_scripts.words import read_text
from workflow.slurm.sbatch import Option, gpus_of_gres, options_of

# Commands that prepare the node; the profile's setup script repeats them in their order.
_PREPARES = ("module", "ml", "source", ".", "ulimit", "unset", "spack", "umask")
# Without a use in a run, and without a word about them.
_SILENT = (
    *("set", "echo", "printf", "true", ":", "wait", "exit", "break", "sleep", "date", "which", "command", "hostname"),
    *("shift", "trap", "cat", "printenv", "env"),
)
_SECRET = ("looks like a secret: no file of an experiment has one", "export it in the shell that starts snakemake")
# Variables that the job sets for each process, or a tracker's names.
_JOBS = re.compile(
    r"CUDA_VISIBLE_DEVICES|(WANDB|SWANLAB|MLFLOW|TENSORBOARD)_.*|MASTER_(ADDR|PORT)|(LOCAL_)?RANK|WORLD_SIZE"
    r"|NPROC_PER_NODE|NNODES|NODE_RANK|RAY_ADDRESS|SLURM_.*|HYDRA_FULL_ERROR|PYTHONUNBUFFERED"
)
# Extended by the node's own value: only the setup script can say them.
_PATHS = re.compile(r"((LD_)?LIBRARY_|C_INCLUDE_|CPLUS_INCLUDE_|PYTHON|MAN|PKG_CONFIG_|C)?PATH|LD_PRELOAD")
_PER_NODE = ("--nproc_per_node", "--nproc-per-node", "--nproc")
_OF_ALL = ("--num_processes", "--num-processes")
_NODES = ("--nnodes", "--num_machines", "--num-machines")
_IMAGE = ("the stack replaces the container", "")
# Of the programs in front of the trainer: options that change a training, and what the experiment has instead.
_IN_FRONT = {
    "--config_file": ("the job starts the processes; how this file shards the model is not read", "add options.fsdp"),
    "--runtime-env": ("variables and packages of this file are not read", "add the variables under env"),
    "--runtime-env-json": ("variables and packages of Ray's jobs are not read", "add the variables under env"),
    **dict.fromkeys(("--container-image", "apptainer", "singularity", "docker", "podman"), _IMAGE),
}
_PERSONAL = {"HOME", "USER", "LOGNAME"}
_VARIABLES = re.compile(r"\$\{?(\w+)")


@dataclass(slots=True)
class LaunchScript:
    """What a launch script says."""

    script: Script
    trainer: Trainer
    launched: Launched
    words: Sequence[Word]
    """The trainer's own arguments."""
    around: Surroundings
    engines: tuple[str, ...]
    """The engines of all trainings that the script starts, the first one's first."""
    request: dict[str, str]
    """Keys and texts of a profile's `train:`."""
    env: dict[str, str] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    """Lines of the setup script."""
    left: list[Left] = field(default_factory=list)


def read_launch_script(path: Path, nodes: int = 0, gpus: int = 0) -> LaunchScript:
    """What the script says; a `UserError` if it starts no training of a trainer whose commands are read.

    `nodes` and `gpus` (of a node) are what the caller knows better; 0: what the script says.
    """
    text = read_text(path)
    script = read_script(text)
    found = [(trainer, command, at) for command in script.commands for trainer, at in trainings(command)]
    if not found:
        raise UserError(_no_training(path))
    trainer, command, at = found[0]
    assert trainer.launch is not None
    _require_no_blanks(command.words[at:])
    words, secrets = _without_secrets(command.words[at:])
    options = options_of_script(text)
    options += [option for one in script.commands for option in _of_sbatch(one)]
    request, left = keys_of(options)
    around = _surroundings(path, script, command, at, request)
    if nodes or gpus:
        count, each = nodes or around.nodes, gpus or around.gpus_per_node
        around = replace(around, nodes=count, gpus_per_node=each, processes=count * each)
    left += secrets
    launched = trainer.launch.read(words, around)
    engines = [launched.engine]
    for other, another, start in found[1:]:
        if other is trainer and another.words != command.words:
            more = trainer.launch.read(another.words[start:], around).engine
            engines += [more] * (more not in engines)
            same = more != launched.engine
            why = f"a second training; its engine {more} is another arm" if same else "only the first training is read"
            left.append(Left(another.line, _shown(another), why))
    result = LaunchScript(script, trainer, launched, words, around, tuple(engines), request, left=left)
    _environment(result, command)
    _preparation(result, command)
    result.left += [*_in_front(command.words[:at], around), *launched.left]
    result.left += script.notes
    if command.context and command.context[-1] in ("if", "case", "while"):
        why = f"inside `{command.context[-1]}`: read as if it runs"
        result.left.append(Left(command.line, _shown(command), why, "check it by hand"))
    result.left.sort(key=lambda one: one.line)
    return result


def _require_no_blanks(words: Sequence[Word]) -> None:
    """`UserError` for a blank beside a `=`, which makes several words of one setting."""
    for before, word, behind in zip(words, words[1:], [*words[2:], None], strict=False):
        if word.text.startswith("="):
            value = word.text[1:] or (behind.text if behind else "")
            raise UserError(
                f"line {word.line}: blanks beside = make several words of one setting; write {before.text}={value}"
            )


def _no_training(path: Path) -> str:
    able = ", ".join(one.label or one.name for one in all_trainers() if one.launch is not None)
    as_it_is = "`rolloutbench ab` runs a script as it is"
    return f"{path} starts no training that is read here; known: the commands of {able}; {as_it_is}"


def _of_sbatch(command: ShellCommand) -> list[Option]:
    texts = [word.text for word in command.words]
    return options_of(texts[1:], command.line)[0] if texts and texts[0].rpartition("/")[2] == "sbatch" else []


def _surroundings(path: Path, script: Script, command: ShellCommand, at: int, request: dict[str, str]) -> Surroundings:
    before = command.words[:at]
    variables = {name: word.text for name, word in {**script.exports, **command.assignments}.items()}
    nodes = _number(before, _NODES) or as_count(request.get("nodes"), 1)
    visible = _gpus_of(variables.get("CUDA_VISIBLE_DEVICES", ""))
    # A server beside the trainer has others.
    own = visible if "CUDA_VISIBLE_DEVICES" in command.assignments else 0
    per_node = gpus_of_gres(request.get("gres", "")) or visible
    each = _number(before, _PER_NODE) or as_count(variables.get("NPROC_PER_NODE"))
    processes = _number(before, _OF_ALL) or (each or own) * nodes

    def read_file(name: str) -> str | None:
        for folder in (path.parent, Path()):
            file = folder / Path(name).expanduser()
            if file.is_file() and file.stat().st_size < 1_000_000:
                return file.read_text(encoding="utf-8", errors="replace")
        return None

    words = [one.words for one in script.commands]
    return Surroundings(processes, nodes, per_node, words, script.files, read_file)


def _gpus_of(visible: str) -> int:
    return len(visible.split(",")) if re.fullmatch(r"\d+(,\d+)*,?", visible) else 0


def _options_of(words: Sequence[Word]) -> Iterator[tuple[str, str, Word]]:
    """Name and value of options in front of the trainer, `--name=value` or `--name value`, with the value's word."""
    for word, following in zip_longest(words, words[1:]):
        name, equals, value = word.text.partition("=")
        if not equals and following is not None:
            yield name, following.text, following
        else:
            yield name, value, word


def _number(words: Sequence[Word], names: Sequence[str]) -> int:
    """The number of an option in front of the trainer; 0 without one."""
    found = (value for name, value, _ in _options_of(words) if name in names)
    return int(value) if (value := next(found, "")).isdigit() else 0


def _in_front(words: Sequence[Word], around: Surroundings) -> Iterator[Left]:
    """What the programs in front of the trainer say, and the experiment does not have."""
    for name, value, word in _options_of(words):
        if name in (*_PER_NODE, *_OF_ALL, *_NODES) and word.unknown:
            used = around.nodes if name in _NODES else around.processes or 1
            flag = "--nodes" if name in _NODES else "--gpus"
            yield Left(word.line, f"{name} {value}", f"not set in the script: {used} is used", f"give {flag}")
        elif name.rpartition("/")[2] in _IN_FRONT:
            why, do = _IN_FRONT[name.rpartition("/")[2]]
            yield Left(word.line, f"{name} {value}" if name.startswith("-") else name, why, do)


def _environment(result: LaunchScript, training: ShellCommand) -> None:
    """Exports, as the arms' variables or lines of the setup script."""
    dropped = []
    for name, word in {**result.script.exports, **training.assignments}.items():
        if _is_secret(name, word.text, check_variable):
            result.left.append(Left(word.line, name, *_SECRET))
        elif _JOBS.fullmatch(name):
            dropped.append((word.line, name))
        elif _PATHS.fullmatch(name) or word.unknown:
            as_written = "=" in word.raw and _of_the_node(word)
            result.setup.append(f"export {word.raw if as_written else f'{name}={_quoted(word)}'}")
        else:
            result.env[name] = word.text
    if dropped:
        names = ", ".join(name for _, name in dropped)
        result.left.append(Left(dropped[0][0], names, "trackers' names and what the job sets itself"))


def _is_secret(name: str, text: str, check_name: Callable[[str, str], None] = check_option_name) -> bool:
    try:
        check_name(name, name)
        check_text(text, name)
    except ValueError:
        return True
    return False


def _without_secrets(words: Sequence[Word]) -> tuple[list[Word], list[Left]]:
    """The trainer's arguments without those that look like a secret, and these."""
    kept, left = list[Word](), list[Left]()
    settings: list[list[Word]] = []
    for word in words:
        if word.text.startswith("--") or "=" in word.text or not settings:
            settings.append([word])
        else:
            settings[-1].append(word)
    for setting in settings:
        name, text = setting[0].text.partition("=")[0], " ".join(word.text for word in setting)
        if _is_secret(name.lstrip("+-"), text):
            left.append(Left(setting[0].line, name, *_SECRET))
        else:
            kept += setting
    return kept, left


def _preparation(result: LaunchScript, training: ShellCommand) -> None:
    """Commands beside the training: lines of the setup script, or a word about them."""
    exports, result.setup = result.setup, []
    for command in result.script.commands:
        texts = [word.text for word in command.words]
        name = texts[0].rpartition("/")[2] if texts else ""
        if not texts or command is training or name in _SILENT or (name == "conda" and texts[1:2] != ["activate"]):
            continue
        if name == "conda" or (name in ("source", ".") and texts[-1].endswith("bin/activate")):
            # A conda environment has a name, or a folder.
            place = texts[-1].removesuffix("/bin/activate") if len(texts) > 1 and name != "conda" else texts[-1]
            why = f"the stack replaces the environment {place}"
            by_name = f'"$(conda run -n {place} which python)"'
            python = f"{place.rstrip('/')}/bin/python" if "/" in place else by_name
            do = f"to use it as it is: --stack-python {python}"
            result.left.append(Left(command.line, _shown(command), why, do))
        elif has_secret(" ".join(texts)):
            result.left.append(Left(command.line, name, *_SECRET))
        elif name in _PREPARES and command.line < training.line:
            result.setup.append(" ".join(one.raw if _of_the_node(one) else _quoted(one) for one in command.words))
            if command.context:
                result.left.append(Left(command.line, _shown(command), f"inside `{command.context[-1]}`", "check it"))
        elif not any(trainings(command)) and not (name in ("bash", "sh", "eval") and "-c" in texts[:3]):
            result.left.append(Left(command.line, _shown(command), "the job does its own, or does not need it"))
    result.setup += exports


def _of_the_node(word: Word) -> bool:
    """Whether the setup script can have a word as written: the script's own variables do not reach it."""
    return {*_VARIABLES.findall(word.raw)} <= {*_PERSONAL, *_VARIABLES.findall(" ".join(word.unknown))}


def _quoted(word: Word) -> str:
    """A word with its known values; what only the node knows is expanded there."""
    return f'"{word.text}"' if word.unknown else shlex.quote(word.text)


def _shown(command: ShellCommand) -> str:
    return shortened(without_secrets(" ".join(word.raw for word in command.words)), 50)
