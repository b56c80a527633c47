"""Reads what a run's attempts and jobs have done and how they ended, from their files.

`exit.json` describes the end of one attempt, `end.json` that of a whole job. An attempt's end is not always the job's:
after a time limit or a preemption the job is requeued and continues with the next attempt.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.files import tail, user_name
from common.ownership import read_own_json
from common.retry import exists
from workflow.runs.paths import AttemptPaths, JobPaths, RunPaths
from workflow.slurm.commands import EndedJob

FILES = "the run's files"  # their name in the message of `retry_io`


def read_object(path: Any) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing or damaged.

    Raises OSError if the file exists and cannot be read: it must not count as missing; `NotOwnError` if another user
    could have written it.
    """
    try:
        value = read_own_json(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def steps_of(spec: Mapping[str, Any]) -> int | None:
    """The steps of a run; None for an own command, whose log tells."""
    steps = spec["workload"].get("steps")
    return None if steps is None else int(steps)


def is_request_for(request: dict[str, Any], fingerprint: str, inputs: dict[str, str] | None) -> bool:
    """Whether a job's or an attempt's request is for this spec on these inputs (None: any)."""
    return request.get("fingerprint") == fingerprint and inputs in (None, request.get("inputs_sha256"))


def matching_attempts(
    run: RunPaths, fingerprint: str, inputs: dict[str, str] | None = None, count_from: int = 1
) -> list[AttemptPaths]:
    """The attempts, from a number on, of this spec on these inputs (None: any)."""
    return [
        attempt
        for attempt in run.attempts()
        if attempt.number >= count_from and is_request_for(read_object(attempt.request), fingerprint, inputs)
    ]


def attempts_of_job(run: RunPaths, job: int) -> list[AttemptPaths]:
    return [attempt for attempt in run.attempts() if read_object(attempt.request).get("job") == job]


def end_reason(attempt: AttemptPaths) -> str:
    """A word or a sentence on an attempt's end."""
    end = read_object(attempt.exit)
    return str(end.get("detail") or end.get("cause") or end.get("kind") or "it vanished without a report")


def why_unfinished(attempt: AttemptPaths, fingerprint: str, steps: int | None, inputs: dict[str, str] | None) -> str:
    """Why an attempt's done.json does not prove that the run is finished; empty if it does. None is not compared.

    Raises OSError if the file exists and cannot be read: that does not mean unfinished.
    """
    try:
        done = read_own_json(attempt.done)
    except (ValueError, FileNotFoundError) as error:
        return f"it cannot be read ({error})"
    if not isinstance(done, dict):
        return "it contains no JSON object"
    expected = {"fingerprint": fingerprint, "attempt": attempt.number, "last_step": steps, "inputs": inputs}
    for key, value in expected.items():
        if value is not None and done.get(key) != value:
            return f"its {key} is {done.get(key)!r}, expected {value!r}"
    return ""


def finished_attempt(
    run: RunPaths, fingerprint: str, steps: int | None = None, inputs: dict[str, str] | None = None
) -> AttemptPaths | None:
    """The newest attempt that finished the run: same fingerprint, same inputs, all steps."""
    for attempt in reversed(run.attempts()):
        if exists(attempt.done) and not why_unfinished(attempt, fingerprint, steps, inputs):
            return attempt
    return None


def log_of(run: RunPaths, job: JobPaths) -> Path | None:
    """The log that explains a job: its last attempt's, or before the first attempt its script's output."""
    if read_object(job.end).get("kind") == "setup failed":
        return job.setup_log
    if attempts := attempts_of_job(run, job.number):
        return attempts[-1].log
    return next(iter([*sorted(job.submitit.glob("*_log.out")), *sorted(job.submitit.glob("*_log.err"))]), None)


# Slurm's states after which the run continues in another job: they are unwanted, and the trainer is not the cause.
_RETRIED_STATES = {
    "PREEMPTED": "preempted",
    "TIMEOUT": "time limit",
    "NODE_FAIL": "node failure",
    "BOOT_FAIL": "node failure",
    "REVOKED": "lost",
    "FAILED": "died",
    "COMPLETED": "died",
}
_FINAL_STATES = {"OUT_OF_MEMORY": "out of memory", "CANCELLED": "cancelled", "DEADLINE": "deadline"}
# Accounting's exit codes of a job that got a signal of Slurm's before it handled signals.
_ENDED_BY_SIGNAL = frozenset({"0:15", "143:0", "0:12", "140:0"})

ENDED_BY_SLURM = "ended by Slurm"
"""The cause of an attempt's end while Slurm shows its job as completing; the reason is known when it has completed."""

RETRIED = frozenset({*_RETRIED_STATES.values(), "stopped", "lost"})
"""Kinds of end after which the launcher submits the run again."""
_RETRY_REASONS = {
    "preempted": "was preempted",
    "time limit": "reached its time limit",
    "node failure": "lost its node",
    "stopped": "was stopped and could not be requeued",
    "died": "died without a report",
    "lost": "is unknown to Slurm",
}


# Neither an exit code nor Slurm's state proves a lack of memory. Slurm reports OUT_OF_MEMORY only where cgroups limit
# memory (older accounting: FAILED), and a process that the kernel kills looks like any killed process.
# slurmstepd's messages in the job's output:
_SLURM_MEMORY = re.compile(r"exceeded (job )?memory limit|oom[-_]kill|oom_kill|out[ -]of[ -]memory", re.IGNORECASE)
# The errors of torch, Python and Ray in a trainer's log:
_TRAINER_MEMORY = re.compile(
    r"^.*(?:OutOfMemoryError|CUDA out of memory|\bMemoryError\b|cannot allocate memory).*$", re.I | re.M
)


def kind_of_state(state: str) -> str:
    """The kind of a job's end if only Slurm's state is known."""
    return _RETRIED_STATES.get(state) or _FINAL_STATES.get(state, "lost")


def end_from_slurm(run: RunPaths, job: JobPaths, ended: EndedJob | None, state: str) -> dict[str, Any]:
    """end.json of a Slurm job that did not write one itself; `state` is Slurm's last state, empty if unknown."""
    end: dict[str, Any] = {"kind": kind_of_state(state), "state": state, "told_by": "slurm"}
    if end["kind"] == "cancelled" and ended is not None and ended.by is None:
        end["kind"] = "lost"  # accounting's state for jobs that a new slurmctld does not know: nobody cancelled them
    if ended is not None:
        end |= {"exit_code": ended.exit_code, "nodes": ended.nodes}
    if state == "FAILED":
        lives = attempts_of_job(run, job.number)
        # Slurm appends the output of every life: skip that of earlier ones.
        since = int(read_object(lives[-1].request).get("output_bytes") or 0) if lives else 0
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
    """A job's end after cancellation: a job that `rolloutbench cancel` cancelled is never retried."""
    by = cancelled_by(job)
    if by is None or end["kind"] not in RETRIED | {"cancelled"}:
        return end
    return {**end, "kind": "cancelled", "by": by}


def cancelled_by(job: JobPaths) -> str | None:
    """Who cancelled a job with `rolloutbench cancel`; None if nobody did."""
    by = read_object(job.cancelled).get("by")
    return str(by) if by else None


def explain(end: dict[str, Any]) -> str:
    """How a job ended and what to do; the sentence follows the run's name."""
    kind, code, detail = end["kind"], end.get("code"), end.get("detail")
    rank = f" ({end['rank']})" if end.get("rank") else ""
    exit_code = f" with exit code {end['exit_code']}" if end.get("exit_code") else ""
    resume = "start again to resume from its last checkpoint"
    sentences = {
        "finished": "its job ended without an error, but no done.json proves that it finished",
        "stopped": f"was stopped; {resume}",
        "refused": f"was refused by the trainer's job{rank}",
        "killed": f"was killed by signal {-(code or 0)}{rank}"
        + (" (often: out of memory; see `dmesg`)" if code == -signal.SIGKILL else ""),
        "out of memory": f"ran out of memory{f' ({detail})' if detail else ''}{rank}; request more (mem_mb in the "
        "profile), or reduce its batch sizes",
        "hung": f"hung twice: {detail}; the stacks of its processes are in the log",
        "no progress": f"made no progress: {detail}; fix what ends it, then start again",
        "cancelled": f"was cancelled by {end.get('by') or 'somebody'}; {resume}",
        "deadline": "was removed by Slurm at its deadline",
        "vanished": "its job vanished without a report (killed from outside, or the machine went down); " + resume,
        "not started": f"its job could not start the trainer: {detail}",
        "never started": f"its job ended before it began{exit_code}; see its output",
        "setup failed": f"{detail} "
        + (f"failed with exit code {code}" if code else "ended the job by `exit` (it is sourced)")
        + ", before the trainer was started; correct it (setup in the profile), and start again",
        "duplicate": "another job of this run was alive and has ended; start again",
        "not alone": f"another life of its job could not be ended: {detail}; `rolloutbench cancel` ends it, and "
        "`rolloutbench status` shows it",
        "not submitted": f"its job was not accepted: {detail}",
        "node lost": f"lost a node: {detail}",
        "no server": f"had no server: {detail}",
    }
    return sentences.get(kind, f"failed: the trainer ended with exit code {code}{rank}")


def retry_reason(end: dict[str, Any]) -> str:
    """Why the launcher submits a run again; the words follow the job's name."""
    return _RETRY_REASONS.get(end["kind"], str(end["kind"]))


def exit_of(code: int, attempt: AttemptPaths, killed_for_memory: bool) -> dict[str, Any]:
    """The attempt's exit from its trainer's exit code, if it did not finish and nobody asked it to stop."""
    if code < 0 and killed_for_memory:
        return {"kind": "out of memory", "detail": "the kernel killed it", "code": code}
    if code < 0:
        return {"kind": "killed", "code": code}
    if code == 2:
        return {"kind": "refused", "code": code}
    if (line := memory_error(attempt.log)) is not None:
        return {"kind": "out of memory", "detail": line, "code": code}
    return {"kind": "failed", "code": code}


def oom_kills(cgroup: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """The number of processes of this cgroup that the kernel has killed for memory; 0 if unknown."""
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
    """Whether slurmstepd reports exceeded memory in a job's output, from a byte on."""
    return bool(_SLURM_MEMORY.search(tail(output, since)))


def memory_error(log: Path) -> str | None:
    """The last line in a trainer's log that reports a lack of memory; None if there is none."""
    found = _TRAINER_MEMORY.findall(tail(log))
    return found[-1].strip()[:300] if found else None
