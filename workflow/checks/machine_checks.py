"""Checks this machine (disk, folders, network, package index) and the file system of the results."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from common.files import write_text
from common.findings import Finding
from common.model_facts import model_facts
from common.redaction import without_secrets
from common.verdicts import count_of
from node.hub import source_kind
from trainers.registry import trainer_named
from workflow.checks import Outcome, SiteCheck, Unchecked, lacking, on_node
from workflow.checks.slurm_checks import SlurmSite
from workflow.checks.stack_checks import is_built
from workflow.runs.locks import try_lock
from workflow.stacks import Stack
from workflow.stacks.definition import STACKS
from workflow.stacks.uv import HOW_TO_SET_SOURCES, Uv, configured_uv, end_of_output

_INDEX_TIMEOUT_S = 8
_JOB_S = 30
_KEPT = 2  # checkpoints of a run: the newest ones
_STATES = 3  # of a parameter in a checkpoint: its value, and Adam's two moments
ACROSS_NODES = "rolloutbench check --across-nodes"


def machine_checks(stacks: Sequence[Stack], required: bool, site: SlurmSite) -> list[SiteCheck]:
    """The checks of the machine; `required`: the experiment trains in these stacks."""
    missing = [stack for stack in stacks if not is_built(stack)]
    checks = {
        "disk": lambda: disk(missing if required else [], site.runs, os.environ | site.exports),
        "folders": lambda: folders(os.environ | site.exports),
        "interfaces": lambda: interfaces(os.environ | site.exports, site),
    }
    if missing or not required:
        checks["package index"] = lambda: package_index(configured_uv())
    return [SiteCheck(name, action) for name, action in checks.items()]


class Need(NamedTuple):
    """What will be written, where, and at least how much."""

    folder: Path
    gib: float
    what: str


def disk(stacks: Sequence[Stack], runs: Sequence[Mapping[str, Any]], variables: Mapping[str, str]) -> Outcome:
    """Whether each disk has space for what these stacks and runs will write; `variables`: of a training."""
    needs = [Need(STACKS, sum(stack.disk_gib for stack in stacks), f"{count_of(len(stacks), 'stack')} to build")]
    needs += [*_model_needs(runs, variables), *_checkpoint_needs(runs)]
    found: list[str] = []
    full: list[str] = []
    disks: dict[int, list[Need]] = {}
    for need in needs:
        disks.setdefault(existing(need.folder).stat().st_dev, []).append(need)
    for some in disks.values():
        there = existing(some[0].folder)
        if not os.access(there, os.W_OK):
            return lacking("disk", f"{there} cannot be written", "work in a folder of your own")
        free_gib = shutil.disk_usage(there).free / 2**30
        parts = [f"at least {need.gib:.3g} GiB for {need.what}" for need in some if need.gib]
        text = "; ".join([f"{free_gib:.0f} GiB free in {there}", *parts])
        (full if free_gib < sum(need.gib for need in some) else found).append(text)
    change = (
        "free some space there, link .stacks or results to a larger disk, or set HF_HOME; fewer checkpoints: save_steps"
    )
    return lacking("disk", "; ".join(full), change) if full else "; ".join(found)


def _model_needs(runs: Sequence[Mapping[str, Any]], variables: Mapping[str, str]) -> Iterator[Need]:
    """The weights that a hub still has to send, two bytes a parameter."""
    home = Path(variables.get("HF_HOME") or Path(variables.get("HOME", "/"), ".cache", "huggingface"))
    for source in dict.fromkeys(str(run["workload"]["model"]["source"]) for run in runs if run["stack"]):
        facts = model_facts(source)
        cached = home / "hub" / f"models--{source.replace('/', '--')}"
        if source_kind(source) == "hub" and facts and facts.parameters and not cached.is_dir():
            yield Need(home, facts.parameters * 2 / 2**30, f"the weights of {source}")


def _checkpoint_needs(runs: Sequence[Mapping[str, Any]]) -> Iterator[Need]:
    """The newest checkpoints of all runs that train every parameter of a model of known size."""
    total, counted = 0.0, 0
    for run in runs:
        workload = run["workload"]
        if not (run["stack"] and trainer_named(run["trainer"]).trains and workload.get("save_steps")):
            continue
        facts = model_facts(str(workload["model"]["source"]))
        # An adapter's checkpoints are small.
        if facts and facts.parameters and "lora" not in str(run["options"]).lower():
            width = 4 if workload["dtype"] == "float32" else 2
            kept = min(_KEPT, workload["steps"] // workload["save_steps"])
            total += kept * _STATES * facts.parameters * width / 2**30
            counted += 1
    if total:
        yield Need(Path("results"), total, f"the newest checkpoints of {count_of(counted, 'run')}")


def existing(folder: Path) -> Path:
    """The nearest folder above that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())


def folders(variables: Mapping[str, str]) -> Outcome:
    """Whether the folders into which a training writes can be written."""
    named = [f"{name} {variables[name]}" for name in on_node.FOLDERS if variables.get(name)]
    return node_problem(on_node.unwritable_folders(variables), []) or ", ".join(named)


def interfaces(variables: Mapping[str, str], site: SlurmSite) -> Outcome:
    """Whether this machine has the network interfaces that NCCL and Gloo are told to use."""
    wrong = [*on_node.missing_interfaces(variables)]
    if wrong and site.is_here and "SLURM_JOB_ID" not in variables:
        raise Unchecked(f"{wrong[0]}, and runs train on other nodes: {ACROSS_NODES}")
    return node_problem([], wrong) or ", ".join(name for _, name in socket.if_nameindex())


def node_problem(unwritable: Sequence[str], wrong: Sequence[str]) -> Sequence[Finding]:
    """What a machine lacks on which a training cannot write, or cannot use the network."""
    found: list[Finding] = []
    if unwritable:
        remedy = "set it to a folder on a shared disk with space"
        found += lacking("folders", f"cannot be written: {', '.join(unwritable)}", remedy)
    if wrong:
        found += lacking("interfaces", "; ".join(wrong), "name one of them in the profile's setup script")
    return found


def package_index(uv: Uv) -> Outcome:
    """Whether the package sources of pip's settings answer a query for one package's versions."""
    sources = uv.sources
    if "--no-index" in uv.arguments:
        return f"not asked, as pip's settings say: {sources}"
    quick = {"UV_HTTP_TIMEOUT": str(_INDEX_TIMEOUT_S), "UV_HTTP_RETRIES": "0", "UV_NO_PROGRESS": "1"}
    asked = ["pip", "compile", "-", "--quiet", "--no-deps", "--no-build", "--no-header", "--no-cache", "--no-config"]
    status, output = replace(uv, environ={**uv.environ, **quick}).run(asked, stdin="packaging\n")
    if status == 0:
        return sources
    why = without_secrets(" ".join(end_of_output(output, 3).split()))
    return lacking(
        "package-index",
        f"{sources} does not answer: {why}",
        f"{HOW_TO_SET_SOURCES} Behind a proxy: HTTPS_PROXY. Without a network: docs/offline.md",
    )


def file_checks(results: Path, site: SlurmSite, across_nodes: bool, unasked: bool) -> list[SiteCheck]:
    """The checks of the file system of the results; `unasked`: what runs here does not use Slurm."""
    folder = existing(results)
    checks = [SiteCheck("locks", lambda: locks(folder))]
    if across_nodes or (site.is_here and not unasked):
        checks.append(SiteCheck("across nodes", lambda: from_a_node(folder, site, across_nodes)))
    return checks


def locks(folder: Path) -> Outcome:
    """Whether a second holder is refused a file's lock; a `UserError` if the file system has no locks."""
    with _own_folder(folder) as own, _held(own / "lock"):
        if try_lock(own / "lock") is None:
            return f"work in {folder}"
    remedy = "ask for a mount with locks (Lustre: flock; NFS: without nolock)"
    return lacking("locks", f"{folder} gives one lock to two holders", remedy)


def from_a_node(folder: Path, site: SlurmSite, wanted: bool) -> Outcome:
    """Whether locks, renames, folders and interfaces work on a node of the profile's partition."""
    if not wanted:
        raise Unchecked(f"{ACROSS_NODES} runs a job of a few seconds")
    request = site.request
    partition = (request.light.get("slurm_partition") if request else "") or site.requested("partition")
    mark = secrets.token_hex(8)
    with _own_folder(folder) as own, _held(own / "lock"):
        write_text(own / "renamed", "old")
        write_text(own / "renamed", mark)
        command = ["srun", "--job-name=rolloutbench-check", "--nodes=1", "--ntasks=1", "--time=1"]
        command += [f"--immediate={_JOB_S}"]
        command += [f"--partition={partition}"] if partition else []
        setup = json.dumps(site.exports)
        code, text = _run_job([*command, sys.executable, "-I", on_node.__file__, str(own), mark, setup])
        report = own / "report"
        if code != 0 or not report.is_file():
            why = " ".join(text.split())[-200:] or f"srun ended with {code}"
            raise Unchecked(f"the job gave no result: {why}; try again when a node is free")
        found = json.loads(report.read_text())
    if not found["read"]:
        what = f"{found['host']} reads the old file after a rename here"
        return lacking("across-nodes", what, "work on a coherent file system (NFS: actimeo=0)")
    if not found["refused"]:
        what = f"{found['host']} gets a lock that is held here"
        return lacking("across-nodes", what, "ask for a mount with locks (Lustre: flock)")
    if problem := node_problem(found["unwritable"], found["interfaces"]):
        return problem
    return f"{found['host']} respects the locks and sees the renames of this machine"


def _run_job(command: list[str]) -> tuple[int, str]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        return process.wait(_JOB_S + 5), process.communicate()[0]
    except subprocess.TimeoutExpired:
        # srun cancels its job at a SIGTERM; after a SIGKILL the job would stay.
        process.send_signal(signal.SIGTERM)
        return 124, f"no node within {_JOB_S} s"


@contextmanager
def _own_folder(folder: Path) -> Iterator[Path]:
    own = Path(tempfile.mkdtemp(prefix=".check-", dir=folder))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    lock = try_lock(path)
    assert lock is not None
    with lock:
        yield
