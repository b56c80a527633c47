"""Reserves a job's CPUs, describes its node, and measures the CPU time of other processes."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import platform
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT
from common.redaction import has_secret, is_secret_name

# All thread pools get the same size in every arm: the run's share of the CPUs.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
WAITING = {"OMP_WAIT_POLICY": "passive"}
"""How OpenMP's threads wait on a CPU: asleep. Those that spin take the cores from the ones that they wait for, so that
beside other work a step took 2 to 20 times as long, and another engine's not (docs/bench.md)."""
_REPORTED = re.compile(
    r"^(OMP|MKL|KMP|GOMP|VLLM|TORCH|PYTORCH|CUDA|NCCL|TOKENIZERS|HF_HUB_OFFLINE|WANDB_MODE|LD_PRELOAD)"
)
# Columns of /proc/stat: user, nice, system, irq, softirq, steal. Idle and iowait are not work; user contains guest.
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)
_PROCESS_SPECIFIC = re.compile(r"_(DIR|PATH|ROOT|NAME|IDENT|PORT)$")


def pin_cpus(cpus: int, part: int = 0, parts: int = 1, width: int = 1) -> list[int]:
    """Bind this process to `width` of `parts` shares of its first `cpus` allowed CPUs, and return them.

    Call it before torch is imported: threads inherit the binding. Raises `UserError` if there are too few CPUs.
    """
    if cpus < 1:
        raise UserError(f"attempt.cpus must be at least 1 (got {cpus})")
    if cpus < parts:
        raise UserError(f"the attempt has {cpus} CPUs of this node for {parts} processes; raise cpus in the profile")
    share = cpus // parts
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < cpus:
        raise UserError(
            f"the attempt asks for {cpus} CPUs, but {len(allowed)} may be used here; lower cpus in the profile, or "
            "request more from the scheduler"
        )
    taken = allowed[:cpus][part * share : (part + width) * share]
    os.sched_setaffinity(0, taken)
    return taken


def set_environment(
    environment: MutableMapping[str, str], affinity: list[int], attempt: Mapping[str, Any], experiment: str
) -> None:
    """Set the variables of torch, vLLM, the hub and wandb before they are imported.

    Thread counts replace the user's, because a comparison must not depend on the shell. wandb's settings are kept.
    """
    threads = str(len(affinity))
    environment.update(dict.fromkeys(THREAD_VARIABLES, threads))
    environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, affinity))
    environment["TOKENIZERS_PARALLELISM"] = "false"
    environment["HF_HUB_OFFLINE"] = "1"  # the inputs are already on disk
    # Runs on one node must not share the default port. A launcher of several processes has already chosen one.
    if int(environment.get("WORLD_SIZE", "1")) == 1:
        environment["MASTER_ADDR"] = "127.0.0.1"
        environment["MASTER_PORT"] = str(free_port())

    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM would take most of the node's memory
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        # vLLM 0.31 compiles FlashInfer's sampler with nvcc during warm-up, except with processed log-probabilities
        # (vllm/v1/worker/gpu/sample/sampler.py), which trainers request. Only a replay would compile it.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    for name, value in defaults.items():
        environment.setdefault(name, value)
    environment.update(tracker_environment(environment, attempt, experiment))


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Pause the garbage collector while large libraries are imported, which saves a third of the CPU time.

    Loaded modules are also excluded from later collections, except the interpreter's last, after which libraries
    check for leaks. If nothing was loaded, nothing is excluded: a model may already be in memory.
    """
    was_on, loaded = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if len(sys.modules) > loaded:
                gc.freeze()
                atexit.register(gc.unfreeze)
            gc.enable()


def tracker_environment(environment: Mapping[str, str], attempt: Mapping[str, Any], experiment: str) -> dict[str, str]:
    """wandb's variables: the user's settings or our defaults, and the run's id."""
    defaults = {
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": experiment,
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",  # the launcher writes the log
        "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "1",  # seconds; unwritten data is lost with the job
        "WANDB_DISABLE_CODE": "true",
        "WANDB_DISABLE_GIT": "true",
    }
    return {
        **{name: environment.get(name, value) for name, value in defaults.items()},
        "WANDB_DIR": str(attempt["attempt_dir"]),
        # All attempts of a run are one run in wandb.
        "WANDB_RUN_ID": str(attempt["fingerprint"])[:16],
        "WANDB_RESUME": "allow",
    }


def free_port() -> int:
    """A free port below the kernel's automatic ports: it is bound later, after torch is imported."""
    with contextlib.suppress(OSError, ValueError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
        for port in random.SystemRandom().sample(range(first // 2, first), 100):
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind(("", port))
                return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def reported_environment(environment: MutableMapping[str, str]) -> dict[str, str]:
    """The variables that affect speed, for done.json; without secrets, paths and names of this process."""
    reported = {
        name: value
        for name, value in sorted(environment.items())
        if _REPORTED.match(name) and not (is_secret_name(name) or has_secret(value) or _PROCESS_SPECIFIC.search(name))
    }
    if preloaded := reported.get("LD_PRELOAD"):
        reported["LD_PRELOAD"] = " ".join(Path(library).name for library in preloaded.replace(":", " ").split())
    return reported


def hardware(cpus: int, threads: int, affinity: list[int]) -> dict[str, Any]:
    """The node's description for done.json; `threads` are torch's after the engine started."""
    import torch

    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            gpus.append({"name": device.name, "memory_gib": round(device.total_memory / 2**30, 1)})
    return {**machine(cpus), "threads": threads, "affinity": affinity, "gpus": gpus, "cuda": torch.version.cuda}


def machine(cpus: int) -> dict[str, Any]:
    """The node's description without torch; `cpus` is how many of its CPUs the job has."""
    return {
        "host": platform.node(),
        "cpu": _cpu_name(),
        "cpus": cpus,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "driver": driver_version(),
    }


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of NVIDIA's kernel driver, from the driver; None without a driver."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, re.MULTILINE)
    return match[1] if match else None


def git_state(folder: Path = ROOT) -> dict[str, Any] | None:
    """This code's commit, and whether tracked files are changed; None without git information."""
    try:
        top, commit = _git(folder, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    # A copy inside another repository does not have that repository's commit.
    return {"commit": commit, "dirty": bool(changes.strip())} if Path(top).samefile(folder) else None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.machine()


def busy_s(stat: str, cpus: Sequence[int]) -> float:
    """Busy seconds of the given CPUs since boot, from the text of /proc/stat; steal counts as busy."""
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            ticks += sum(int(columns[column]) for column in _BUSY_COLUMNS)
    return ticks / os.sysconf("SC_CLK_TCK")


def process_tree() -> list[int]:
    """The process ids of this process and its descendants; only this process if the kernel lists no children."""
    pids = [os.getpid()]
    for pid in pids:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                pids += map(int, children.read_text(encoding="ascii").split())
    return pids


def peak_resident_gib() -> float:
    """The sum of the peak memory of this process and its descendants, an upper bound of their common peak."""
    kib = 0
    for pid in process_tree():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
            kib += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return kib / 2**20


def _own_cpu_s() -> float:
    """CPU-seconds of this process and its descendants, including ended ones."""
    times, ticks = os.times(), 0
    for pid in process_tree()[1:]:
        with contextlib.suppress(OSError):
            # From the 14th field, after the name in brackets: user, system, and both of ended children.
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return time.process_time() + times.children_user + times.children_system + ticks / os.sysconf("SC_CLK_TCK")


class OtherLoad:
    """Measures the CPU-seconds of processes that this one did not start (and of other virtual machines).

    The kernel counts in ticks of 10 ms per CPU: short spans are imprecise, sums over many steps are precise.
    """

    def __init__(self, cpus: Sequence[int], stat: Path = Path("/proc/stat")) -> None:
        self._cpus = tuple(cpus)
        self._stat = stat
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        """Start measuring."""
        self._began = self._now()

    def taken_s(self) -> float | None:
        """CPU-seconds of others since `begin`; None if unknown."""
        began, ended = self._began, self._now()
        if began is None or ended is None:
            return None
        return max(0.0, (ended[0] - began[0]) - (ended[1] - began[1]))

    def _now(self) -> tuple[float, float] | None:
        try:
            text = self._stat.read_text(encoding="ascii")
        except OSError:
            return None
        return busy_s(text, self._cpus), _own_cpu_s()
