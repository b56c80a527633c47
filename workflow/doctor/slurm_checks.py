"""Checks a site's Slurm: the profile's requests against the partitions, and how Slurm ends jobs."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from common.files import user_name
from workflow.cluster import slurm
from workflow.cluster.site import Site, gpus_of_gres
from workflow.cluster.slurm import SlurmError, seconds_of
from workflow.doctor import DoctorCheck, Outcome, failed, failed_if, passed, warning

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")
_LEAST_KILL_WAIT_S = 30  # Slurm's own default


@dataclass
class SlurmSite:
    """This site's Slurm configuration, read once; raises `SlurmError` if Slurm does not answer."""

    request: Site | None = None  # the requests of a Slurm profile

    @property
    def is_here(self) -> bool:
        """Whether any of Slurm's programs is on PATH."""
        return any(shutil.which(name) for name in PROGRAMS)

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
        return [DoctorCheck("Slurm", "Slurm", lambda: none)]
    checks = {
        "Slurm": slurmctld,
        "partitions": partitions,
        "resources": resources,
        "limits": limits,
        "accounting": accounting,
        "TaskPlugin": task_plugin,
        "preemption": preemption,
        "KillWait": kill_wait,
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


def partitions(site: SlurmSite) -> Outcome:
    """Whether the profile's partitions exist and are up."""
    known = ", ".join(site.partitions)
    request = site.request
    if request is None:
        return passed(f"{known} (no profile to compare with)", "name one: --profile profiles/slurm")
    wanted = [name for name in (request.train.get("slurm_partition", ""), request.light_partition) if name]
    for name in ",".join(wanted).split(",") if wanted else []:
        if name not in site.partitions:
            return failed(
                f"there is no partition {name}; known: {known}", f"write one of them into {request.profile}/config.yaml"
            )
        if not any(row["up"] == "up" for row in site.partitions[name]):
            return failed(f"partition {name} is down", "choose another one, or wait for the administrator")
    if not request.train.get("slurm_partition"):
        return failed(
            f"{request.profile} names no partition to train in; known: {known}",
            f"set slurm_partition under set-resources: train: in {request.profile}/config.yaml",
        )
    return passed(f"{', '.join(dict.fromkeys(wanted))} of {known}")


def resources(site: SlurmSite) -> Outcome:
    """Whether a node of the training partition has the GPUs, CPUs, memory and walltime that the profile requests."""
    asked = site.request.train if site.request else {}
    rows = [row for name in asked.get("slurm_partition", "").split(",") for row in site.partitions.get(name, [])]
    if not rows or site.request is None:
        return passed("not compared: no training partition is known")
    file = f"{site.request.profile}/config.yaml"
    most_gpus = max(gpus_of_gres(row["gres"] if row["gres"] != "(null)" else "") or 0 for row in rows)
    most_cpus, most_mb = (max(_leading_int(row[key]) for row in rows) for key in ("cpus", "memory"))
    wanted = {
        "gres": (gpus_of_gres(asked.get("gres", "")) or 0, most_gpus, "GPUs"),
        "cpus_per_task": (_leading_int(asked.get("cpus_per_task")), most_cpus, "CPUs"),
        "mem_mb": (_leading_int(asked.get("mem_mb")), most_mb, "MB of memory"),
    }
    for key, (want, most, unit) in wanted.items():
        if want > most:
            return failed(
                f"{key} requests {want} {unit} per node, but the largest node has {most}", f"lower {key} in {file}"
            )
    kinds = {kind for row in rows for kind in re.findall(r"gpu:([A-Za-z][\w.-]*):", row["gres"])}
    kind = re.match(r"gpu:([A-Za-z][\w.-]*)", asked.get("gres", ""))
    if kind and kinds and kind[1] not in kinds:
        return failed(f"gres requests {kind[1]}, but the nodes have {', '.join(sorted(kinds))}", f"fix gres in {file}")
    runtime, longest = site.request.runtime_min, max((seconds_of(row["limit"]) or math.inf) / 60 for row in rows)
    if runtime > longest:
        return failed(
            f"runtime requests {runtime:.0f} min, but the partition allows {longest:.0f}",
            f"lower runtime in {file}: a run resumes from its checkpoint in another job",
        )
    found = [f"{want} of {most} {unit}" for want, most, unit in wanted.values()]
    return passed(f"{', '.join(found)}, {runtime:.0f} min of {'any' if longest == math.inf else f'{longest:.0f}'}")


def limits(site: SlurmSite) -> Outcome:
    """Whether this user may have as many jobs as the profile submits."""
    keys = ("Account", "Partition", "MaxJobs", "MaxSubmit", "MaxWall", "GrpTRES", "MaxTRES")
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user_name()}"]
    try:
        text = slurm.command(*command, f"format={','.join(keys)}")
    except SlurmError as error:
        return warning(f"unknown: {error}", "ask the administrator how many jobs you may submit")
    rows = [dict(zip(keys, line.split("|"), strict=False)) for line in text.splitlines() if line]
    found = [f"{key} {row[key]}" for row in rows for key in keys[2:] if row.get(key)]
    fewest = min((int(row["MaxSubmit"]) for row in rows if row.get("MaxSubmit", "").isdigit()), default=None)
    if not found:
        return passed("none for this user")
    shown = ", ".join(dict.fromkeys(found))
    slots = site.request.slots if site.request else 0
    if fewest is not None and slots > fewest and site.request:
        return warning(
            f"{shown}, but the profile submits up to {slots} jobs",
            f"set train_slots={fewest} in {site.request.profile}/config.yaml",
        )
    return passed(shown)


def accounting(site: SlurmSite) -> Outcome:
    """Whether sacct can report the end of a job that squeue has forgotten."""
    kind = site.settings.get("AccountingStorageType", "")
    if kind in ("", "(null)", "accounting_storage/none"):
        return warning(
            f"none: who cancelled a job is unknown after MinJobAge ({site.settings.get('MinJobAge', '?')})",
            "nothing to do; the jobs' own files and squeue show how a run ended",
        )
    try:
        slurm.accounting(["1"])
    except SlurmError as error:
        return warning(f"sacct does not answer: {error}", "ask the administrator for slurmdbd")
    return passed(kind.rpartition("/")[2])


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
    request = site.request
    name = request.train.get("slurm_partition", "") if request else ""
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


def kill_wait(site: SlurmSite) -> Outcome:
    """How long a cancelled or preempted job may finish its step."""
    seconds = _leading_int(site.settings.get("KillWait"))
    if seconds >= _LEAST_KILL_WAIT_S:
        return passed(f"{seconds} s to finish a step when a job is cancelled or preempted")
    return warning(
        f"{seconds} s: a longer step is lost when a job is cancelled or preempted",
        "keep save_steps low: the run resumes from its last checkpoint",
    )


def _leading_int(text: str | None) -> int:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else 0
