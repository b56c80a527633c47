"""Checks a site's Slurm: whether it answers, and whether it would accept and start the profile's jobs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from common.files import user_name
from workflow.checks import Outcome, SiteCheck, Unchecked, lacking, site_finding
from workflow.head.train_rule import exposed, machine_lacks, request_errors
from workflow.preflight.texts import finding
from workflow.preflight.variables import exported
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError, seconds_of
from workflow.slurm.request import Request, read_request, sbatch_options
from workflow.slurm.sbatch import WHERE
from workflow.slurm.site import Site

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel")
_NEVER = "the job would be rejected, or wait forever, after the stacks are built"
_EXPOSED = "nothing starts before you have said so: another user's program could run as you, with your files and keys"

# Part of Slurm's message -> the profile's keys that it concerns.
_KEYS = {
    "account": "slurm_account",
    "qos": "qos",
    "partition": "slurm_partition",
    "feature|constraint": "constraint",
    "reservation": "reservation",
    "gres|generic": "gres",
    "time limit|wall": "runtime",
    "memory": "mem_mb",
    "cpu count|processors": "cpus_per_task",
    "node name|node list": "nodelist or exclude",
    "option|argument|license": "slurm_extra",
    "": "gres, cpus_per_task, mem_mb or constraint",
}
_NO_ANSWER = re.compile("configuration source|fetch.config|No such file", re.IGNORECASE)


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

    def requested(self, key: str) -> str:
        """A text of the profile's request for training, such as `partition`; empty if there is none."""
        return str(self.requests[0].site[key]) if self.requests else ""

    @cached_property
    def exports(self) -> dict[str, str]:
        """The variables that the profile's setup script exports with a known value."""
        script = self.request.setup if self.request else None
        return exported(script.read_text(encoding="utf-8", errors="replace"))[0] if script else {}

    @cached_property
    def settings(self) -> dict[str, str]:
        """slurm.conf as slurmctld has loaded it."""
        lines = slurm.command("scontrol", "show", "config").splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {name.strip(): value.strip() for name, _, value in pairs}


def slurm_checks(request: Site, site: SlurmSite, required: bool) -> list[SiteCheck]:
    """The checks of the request for the runs, and of the site's Slurm if there is one and an experiment uses it."""
    checks = [SiteCheck("request", lambda: requested(request, site.runs))]
    if required and site.request is None:
        return checks
    if not site.is_here:
        return [*checks, SiteCheck("Slurm", lambda: no_slurm(site))]
    of_slurm = {"Slurm": slurmctld, "sbatch": sbatch, "limits": limits, "TaskPlugin": task_plugin}
    return [*checks, *(SiteCheck(name, partial(_unless_silent, check, site)) for name, check in of_slurm.items())]


def _unless_silent(check: Callable[[SlurmSite], Outcome], site: SlurmSite) -> Outcome:
    try:
        return check(site)
    except SlurmError as error:  # the check `Slurm` says more
        raise Unchecked(f"Slurm does not answer ({error})") from None


def no_slurm(site: SlurmSite) -> Outcome:
    """What a machine without Slurm's programs lacks: nothing, unless the profile submits to Slurm."""
    if site.request is None:
        return "none on PATH: runs train on this machine"
    what = f"{site.request.profile} submits to Slurm, and none of its programs is on PATH"
    return lacking("slurm", what, "work on a login node, or load the site's module of Slurm")


def slurmctld(site: SlurmSite) -> Outcome:
    """Whether Slurm's programs exist and slurmctld answers."""
    if absent := [name for name in PROGRAMS if not shutil.which(name)]:
        remedy = "load the site's module of Slurm, or work on a login node"
        return lacking("slurm", f"{', '.join(absent)} not on PATH", remedy)
    try:
        jobs = slurm.queue()
    except SlurmError as error:
        # A machine may have Slurm's programs and no cluster: only a profile for Slurm needs one.
        remedy = "work on a login node; ask the administrator if it lasts"
        return lacking("slurm", f"slurmctld does not answer: {error}", remedy, site.request is not None)
    release = site.settings.get("SLURM_VERSION", "of an unknown release")
    return f"{release}, cluster {site.settings.get('ClusterName', '?')}; {len(jobs)} jobs of yours in the queue"


def requested(site: Site, runs: Sequence[Mapping[str, Any]]) -> Outcome:
    """Whether the request for training can be read, and fits the runs; without a profile, whether this machine does."""
    if not site.on_slurm and runs:
        found = {"machine": machine_lacks(runs), "ports": exposed(site, runs)}
        if lacks := [
            one
            for code, some in found.items()
            for (what, remedy), arms in some.items()
            for one in site_finding("lacking", code, what, remedy, arms)
        ]:
            return lacks
    if site.profile is None:
        return "no profile to read"
    errors = request_errors(site, runs) if runs else {(one.what, one.remedy): [] for one in site.request().errors}
    if errors:
        ports = exposed(site, runs)
        whys = {one: _EXPOSED if one in ports else _NEVER for one in errors}
        facts: dict[str, Any] = {"profile": site.profile, "where": WHERE}
        return [
            finding("slurm-request", *arms, what=what, why=whys[what, change], change=change, **facts)
            for (what, change), arms in errors.items()
        ]
    if site.on_slurm and site.jobs and not 0 < site.slots < site.jobs:
        return [finding("train-slots", jobs=site.jobs, slots=site.slots or "not set", profile=site.profile)]
    return f"{len(site.train)} keys of train: in {site.profile}"


def sbatch(site: SlurmSite) -> Outcome:
    """Whether Slurm would accept one job of each kind."""
    if site.request is None:
        return "not asked: no profile"
    every = dict.fromkeys(run["arm"] for run in site.runs)
    facts: dict[str, Any] = {"profile": site.request.profile, "of_train": WHERE, "why": _NEVER}
    refused, accepted = [], []
    for jobs, arms, where, options in _kinds(site.request, site.runs):
        try:
            slurm.test_only(options)
            accepted.append(jobs)
        except SlurmError as error:
            said = str(error)
            if slurm.may_pass(said) or slurm.is_submit_limit(said) or _NO_ANSWER.search(said):
                raise
            said = re.sub(r"sbatch: |error: |allocation failure: |Batch job submission failed: ", "", said)
            keys = next(key for words, key in _KEYS.items() if re.search(words, said, re.IGNORECASE))
            refused.append(
                finding("slurm-refuses", *(arms or every), jobs=jobs, said=said, keys=keys, where=where, **facts)
            )
    return refused or f"--test-only accepts {', '.join(accepted)}"


def _kinds(
    site: Site, specs: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[str, tuple[str, ...], str, dict[str, Any]]]:
    """Each kind of job: its name, its arms, where the profile requests it, and sbatch's options."""
    arms_of: dict[str, list[str]] = {}
    for workload, arm in [(spec["workload"], spec["arm"]) for spec in specs] or [(None, "")]:
        request = site.request(workload)
        if not request.errors and None not in (request.runtime_min, request.nodes, request.cpus, request.gpus):
            options = sbatch_options(request.site) | {"nodes": request.nodes, "ntasks-per-node": 1}
            options |= {"time": request.runtime_min, **({"cpus-per-task": request.cpus} if request.cpus else {})}
            arms = arms_of.setdefault(json.dumps(options), [])
            arms += [arm] * (arm not in arms)
    for text, arms in arms_of.items():
        name = f"a training job of {', '.join(arms)}" if any(arms) else "a training job"
        yield name, tuple(filter(None, arms)), WHERE, json.loads(text)
    yield "a job of the light rules", (), "under default-resources: in the profile", _light_options(site.light)
    if site.stack:
        options = _light_options({**site.light, **site.stack})
        yield "a job that builds a stack", (), "under set-resources: stack: in the profile", options


def _light_options(resources: Mapping[str, str]) -> dict[str, Any]:
    """sbatch's options for a job that does not train."""
    # Of the light rules Snakemake reads the profile, which has other names for it too.
    memory = next((resources[key] for key in ("mem_mb", "mem", "mem_mib") if resources.get(key)), "")
    request = read_request({**resources, "mem_mb": memory}, on_slurm=False)
    options = sbatch_options(request.site) | {"cpus-per-task": request.cpus, "time": request.runtime_min}
    return {name: value for name, value in options.items() if value}


def limits(site: SlurmSite) -> Outcome:
    """Whether the limits of this user, account and QOS allow the profile's jobs."""
    rows = _accounts(site)
    names = {site.requested("qos") or row.get("DefaultQOS", "") for row in rows}
    rows += [row for row in _sacctmgr("qos", *_QOS) if row["Name"] in names]
    # Slurm also shows what is not set as 0.
    rows = [{key: text for key, text in row.items() if text.strip("0:")} for row in rows]
    found = [f"{key} {row[key]}" for row in rows for key in _LIMITS if row.get(key)]
    shown = ", ".join(dict.fromkeys(found)) or "none for this user"
    if exceeded := [text for row in rows for text in _exceeded(site, row)]:
        return lacking(
            "limits", "; ".join(exceeded), "lower the request in the profile, or set another slurm_account or qos"
        )
    fewest = min((int(row["MaxSubmit"]) for row in rows if row.get("MaxSubmit", "").isdigit()), default=None)
    slots = site.request.slots if site.request else 0
    if fewest is not None and slots > fewest and site.request:
        what = f"{shown}, but the profile submits up to {slots} jobs"
        return site_finding("odd", "limits", what, f"set train_slots={fewest} in {site.request.profile}/config.yaml")
    return shown


_LIMITS = ("MaxJobs", "MaxSubmit", "MaxWall", "GrpTRES", "MaxTRES", "MaxTRESPU")
_QOS = ("Name", "MaxWall", "GrpTRES", "MaxTRES", "MaxTRESPU", "MinTRES")


def _accounts(site: SlurmSite) -> list[dict[str, str]]:
    """The limits of this user's accounts that the profile may use, and of the accounts as a whole."""
    keys = ("Account", "User", *_LIMITS[:-1], "DefaultQOS")
    own = _sacctmgr("associations", *keys, where=(f"user={user_name()}",))
    own = [row for row in own if site.requested("account") in ("", row["Account"])]
    names = ",".join(dict.fromkeys(row["Account"] for row in own))
    every = _sacctmgr("associations", *keys, where=(f"accounts={names}",)) if names else []
    return own + [row for row in every if not row.get("User")]


def _sacctmgr(what: str, *keys: str, where: Sequence[str] = ()) -> list[dict[str, str]]:
    text = slurm.command("sacctmgr", "--noheader", "--parsable2", "show", what, *where, f"format={','.join(keys)}")
    return [dict(zip(keys, line.split("|"), strict=False)) for line in text.splitlines() if line]


def _exceeded(site: SlurmSite, row: Mapping[str, str]) -> Iterator[str]:
    """The limits of an association or a QOS that one job of the profile exceeds."""
    owner = f"QOS {row['Name']}" if "Name" in row else f"account {row['Account']}"
    runtime = max((one.runtime_min or 0 for one in site.requests), default=0)
    longest = seconds_of(row.get("MaxWall", ""))
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
        return kind
    return [finding("task-plugin", kind=kind or "none")]
