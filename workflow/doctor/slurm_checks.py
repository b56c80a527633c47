"""Checks a site's Slurm: the profile's requests against the partitions, and how Slurm ends jobs."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from common.files import user_name
from workflow.doctor import DoctorCheck, Outcome, failed, failed_if, passed, warning
from workflow.head.train_rule import request_errors
from workflow.preflight.checks import exported
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError, seconds_of
from workflow.slurm.request import Request, gpus_of_gres
from workflow.slurm.site import Site, refusals

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")


@dataclass
class SlurmSite:
    """This site's Slurm configuration, read once; raises `SlurmError` if Slurm does not answer."""

    request: Site | None = None  # the requests of a Slurm profile
    runs: Sequence[Mapping[str, Any]] = ()  # the specifications of the experiment's runs

    @property
    def is_here(self) -> bool:
        """Whether any of Slurm's programs is on PATH."""
        return any(shutil.which(name) for name in PROGRAMS)

    @cached_property
    def requests(self) -> list[Request]:
        """The requests of the profile for the experiment's runs, or for any run."""
        workloads = [run["workload"] for run in self.runs] or [None]
        return [self.request.request(workload) for workload in workloads] if self.request else []

    @property
    def partition(self) -> str:
        """The partition to train in; empty if there is none."""
        return str(self.requests[0].site["partition"]) if self.requests else ""

    @cached_property
    def exports(self) -> dict[str, str]:
        """The variables that the profile's setup script exports literally."""
        script = Path(self.requests[0].site["setup"] or ".") if self.requests else Path()
        return exported(script.read_text(encoding="utf-8", errors="replace")) if script.is_file() else {}

    def most(self, value: Callable[[Request], int | None]) -> int:
        """The largest value of all requests; 0 if it is unknown."""
        return max((value(request) or 0 for request in self.requests), default=0)

    @cached_property
    def settings(self) -> dict[str, str]:
        """slurm.conf as slurmctld has loaded it."""
        lines = slurm.command("scontrol", "show", "config").splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {name.strip(): value.strip() for name, _, value in pairs}

    @cached_property
    def partitions(self) -> dict[str, list[dict[str, str]]]:
        """The kinds of node of each partition: up or not, time limit, nodes, CPUs, memory in MB, generic resources."""
        keys = ("partition", "up", "limit", "nodes", "cpus", "memory", "gres")
        found: dict[str, list[dict[str, str]]] = {}
        for line in slurm.command("sinfo", "--noheader", "--format=%R|%a|%l|%D|%c|%m|%G").splitlines():
            row = dict(zip(keys, (cell.strip() for cell in line.split("|")), strict=False))
            if len(row) == len(keys):
                found.setdefault(row["partition"], []).append(row)
        return found


def slurm_checks(site: SlurmSite) -> list[DoctorCheck]:
    """The checks of the site's Slurm; a single one if there is none."""
    if not site.is_here:
        none = passed("none on PATH: runs train on this machine, with --profile profiles/local", "")
        alone = [DoctorCheck("Slurm", "Slurm", lambda: none)]
        return [*alone, *([DoctorCheck("Slurm", "request", lambda: request(site))] if site.request else [])]
    checks = {
        "Slurm": slurmctld,
        "request": request,
        "partitions": partitions,
        "resources": resources,
        "sbatch": sbatch,
        "limits": limits,
        "TaskPlugin": task_plugin,
        "preemption": preemption,
    }
    return [DoctorCheck("Slurm", name, partial(_unless_silent, check, site)) for name, check in checks.items()]


def _unless_silent(check: Callable[[SlurmSite], Outcome], site: SlurmSite) -> Outcome:
    try:
        return check(site)
    except SlurmError:  # the check `Slurm` says why
        return warning("not checked: Slurm does not answer", "follow the remedy of `Slurm` above")


def slurmctld(site: SlurmSite) -> Outcome:
    """Whether Slurm's programs exist and slurmctld answers."""
    if absent := [name for name in PROGRAMS if not shutil.which(name)]:
        return failed(f"{', '.join(absent)} not on PATH", "load the site's module of Slurm, or work on a login node")
    try:
        jobs = slurm.queue()
    except SlurmError as error:
        # A machine may have Slurm's programs and no cluster: only a profile for Slurm needs one.
        return failed_if(
            site.request is not None,
            f"slurmctld does not answer: {error}",
            "work on a login node; ask the administrator if it lasts",
        )
    release = site.settings.get("SLURM_VERSION", "of an unknown release")
    return passed(f"{release}, cluster {site.settings.get('ClusterName', '?')}; {len(jobs)} jobs of yours in the queue")


def request(site: SlurmSite) -> Outcome:
    """Whether the profile's request for training can be read, and fits the experiment's runs."""
    if site.request is None:
        return passed("no profile to read")
    found = request_errors(site.request, site.runs) if site.runs else {}
    found = found or {(error.what, error.remedy): [] for error in site.requests[0].errors}
    if found:
        whats = [", ".join(arms) + ": " * bool(arms) + what for (what, _), arms in found.items()]
        return failed("; ".join(whats), "; ".join(dict.fromkeys(remedy for _, remedy in found)))
    return passed(f"{len(site.request.train)} keys of train: in {site.request.profile}")


def sbatch(site: SlurmSite) -> Outcome:
    """Whether Slurm would accept one job of each kind."""
    if site.request is None:
        return passed("not asked: no profile")
    try:
        refused, accepted = refusals(site.request, site.runs)
    except SlurmError as error:
        return warning(f"not asked: {error}", "try again when Slurm answers")
    if refused:
        return failed(
            "; ".join(f"{one.jobs}: {one.error}" for one in refused), "; ".join({one.remedy: 0 for one in refused})
        )
    return passed(f"--test-only accepts {', '.join(accepted)}")


def partitions(site: SlurmSite) -> Outcome:
    """Whether the profile's partitions exist and are up."""
    known = ", ".join(site.partitions)
    request = site.request
    if request is None:
        return passed(f"{known} (no profile to compare with)", "name one: --profile profiles/slurm")
    wanted = [name for name in (site.partition, request.light_partition) if name]
    for name in ",".join(wanted).split(",") if wanted else []:
        if name not in site.partitions:
            return failed(
                f"there is no partition {name}; known: {known}", f"write one of them into {request.profile}/config.yaml"
            )
        if not any(row["up"] == "up" for row in site.partitions[name]):
            return failed(f"partition {name} is down", "choose another one, or wait for the administrator")
    if not site.partition:
        return failed(
            f"{request.profile} names no partition to train in; known: {known}",
            f"set slurm_partition under set-resources: train: in {request.profile}/config.yaml",
        )
    return passed(f"{', '.join(dict.fromkeys(wanted))} of {known}")


def resources(site: SlurmSite) -> Outcome:
    """Whether a node of the training partition has the GPUs, CPUs, memory and walltime that the profile requests."""
    rows = [row for name in site.partition.split(",") for row in site.partitions.get(name, [])]
    if not rows or site.request is None:
        return passed("not compared: no training partition is known")
    file = f"{site.request.profile}/config.yaml"
    most_gpus = max(gpus_of_gres(row["gres"] if row["gres"] != "(null)" else "") for row in rows)
    # sinfo marks the smallest of several nodes with `+`.
    most_cpus, most_mb = (max(int(row[key].rstrip("+")) for row in rows) for key in ("cpus", "memory"))
    gres = site.requests[0].site["gres"]
    wanted = {
        "gres": (site.most(lambda one: one.gpus), most_gpus, "GPUs"),
        "cpus_per_task": (site.most(lambda one: one.cpus), most_cpus, "CPUs"),
        "mem_mb": (site.most(lambda one: one.site["mem_mb"]), most_mb, "MB of memory"),
    }
    for key, (want, most, unit) in wanted.items():
        if want > most:
            return failed(
                f"{key} requests {want} {unit} per node, but the largest node has {most}", f"lower {key} in {file}"
            )
    kinds = {kind for row in rows for kind in re.findall(r"gpu:([A-Za-z][\w.-]*):", row["gres"])}
    kind = re.match(r"gpu:([A-Za-z][\w.-]*)", gres)
    if kind and kinds and kind[1] not in kinds:
        return failed(f"gres requests {kind[1]}, but the nodes have {', '.join(sorted(kinds))}", f"fix gres in {file}")
    runtime, longest = (
        site.most(lambda one: one.runtime_min),
        max((seconds_of(row["limit"]) or math.inf) / 60 for row in rows),
    )
    if runtime > longest:
        return failed(
            f"runtime requests {runtime:.0f} min, but the partition allows {longest:.0f}",
            f"lower runtime in {file}: a run resumes from its checkpoint in another job",
        )
    found = [f"{want} of {most} {unit}" for want, most, unit in wanted.values()]
    return passed(f"{', '.join(found)}, {runtime:.0f} min of {'any' if longest == math.inf else f'{longest:.0f}'}")


def limits(site: SlurmSite) -> Outcome:
    """Whether the limits of this user, account and QOS allow the profile's jobs."""
    try:
        rows = _accounts(site)
        names = {(site.requests[0].site["qos"] if site.requests else "") or row.get("DefaultQOS", "") for row in rows}
        rows += [row for row in _sacctmgr("qos", *_QOS) if row["Name"] in names]
    except SlurmError as error:
        return warning(f"unknown: {error}", "ask the administrator how many jobs you may submit")
    found = [f"{key} {row[key]}" for row in rows for key in _LIMITS if row.get(key)]
    shown = ", ".join(dict.fromkeys(found)) or "none for this user"
    if exceeded := [text for row in rows for text in _exceeded(site, row)]:
        return failed("; ".join(exceeded), "lower the request in the profile, or set another slurm_account or qos")
    fewest = min((int(row["MaxSubmit"]) for row in rows if row.get("MaxSubmit", "").isdigit()), default=None)
    slots = site.request.slots if site.request else 0
    if fewest is not None and slots > fewest and site.request:
        return warning(
            f"{shown}, but the profile submits up to {slots} jobs",
            f"set train_slots={fewest} in {site.request.profile}/config.yaml",
        )
    return passed(shown)


_LIMITS = ("MaxJobs", "MaxSubmit", "MaxWall", "GrpTRES", "MaxTRES", "MaxTRESPU")
_QOS = ("Name", "MaxWall", "GrpTRES", "MaxTRES", "MaxTRESPU", "MinTRES")


def _accounts(site: SlurmSite) -> list[dict[str, str]]:
    """The limits of this user's accounts that the profile may use, and of the accounts as a whole."""
    keys = ("Account", "User", *_LIMITS[:-1], "DefaultQOS")
    own = _sacctmgr("associations", *keys, where=(f"user={user_name()}",))
    account = site.requests[0].site["account"] if site.requests else ""
    own = [row for row in own if account in ("", row["Account"])]
    names = ",".join(dict.fromkeys(row["Account"] for row in own))
    every = _sacctmgr("associations", *keys, where=(f"accounts={names}",)) if names else []
    return own + [row for row in every if not row.get("User")]


def _sacctmgr(what: str, *keys: str, where: Sequence[str] = ()) -> list[dict[str, str]]:
    text = slurm.command("sacctmgr", "--noheader", "--parsable2", "show", what, *where, f"format={','.join(keys)}")
    return [dict(zip(keys, line.split("|"), strict=False)) for line in text.splitlines() if line]


def _exceeded(site: SlurmSite, row: Mapping[str, str]) -> Iterator[str]:
    """The limits of an association or a QOS that one job of the profile exceeds."""
    owner = f"QOS {row['Name']}" if "Name" in row else f"account {row['Account']}"
    runtime, longest = site.most(lambda one: one.runtime_min), seconds_of(row.get("MaxWall", ""))
    if longest and runtime * 60 > longest:
        yield f"runtime requests {runtime} min, and MaxWall of {owner} is {row['MaxWall']}"
    for limit, part in ((key, part) for key in _QOS[2:] for part in row.get(key, "").split(",")):
        name, _, text = part.partition("=")
        wanted = max((_total(one, name) for one in site.requests), default=0)
        size = re.fullmatch(r"([\d.]+)([MGT]?)", text)
        allowed = float(size[1]) * 1024 ** "MGT".index(size[2] or "M") if size else wanted
        if wanted < allowed if limit == "MinTRES" else wanted > allowed:
            yield f"a job requests {name}={wanted}, and {limit} of {owner} is {part}"


def _total(request: Request, name: str) -> int:
    """What a request needs of one of Slurm's resources on all nodes."""
    each = {"cpu": request.cpus, "node": 1, "mem": request.site["mem_mb"], "gres/gpu": request.gpus}
    return (each.get(name) or 0) * (request.nodes or 0)


def task_plugin(site: SlurmSite) -> Outcome:
    """Whether jobs that share a node are bound to their own CPUs."""
    kind = site.settings.get("TaskPlugin", "")
    if any(plugin in kind for plugin in ("cgroup", "affinity")):
        return passed(kind)
    return warning(
        f"{kind or 'none'}: jobs on one node share its CPUs and disturb each other's timings",
        "train on whole nodes, or ask the administrator for TaskPlugin=task/cgroup,task/affinity",
    )


def preemption(site: SlurmSite) -> Outcome:
    """What happens to a preempted job."""
    kind, mode = site.settings.get("PreemptType", ""), site.settings.get("PreemptMode", "OFF")
    name = site.partition
    if name in site.partitions:
        text = slurm.command("scontrol", "show", "partition", name, "--oneliner")
        mode = next((word[12:] for word in text.split() if word.startswith("PreemptMode=")), mode)
    where = f" in {name}" if name else ""
    if kind in ("", "preempt/none", "(null)") or mode == "OFF":
        return passed(f"none{where}")
    if "SUSPEND" in mode:
        return warning(
            f"{mode}{where}: a suspended run's steps last as long as the pause",
            "train in a partition that does not suspend",
        )
    if "CANCEL" in mode:
        return warning(
            f"{mode}{where}: a preempted run is submitted again and waits in the queue again",
            "keep save_steps low, or train in a partition that requeues",
        )
    return passed(f"{mode}{where}: a preempted run resumes from its checkpoint")
