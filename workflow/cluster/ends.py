"""Names the ends of attempts and jobs, and what follows from each: the words of exit.json and end.json.

`exit.json` tells how one attempt ended, `end.json` how a whole job did. Not every end of an attempt is the job's: one
that was stopped by its time limit or by preemption is requeued and lives on in the next attempt.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

from common.files import tail, user_name
from workflow.cluster.history import attempts_of_job, read_object
from workflow.cluster.paths import AttemptPaths, JobPaths, RunPaths
from workflow.cluster.slurm import EndedJob

# Slurm's states from which a run goes on in another job: nobody wanted them, and the trainer is not to blame.
_TRY_AGAIN = {
    "PREEMPTED": "preempted",
    "TIMEOUT": "time limit",
    "NODE_FAIL": "node failure",
    "BOOT_FAIL": "node failure",
    "REVOKED": "lost",
    "FAILED": "died",
    "COMPLETED": "died",
}
_OVER = {"OUT_OF_MEMORY": "out of memory", "CANCELLED": "cancelled", "DEADLINE": "deadline"}
# Exit codes in accounting of a job that a signal of Slurm's met before it could hear signals.
_ENDED_BY_SIGNAL = frozenset({"0:15", "143:0", "0:12", "140:0"})

ENDED_BY_SLURM = "ended by Slurm"
"""An attempt's cause of end while Slurm shows its job as completing: what for is known when it has completed."""

RETRIED = frozenset({*_TRY_AGAIN.values(), "stopped", "lost"})
"""Kinds of end after which a head submits the run again."""


# Neither an exit code nor Slurm's state tells for sure of a want of memory: Slurm says OUT_OF_MEMORY only where cgroups
# limit memory (with its older accounting FAILED), and a process that the kernel kills ends like any that was killed.
# slurmstepd's words, in the job's own output.
_SLURM = re.compile(r"exceeded (job )?memory limit|oom[-_]kill|oom_kill|out[ -]of[ -]memory", re.IGNORECASE)
# The last words of a trainer, in its log: torch's, Python's, Ray's.
_TRAINER = re.compile(
    r"^.*(?:OutOfMemoryError|CUDA out of memory|\bMemoryError\b|cannot allocate memory).*$", re.I | re.M
)


def kind_of_state(state: str) -> str:
    """The kind of a job's end when only Slurm's state tells of it."""
    return _TRY_AGAIN.get(state) or _OVER.get(state, "lost")


def end_from_slurm(run: RunPaths, job: JobPaths, ended: EndedJob | None, state: str) -> dict[str, Any]:
    """end.json of a Slurm job that did not write one itself; `state` is Slurm's last word, empty if it has none."""
    end: dict[str, Any] = {"kind": kind_of_state(state), "state": state, "told_by": "slurm"}
    if end["kind"] == "cancelled" and ended is not None and ended.by is None:
        end["kind"] = "lost"  # accounting's word for jobs that a new slurmctld knew nothing of: nobody cancelled them
    if ended is not None:
        end |= {"exit_code": ended.exit_code, "nodes": ended.nodes}
    if state == "FAILED":
        lives = attempts_of_job(run, job.number)
        # Slurm appends the output of every life: an earlier one's words say nothing of this end.
        since = int(read_object(lives[-1].order).get("output_bytes") or 0) if lives else 0
        if any(has_memory_error(output, since) for output in job.submitit.glob("*.out")):
            end["kind"] = "out of memory"
        elif not lives and end.get("exit_code") not in _ENDED_BY_SIGNAL:
            end["kind"] = "never started"
    end = final_end(job, end)
    if end["kind"] == "cancelled" and "by" not in end:
        by = ended.by if ended is not None else None
        end["by"] = user_name(int(by)) if by and by.isdigit() else by or "somebody (accounting does not say who)"
    return end


def final_end(job: JobPaths, end: dict[str, Any]) -> dict[str, Any]:
    """A job's end as everybody counts it: what was cancelled through us is not retried, whatever ended it."""
    by = cancelled_by(job)
    if by is None or end["kind"] not in RETRIED | {"cancelled"}:
        return end
    return {**end, "kind": "cancelled", "by": by}


def cancelled_by(job: JobPaths) -> str | None:
    """Who cancelled a job through us; None if nobody did."""
    by = read_object(job.cancelled).get("by")
    return str(by) if by else None


def explain(end: dict[str, Any]) -> str:
    """One sentence for people on how a job ended; it follows the run's name."""
    kind, code, detail = end["kind"], end.get("code"), end.get("detail")
    rank = f" ({end['rank']})" if end.get("rank") else ""
    exit_code = f" with exit code {end['exit_code']}" if end.get("exit_code") else ""
    sentences = {
        "finished": "its job ended well, but no done.json proves it",
        "stopped": "was stopped; start again and it goes on from its last checkpoint",
        "refused": f"was refused by the trainer's job{rank}",
        "killed": f"was killed by signal {-(code or 0)}{rank}"
        + (" (often: out of memory; see `dmesg`)" if code == -signal.SIGKILL else ""),
        "out of memory": f"ran out of memory{f' ({detail})' if detail else ''}{rank}; ask for more (mem_mb in the "
        "profile), or make its batches smaller",
        "hung": f"hung twice: {detail}; what its processes were doing is in the log",
        "no progress": f"made no progress: {detail}; mend what keeps ending it, then start again",
        "cancelled": f"was cancelled by {end.get('by') or 'somebody'}; start again and it goes on from its last "
        "checkpoint",
        "deadline": "was removed by Slurm at its deadline",
        "vanished": "its job vanished without a word (killed from outside, or the machine went down); "
        "start again and it goes on from its last checkpoint",
        "not started": f"its job could not start the trainer: {detail}",
        "never started": f"its job ended before it began{exit_code}; see its output",
        "setup failed": f"{detail} "
        + (f"failed with exit code {code}" if code else "ended the job by `exit` (it is sourced)")
        + ", before the trainer was started; correct it (setup in the profile), and start again",
        "duplicate": "another job of this run was alive, and is gone now; start again",
        "not alone": f"another life of its job could not be ended: {detail}; `rolloutbench cancel` ends it, and "
        "`rolloutbench status` shows it",
        "not submitted": f"its job was not taken: {detail}",
        "node lost": f"lost a node: {detail}",
        "no server": f"had no server: {detail}",
    }
    return sentences.get(kind, f"failed: the trainer ended with exit code {code}{rank}")


def retry_reason(end: dict[str, Any]) -> str:
    """Why a job is followed by another one, for people."""
    words = {
        "preempted": "was preempted",
        "time limit": "reached its time limit",
        "node failure": "lost its node",
        "stopped": "was stopped and could not be requeued",
        "died": "died without a word",
        "lost": "is unknown to Slurm",
    }
    return words.get(end["kind"], str(end["kind"]))


def exit_of(code: int, attempt: AttemptPaths, killed_for_memory: bool) -> dict[str, Any]:
    """What a trainer's exit code means when nobody had asked it to stop and it did not finish."""
    if code < 0 and killed_for_memory:
        return {"kind": "out of memory", "detail": "the kernel killed it", "code": code}
    if code < 0:
        return {"kind": "killed", "code": code}
    if code == 2:
        return {"kind": "refused", "code": code}
    if (words := memory_error(attempt.log)) is not None:
        return {"kind": "out of memory", "detail": words, "code": code}
    return {"kind": "failed", "code": code}


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


def has_memory_error(output: Path, since: int = 0) -> bool:
    """Whether slurmstepd has written into a job's output, from a byte on, that memory was exceeded."""
    return bool(_SLURM.search(tail(output, since)))


def memory_error(log: Path) -> str | None:
    """The last line in a trainer's log that tells of a want of memory; None if none does."""
    found = _TRAINER.findall(tail(log))
    return found[-1].strip()[:300] if found else None
