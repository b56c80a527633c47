"""Decides whether a process was killed for want of memory: an exit code and Slurm's state are not reliable.

Slurm tells OUT_OF_MEMORY only where cgroups limit memory; with its older accounting the state is FAILED. A process that
the kernel kills ends like any that was killed.
"""

from __future__ import annotations

import re
from pathlib import Path

_TAIL_BYTES = 50_000
# slurmstepd's words, in the job's own output.
_SLURM = re.compile(r"exceeded (job )?memory limit|oom[-_]kill|oom_kill|out[ -]of[ -]memory", re.IGNORECASE)
# The last words of a trainer, in its log: torch's, Python's, Ray's.
_TRAINER = re.compile(
    r"^.*(?:OutOfMemoryError|CUDA out of memory|\bMemoryError\b|cannot allocate memory).*$", re.I | re.M
)


def oom_kills(cgroup: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processes of this process's cgroup the kernel has killed for memory so far; 0 where that is unknown."""
    try:
        for line in cgroup.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                file = root / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                file = root / "memory" / path.lstrip("/") / "memory.oom_control"
            else:
                continue
            if found := re.search(r"^oom_kill (\d+)$", file.read_text(encoding="utf-8"), re.MULTILINE):
                return int(found.group(1))
    except (OSError, ValueError):
        pass
    return 0


def slurm_says_so(output: Path, since: int = 0) -> bool:
    """Whether slurmstepd has written into a job's output, from a byte on, that memory was exceeded."""
    return bool(_SLURM.search(_tail(output, since)))


def last_words(log: Path) -> str | None:
    """The last line in a trainer's log that tells of a want of memory; None if none does."""
    found = _TRAINER.findall(_tail(log))
    return found[-1].strip()[:300] if found else None


def _tail(file: Path, since: int = 0) -> str:
    try:
        with file.open("rb") as content:
            content.seek(max(since, file.stat().st_size - _TAIL_BYTES))
            return content.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
