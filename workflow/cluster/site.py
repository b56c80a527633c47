"""Reads a profile: the resources that each training run requests from Slurm."""

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
    """A profile's settings; missing ones come from the experiment or from Slurm."""

    train: Mapping[str, str] = field(default_factory=dict)  # the resources of a training run, as strings
    profile: Path | None = None
    on_slurm: bool = False
    light_partition: str = ""  # the partition of the rules that do not train
    slots: int = 0  # runs that are submitted at once; 0: not set

    def gpus(self, workload: Mapping[str, Any]) -> int | None:
        """The GPUs of a run on all its nodes; None if the profile's gres or nodes contain no plain number."""
        gpus = gpus_of_gres(self.train.get("gres", default_gres(workload)))
        nodes = _number(self.train.get("nodes", str(workload["nodes"])))
        return None if gpus is None or nodes is None else gpus * int(nodes)

    @property
    def runtime_min(self) -> float:
        """The walltime of one job; 0: unknown."""
        return minutes_of(self.train.get("runtime", "0")) or 0.0

    @property
    def stop_grace_s(self) -> float:
        """A job is asked to stop this long before its walltime ends."""
        return _number(self.train.get("stop_grace_s", "")) or _STOP_GRACE_S

    @property
    def life_s(self) -> float:
        """The maximum training time of one life of a job; 0: no known limit."""
        return max(0.0, self.runtime_min * 60 - self.stop_grace_s)


def require_partition(workflow: Any) -> None:
    """Raise a `UserError` if Snakemake runs on Slurm without a partition to train in; the launcher does the same.

    `workflow` is Snakemake's own object.
    """
    train = workflow.resource_settings.overwrite_resources.get("train", {})
    if workflow.executor_plugin.name == "slurm" and "slurm_partition" not in train:
        raise UserError(
            "no partition to train in; set slurm_partition under set-resources: train: in the profile. A "
            "--set-resources on the command line replaces all of the profile's (nothing was submitted)"
        )


def read_site(profile: Path) -> Site:
    """A profile's settings; a `UserError` if there is no such profile."""
    file = next((profile / name for name in _file_names(profile) if (profile / name).is_file()), None)
    if file is None:
        raise UserError(unknown_profile(str(profile)))
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} must contain a mapping (got {type(content).__name__})")
    rules = content.get("set-resources")
    return Site(
        _resources(rules.get("train") if isinstance(rules, Mapping) else rules, "train:"),
        profile,
        content.get("executor") == "slurm",
        _resources(content.get("default-resources")).get("slurm_partition", ""),
        int(_number(_resources(content.get("resources")).get("train_slots", "")) or 0),
    )


def unknown_profile(name: str) -> str:
    """The error for a missing profile, with the known ones: those of this folder, or those of rolloutbench."""
    for folder in (Path("profiles"), ROOT / "profiles"):
        known = sorted(
            str(path) for path in folder.glob("*") if any((path / file).is_file() for file in _file_names(path))
        )
        if known:
            break
    near = did_you_mean(name, known)
    return f"no such profile: {name} (a profile is a folder with a config.yaml){near}; known: {', '.join(known)}"


def default_gres(workload: Mapping[str, Any]) -> str:
    """The gres if the profile sets none: the experiment's GPUs per node, of any kind."""
    return f"gpu:{workload['gpus_per_node']}" if workload["gpus_per_node"] else ""


def gpus_of_gres(gres: str) -> int | None:
    """The GPUs per node of a gres such as `gpu:h100:8` or `gpu:2,license:1`; None if it cannot be read."""
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
    """Snakemake's runtime (minutes, or with a unit: `90`, `20h`, `1.5d`) in minutes; None if it cannot be read."""
    match = re.fullmatch(r"([\d.]+)\s*([smhdw]?)(?:in|ec|ours?|ays?|eeks?|inutes?|econds?)?", runtime.strip())
    number = _number(match[1]) if match else None
    return None if match is None or number is None else number * _UNIT_MIN[match[2] or "m"]


def _file_names(profile: Path) -> list[str]:
    """The names of a profile's file; Snakemake prefers one for its own version."""
    versioned = [file.name for pattern in ("profile.v*+.yaml", "config.v*+.yaml") for file in profile.glob(pattern)]
    return [*sorted(versioned, reverse=True), "profile.yaml", "config.yaml"]


def _resources(raw: Any, prefix: str = "") -> dict[str, str]:
    """Resources from a mapping or from a list such as `train:gres=gpu:8`; of a list only items with the prefix."""
    if isinstance(raw, Mapping):
        pairs = list(raw.items())
    else:
        items = [raw] if isinstance(raw, str) else raw or []
        pairs = [item.removeprefix(prefix).partition("=")[::2] for item in map(str, items) if item.startswith(prefix)]
    # Snakemake evaluates values, so strings are often quoted twice.
    return {str(key): str(value).strip("'\" ") for key, value in pairs}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
