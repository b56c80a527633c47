"""What does Slurm say? Its commands, and their answers as Python has them; nothing is decided here.

squeue is asked about all of the user's jobs at once, finished ones included for as long as slurmctld remembers them
(MinJobAge, 5 minutes as a rule); sacct only about jobs that ended or that squeue has forgotten.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workflow.cluster.users import user_name

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
_SEPARATOR = "|"
_FIELDS = ("%A", "%T", "%N", "%l", "%L", "%S", "%e", "%P", "%r", "%k", "%j")


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
    comment: str
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
    text = command(
        "squeue", f"--user={user_name()}", "--states=all", "--noheader", f"--format={_SEPARATOR.join(_FIELDS)}"
    )
    return {job.job_id: job for job in map(_queue_job, text.splitlines()) if job is not None}


def accounting(ids: Iterable[str]) -> dict[str, EndedJob]:
    """Those of the jobs that accounting knows to have ended, by id; raises `SlurmError` without accounting."""
    text = command(
        "sacct",
        *("--allocations", "--noheader", "--parsable2", f"--jobs={','.join(sorted(ids))}"),
        # Without a start time sacct looks at today only.
        *("--starttime=1970-01-01", "--format=JobIDRaw,State,ExitCode,NodeList,JobName"),
    )
    found = {}
    for line in text.splitlines():
        fields = line.split(_SEPARATOR, 4)
        if len(fields) == 5 and (job := _ended_job(*fields)) is not None:
            found[job.job_id] = job
    return found


def job_details(job_id: str) -> dict[str, str]:
    """One job's fields as `scontrol show job` has them, by name; raises `SlurmError`."""
    text = command("scontrol", "show", "job", "--oneliner", job_id)
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def cancel(ids: Sequence[str]) -> None:
    """Cancel jobs; raises `SlurmError`. Jobs that have ended are no error."""
    if ids:
        command("scancel", "--quiet", *ids)


def requeue(job_id: str) -> None:
    """Put a running job back into the queue; raises `SlurmError`."""
    command("scontrol", "requeue", job_id)


def command(*words: str) -> str:
    """What a command of Slurm prints; raises `SlurmError` if it fails, does not answer, or is not there."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
            env=_environment(),
            # A Ctrl-C at the terminal is for the head, which still wants its answer.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{words[0]} did not answer within {PATIENCE_S:.0f} s") from None
    except OSError as error:
        raise SlurmError(f"{words[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise SlurmError(" ".join((done.stderr or done.stdout or f"exit code {done.returncode}").split()))
    return done.stdout


def _environment() -> dict[str, str]:
    """Ours, without what a person's shell says of how squeue and its kin shall answer (SQUEUE_PARTITION, ...)."""
    told = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def _queue_job(line: str) -> QueueJob | None:
    fields = line.split(_SEPARATOR, len(_FIELDS) - 1)
    if len(fields) != len(_FIELDS):
        return None
    job_id, state, nodes, limit, left, start, end, partition, reason, comment, name = (
        field.strip() for field in fields
    )
    times = _epoch(start), _epoch(end)
    return QueueJob(job_id, state, nodes, limit, left, *times, partition, reason, comment, name)


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
