"""Reads and writes a profile, the resources of each training run, and asks Slurm whether it would accept such jobs."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError
from common.files import ROOT
from common.messages import did_you_mean
from workflow.slurm.request import RESOURCES, Request, name_old_keys, read_request
from workflow.slurm.sbatch import TEXTS, misread_time

PROFILE = ROOT / "profiles" / "slurm" / "config.yaml"
_THREADS = "2"  # as rules/train.smk has them


@dataclass(frozen=True, slots=True)
class Site:
    """A profile's settings; missing ones come from the experiment or from Slurm."""

    train: Mapping[str, str] = field(default_factory=dict)  # the resources of a training run, as strings
    profile: Path | None = None
    on_slurm: bool = False
    light: Mapping[str, str] = field(default_factory=dict)  # the resources of the rules that do not train
    slots: int = 0  # runs that are submitted at once; 0: not set
    jobs: int = 0  # launchers, imports and light jobs that Snakemake has at once; 0: not set
    threads: str = _THREADS
    limited: tuple[str, ...] = ()  # the names of all resources that Snakemake limits
    stack: Mapping[str, str] = field(default_factory=dict)  # what building a stack requests besides the light resources

    def request(self, workload: Mapping[str, Any] | None = None) -> Request:
        """The request of a run, as rules/train.smk completes it from the run's workload."""
        given = {"cpus_per_task": self.threads}
        if workload is not None:
            given |= {"gres": default_gres(workload), "nodes": str(workload.get("nodes", 1))}
        return read_request(given | dict(self.train), self.limited, self.on_slurm)

    def gpus(self, workload: Mapping[str, Any]) -> int | None:
        """The GPUs of a run on all its nodes; None if the profile's gres or nodes are wrong."""
        request = self.request(workload)
        return None if request.gpus is None or request.nodes is None else request.gpus * request.nodes

    @property
    def label(self) -> str:
        """By what a command judges: the first line of its output."""
        return f"by profile {self.profile}" if self.profile else "by this machine (no --profile)"

    @property
    def setup(self) -> Path | None:
        """The script that each training job sources first; None without one, and on this machine."""
        script = Path(self.request().site["setup"])
        return script if self.on_slurm and script.is_file() else None

    @property
    def runtime_min(self) -> int:
        """The walltime of one job; 0: unknown."""
        return self.request().runtime_min or 0

    @property
    def stop_grace_s(self) -> float:
        """A job is asked to stop this long before its walltime ends."""
        return self.request().limits["stop_grace_s"] or float(RESOURCES["stop_grace_s"])

    @property
    def life_s(self) -> float:
        """The maximum training time of one life of a job; 0: no known limit."""
        return max(0.0, self.runtime_min * 60 - self.stop_grace_s)


def site_of(workflow: Any, rule: str = "train") -> Site:
    """The settings that Snakemake has from its profile and its command line; `workflow` is Snakemake's object.

    `rule` is the name of the rule `train`: a module statement may give it another.

    Values that it would misread are replaced: Slurm's times, sizes with units, and text that is also Python.
    """
    settings = workflow.resource_settings
    train, threads = (one.get(rule) for one in (settings.overwrite_resources, settings.overwrite_threads))
    texts = {name: plain_text(getattr(value, "raw", value)) for name, value in (train or {}).items()}
    name_old_keys(texts)
    on_slurm = "slurm_partition" in texts or getattr(workflow.executor_plugin, "name", "") == "slurm"
    site = Site(
        texts, None, on_slurm, threads=str(getattr(threads, "raw", threads) or _THREADS), limited=(*settings.resources,)
    )
    request = site.request()
    read = {"runtime": request.runtime_min, "mem_mb": request.site["mem_mb"], "nodes": request.nodes}
    plain = (*TEXTS, "setup", "slurm_extra", "private_nodes")
    read |= {key: text for key, text in texts.items() if key in plain}
    for name in texts.keys() & read.keys():
        if read[name] is not None:
            train[name] = read[name]
    return site


def read_site(profile: Path) -> Site:
    """A profile's settings, from its folder or its file; a `UserError` if there is no such profile."""
    file = profile if profile.is_file() else _file_of(profile)
    if file is None:
        raise UserError(unknown_profile(str(profile)))
    try:
        text = file.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} must contain a mapping (got {type(content).__name__})")
    rules = content.get("set-resources")
    train = _resources(rules.get("train") if isinstance(rules, Mapping) else rules, "train:")
    name_old_keys(train)
    limited = _resources(content.get("resources"))
    slots, threads = limited.get("train_slots", ""), _resources(content.get("set-threads")).get("train", _THREADS)
    raw = _as_written(text, "set-resources", "train", "runtime")
    if ":" in raw and train["runtime"].isdigit():  # YAML reads 20:00:00 without quotes as a number
        raise UserError(f"{file}: {misread_time(raw, train['runtime'])}")
    return Site(
        train,
        profile,
        content.get("executor") == "slurm",
        _resources(content.get("default-resources")),
        int(slots) if slots.isdigit() else 0,
        int(jobs) if (jobs := str(content.get("jobs", ""))).isdigit() else 0,
        threads,
        (*limited,),
        _resources(rules.get("stack") if isinstance(rules, Mapping) else rules, "stack:"),
    )


def site_for(profile: Path | None, experiment: str = "") -> Site:
    """The site by which a command judges: the given profile's, else that of the experiment's own, else this machine."""
    own = Path("profiles", experiment)
    if profile is None and experiment and _file_of(own):
        profile = own
    return Site() if profile is None else read_site(profile)


def unknown_profile(name: str) -> str:
    """The error for a missing profile, with the known ones: those of this folder, or those of rolloutbench."""
    for folder in (Path("profiles"), ROOT / "profiles"):
        known = sorted(str(path) for path in folder.glob("*") if _file_of(path))
        if known:
            break
    near = did_you_mean(name, known)
    return f"no such profile: {name} (a profile is a folder with a config.yaml){near}; known: {', '.join(known)}"


def filled_profile(values: Mapping[str, str], light: str) -> str:
    """profiles/slurm with these keys of `train`; its other rules get the account, too, and the partition `light`."""
    if not PROFILE.is_file():
        raise UserError("--partition needs profiles/slurm of a checkout; run it in one (nothing was written)")
    head, train, rest = PROFILE.read_text(encoding="utf-8").partition("\n  train:\n")
    for key, text in values.items():
        # A text in a Snakemake profile needs Python quotes inside YAML quotes.
        value = text if text.isdigit() else json.dumps(repr(text))
        line = re.compile(rf"(?m)^( +)(?:# )?{key}: .*$")
        if line.search(rest) is None:
            rest = f"    {key}: {value}\n{rest}"
        rest = line.sub(lambda found, key=key, value=value: f"{found[1]}{key}: {value}", rest, count=1)  # type: ignore[misc]
        if key in ("slurm_partition", "slurm_account"):
            value = json.dumps(repr(light)) if key == "slurm_partition" else value
            head = line.sub(lambda found, key=key, value=value: f"{found[1]}{key}: {value}", head)  # type: ignore[misc]
    return head + train + rest


def default_gres(workload: Mapping[str, Any]) -> str:
    """The gres if the profile sets none: the experiment's GPUs per node, of any kind."""
    return f"gpu:{workload['gpus_per_node']}" if workload["gpus_per_node"] else ""


def _file_of(profile: Path) -> Path | None:
    """The file in a profile's folder; Snakemake prefers one for its own version."""
    versioned = [file.name for pattern in ("profile.v*+.yaml", "config.v*+.yaml") for file in profile.glob(pattern)]
    names = [*sorted(versioned, reverse=True), "profile.yaml", "config.yaml"]
    return next((profile / name for name in names if (profile / name).is_file()), None)


def _resources(raw: Any, prefix: str = "") -> dict[str, str]:
    """Resources from a mapping or from a list such as `train:gres=gpu:8`; of a list only items with the prefix."""
    if isinstance(raw, Mapping):
        pairs = list(raw.items())
    else:
        items = [raw] if isinstance(raw, str) else raw or []
        pairs = [item.removeprefix(prefix).partition("=")[::2] for item in map(str, items) if item.startswith(prefix)]
    return {str(key): plain_text(value) for key, value in pairs}


def plain_text(value: Any) -> str:
    """A resource's text without the second pair of quotes that Snakemake, which evaluates it, needs."""
    text = os.path.expandvars(str(value).strip())  # as Snakemake does
    try:
        read = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return read if isinstance(read, str) else "" if read is None else text


def _as_written(text: str, *keys: str) -> str:
    """A scalar of a YAML text as it is written."""
    found = yaml.load(text, yaml.BaseLoader)
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""
