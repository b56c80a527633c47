"""Reads what a run's attempts have done so far from their files, for the job and for those who look on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.files import read_json
from common.retry import exists
from workflow.cluster.paths import AttemptPaths, JobPaths, RunPaths
from workflow.cluster.progress import last_step

FILES = "the run's files"
"""What is waited for where the file system refuses them."""


def read_object(path: Any) -> dict[str, Any]:
    """The object in a JSON file; an empty one if it is not there, or damaged.

    Raises OSError where it is there and cannot be read: that is no news, and must not pass for a file that is missing.
    """
    try:
        value = read_json(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def computes(order: dict[str, Any], fingerprint: str, inputs: dict[str, str] | None) -> bool:
    """Whether a job's or an attempt's order is for this very spec on these inputs (None: whichever)."""
    return order.get("fingerprint") == fingerprint and inputs in (None, order.get("inputs_sha256"))


def matching_attempts(
    run: RunPaths, fingerprint: str, inputs: dict[str, str] | None = None, count_from: int = 1
) -> list[AttemptPaths]:
    """The attempts, from a number on, that compute the same: this very spec on these inputs (None: whichever)."""
    return [
        attempt
        for attempt in run.attempts()
        if attempt.number >= count_from and computes(read_object(attempt.order), fingerprint, inputs)
    ]


def attempts_of_job(run: RunPaths, job: int) -> list[AttemptPaths]:
    """The attempts that a submission has lived."""
    return [attempt for attempt in run.attempts() if read_object(attempt.order).get("job") == job]


def without_new_step(attempts: Sequence[AttemptPaths]) -> int:
    """How many attempts in a row, up to the last, ended without a step that none before them had done."""
    best = fruitless = 0
    for attempt in attempts:
        reached = last_step(attempt.metrics)
        fruitless = 0 if reached > best else fruitless + 1
        best = max(best, reached)
    return fruitless


def how_it_ended(attempt: AttemptPaths) -> str:
    """A word or a sentence on an attempt's end, for people."""
    end = read_object(attempt.exit)
    return str(end.get("detail") or end.get("cause") or end.get("kind") or "it vanished without a word")


def why_unfinished(attempt: AttemptPaths, fingerprint: str, steps: int | None, inputs: dict[str, str] | None) -> str:
    """Why an attempt's done.json does not finish a run; empty if it does. What is None is not looked at.

    Raises OSError where the file is there and cannot be read: that is not the same as unfinished.
    """
    try:
        done = read_json(attempt.done)
    except (ValueError, FileNotFoundError) as error:
        return f"it cannot be read ({error})"
    if not isinstance(done, dict):
        return "it holds no object"
    wanted = {"fingerprint": fingerprint, "attempt": attempt.number, "last_step": steps, "inputs": inputs}
    for key, value in wanted.items():
        if value is not None and done.get(key) != value:
            return f"its {key} is {done.get(key)!r}, wanted {value!r}"
    return ""


def finished_attempt(
    run: RunPaths, fingerprint: str, steps: int | None = None, inputs: dict[str, str] | None = None
) -> AttemptPaths | None:
    """The newest attempt that finished this very run: same fingerprint, same data, same model, all steps."""
    for attempt in reversed(run.attempts()):
        if exists(attempt.done) and not why_unfinished(attempt, fingerprint, steps, inputs):
            return attempt
    return None


def log_of(run: RunPaths, job: JobPaths) -> Path | None:
    """Where to read what a job said: its last attempt's log, or before the first its own script's output."""
    if read_object(job.end).get("kind") == "setup failed":
        return job.setup_log
    if attempts := attempts_of_job(run, job.number):
        return attempts[-1].log
    outputs = sorted(job.submitit.glob("*_log.out")) + sorted(job.submitit.glob("*_log.err"))
    return outputs[0] if outputs else None
