"""What a bash script says: its commands, their words and places, which command trains, and its `#SBATCH` lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common.redaction import has_secret
from trainers.launching import Left
from trainers.protocol import Trainer
from trainers.registry import trainers
from workflow.slurm.sbatch import Option, meanings_of, options_of

# Programs that start a training, such as `${CONDA_BIN}python`, and uses of them that do not.
_LAUNCHER = re.compile(
    r"(\$\{?\w+\}?)?(python[\d.]*|torchrun|accelerate|deepspeed|ray|uv|srun|mpirun|trl|swift|megatron|docker|podman"
    r"|apptainer|singularity|bash|sh|nohup|exec|env|time|numactl|stdbuf|timeout|\S+\.(py|sh))"
)
_NO_TRAINING = re.compile(
    r"-m pip\b|\bpip install|\bray (start|stop|status)\b|^uv (pip|sync|venv)|^\S+ (pull|build|-c|-V)\b|--version"
    r"|\bvllm-serve\b|\bvllm serve\b|\b(swift|megatron) rollout\b|\b(api_server|launch_server)\b|\bservers?\.serve\b"
)
_TRAINS = re.compile(r"main_ppo|grpo|rlhf|\brl\b|ppo|train|slime|openrlhf|areal|dapo")


class Word(NamedTuple):
    """A word of a command after expansion; several words may come from one place (`$ARGS`)."""

    text: str
    raw: str
    """As the script has it."""
    start: int
    """Its place in the script, in bytes of UTF-8."""
    end: int
    line: int
    unknown: tuple[str, ...] = ()
    """Variables and substitutions in it without a known value; the text has them as written."""


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command that the script may run; `words` may be empty for a line of assignments only."""

    words: tuple[Word, ...]
    line: int
    assignments: Mapping[str, Word] = field(default_factory=dict)
    """Variables of this command only (`A=1 python ...`)."""
    context: tuple[str, ...] = ()
    """The functions, loops and conditions around it, the outermost first, such as `if` or `for engine=vllm`."""
    redirects: tuple[str, ...] = ()
    passes_arguments: bool = False
    """Whether it has `"$@"` or `$*`: arguments of the script."""
    end: int = 0
    """Where its last word ends, in bytes: the place for further arguments."""


@dataclass(slots=True)
class Script:
    """What a script does, in order."""

    text: str
    commands: list[ShellCommand] = field(default_factory=list)
    arrays: list[tuple[Word, ...]] = field(default_factory=list)
    """The words of each array where it is set."""
    exports: dict[str, Word] = field(default_factory=dict)
    """Exported variables, with their last value."""
    files: dict[str, str] = field(default_factory=dict)
    """Files that it writes from here-documents, by the path as written."""
    notes: list[Left] = field(default_factory=list)
    """Places that were not understood."""


def trainings(command: ShellCommand) -> Iterator[tuple[Trainer, int]]:
    """The trainer that a command starts, and the place of its first argument among the words."""
    texts = [word.text for word in command.words]
    for trainer in trainers() if texts[:1] != ["eval"] else ():
        if trainer.launch is not None and (at := trainer.launch.arguments(texts)) is not None:
            yield trainer, at


def training_command(script: Script) -> ShellCommand | None:
    """The command that trains: the first of a known trainer, else of the others the one that looks most like it."""

    def rank(command: ShellCommand) -> tuple[bool, bool, int]:
        text = " ".join(word.text for word in command.words)
        return bool(_TRAINS.search(text)), "inner script" in command.context, len(command.words)

    if known := next((one for one in script.commands if any(trainings(one))), None):
        return known
    able = [one for one in script.commands if one.words and _LAUNCHER.fullmatch(one.words[0].text.rpartition("/")[2])]
    able = [one for one in able if not _NO_TRAINING.search(" ".join(word.text for word in one.words))]
    return max(able, key=rank, default=None)


def options_of_script(text: str) -> list[Option]:
    """The options in a script's `#SBATCH` lines."""
    return [option for line, words in _sbatch_lines(text) for option in options_of(words, line)[0]]


def _sbatch_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each `#SBATCH` line; sbatch reads none behind the first command."""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line.startswith("#SBATCH"):
            try:
                yield number, shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError:
                yield number, line.removeprefix("#SBATCH").split()
        elif line and not line.startswith("#"):
            return


def keys_of(options: Sequence[Option]) -> tuple[dict[str, str], list[Left]]:
    """A profile's keys and their texts, from a script's options; and what has no place in a profile."""
    request: dict[str, str] = {}
    left: list[Left] = []
    extra: list[str] = []
    for option, key, text, reason in meanings_of(options):
        if key == "nodelist":
            why = "all runs would wait for these nodes; the profile is without them"
            left.append(Left(option.line, option.text, why, "for equal hardware, add nodelist to the profile"))
        elif key:
            request[key] = text
        elif not reason and has_secret(option.text):
            left.append(Left(option.line, f"--{option.name}", "looks like a secret: no file of an experiment has one"))
        elif not reason:
            extra.append(option.text)
        elif not option.name.startswith("ntasks"):  # they are in the CPUs and GPUs of a node
            left.append(Left(option.line, option.text, reason))
    if extra:
        request["slurm_extra"] = shlex.join(extra)
    return request, left


def train_keys(request: Mapping[str, str]) -> dict[str, str]:
    """A profile's keys of `train`: what a script requests, else the partition's defaults."""
    unsaid = {"slurm_partition": "", "cpus_per_task": "0", "mem_mb": "0", "runtime": "0"}
    return {**unsaid, **request}
