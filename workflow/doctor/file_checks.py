"""Checks the file system of the results: locks, renames, whether it is shared, and the same from another node."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.files import write_text
from workflow.cluster.locks import try_lock
from workflow.doctor import DoctorCheck, Outcome, failed, passed, warning
from workflow.doctor.slurm_checks import SlurmSite

_SHARED = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "cifs", "smb3", "afs", "panfs", "wekafs"}
)
_JOB_S = 30
# The node's part: it tries a lock that is held here, reads a file that was renamed here, and renames one itself.
_ON_NODE = """
import fcntl, json, os, socket, sys
folder, mark = sys.argv[1:]
report = {"host": socket.gethostname(), "read": open(f"{folder}/renamed").read() == mark, "refused": False}
with open(f"{folder}/lock", "r+") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        report["refused"] = True
with open(f"{folder}/draft", "w") as file:
    json.dump(report, file)
os.replace(f"{folder}/draft", f"{folder}/report")
"""


def file_checks(results: Path, site: SlurmSite, across_nodes: bool) -> list[DoctorCheck]:
    """The checks of the results folder; `across_nodes`: also with a short job on another node."""
    folder = next(one for one in (results.absolute(), *results.absolute().parents) if one.is_dir())
    checks: dict[str, Callable[[], Outcome]] = {"locks": lambda: locks(folder), "rename": lambda: rename(folder)}
    if site.is_here:
        checks["shared"] = lambda: shared(folder)
        checks["across nodes"] = lambda: (
            from_a_node(folder, site)
            if across_nodes
            else warning("not checked", "rolloutbench doctor --across-nodes runs a job of a few seconds")
        )
    return [DoctorCheck("files", name, action) for name, action in checks.items()]


def locks(folder: Path) -> Outcome:
    """Whether a second holder is refused a file's lock; a `UserError` if the file system has no locks."""
    with _own_folder(folder) as own, _held(own / "lock"):
        if try_lock(own / "lock") is None:
            return passed(f"work in {folder}")
    return failed(
        f"{folder} gives one lock to two holders", "ask for a mount with locks (Lustre: flock; NFS: without nolock)"
    )


def rename(folder: Path) -> Outcome:
    """Whether a rename replaces a file in one step, as all results are written."""
    with _own_folder(folder) as own:
        for text in ("old", "new"):
            write_text(own / "file", text)
        if (own / "file").read_text() == "new" and len(list(own.iterdir())) == 1:
            return passed("replaces a file in one step")
    return failed(f"a rename in {folder} does not replace the file", "work in a folder on another file system")


def shared(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> Outcome:
    """Whether other nodes can see this kind of file system."""
    kind = _kind_of(folder, mounts)
    if kind in _SHARED:
        return passed(kind)
    return warning(f"{folder} is on {kind}, which other nodes may not see", "work on the cluster's shared file system")


def from_a_node(folder: Path, site: SlurmSite) -> Outcome:
    """Whether locks and renames work between this machine and a node of the profile's partition."""
    request = site.request
    partition = request.light_partition or request.train.get("slurm_partition", "") if request else ""
    mark = secrets.token_hex(8)
    with _own_folder(folder) as own, _held(own / "lock"):
        write_text(own / "renamed", "old")
        write_text(own / "renamed", mark)
        command = ["srun", "--job-name=rolloutbench-doctor", "--nodes=1", "--ntasks=1", "--time=1"]
        command += [f"--immediate={_JOB_S}"]
        command += [f"--partition={partition}"] if partition else []
        code, text = _run_job([*command, sys.executable, "-I", "-c", _ON_NODE, str(own), mark])
        report = own / "report"
        if code != 0 or not report.is_file():
            why = " ".join(text.split())[-200:] or f"srun ended with {code}"
            return warning(f"not checked, the job gave no result: {why}", "try again when a node is free")
        found = json.loads(report.read_text())
    if not found["read"]:
        return failed(
            f"{found['host']} reads the old file after a rename here", "work on a coherent file system (NFS: actimeo=0)"
        )
    if not found["refused"]:
        return failed(f"{found['host']} gets a lock that is held here", "ask for a mount with locks (Lustre: flock)")
    return passed(f"{found['host']} respects the locks and sees the renames of this machine")


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
    own = Path(tempfile.mkdtemp(prefix=".doctor-", dir=folder))
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


def _kind_of(folder: Path, mounts: Path) -> str:
    """The type of the folder's file system: that of the longest mount point above it."""
    best, kind = "", "an unknown file system"
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        point = fields[4].replace("\\040", " ")
        inside = os.path.commonpath([point, str(folder.resolve())]) == point
        if inside and len(point) >= len(best):
            best, kind = point, fields[fields.index("-") + 1]
    return kind
