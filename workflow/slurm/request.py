"""Reads the request for a training job from a profile's `train:` keys, in any form in which people write them.

Start-up, plan, preflight, doctor and the launcher all use `read_request`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from common.files import ROOT
from common.messages import print_message
from workflow.slurm.sbatch import (
    TEXTS,
    WHERE,
    RequestError,
    gpus_of_gres,
    meanings_of,
    megabytes_of,
    minutes_of,
    options_of,
)

LIMITS = ("restarts", "stop_grace_s", "hang_factor", "hang_min_s", "first_step_s")
# The resources of rules/train.smk that do not depend on the run; a profile's `train:` replaces them.
RESOURCES: dict[str, str | int] = {
    **{key: "" for key in (*TEXTS, "setup", "slurm_extra", "private_nodes") if key != "gres"},
    **{"mem_mb": 0, "runtime": 0},
    **dict(zip(LIMITS, (5, 120, 10, 600, 7200), strict=True)),
}
KEYS = (*RESOURCES, "gres", "nodes", "cpus_per_task", "train_slots", "submit_to")
NO_LONGER_USED = {
    "pair": "give all arms one nodelist or reservation; the report names the nodes of each arm",
    "pair_wait_s": "give all arms one nodelist or reservation",
    "node_speed_s": "`srun dcgmi diag -r 3` and NCCL's all_reduce_perf measure a node's GPUs",
}
"""Keys of earlier releases, and what to use instead. They are named once and ignored."""
_SNAKEMAKES = ("disk", "disk_mb", "disk_mib", "tmpdir")
# The key that people mean by another name: keys of Snakemake's Slurm plugin, of sbatch and of submitit.
_MEANT = {
    "slurm_account": "account project slurm_project",
    "slurm_partition": "partition queue partitions",
    "gres": "gpu gpus gpu_model gpus_per_node slurm_gres gpus_per_task tasks_per_gpu",
    "nodes": "num_nodes node_count slurm_nodes",
    "cpus_per_task": "cpu cpus ncpus threads slurm_cpus cpus_per_gpu cores tasks ntasks tasks_per_node mpi",
    "mem_mb": "mem mem_mib memory mem_gb mem_mb_per_cpu mem_per_cpu slurm_mem",
    "runtime": "time walltime time_min timeout timeout_min time_limit slurm_time",
    "slurm_extra": "extra sbatch_args sbatch_options slurm_args exclusive comment clusters cluster slurm_cluster",
    **{name: f"slurm_{name}" for name in ("qos", "constraint", "reservation", "nodelist", "exclude")},
}


@dataclass(frozen=True, slots=True)
class Request:
    """The request of one training job; None is a value that is wrong."""

    site: Mapping[str, Any]
    """The request as a job's order has it: `sbatch_options` makes sbatch's options from it."""
    cpus: int | None
    """CPUs per node; 0: what Slurm gives by default."""
    gpus: int | None
    """GPUs per node."""
    limits: Mapping[str, float | None]
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
    # A resource with its default is as good as none.
    texts = {key: value for key, value in given.items() if value not in ("", str(RESOURCES.get(key)))}

    def value_of(key: str, read: Callable[[str], Any], default: Any = None) -> Any:
        try:
            return read(texts[key]) if key in texts else default
        except RequestError as error:
            errors.append(error)
            return None

    extra = value_of("slurm_extra", lambda text: _extra(text, texts), {})
    site = {
        **{flag: texts.get(key, "") for key, flag in TEXTS.items()},
        "setup": str(ROOT / Path(texts["setup"]).expanduser()) if "setup" in texts else "",
        "nodes": value_of("nodes", lambda text: _whole("nodes", text), 1),
        "mem_mb": value_of("mem_mb", megabytes_of, 0),
        "runtime": value_of("runtime", minutes_of, 0),
        "private_nodes": value_of("private_nodes", _yes_or_no, False),
        **({"extra": extra} if extra else {}),
    }
    limits = {key: value_of(key, partial(_limit, key), RESOURCES[key]) for key in LIMITS}
    cpus = value_of("cpus_per_task", lambda text: 0 if text.strip() == "0" else _whole("cpus_per_task", text))
    gpus = value_of("gres", gpus_of_gres, 0)
    if on_slurm:
        errors += _slurm_errors(site, limits["stop_grace_s"])
    return Request(site, cpus, gpus, limits, tuple(errors))


def name_old_keys(given: Iterable[str]) -> None:
    """Print a line for each key that is no longer used."""
    for key in NO_LONGER_USED.keys() & set(given):
        print_message(f"train: {key} is no longer used: {NO_LONGER_USED[key]}")


def sbatch_options(site: Mapping[str, Any]) -> dict[str, Any]:
    """sbatch's options for a request, except those that submitit sets; True is an option without a value."""
    memory = f"{site['mem_mb']}M" if site.get("mem_mb") else ""
    options = {flag: site.get(flag) for flag in TEXTS.values()} | {"mem": memory}
    return {name: value for name, value in options.items() if value} | dict(site.get("extra", {}))


def _yes_or_no(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false", "yes", "no"):  # YAML also reads the last two so
        raise RequestError(f"private_nodes {text!r} is not true or false", f"correct it {WHERE}")
    return word in ("true", "yes")


def _whole(key: str, text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d*", text.strip()):
        raise RequestError(f"{key} {text!r} is not a whole number above 0", f"correct it {WHERE}")
    return int(text)


def _limit(key: str, text: str) -> float:
    if key == "stop_grace_s":
        return _whole(key, text)
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise RequestError(f"{key} {text!r} is not a number of 0 or more", f"correct it {WHERE}")
    return int(number) if number.is_integer() else number


def _unknown(key: str, others: Container[str]) -> RequestError | None:
    if key in KEYS or key in _SNAKEMAKES or key in NO_LONGER_USED or key in others:
        return None
    meant = next((name for name, words in _MEANT.items() if key.lower() in words.split()), None)
    for near in [meant] if meant else get_close_matches(key, KEYS, n=1, cutoff=0.5):
        return RequestError(f"train: has no key {key}; did you mean {near}?", f"correct it {WHERE}")
    return RequestError(f"train: has no key {key}", f"known: {', '.join(KEYS)}")


def _extra(text: str, texts: dict[str, str]) -> dict[str, str | bool]:
    """The options in slurm_extra; those that have a key of their own become that key's text."""
    try:
        options, rest = options_of(shlex.split(text))
    except ValueError as error:
        raise RequestError(
            f"slurm_extra {text!r} cannot be read ({error})", f"quote it as in a shell {WHERE}"
        ) from None
    for word in rest or [option.text for option in options if not option.text.isprintable()]:
        raise RequestError(f"slurm_extra: {word!r} is not --name or --name=value", f"correct it {WHERE}")
    found: dict[str, str | bool] = {}
    for option, key, own, reason in meanings_of(options):
        if reason:
            raise RequestError(f"slurm_extra cannot have {option.text}: {reason}", f"remove it {WHERE}")
        if not key:
            found[option.name] = option.value or True
        elif texts.setdefault(key, own) != own:
            raise RequestError(f"slurm_extra has {option.text}, and {key} is {texts[key]!r}", f"keep one {WHERE}")
    return found


def _slurm_errors(site: Mapping[str, Any], grace_s: float | None) -> Iterator[RequestError]:
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
