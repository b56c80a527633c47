"""Asks Slurm whether it would accept each kind of job of an experiment, without submitting any."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError
from workflow.slurm.request import read_request, sbatch_options
from workflow.slurm.sbatch import WHERE
from workflow.slurm.site import Site

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


class Refusal(NamedTuple):
    """A kind of job that Slurm would not accept."""

    jobs: str
    arms: tuple[str, ...]  # empty for the light rules' jobs
    error: str
    remedy: str


def refusals(site: Site, specs: Iterable[Mapping[str, Any]]) -> tuple[list[Refusal], list[str]]:
    """The jobs that Slurm would not accept, and those that it would; raises `SlurmError` if it does not answer."""
    refused, accepted = [], []
    for jobs, arms, where, options in _kinds(site, specs):
        try:
            slurm.test_only(options)
            accepted.append(jobs)
        except SlurmError as error:
            said = str(error)
            if slurm.may_pass(said) or slurm.is_submit_limit(said) or _NO_ANSWER.search(said):
                raise
            said = re.sub(r"sbatch: |error: |allocation failure: |Batch job submission failed: ", "", said)
            keys = next(key for words, key in _KEYS.items() if re.search(words, said, re.IGNORECASE))
            refused.append(Refusal(jobs, arms, said, f"correct {keys} {where}"))
    return refused, accepted


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
    request = read_request(resources, on_slurm=False)
    options = sbatch_options(request.site) | {"cpus-per-task": request.cpus, "time": request.runtime_min}
    return {name: value for name, value in options.items() if value}
