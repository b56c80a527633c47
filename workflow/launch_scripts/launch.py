"""Finds in a launch script what trains, what prepares the node, and what is requested from Slurm."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.errors import UserError
from common.published import check_text, check_variable
from trainers.launching import Launched, Left, Surroundings
from trainers.protocol import Trainer
from trainers.registry import trainers
from workflow.launch_scripts.sbatch import options_of, options_of_script, request_of
from workflow.launch_scripts.script import Script, ShellCommand, Word
from workflow.launch_scripts.shell import read_script
from workflow.launch_scripts.words import read_text

# Commands that prepare the node; the profile's setup script repeats them in their order.
_PREPARES = ("module", "ml", "source", ".", "ulimit", "unset", "spack", "umask")
# Without a use in a run, and without a word about them.
_SILENT = (
    "set",
    "echo",
    "printf",
    "true",
    ":",
    "wait",
    "exit",
    "date",
    "which",
    "command",
    "hostname",
    "shift",
    "trap",
)
_WHY = {
    "mkdir": "a run has a folder of its own",
    "cd": "a run starts in the checkout; paths are read from there",
    "tee": "a run's console is kept: results/<experiment>/runs/<run>/attempts/<n>/train.log",
    "ray": "each run starts and ends its own Ray",
    "conda": "the stack's Python is used without `conda activate`",
    "wandb": "WANDB_MODE and the key come from the shell that starts snakemake",
    "huggingface-cli": "log in once in the shell that starts snakemake",
    "hf": "log in once in the shell that starts snakemake",
    "pip": "a stack has its packages already",
    "uv": "a stack has its packages already",
    "nvidia-smi": "the job records the node's GPUs itself",
    "srun": "the job starts its processes itself",
    "sbatch": "the launcher submits each run itself",
}
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
    python: str = ""
    """The environment that the script activates: a folder, or a conda environment's name."""
    left: list[Left] = field(default_factory=list)


def read_launch_script(path: Path, nodes: int = 0, gpus: int = 0) -> LaunchScript:
    """What the script says; a `UserError` if it starts no training of a trainer whose commands are read.

    `nodes` and `gpus` (of a node) are what the caller knows better; 0: what the script says.
    """
    text = read_text(path)
    script = read_script(text)
    found = [(trainer, command, at) for command in script.commands for trainer, at in _trainings(command)]
    if not found:
        raise UserError(_no_training(path))
    trainer, command, at = found[0]
    assert trainer.launch is not None
    options = options_of_script(text)
    options += [(one.line, *pair) for one in script.commands for pair in _of_sbatch(one)]
    request, left = request_of(options)
    around = _surroundings(path, script, command, at, request)
    if nodes or gpus:
        count, each = nodes or around.nodes, gpus or around.gpus_per_node
        around = replace(around, nodes=count, gpus_per_node=each, processes=count * each)
    launched = trainer.launch.read(command.words[at:], around)
    engines = [launched.engine]
    for other, another, start in found[1:]:
        if other is trainer and another.words != command.words:
            more = trainer.launch.read(another.words[start:], around).engine
            engines += [more] * (more not in engines)
            same = more != launched.engine
            why = f"a second training; its engine {more} is another arm" if same else "only the first training is read"
            left.append(Left(another.line, _shown(another), why))
    result = LaunchScript(script, trainer, launched, command.words[at:], around, tuple(engines), request, left=left)
    _environment(result, command)
    _preparation(result, command)
    result.left += launched.left
    result.left += [Left(note.line, note.text, note.why, "check it by hand") for note in script.notes]
    result.left += _unsure(command)
    result.left.sort(key=lambda one: one.line)
    return result


def _trainings(command: ShellCommand) -> Iterator[tuple[Trainer, int]]:
    texts = [word.text for word in command.words]
    for trainer in trainers():
        if trainer.launch is not None and (at := trainer.launch.arguments(texts)) is not None:
            yield trainer, at


def _no_training(path: Path) -> str:
    able = ", ".join(one.label or one.name for one in trainers() if one.launch is not None)
    as_it_is = "`rolloutbench ab` runs a script as it is"
    return f"{path} starts no training that is read here; known: the commands of {able}; {as_it_is}"


def _of_sbatch(command: ShellCommand) -> list[tuple[str, str]]:
    texts = [word.text for word in command.words]
    return options_of(texts[1:])[0] if texts and texts[0].rpartition("/")[2] == "sbatch" else []


def _surroundings(path: Path, script: Script, command: ShellCommand, at: int, request: dict[str, str]) -> Surroundings:
    before = [word.text for word in command.words[:at]]
    variables = {name: word.text for name, word in {**script.exports, **command.assignments}.items()}
    nodes = _number(before, _NODES) or int(request.get("nodes", "1") or 1)
    visible = variables.get("CUDA_VISIBLE_DEVICES", "")
    gpus = re.search(r":(\d+)$|^gpu:?(\d*)$", request.get("gres", ""))
    per_node = int(gpus[1] or gpus[2] or 1) if gpus else len(visible.split(",")) if re.match(r"[\d,]+$", visible) else 0
    each = _number(before, _PER_NODE) or int(variables.get("NPROC_PER_NODE", "0") or 0)
    processes = _number(before, _OF_ALL) or each * nodes

    def read_file(name: str) -> str | None:
        for folder in (path.parent, Path()):
            file = folder / Path(name).expanduser()
            if file.is_file() and file.stat().st_size < 1_000_000:
                return file.read_text(encoding="utf-8", errors="replace")
        return None

    words = [one.words for one in script.commands]
    return Surroundings(processes, nodes, per_node, words, script.files, read_file)


def _number(words: Sequence[str], names: Sequence[str]) -> int:
    """The number of an option in front of the trainer; 0 without one."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            value = value if equals else words[place + 1] if place + 1 < len(words) else ""
            return int(value) if value.isdigit() else 0
    return 0


def _environment(result: LaunchScript, training: ShellCommand) -> None:
    """Exports, as the arms' variables or lines of the setup script."""
    dropped = []
    for name, word in {**result.script.exports, **training.assignments}.items():
        if _secret(name, word.text):
            why = "looks like a secret: no file of an experiment has one"
            result.left.append(Left(word.line, name, why, "export it in the shell that starts snakemake"))
        elif _JOBS.fullmatch(name):
            dropped.append((word.line, name))
        elif _PATHS.fullmatch(name) or word.unknown:
            result.setup.append(f"export {word.raw if '=' in word.raw else f'{name}={shlex.quote(word.text)}'}")
        else:
            result.env[name] = word.text
    if dropped:
        names = ", ".join(name for _, name in dropped)
        result.left.append(Left(dropped[0][0], names, "trackers' names and what the job sets itself"))


def _secret(name: str, text: str) -> bool:
    try:
        check_variable(name)
        check_text(text, name)
    except ValueError:
        return True
    return False


def _preparation(result: LaunchScript, training: ShellCommand) -> None:
    """Commands beside the training: lines of the setup script, or a word about them."""
    exports, result.setup = result.setup, []
    for command in result.script.commands:
        texts = [word.text for word in command.words]
        name = texts[0].rpartition("/")[2] if texts else ""
        if not texts or command is training or name in _SILENT or (name == "conda" and texts[1:2] != ["activate"]):
            continue
        if name == "conda" or (name in ("source", ".") and texts[-1].endswith("bin/activate")):
            result.python = texts[-1].removesuffix("/bin/activate") if len(texts) > 1 and name != "conda" else texts[-1]
            why = f"the stack replaces the environment {result.python}"
            do = f"to use it as it is: --stack-python {result.python.rstrip('/')}/bin/python"
            result.left.append(Left(command.line, _shown(command), why, do))
        elif name in _PREPARES and command.line < training.line:
            # Variables of the script do not reach the setup script; the node's own do.
            inserted = "$" in _raw(command) and not any(word.unknown for word in command.words)
            result.setup.append(shlex.join(texts) if inserted else _raw(command))
            if command.context:
                result.left.append(Left(command.line, _shown(command), f"inside `{command.context[-1]}`", "check it"))
        elif not any(_trainings(command)) and not (name in ("bash", "sh", "eval") and "-c" in texts[:3]):
            launch = result.trainer.launch
            served = launch is not None and launch.server and launch.server in texts[:2]
            why = "the job starts the engine's server itself" if served else _WHY.get(name, "not part of an experiment")
            result.left.append(Left(command.line, _shown(command), why))
    result.setup += exports


def _raw(command: ShellCommand) -> str:
    return " ".join(word.raw for word in command.words)


def _shown(command: ShellCommand) -> str:
    text = _raw(command)
    return text if len(text) <= 50 else text[:47] + "..."


def _unsure(training: ShellCommand) -> Iterator[Left]:
    """Where the training's own words depend on a condition of the script."""
    if training.context and training.context[-1] in ("if", "case", "while"):
        why = f"inside `{training.context[-1]}`: read as if it runs"
        yield Left(training.line, _shown(training), why, "check it by hand")
