"""Runs Slurm's commands, parses their output and explains its reasons; it makes no decisions.

squeue lists all of the user's jobs at once, with ended ones while slurmctld remembers them (MinJobAge, usually 5
minutes). sacct lists only jobs that ended or that squeue has forgotten. Both print a header, and squeue a mark after
each record: an output that is empty, cut or from another command is an error, never an empty queue.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from common.files import user_name
from common.retry import is_transient as passes
from common.retry import run_interruptible

PATIENCE_S = 60.0  # for one command; slurmctld's own MessageTimeout is 10 s by default

# Messages of a Slurm that restarts, is overloaded or cannot be reached: the same command may succeed later.
_TRANSIENT = (
    *("unable to contact", "did not answer", "timed out", "connection", "temporarily", "zero bytes", "try again"),
    *("communication", "not responding"),
)

# https://slurm.schedmd.com/squeue.html: the states of jobs that Slurm never runs again by itself.
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
        *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
# Control characters, which no site puts into a reason; user-chosen names come last. `--json` prints a megabyte for a
# hundred jobs, and its field names change between releases.
_SEPARATOR, _END = "\x1f", "\x1e"
_FIELDS = ("%A", "%T", "%N", "%L", "%S", "%r", "%j")
_HEADER = ["JOBID", "STATE", "NODELIST", "TIME_LEFT", "START_TIME", "REASON", "NAME"]
_ACCOUNTED = ["JobIDRaw", "State", "ExitCode", "NodeList", "JobName"]


def may_pass(error: str) -> bool:
    """Whether an error of Slurm may pass by itself; a wrong partition or a missing right does not."""
    return any(part in error.lower() for part in _TRANSIENT)


def is_submit_limit(error: str) -> bool:
    """Whether Slurm accepts no more jobs of this user or account for now."""
    return any(part in error.lower() for part in ("submit limit", "maxsubmit", "job limit"))


class SlurmError(Exception):
    """A Slurm command failed; the message is Slurm's own."""


@dataclass(frozen=True, slots=True)
class QueueJob:
    """A job from squeue; its start is seconds since the epoch, None if Slurm has none."""

    job_id: str
    state: str
    nodes: str
    left: str
    start: float | None
    reason: str
    name: str


@dataclass(frozen=True, slots=True)
class EndedJob:
    """An ended job from accounting; `by` is the id of the user who cancelled it."""

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
    header = "".join(header.splitlines()[-1:])  # a site's wrapper may print a greeting first
    if header.split(_SEPARATOR) != _HEADER or not records or records.pop():
        raise SlurmError(f"squeue's answer cannot be read: {_excerpt(text)}")
    jobs = {}
    for record in records:
        fields = [field.strip() for field in record.split(_SEPARATOR, len(_FIELDS) - 1)]
        if len(fields) != len(_FIELDS) or not fields[0].isdigit():
            raise SlurmError(f"squeue's answer cannot be read: {_excerpt(record)}")
        job_id, state, nodes, left, start, reason, name = fields
        jobs[job_id] = QueueJob(job_id, state, nodes, left, _epoch(start), reason, name)
    return jobs


def accounting(ids: Iterable[str]) -> dict[str, EndedJob]:
    """The jobs that have ended according to accounting, by id; raises `SlurmError` without accounting."""
    text = command(
        "sacct",
        *("--allocations", "--parsable2", f"--delimiter={_SEPARATOR}", f"--jobs={','.join(sorted(ids))}"),
        # Without a start time sacct lists only today's jobs.
        *("--starttime=1970-01-01", f"--format={','.join(_ACCOUNTED)}"),
    )
    header, *lines = text.splitlines() or [""]
    if header.split(_SEPARATOR) != _ACCOUNTED:
        raise SlurmError(f"sacct's answer cannot be read: {_excerpt(text)}")
    found = {}
    for line in lines:
        fields = line.split(_SEPARATOR, len(_ACCOUNTED) - 1)
        if len(fields) != len(_ACCOUNTED):
            continue
        job_id, full_state, exit_code, nodes, name = fields
        state, *by = full_state.split() or [""]  # `CANCELLED by 1000`, `CANCELLED+`
        if (state := state.rstrip("+")) in ENDED:
            user = by[1] if len(by) > 1 and by[0] == "by" else None
            found[job_id] = EndedJob(job_id, state, exit_code, user, nodes, name)
    return found


def job_details(job_id: str) -> dict[str, str]:
    """One job's fields from `scontrol show job`, by name; raises `SlurmError`."""
    fields = [
        word.split("=", 1) for word in command("scontrol", "show", "job", "--oneliner", job_id).split() if "=" in word
    ]
    # Text of users (a comment) comes late in the line and may contain an equals sign, too.
    return {name: value for name, value in reversed(fields)}


def seconds_of(limit: str) -> float | None:
    """A duration of Slurm's, such as `1-02:03:04` or `59:12`, in seconds; None for `UNLIMITED` and similar."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def cancel(ids: Sequence[str]) -> None:
    """Cancel jobs; raises `SlurmError`. An ended job is no error."""
    if ids:
        command("scancel", "--quiet", *ids)


def cancel_waiting(name: str) -> None:
    """Cancel the jobs of a name that wait now; raises `SlurmError`. One that has begun meanwhile goes on."""
    command("scancel", "--quiet", "--state=PENDING", f"--name={name}")


def test_only(options: Mapping[str, object]) -> None:
    """Have Slurm check a job without submitting it; raises `SlurmError` if it would not be accepted."""
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]
    command("sbatch", "--test-only", *words, "--wrap=true")


def requeue(job_id: str) -> None:
    """Put a job back into the queue unless it has ended or was cancelled; raises `SlurmError`.

    With `incomplete` slurmctld itself checks for a cancellation: a plain requeue would revive a job that was cancelled
    after our own check.
    """
    command("scontrol", "requeue", "incomplete", job_id)


def command(*arguments: str) -> str:
    """The output of a Slurm command; raises `SlurmError` if it fails, does not answer, or is missing."""
    # Without a user's settings for these commands (SQUEUE_PARTITION, ...).
    settings = ("SQUEUE_", "SACCT_", "SBATCH_", "SCANCEL_", "SCONTROL_", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
    env = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    env |= {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    patience_s = min(PATIENCE_S, max(0.0, time_left()))
    try:
        # A Ctrl-C at the terminal is for the launcher, which still needs the answer.
        done = run_interruptible(arguments, patience_s, errors="replace", env=env, start_new_session=True)
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{arguments[0]} did not answer within {patience_s:.0f} s") from None
    except OSError as error:
        now = " (temporarily)" if passes(error) else ""
        raise SlurmError(f"{arguments[0]}: {error.strerror}{now}") from None
    if done.returncode != 0:
        said = done.stderr or done.stdout or f"exit code {done.returncode}"
        # Without a cluster each way to find one is an error before the reason.
        reason = [line for line in said.splitlines() if ": fatal: " in line]
        raise SlurmError(" ".join((reason[-1].partition(": fatal: ")[2] if reason else said).split()))
    return done.stdout


# https://slurm.schedmd.com/job_reason_codes.html: the reasons that never end; the first pattern that matches counts.
_NEVER_ENDING = {
    "PartitionTimeLimit": "it requests more time than the partition allows; lower runtime in the profile",
    "PartitionNodeLimit": "it requests more nodes than the partition allows; choose another slurm_partition",
    "PartitionConfig": "the partition rejects its nodes, time, QOS or account (`scontrol show partition`)",
    "ReservationDeleted": "its reservation does not exist; remove reservation from the profile",
    "BadConstraints": "no node has what it requests; correct constraint, gres or nodelist in the profile",
    "InvalidAccount|AccountNotAllowed": "set slurm_account in the profile to an account that you may use",
    "InvalidQOS|QOSNotAllowed": "set qos in the profile to one that you may use",
    r"\w+MaxWall\w+|\w+TimeLimit": "its QOS or account allows less time; lower runtime in the profile",
    r"\w+Max\w+Minutes\w*": "its QOS or account allows fewer CPU or GPU minutes; lower runtime in the profile",
    r"\w+Max\w+Per(Job|Node)\w*|MaxMemPer\w+": "its QOS or account allows less; lower gres, CPUs or mem_mb",
    r"QOSMin\w+": "it requests less than its QOS requires; set another qos in the profile",
    "DependencyNeverSatisfied|DeadLine": "Slurm will not start it",
}
_UNTIL_RELEASED = ("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "JobLaunchFailure", "launch failed")


def explain_wait(reason: str) -> str:
    """What to do about a reason that does not end by itself; empty for any other: Slurm's own word must do."""
    first = reason.strip("()").split(",")[0]
    if first.startswith(_UNTIL_RELEASED):
        return "it is held; `scontrol release` lets it run"
    text = next((text for names, text in _NEVER_ENDING.items() if re.fullmatch(names, first)), "")
    return text and f"does not end by itself: {text}, then `rolloutbench cancel` it and start again"


_deadline = float("inf")


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """All commands within together take at most that long; later ones raise `SlurmError`."""
    global _deadline
    before, _deadline = _deadline, min(_deadline, time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline = before


def time_left() -> float:
    """Seconds until the limit of `limited`; infinite without one."""
    return _deadline - time.monotonic()


def _excerpt(text: str) -> str:
    return repr(text[:80]) if text.strip() else "it is empty"


def _epoch(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:  # N/A, Unknown
        return None
