"""Reads the request for a training job from a profile's `train:` keys, in any form in which people write them.

Start-up, plan, preflight, doctor and the launcher all use `read_request`.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT

# Keys with text, and their options of sbatch.
TEXTS = {
    "slurm_partition": "partition",
    "slurm_account": "account",
    "gres": "gres",
    **{name: name for name in ("qos", "constraint", "reservation", "nodelist", "exclude")},
}
LIMITS = ("restarts", "stop_grace_s", "hang_factor", "hang_min_s", "first_step_s", "node_speed_s", "pair_wait_s")
# All resources of rules/train.smk, and Snakemake's own.
KEYS = (
    *(*TEXTS, "nodes", "cpus_per_task", "mem_mb", "runtime", "setup", "slurm_extra"),
    *(*LIMITS, "pair", "pair_after", "train_slots", "submit_to"),
)
_SNAKEMAKES = ("mem", "mem_mib", "disk", "disk_mb", "disk_mib", "tmpdir")
# The key that people mean by another name: keys of Snakemake's Slurm plugin, of sbatch and of submitit.
_MEANT = {
    "slurm_account": "account project slurm_project",
    "slurm_partition": "partition queue partitions",
    "gres": "gpu gpus gpu_model gpus_per_node slurm_gres gpus_per_task tasks_per_gpu",
    "nodes": "num_nodes node_count slurm_nodes",
    "cpus_per_task": "cpu cpus ncpus threads slurm_cpus cpus_per_gpu cores tasks ntasks tasks_per_node mpi",
    "mem_mb": "memory mem_gb mem_mb_per_cpu mem_per_cpu slurm_mem",
    "runtime": "time walltime time_min timeout timeout_min time_limit slurm_time",
    "slurm_extra": "extra sbatch_args sbatch_options slurm_args exclusive comment clusters cluster slurm_cluster",
    **{name: f"slurm_{name}" for name in ("qos", "constraint", "reservation", "nodelist", "exclude")},
}
_UNITS = {"s sec secs second seconds": 1 / 60, "m min mins minute minutes": 1.0, "h hr hrs hour hours": 60.0}
_UNITS |= {"d day days": 1440.0, "w week weeks": 10080.0}
_MINUTES = {word: minutes for words, minutes in _UNITS.items() for word in words.split()}
STOP_GRACE_S = 120  # as rules/train.smk has it
_LONGEST_MIN = 28 * 1440  # a plain number above it is probably a time that YAML has read in base 60
# D-H, D-H:M, D-H:M:S and H:M:S.
_SLURM_TIME = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?|(\d+):(\d+):(\d+)")
_GRES = re.compile(r"(?:gres[/:])?([A-Za-z][\w.-]*)(?:[:=]([^:=]+))?(?:[:=]([^:=]+))?")
WHERE = "under set-resources: train: in the profile"
# Options of sbatch that rolloutbench depends on, and the reason.
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
    "time time-min": "set runtime instead",
    "mem": "set mem_mb instead",
    "nodes": "workload.nodes sets them",
    "cpus-per-task cpus-per-gpu": "set cpus_per_task instead",
    "gpus gpus-per-node gpus-per-task gpus-per-socket mem-per-gpu": "set gres instead",
}
_REASONS = {name: reason for names, reason in _OURS.items() for name in names.split()}


class RequestError(UserError):
    """A request that cannot work; `what` is wrong, and `remedy` is what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        after = f" {remedy[0].upper()}{remedy[1:]}" if what.endswith("?") else f"; {remedy}"
        super().__init__(f"{what}{after} (nothing was submitted)")
        self.what, self.remedy = what, remedy


@dataclass(frozen=True, slots=True)
class Request:
    """The request of one training job; None is a value that only Snakemake can compute, or one that is wrong."""

    site: Mapping[str, Any]
    """The request as a job's order has it: `sbatch_options` makes sbatch's options from it."""
    cpus: int | None
    gpus: int | None
    """GPUs per node."""
    stop_grace_s: int | None
    errors: tuple[RequestError, ...] = ()

    @property
    def nodes(self) -> int | None:
        return None if self.site["nodes"] is None else int(self.site["nodes"])

    @property
    def runtime_min(self) -> int | None:
        return None if self.site["runtime"] is None else int(self.site["runtime"])


def read_request(given: Mapping[str, str], others: Container[str] = (), on_slurm: bool = True) -> Request:
    """The request in a profile's texts, with all that is wrong in it; `others`: further keys that are allowed."""
    errors = [error for key in given if (error := _unknown(key, others)) is not None]
    texts = {key: value for key, value in given.items() if value != ""}

    def value_of(key: str, read: Callable[[str], Any], default: Any = None) -> Any:
        try:
            return default if key not in texts else None if is_computed(texts[key]) else read(texts[key])
        except RequestError as error:
            errors.append(error)
            return None

    extra = value_of("slurm_extra", lambda text: _extra(text, texts), {})
    sizes = [key for key in ("mem_mb", "mem", "mem_mib") if key in texts]
    if len(sizes) > 1:
        errors.append(RequestError(f"train: has {' and '.join(sizes)}, which mean the same", f"keep one {WHERE}"))
    site = {
        **{flag: texts.get(key, "") for key, flag in TEXTS.items()},
        "setup": str(ROOT / Path(texts["setup"]).expanduser()) if "setup" in texts else "",
        "nodes": value_of("nodes", lambda text: _whole("nodes", text), 1),
        "mem_mb": value_of(sizes[0], lambda text: megabytes_of(text, sizes[0]), 0) if sizes else 0,
        "runtime": value_of("runtime", minutes_of, 0),
        **({"extra": extra} if extra else {}),
    }
    value_of("pair", pair_of)
    grace_s = value_of("stop_grace_s", lambda text: _whole("stop_grace_s", text), STOP_GRACE_S)
    cpus = value_of("cpus_per_task", lambda text: _whole("cpus_per_task", text))
    gpus = value_of("gres", gpus_of_gres, 0)
    if on_slurm:
        errors += _slurm_errors(site, grace_s)
    return Request(site, cpus, gpus, grace_s, tuple(errors))


def sbatch_options(site: Mapping[str, Any]) -> dict[str, Any]:
    """sbatch's options for a request, except those that submitit sets; True is an option without a value."""
    memory = f"{site['mem_mb']}M" if site.get("mem_mb") else ""
    options = {flag: site.get(flag) for flag in TEXTS.values()} | {"mem": memory}
    return {name: value for name, value in options.items() if value} | dict(site.get("extra", {}))


def ours(option: str) -> str | None:
    """Why rolloutbench sets an option of sbatch itself; None for other options."""
    return _REASONS.get(option)


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


def pair_of(text: str) -> str:
    """`node` or `off`; YAML reads a plain `off` as false."""
    word = text.strip().lower()
    if word == "allocation":
        raise RequestError(
            "pair: allocation is not available: each run has a job of its own, by which it is requeued and found again",
            f"write pair: node, or give all arms one nodelist or reservation {WHERE}",
        )
    if word not in ("node", "off", "false"):
        raise RequestError(f"pair {text!r} is not node or off", f"correct it {WHERE}")
    return "node" if word == "node" else "off"


def megabytes_of(text: str, key: str = "mem_mb") -> int:
    """Memory in MB, as Snakemake reads `mem`: `1500000`, `1500G`, `1.5TB`, `1400GiB`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", text.strip().upper())
    if match is None:
        raise RequestError(f"{key} {text!r} is not a size", f"write MB (1500000) or 1500GB {WHERE}")
    base = 1024 if match[3] or (key == "mem_mib" and not match[2]) else 1000
    return int(float(match[1]) * base ** ("KMGT".index(match[2] or "M") + 1) / 1e6)


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


def _whole(key: str, text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d*", text.strip()):
        raise RequestError(f"{key} {text!r} is not a whole number above 0", f"correct it {WHERE}")
    return int(text)


@cache
def is_computed(text: str) -> bool:
    """Whether Snakemake computes a value for each job: `attempt * 60`, `f(wildcards)`."""
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError):
        return False
    names = {node.id for node in nodes if isinstance(node, ast.Name)} & {"attempt", "threads", "input", "wildcards"}
    return bool(names) or any(isinstance(node, (ast.Call, ast.IfExp, ast.Subscript, ast.Mult)) for node in nodes)


def _unknown(key: str, others: Container[str]) -> RequestError | None:
    if key in KEYS or key in _SNAKEMAKES or key in others:
        return None
    meant = next((name for name, words in _MEANT.items() if key.lower() in words.split()), None)
    for near in [meant] if meant else get_close_matches(key, KEYS, n=1, cutoff=0.5):
        return RequestError(f"train: has no key {key}; did you mean {near}?", f"correct it {WHERE}")
    return RequestError(f"train: has no key {key}", f"known: {', '.join(KEYS)}")


def _extra(text: str, texts: dict[str, str]) -> dict[str, str | bool]:
    """The options in slurm_extra; those that have a key of their own become that key's text."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise RequestError(
            f"slurm_extra {text!r} cannot be read ({error})", f"quote it as in a shell {WHERE}"
        ) from None
    options: dict[str, str | bool] = {}
    while words:
        word = words.pop(0)
        if (option := re.fullmatch(r"--([a-z][\w-]*)(?:=(.*))?", word)) is None or not word.isprintable():
            raise RequestError(f"slurm_extra: {word!r} is not --name or --name=value", f"write the long name {WHERE}")
        name, value = option.groups()
        if value is None and words and not words[0].startswith("-") and words[0].isprintable():
            value = words.pop(0)
        # sbatch accepts the beginning of an option's name.
        own = name if name in _REASONS else next((one for one in _REASONS if one.startswith(name)), None)
        key = next((key for key, flag in TEXTS.items() if flag == name), None)
        if key is None and own:
            raise RequestError(f"slurm_extra cannot have --{own}: {_REASONS[own]}", f"remove it {WHERE}")
        if key is None:
            options[name] = True if value is None else value
        elif value is None or texts.get(key, value) != value:
            raise RequestError(f"slurm_extra has {word}, and {key} is {texts.get(key, '')!r}", f"keep one {WHERE}")
        else:
            texts[key] = value
    return options


def _slurm_errors(site: Mapping[str, Any], grace_s: int | None) -> Iterator[RequestError]:
    if not site["partition"]:
        replaced = "a --set-resources on the command line replaces all of its keys"
        yield RequestError("no partition to train in", f"set slurm_partition {WHERE}; {replaced}")
    runtime = site["runtime"]
    if runtime == 0:
        yield RequestError("no runtime, the walltime of one job", f"write runtime: 20h (or minutes) {WHERE}")
    elif runtime and grace_s and runtime * 60 < 2 * grace_s:
        yield RequestError(
            "runtime must be at least twice stop_grace_s, or a job would stop as soon as it begins (got "
            f"{runtime} min and {grace_s} s)",
            "change them in the profile",
        )
    try:
        script = Path(site["setup"]).read_bytes() if site["setup"] else b""
    except FileNotFoundError:
        yield RequestError(f"no such setup script: {site['setup']}", "correct setup in the profile")
    except OSError as error:
        yield RequestError(f"setup script: {error}", "correct setup in the profile")
    else:
        if b"\r\n" in script:
            yield RequestError(
                f"{site['setup']} has Windows line ends (CRLF): `export A=1` sets A to 1 and a carriage return",
                f"convert it: sed -i 's/\\r$//' {shlex.quote(site['setup'])}",
            )
