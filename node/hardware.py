"""Takes a job's share of its node, describes the node, and measures how much of the share others used."""

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
from common.published import SECRET_VARIABLE, URL_PASSWORD

# One thread pool per library would fight over the same cores: all get the run's share, alike in every arm.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_TOLD = re.compile(r"^(OMP|MKL|KMP|GOMP|VLLM|TORCH|PYTORCH|CUDA|NCCL|TOKENIZERS|HF_HUB_OFFLINE|WANDB_MODE|LD_PRELOAD)")
# Columns of /proc/stat: user, nice, system, irq, softirq, steal. Idle and iowait are no work; guest is in user.
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)
_OF_THIS_PROCESS = re.compile(r"_(DIR|PATH|ROOT|NAME|IDENT|PORT)$")


def pin_cpus(cpus: int, part: int = 0, parts: int = 1, width: int = 1) -> list[int]:
    """Bind this process to the first `cpus` CPUs that it may use, or to its `width` parts of them, and return them.

    To be called before torch is imported: its threads inherit the binding. Raises `UserError` if there are too few.
    """
    if cpus < 1:
        raise UserError(f"attempt.cpus must be at least 1, got {cpus}")
    if cpus < parts:
        raise UserError(f"the attempt has {cpus} CPUs of this node for {parts} processes; raise cpus in the profile")
    share = cpus // parts
    if not hasattr(os, "sched_setaffinity"):  # only Linux has it
        return list(range(share * width))
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < cpus:
        raise UserError(
            f"the attempt asks for {cpus} CPUs, but {len(allowed)} may be used here; lower cpus in the profile, or ask "
            f"the scheduler for more"
        )
    taken = allowed[:cpus][part * share : (part + width) * share]
    os.sched_setaffinity(0, taken)
    return taken


def set_environment(
    environment: MutableMapping[str, str], affinity: list[int], attempt: Mapping[str, Any], experiment: str
) -> None:
    """Set what torch, vLLM, the hub and wandb read from the environment, before they are imported.

    Thread counts are set whatever the user's shell says, since a comparison must not depend on it; the tracker's
    settings are the user's where there are any.
    """
    threads = str(len(affinity))
    environment.update(dict.fromkeys(THREAD_VARIABLES, threads))
    environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, affinity))
    environment["TOKENIZERS_PARALLELISM"] = "false"
    environment["HF_HUB_OFFLINE"] = "1"  # the inputs are on the disk by now
    # Runs that share a node would meet on the default port. A launcher of several processes has chosen one for them.
    if int(environment.get("WORLD_SIZE", "1")) == 1:
        environment["MASTER_ADDR"] = "127.0.0.1"
        environment["MASTER_PORT"] = str(free_port())

    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM would take most of the node's memory
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        # vLLM 0.31 would compile FlashInfer's with nvcc as it warms up, but for processed log-probabilities, which
        # trainers ask for (vllm/v1/worker/gpu/sample/sampler.py): a replay alone would meet it.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    for name, value in defaults.items():
        environment.setdefault(name, value)
    environment.update(tracker_environment(environment, attempt, experiment))


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Within this, large libraries are imported with a third less CPU time: Python's garbage collector rests.

    It would walk over all that is loaded again and again, and find no garbage: also afterwards, so what was loaded is
    left out of all later collections but the interpreter's last, after which libraries look for what leaked. Where
    nothing was loaded, nothing is left out: a model may be in the memory by then.
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
    """What wandb is to read from the environment: the user's settings where there are any, and which run this is."""
    defaults = {
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": experiment,
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",  # the launcher keeps the log
        "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "1",  # seconds; what is not in its file yet dies with the job
        "WANDB_DISABLE_CODE": "true",
        "WANDB_DISABLE_GIT": "true",
    }
    return {
        **{name: environment.get(name, value) for name, value in defaults.items()},
        "WANDB_DIR": str(attempt["attempt_dir"]),
        # The attempts of a run are one run to wandb, too.
        "WANDB_RUN_ID": str(attempt["fingerprint"])[:16],
        "WANDB_RESUME": "allow",
    }


def free_port() -> int:
    """A free port below those that the kernel gives away by itself: it is bound only when torch has been imported."""
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
    """The variables that bear on speed, for done.json: no secret, and no place or name of this one process."""
    told = {
        name: value
        for name, value in sorted(environment.items())
        if _TOLD.match(name)
        and not (SECRET_VARIABLE.search(name) or URL_PASSWORD.search(value) or _OF_THIS_PROCESS.search(name))
    }
    if preloaded := told.get("LD_PRELOAD"):
        told["LD_PRELOAD"] = " ".join(Path(library).name for library in preloaded.replace(":", " ").split())
    return told


def hardware(cpus: int, threads: int, affinity: list[int]) -> dict[str, Any]:
    """The node as done.json describes it; `threads` are torch's after the engine was built."""
    import torch

    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            gpus.append({"name": device.name, "memory_gib": round(device.total_memory / 2**30, 1)})
    return {
        "host": platform.node(),
        "cpu": _cpu_name(),
        "cpus": cpus,
        "threads": threads,
        "affinity": affinity,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": gpus,
        "driver": driver_version(),
        "cuda": torch.version.cuda,
    }


def driver_version(told: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of NVIDIA's kernel driver, as the driver itself tells it; None where there is none."""
    try:
        text = told.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, re.MULTILINE)
    return found.group(1) if found else None


def git_state(folder: Path = ROOT) -> dict[str, Any] | None:
    """Of which commit this code is, and whether tracked files were changed since; None where git cannot tell."""
    try:
        said = [
            subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=30
            ).stdout
            for words in (["rev-parse", "--show-toplevel", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    top, commit = said[0].splitlines()
    # A copy inside somebody's repository is not of that repository's commit.
    return {"commit": commit, "dirty": bool(said[1].strip())} if Path(top).samefile(folder) else None


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()


def busy_s(stat: str, cpus: Sequence[int]) -> float:
    """Seconds that the given CPUs have worked since boot, from the text of /proc/stat; steal counts as work."""
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            ticks += sum(int(columns[column]) for column in _BUSY_COLUMNS)
    return ticks / os.sysconf("SC_CLK_TCK")


def process_tree() -> list[int]:
    """The numbers of this process and of all that descend from it; itself alone where the kernel lists no children."""
    found = [os.getpid()]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text(encoding="ascii").split())
    return found


def peak_resident_gib() -> float:
    """The largest memory of this process and of each that descends from it, summed: not less than their common peak."""
    kib = 0
    for pid in process_tree():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
            kib += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return kib / 2**20


def _own_cpu_s() -> float:
    """CPU-seconds of this process and of all that descend from it, those that have ended included."""
    times, ticks = os.times(), 0
    for pid in process_tree()[1:]:
        with contextlib.suppress(OSError):
            # After the name in brackets: user, system, and both of its own ended children, from the 14th field on.
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return time.process_time() + times.children_user + times.children_system + ticks / os.sysconf("SC_CLK_TCK")


class OtherLoad:
    """Counts the CPU-seconds that processes of others (or other machines on the same hardware) take.

    Those that this process has started, such as an engine's, are its own.

    The kernel counts in ticks of 10 ms a CPU, so short spans are rough; sums over many steps are not.
    """

    def __init__(self, cpus: Sequence[int], stat: Path = Path("/proc/stat")) -> None:
        self._cpus = tuple(cpus)
        self._stat = stat
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        """Start a span."""
        self._began = self._now()

    def taken_s(self) -> float | None:
        """CPU-seconds that others took since `begin`; None where the system does not tell."""
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
