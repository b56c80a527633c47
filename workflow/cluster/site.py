"""Reads what a profile says of a site: what it asks Slurm for, for each training run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError
from common.files import ROOT
from common.messages import did_you_mean

_STOP_GRACE_S = 120.0  # as rules/train.smk has it
_UNIT_MIN = {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0, "w": 10080.0}


@dataclass(frozen=True, slots=True)
class Site:
    """What a profile says; what it leaves out is the experiment's, or Slurm's."""

    train: Mapping[str, str] = field(default_factory=dict)
    """The resources of a training run, as texts."""
    profile: Path | None = None
    on_slurm: bool = False
    light_partition: str = ""
    """Of the rules that do not train."""
    slots: int = 0
    """Runs that are submitted at once; 0: it does not say."""

    def gpus(self, workload: Mapping[str, Any]) -> int | None:
        """The GPUs that a run gets on all its nodes; None where the profile does not say it in plain words."""
        gpus = gpus_of_gres(self.train.get("gres", default_gres(workload)))
        nodes = _number(self.train.get("nodes", str(workload["nodes"])))
        return None if gpus is None or nodes is None else gpus * int(nodes)

    @property
    def runtime_min(self) -> float:
        """The walltime of one job; 0: none that is known."""
        return minutes_of(self.train.get("runtime", "0")) or 0.0

    @property
    def stop_grace_s(self) -> float:
        """How long before that a job is told to stop."""
        return _number(self.train.get("stop_grace_s", "")) or _STOP_GRACE_S

    @property
    def life_s(self) -> float:
        """How long one life of a job trains at most; 0: without a limit that is known."""
        return max(0.0, self.runtime_min * 60 - self.stop_grace_s)


def require_partition(workflow: Any) -> None:
    """A `UserError` if Snakemake runs on Slurm and no profile says where to train.

    `workflow` is Snakemake's own object. The launcher refuses, too.
    """
    train = workflow.resource_settings.overwrite_resources.get("train", {})
    if workflow.executor_plugin.name == "slurm" and "slurm_partition" not in train:
        raise UserError(
            "no partition to train in; set slurm_partition under set-resources: train: in the profile. A "
            "--set-resources on the command line replaces the profile's, all of them (nothing was submitted)"
        )


def read_site(profile: Path) -> Site:
    """What a profile says; a `UserError` if there is no such profile."""
    file = next((profile / name for name in _file_names(profile) if (profile / name).is_file()), None)
    if file is None:
        raise UserError(unknown_profile(str(profile)))
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} must hold a mapping (got {type(content).__name__})")
    rules = content.get("set-resources")
    return Site(
        _resources(rules.get("train") if isinstance(rules, Mapping) else rules, "train:"),
        profile,
        content.get("executor") == "slurm",
        _resources(content.get("default-resources")).get("slurm_partition", ""),
        int(_number(_resources(content.get("resources")).get("train_slots", "")) or 0),
    )


def unknown_profile(name: str) -> str:
    """What is wrong with a profile's name, and which ones there are: here, or those that rolloutbench brings."""
    for folder in (Path("profiles"), ROOT / "profiles"):
        there = sorted(str(one) for one in folder.glob("*") if any((one / file).is_file() for file in _file_names(one)))
        if there:
            break
    near = did_you_mean(name, there)
    return f"no such profile: {name} (a folder with a config.yaml was looked for){near}; there are {', '.join(there)}"


def default_gres(workload: Mapping[str, Any]) -> str:
    """What Slurm is asked for where the profile does not say it: the experiment's GPUs of each node, of any kind."""
    return f"gpu:{workload['gpus_per_node']}" if workload["gpus_per_node"] else ""


def gpus_of_gres(gres: str) -> int | None:
    """The GPUs of a node in Slurm's words, such as `gpu:h100:8` or `gpu:2,license:1`; None if they make no sense."""
    gpus = 0
    # Without the sockets: `gpu:h100:8(S:0,1)`.
    for part in filter(None, re.sub(r"\([^)]*\)", "", gres).split(",")):
        name, *more = part.strip().removeprefix("gres/").replace("=", ":").split(":")
        if name != "gpu":
            continue
        # gpu, gpu:8, gpu:h100, gpu:h100:8
        count = more[-1] if more and (len(more) > 1 or more[0].isdigit()) else "1"
        if not count.isdigit():
            return None
        gpus += int(count)
    return gpus


def minutes_of(runtime: str) -> float | None:
    """Snakemake's runtime (minutes, or with a unit: `90`, `20h`, `1.5d`) in minutes; None if it is something else."""
    match = re.fullmatch(r"([\d.]+)\s*([smhdw]?)(?:in|ec|ours?|ays?|eeks?|inutes?|econds?)?", runtime.strip())
    number = _number(match[1]) if match else None
    return None if match is None or number is None else number * _UNIT_MIN[match[2] or "m"]


def _file_names(profile: Path) -> list[str]:
    """Snakemake takes a file for its own version first."""
    versioned = [file.name for pattern in ("profile.v*+.yaml", "config.v*+.yaml") for file in profile.glob(pattern)]
    return [*sorted(versioned, reverse=True), "profile.yaml", "config.yaml"]


def _resources(said: Any, before: str = "") -> dict[str, str]:
    """Resources, written as a mapping or as a list of `train:gres=gpu:8`; of a list those after `before`."""
    if isinstance(said, Mapping):
        pairs = list(said.items())
    else:
        words = [said] if isinstance(said, str) else said or []
        pairs = [word.removeprefix(before).partition("=")[::2] for word in map(str, words) if word.startswith(before)]
    # Snakemake evaluates what it can: a text is often quoted twice.
    return {str(key): str(value).strip("'\" ") for key, value in pairs}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
