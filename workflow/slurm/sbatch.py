"""Reads what people write for sbatch, in scripts, commands and profiles: its options, times, sizes and GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

from common.errors import UserError

WHERE = "under set-resources: train: in the profile"
# Keys of a profile's `train:` with text, and their options.
TEXTS = {
    "slurm_partition": "partition",
    "slurm_account": "account",
    "gres": "gres",
    **{name: name for name in ("qos", "constraint", "reservation", "nodelist", "exclude")},
}
_KEYS = {option: key for key, option in TEXTS.items()}
_SHORT = {
    **{"p": "partition", "A": "account", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "t": "time", "q": "qos"},
    **{"J": "job-name", "o": "output", "e": "error", "w": "nodelist", "x": "exclude", "C": "constraint", "G": "gpus"},
    **{"a": "array", "d": "dependency", "D": "chdir", "b": "begin", "L": "licenses", "M": "clusters"},
}
_FLAGS = frozenset({"exclusive", "requeue", "no-requeue", "overcommit", "parsable", "wait", "hold", "contiguous"})
# Options that a job of rolloutbench cannot have, and the reason.
_OURS = {
    "output error open-mode input": "the job's output has its own file, which rolloutbench reads",
    "array wrap test-only wait parsable help usage version quiet": "a submission is one job, whose id sbatch prints",
    "requeue no-requeue": "a job is requeued at its time limit and after a preemption, and resumes",
    "job-name": "a job is found by its name",
    "dependency": "it prevents a second job of one run",
    "signal": "it asks the trainer for a checkpoint; stop_grace_s sets its time",
    "ntasks ntasks-per-node ntasks-per-gpu ntasks-per-core ntasks-per-socket": "a job has one task on each node",
    "export export-file get-user-env": "variables come from the setup script",
    "chdir uid gid": "a job runs in the checkout, as you",
    "clusters cluster-constraint": "rolloutbench asks one cluster about its jobs",
    "no-kill": "a lost node ends the job, which resumes elsewhere",
    "time-min": "runtime sets the time",
    "gpus-per-socket": "gres sets the GPUs of a node",
    "cpus-per-gpu mem-per-gpu": "cpus_per_task and mem_mb set them for a node, and no option beside it says its GPUs",
}
_REASONS = {name: reason for names, reason in _OURS.items() for name in names.split()}
_OF_GPUS = ("gres", "gpus-per-node", "gpus", "gpus-per-task")
_READ = (*_KEYS, "nodes", "cpus-per-task", "time", "mem", *_OF_GPUS[1:])
_UNITS = {"s sec secs second seconds": 1 / 60, "m min mins minute minutes": 1.0, "h hr hrs hour hours": 60.0}
_UNITS |= {"d day days": 1440.0, "w week weeks": 10080.0}
_MINUTES = {word: minutes for words, minutes in _UNITS.items() for word in words.split()}
_LONGEST_MIN = 28 * 1440  # a plain number above it is probably a time that YAML has read in base 60
# D-H, D-H:M, D-H:M:S and H:M:S.
_SLURM_TIME = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?|(\d+):(\d+):(\d+)")
_GRES = re.compile(r"(?:gres[/:])?([A-Za-z][\w.-]*)(?:[:=]([^:=]+))?(?:[:=]([^:=]+))?")


class RequestError(UserError):
    """A request that cannot work; `what` is wrong, and `remedy` is what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        after = f" {remedy[0].upper()}{remedy[1:]}" if what.endswith("?") else f"; {remedy}"
        super().__init__(f"{what}{after} (nothing was submitted)")
        self.what, self.remedy = what, remedy


class Option(NamedTuple):
    """An option of sbatch by its long name, with the script's line (0: none) and its value (empty: none)."""

    line: int
    name: str
    value: str

    @property
    def text(self) -> str:
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


def options_of(words: Sequence[str], line: int = 0) -> tuple[list[Option], list[str]]:
    """The options at the beginning of sbatch's words, and the other words."""
    found: list[Option] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            # sbatch accepts the beginning of a name.
            known = (*_READ, *_REASONS)
            name = name if name in known else next((one for one in known if name and one.startswith(name)), name)
        else:
            name, value = _SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
            equals = value
        if not equals and name not in _FLAGS and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        found.append(Option(line, name, value))
    return found, rest


class Meaning(NamedTuple):
    """What an option is in a profile: a key with its text, or nothing for a reason, or neither: for slurm_extra."""

    option: Option
    key: str = ""
    text: str = ""
    reason: str = ""


def meanings_of(options: Sequence[Option]) -> Iterator[Meaning]:
    """What sbatch's options mean for a job of one task on each node; the last of one name counts."""
    given = {option.name: option for option in options}

    def number(name: str) -> int:
        text = given[name].value if name in given else ""
        return max(1, int(text)) if text.isdigit() and len(text) < 10 else 1

    nodes = number("nodes")
    tasks = number("ntasks-per-node") if "ntasks-per-node" in given else max(1, number("ntasks") // nodes)

    def of_gpus(each: str) -> str:
        texts = [readers[name][1](given[name].value) for name in _OF_GPUS if name in given]
        if not (gpus := max(map(gpus_of_gres, texts), default=0)):
            raise ValueError
        return str(int(each) * gpus)

    readers: dict[str, tuple[str, Callable[[str], str]]] = {
        **{option: (key, str) for option, key in _KEYS.items()},
        "nodes": ("nodes", lambda value: str(int(value.partition("-")[0]))),
        "cpus-per-task": ("cpus_per_task", lambda value: str(int(value) * tasks)),
        "time": ("runtime", _minutes),
        "mem": ("mem_mb", _megabytes),
        "gpus-per-node": ("gres", _gres),
        "gpus": ("gres", lambda value: _gres(value, nodes=nodes)),
        "gpus-per-task": ("gres", lambda value: _gres(value, tasks)),
        "cpus-per-gpu": ("cpus_per_task", of_gpus),
        "mem-per-gpu": ("mem_mb", lambda value: of_gpus(_megabytes(value))),
    }
    for name, option in given.items():
        if name not in readers:
            yield Meaning(option, reason=_REASONS.get(name, ""))
        elif name == "mem" and option.value == "0":
            yield Meaning(option, reason="all memory of a node, which mem_mb sets")
        else:
            key, read = readers[name]
            try:
                yield Meaning(option, key, read(option.value)) if option.value else Meaning(option, reason="no value")
            except (RequestError, ValueError, OverflowError):
                yield Meaning(option, reason=_REASONS.get(name, "this value cannot be read"))


def _minutes(value: str) -> str:
    """Of two numbers sbatch takes the first for minutes."""
    short = re.fullmatch(r"(\d+):\d\d", value)
    return short[1] if short else str(minutes_of(value))


def _megabytes(value: str) -> str:
    """sbatch's K, M, G and T, also with a B, are powers of 1024; a number alone is in M, as in mem_mb."""
    value = re.sub(r"(?<=[KMGT])B$", "", value, flags=re.IGNORECASE)
    return str(megabytes_of(f"{value}iB" if value[-1:].upper() in "KMGT" else value))


def _gres(value: str, tasks: int = 1, nodes: int = 1) -> str:
    kind, _, count = value.rpartition(":")
    each = max(1, int(count) * tasks // nodes)
    return f"gpu:{kind}:{each}" if kind else f"gpu:{each}"


def minutes_of(text: str) -> int:
    """A walltime in minutes: `90`, `20h`, `1.5d`, `2h30m`, and Slurm's `1-00:00:00` or `20:00:00`."""
    text = text.strip()
    if text.isdigit() and int(text) > _LONGEST_MIN and int(text) % 60 == 0:
        raise misread_time("{}:{:02}:{:02}".format(*divmod(int(text) // 60, 60), 0), text)
    if text.isdigit():
        return int(text)
    if slurm := _SLURM_TIME.fullmatch(text):
        days, *dated, hours, minutes, seconds = (int(part or 0) for part in slurm.groups())
        if slurm[1] is not None:
            hours, minutes, seconds = dated
        return max(1, days * 1440 + hours * 60 + minutes + (seconds > 0))
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.lower())
    whole = "".join(map("".join, parts)) == re.sub(r"\s", "", text.lower())
    if parts and whole and {unit for _, unit in parts} <= {*_MINUTES}:
        return max(1, int(sum(float(number) * _MINUTES[unit] for number, unit in parts)))
    if short := re.fullmatch(r"(\d+):\d\d", text):
        raise RequestError(
            f"runtime {text!r} is {short[1]} minutes for Slurm, and may mean {short[1]} hours",
            f"write {short[1]}m or {short[1]}h",
        )
    raise RequestError(f"runtime {text!r} is not a time", f"write minutes (1200), 20h or 1-00:00:00 {WHERE}")


def misread_time(raw: str, minutes: str) -> RequestError:
    """The error for a time such as 20:00:00 without quotes, which YAML reads as a number in base 60."""
    of_slurm = int(minutes) // 60
    hours, rest = divmod(of_slurm, 60)
    return RequestError(
        f"runtime {minutes} min is {int(minutes) / 1440:.3g} days; did YAML read {raw}?",
        f"write {hours}h{f'{rest}m' if rest else ''} or {of_slurm} {WHERE}, or {minutes}m if that is meant",
    )


def megabytes_of(text: str) -> int:
    """The number of `sbatch --mem=<number>M`, of `1500000`, `1500G`, `1.5TB`, `1400GiB`.

    sbatch's M is 1024 * 1024 bytes: a size in GiB is exact. GB are read as Snakemake reads `mem`, whose 1500 GB are
    1500000: Slurm is asked for no more than a node of that name has.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", text.strip().upper())
    if match is None:
        raise RequestError(f"mem_mb {text!r} is not a size", f"write MB (1500000), 1500GB or 1500GiB {WHERE}")
    power = "KMGT".index(match[2] or "M") - 1
    # sbatch, too, takes a part of an M for a whole one.
    return math.ceil(Decimal(match[1]) * Decimal(1024 if match[3] else 1000) ** power)


def gpus_of_gres(gres: str) -> int:
    """The GPUs per node of a gres such as `gpu:h100:8` or `gpu:2,license:1`; a `RequestError` for a wrong syntax."""
    gpus = 0
    # Without the sockets: `gpu:h100:8(S:0,1)`.
    for part in filter(None, re.sub(r"\([^)]*\)", "", gres).split(",")):
        match = _GRES.fullmatch(part.strip())
        # gpu, gpu:8, gpu:h100, gpu:h100:8
        *_, count = [group for group in match.groups() if group is not None] if match else [""]
        if match is None or (match[1] == "gpu" and match[3] and not count.isdigit()):
            near = re.search(r"(?:gres=)?(gpu(?::[\w.-]+)*)$", part)
            raise RequestError(
                f"gres {gres!r} is not Slurm's syntax, gpu[:type][:number]",
                f"write {near[1] if near and near[1] != part else 'gpu:8 or gpu:h100:8'} {WHERE}",
            )
        if match[1] == "gpu":
            gpus += int(count) if count.isdigit() else 1
    return gpus
