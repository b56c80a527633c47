"""Defines the kinds of an end: what follows from each, and the sentence for people.

`exit.json` has the end of one attempt, `end.json` that of an order. After a time limit or a preemption the job is
requeued and continues with the next attempt: that is not the order's end.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from common.files import tail, user_name
from node.exit_codes import UNFIT_NODE, USER_ERROR
from workflow.runs.history import begins_anew, is_own_command
from workflow.runs.paths import AttemptPaths
from workflow.slurm.commands import EndedJob


class Then(StrEnum):
    """What follows an end."""

    FINAL = "final"
    AGAIN = "again"
    """The run is submitted again: the trainer is not the cause."""
    ELSEWHERE = "elsewhere"
    """It is tried once more, without this node."""


class Kind(NamedTuple):
    then: Then
    sentence: str
    """How it ended and what to do; follows the run's name. Its words in braces are of the end."""


_KINDS = {
    "finished": Kind(Then.FINAL, "its job ended without an error, but no done.json proves that it finished"),
    "failed": Kind(Then.FINAL, "failed: the trainer ended with exit code {code}{rank}"),
    "refused": Kind(Then.FINAL, "was refused by the trainer's job{rank}"),
    "killed": Kind(Then.FINAL, "was killed by signal {signal}{rank}{dmesg}"),
    "out of memory": Kind(
        Then.FINAL,
        "ran out of memory{why}{rank}; request more (mem_mb in the profile), or reduce its batch sizes",
    ),
    "out of GPU memory": Kind(
        Then.FINAL,
        "ran out of GPU memory{why}{rank}; lower its batch sizes or the engine's share of the GPU (mem_mb is no help)",
    ),
    "hung": Kind(Then.FINAL, "hung twice: {detail}; the stacks of its processes are in the log"),
    "no progress": Kind(Then.FINAL, "made no progress: {detail}; fix what ends it, then start again"),
    "cancelled": Kind(Then.FINAL, "was cancelled by {by}; {resume}"),
    "deadline": Kind(Then.FINAL, "was removed by Slurm at its deadline"),
    "time limit": Kind(
        Then.FINAL,
        "reached its time limit{after}, and its script begins anew in each life: another life would not finish either; "
        "raise runtime in the profile, or let the script continue from its checkpoint (options.resume: script)",
    ),
    "not submitted": Kind(Then.FINAL, "its job was not accepted: {detail}"),
    "no server": Kind(Then.FINAL, "had no server: {detail}"),
    "not alone": Kind(
        Then.FINAL,
        "another life of its job could not be ended: {detail}; `rolloutbench cancel` ends it, and `rolloutbench "
        "status` shows it",
    ),
    # On this machine these are final: nobody requeues a job there.
    "stopped": Kind(Then.AGAIN, "was stopped{why}; {resume}"),
    "vanished": Kind(
        Then.AGAIN, "its job vanished without a report (killed from outside, or the machine went down); {resume}"
    ),
    "node lost": Kind(Then.AGAIN, "lost a node: {detail}"),
    "superseded": Kind(Then.AGAIN, "its job ended before another one"),
    "preempted": Kind(Then.AGAIN, "was preempted"),
    "node failure": Kind(Then.AGAIN, "lost its node"),
    "died": Kind(Then.AGAIN, "died without a report"),
    "lost": Kind(Then.AGAIN, "is unknown to Slurm"),
    "unfit node": Kind(Then.ELSEWHERE, "failed the check of its node's GPUs{rank}"),
    "not started": Kind(Then.ELSEWHERE, "its job could not start the trainer: {detail}"),
    "never started": Kind(Then.ELSEWHERE, "its job ended before it began{exit}; see its output"),
    "setup failed": Kind(
        Then.ELSEWHERE,
        "{detail} {how}, before the trainer was started; correct it (setup in the profile), and start again",
    ),
}


def what_follows(end: Mapping[str, Any]) -> Then:
    """What follows an end in Slurm."""
    return _KINDS[end["kind"]].then if end["kind"] in _KINDS else Then.FINAL


def explain(end: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """How an order of this specification ended and what to do; the sentence follows the run's name."""
    code, detail = end.get("code"), end.get("detail")
    resume = "start again to resume from its last checkpoint"
    if is_own_command(spec):
        resume = f"start again: its script {'begins anew' if begins_anew(spec) else 'continues by itself'}"
    words = {
        "code": code,
        "signal": -(code or 0),
        "detail": detail,
        "by": end.get("by") or "somebody",
        "resume": resume,
        "rank": f" ({end['rank']})" if end.get("rank") else "",
        "why": f" ({detail})" if detail else "",
        "after": f" after step {end['last_step']}" if end.get("last_step") else "",
        "exit": f" with exit code {end['exit_code']}" if end.get("exit_code") else "",
        "dmesg": " (often: out of memory; see `dmesg`)" if code == -signal.SIGKILL else "",
        "how": f"failed with exit code {code}" if code else "ended the job by `exit` (it is sourced)",
    }
    return _KINDS.get(end["kind"], _KINDS["failed"]).sentence.format(**words)


# What follows from Slurm's last state of a job that has not said itself how it ended.
_STATES = {
    "PREEMPTED": "preempted",
    "TIMEOUT": "stopped",
    "NODE_FAIL": "node failure",
    "BOOT_FAIL": "node failure",
    "FAILED": "died",
    "COMPLETED": "died",
    "OUT_OF_MEMORY": "out of memory",
    "CANCELLED": "cancelled",
    "DEADLINE": "deadline",
}
# Accounting's exit codes of a job that got a signal of Slurm's before it handled signals.
_ENDED_BY_SIGNAL = frozenset({"0:15", "143:0", "0:12", "140:0"})

ENDED_BY_SLURM = "ended by Slurm"
"""The cause of an attempt's end while Slurm shows its job as completing; the reason is known when it has completed."""


def end_from_slurm(state: str, ended: EndedJob | None, newest: Mapping[str, Any] | None, output: str) -> dict[str, Any]:
    """The end of a job that wrote none itself: by Slurm's last state (empty: unknown) and its newest attempt's exit.

    `newest` is None without an attempt; `output` is what the job itself has printed in its last life.
    """
    end: dict[str, Any] = {"kind": _STATES.get(state, "lost"), "state": state, "told_by": "slurm"}
    if ended is not None:
        end |= {"exit_code": ended.exit_code, "nodes": ended.nodes}
    if end["kind"] == "cancelled":
        if ended is not None and ended.by is None:
            end["kind"] = "lost"  # accounting's state for jobs that a new slurmctld does not know
        else:
            by = ended.by if ended is not None else None
            end["by"] = user_name(int(by)) if by and by.isdigit() else by or "somebody (accounting does not say who)"
    elif state == "TIMEOUT":
        end["detail"] = "time limit"
    elif state == "FAILED" and _SLURM_MEMORY.search(output):
        end["kind"] = "out of memory"
    elif state == "FAILED" and newest is None and end.get("exit_code") not in _ENDED_BY_SIGNAL:
        end["kind"] = "never started"
    if newest:
        end["attempt"] = newest["attempt"]
    # It stopped as it should, and could not be requeued.
    if end["kind"] in ("died", "lost") and newest and newest.get("again"):
        reason = newest.get("detail") or newest.get("cause") or newest["kind"]
        end |= {"kind": "stopped", "detail": f"{reason}, and could not be requeued"}
    return end


def exit_of(code: int, attempt: AttemptPaths, killed_for_memory: bool) -> dict[str, Any]:
    """The attempt's exit from its trainer's exit code, if it did not finish and nobody asked it to stop."""
    # The count is of all processes here: another one's lack of memory explains no other signal.
    if code == -signal.SIGKILL and killed_for_memory:
        return {"kind": "out of memory", "detail": "the kernel killed it", "code": code}
    if code < 0:
        return {"kind": "killed", "code": code}
    if code == USER_ERROR:
        return {"kind": "refused", "code": code}
    if code == UNFIT_NODE:
        return {"kind": "unfit node", "code": code}
    if (found := memory_error(attempt.log)) is not None:
        return {**found, "code": code}
    return {"kind": "failed", "code": code}


# Neither an exit code nor Slurm's state proves a lack of memory. Slurm reports OUT_OF_MEMORY only where cgroups limit
# memory (older accounting: FAILED), and a process that the kernel kills looks like any killed process.
# slurmstepd's messages in the job's output:
_SLURM_MEMORY = re.compile(r"exceeded (job )?memory limit|oom[-_]kill|oom_kill|out[ -]of[ -]memory", re.IGNORECASE)
# An error as a traceback ends with it, at the beginning of a line: a printed completion may have the words,
# too. Ray and a launcher of several processes put the process before the line.
_ERROR = re.compile(r"^(?:\([^)]*\) |\[[^\]]*\]:? ?)*((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)
_GPU = re.compile(r"(CUDA|HIP).*out of memory|torch\.\S*OutOfMemoryError", re.IGNORECASE)
_HOST = re.compile(r"\bMemoryError\b|OutOfMemoryError|can(no|')t allocate memory", re.IGNORECASE)


def memory_error(log: Path) -> dict[str, str] | None:
    """The lack of memory with which a trainer's log ends: its last traceback's error, of the host or of a GPU."""
    text = tail(log)
    found = _ERROR.findall(text[max(0, text.rfind("Traceback (most recent call last)")) :])
    if not found:
        return None
    for kind, error in (("out of GPU memory", _GPU), ("out of memory", _HOST)):
        if error.search(found[-1]):
            return {"kind": kind, "detail": found[-1].strip()[:300]}
    return None


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
