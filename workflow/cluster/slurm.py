"""Runs Slurm's commands and turns their answers into Python objects; nothing is decided here.

squeue is asked about all of the user's jobs at once, finished ones included for as long as slurmctld remembers them
(MinJobAge, 5 minutes as a rule); sacct only about jobs that ended or that squeue has forgotten. Both are asked for a
header, and squeue for a mark behind each record: an answer that is empty, cut or another command's is an error, never
an empty queue.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.files import user_name
from common.retry import is_transient as passes
from common.retry import run_interruptible

PATIENCE_S = 60.0  # for one command; slurmctld's own MessageTimeout is 10 s by default

# In the words of a Slurm that is restarting, overloaded or not to be reached: the same question may do better later.
_TRANSIENT = (
    *("unable to contact", "did not answer", "timed out", "connection", "temporarily", "zero bytes", "try again"),
    *("communication", "not responding"),
)

# https://slurm.schedmd.com/squeue.html: the states in which a job can never again run by itself.
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
        *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
# Control characters, which no site puts into a reason; what people name themselves comes last. `--json` prints a
# megabyte for a hundred jobs, and its fields change names between releases.
_SEPARATOR, _END = "\x1f", "\x1e"
_FIELDS = ("%A", "%T", "%N", "%l", "%L", "%S", "%e", "%P", "%r", "%j")
_HEADER = [
    *("JOBID", "STATE", "NODELIST", "TIME_LIMIT", "TIME_LEFT", "START_TIME", "END_TIME", "PARTITION", "REASON", "NAME")
]
_ACCOUNTED = ["JobIDRaw", "State", "ExitCode", "NodeList", "JobName"]


def may_pass(error: str) -> bool:
    """Whether an error of Slurm's is one that waiting may cure; others (a wrong partition, no right) it will not."""
    return any(words in error.lower() for words in _TRANSIENT)


def is_submit_limit(error: str) -> bool:
    """Whether Slurm takes no more jobs of this user or account for now."""
    return any(words in error.lower() for words in ("submit limit", "maxsubmit", "job limit"))


class SlurmError(Exception):
    """A command of Slurm failed; the message is Slurm's own."""


@dataclass(frozen=True, slots=True)
class QueueJob:
    """A job as squeue has it; times are seconds since the epoch, None where Slurm has none."""

    job_id: str
    state: str
    nodes: str
    limit: str
    left: str
    start: float | None
    end: float | None
    partition: str
    reason: str
    name: str


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job as accounting has it after its end; `by` is the user id that cancelled it."""

    job_id: str
    state: str
    exit_code: str
    by: str | None
    nodes: str
    name: str


def queue() -> dict[str, QueueJob]:
    """All jobs of this user that slurmctld remembers, by id; raises `SlurmError`."""
    # `--all`: without it a job in a partition that the site hides is left out.
    text = command(
        "squeue", "--all", f"--user={user_name()}", "--states=all", f"--format={_SEPARATOR.join(_FIELDS)}{_END}"
    )
    header, *records = [piece.strip("\n") for piece in text.split(_END)]
    header = "".join(header.splitlines()[-1:])  # a site's wrapper may greet first
    if header.split(_SEPARATOR) != _HEADER or not records or records.pop():
        raise SlurmError(f"squeue's answer cannot be read: {_excerpt(text)}")
    jobs = [_queue_job(record) for record in records]
    return {job.job_id: job for job in jobs}


def accounting(ids: Iterable[str]) -> dict[str, EndedJob]:
    """Those of the jobs that accounting knows to have ended, by id; raises `SlurmError` without accounting."""
    text = command(
        "sacct",
        *("--allocations", "--parsable2", f"--delimiter={_SEPARATOR}", f"--jobs={','.join(sorted(ids))}"),
        # Without a start time sacct looks at today only.
        *("--starttime=1970-01-01", f"--format={','.join(_ACCOUNTED)}"),
    )
    header, *lines = text.splitlines() or [""]
    if header.split(_SEPARATOR) != _ACCOUNTED:
        raise SlurmError(f"sacct's answer cannot be read: {_excerpt(text)}")
    found = {}
    for line in lines:
        fields = line.split(_SEPARATOR, len(_ACCOUNTED) - 1)
        if len(fields) == len(_ACCOUNTED) and (job := _ended_job(*fields)) is not None:
            found[job.job_id] = job
    return found


def job_details(job_id: str) -> dict[str, str]:
    """One job's fields as `scontrol show job` has them, by name; raises `SlurmError`."""
    words = [word.split("=", 1) for word in show_job(job_id).split() if "=" in word]
    # What people wrote (a comment) comes late in the line, and may hold an equals sign, too.
    return {name: value for name, value in reversed(words)}


def living_job(job_id: str) -> QueueJob | None:
    """A job as `scontrol show job` has it, while it has not ended; None where slurmctld does not know it any more.

    Raises `SlurmError` where that cannot be known.
    """
    try:
        told = job_details(job_id)
    except SlurmError as error:
        if "invalid job id" in str(error).lower():
            return None
        raise
    if told.get("JobId") != job_id or not (state := told.get("JobState", "")):
        raise SlurmError(f"scontrol's answer cannot be read: {_excerpt(str(told))}")
    if state in ENDED:
        return None
    start, end = _epoch(told.get("StartTime", "")), _epoch(told.get("EndTime", ""))
    nodes, limit, partition = told.get("NodeList", ""), told.get("TimeLimit", ""), told.get("Partition", "")
    name, reason = told.get("JobName", ""), told.get("Reason", "")
    return QueueJob(job_id, state, nodes, limit, "", start, end, partition, reason, name)


def show_job(job_id: str) -> str:
    """One job's line as `scontrol show job` prints it; raises `SlurmError`."""
    return command("scontrol", "show", "job", "--oneliner", job_id)


def seconds_of(limit: str) -> float | None:
    """Slurm's times, such as `1-02:03:04` or `59:12`, in seconds; None for `UNLIMITED` and its like."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def cancel(ids: Sequence[str]) -> None:
    """Cancel jobs; raises `SlurmError`. Jobs that have ended are no error."""
    if ids:
        command("scancel", "--quiet", *ids)


def requeue(job_id: str) -> None:
    """Put a job back into the queue, unless it has ended or was cancelled; raises `SlurmError`.

    `incomplete` has slurmctld itself look whether the job was cancelled: between a look of ours and a plain requeue
    somebody may cancel it, and the requeue would bring it back.
    """
    command("scontrol", "requeue", "incomplete", job_id)


def command(*words: str) -> str:
    """What a command of Slurm prints; raises `SlurmError` if it fails, does not answer, or is not there."""
    try:
        # A Ctrl-C at the terminal is for the head, which still wants its answer.
        done = run_interruptible(words, PATIENCE_S, errors="replace", env=_environment(), start_new_session=True)
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{words[0]} did not answer within {PATIENCE_S:.0f} s") from None
    except OSError as error:
        now = " (temporarily)" if passes(error) else ""
        raise SlurmError(f"{words[0]}: {error.strerror}{now}") from None
    if done.returncode != 0:
        raise SlurmError(" ".join((done.stderr or done.stdout or f"exit code {done.returncode}").split()))
    return done.stdout


def _environment() -> dict[str, str]:
    """Ours, without what a person's shell says of how squeue and its kin shall answer (SQUEUE_PARTITION, ...)."""
    told = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def _queue_job(record: str) -> QueueJob:
    fields = [field.strip() for field in record.split(_SEPARATOR, len(_FIELDS) - 1)]
    if len(fields) != len(_FIELDS) or not fields[0].isdigit():
        raise SlurmError(f"squeue's answer cannot be read: {_excerpt(record)}")
    job_id, state, nodes, limit, left, start, end, partition, reason, name = fields
    return QueueJob(job_id, state, nodes, limit, left, _epoch(start), _epoch(end), partition, reason, name)


def _excerpt(text: str) -> str:
    return repr(text[:80]) if text.strip() else "it is empty"


def _ended_job(job_id: str, state: str, exit_code: str, nodes: str, name: str) -> EndedJob | None:
    words = state.split()  # `CANCELLED by 1000`, `CANCELLED+`
    first = words[0].rstrip("+") if words else ""
    if first not in ENDED:
        return None
    return EndedJob(job_id, first, exit_code, words[2] if len(words) > 2 and words[1] == "by" else None, nodes, name)


def _epoch(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:  # N/A, Unknown
        return None
