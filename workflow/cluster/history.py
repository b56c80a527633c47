"""Reads from their files what a run's attempts have done so far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.files import read_json
from common.retry import exists
from workflow.cluster.paths import AttemptPaths, JobPaths, RunPaths
from workflow.cluster.progress import last_step

FILES = "the run's files"
"""Their name in the message of `retry_io`."""


def read_object(path: Any) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing or damaged.

    Raises OSError if the file exists and cannot be read: it must not count as missing.
    """
    try:
        value = read_json(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def is_order_for(order: dict[str, Any], fingerprint: str, inputs: dict[str, str] | None) -> bool:
    """Whether a job's or an attempt's order is for this spec on these inputs (None: any)."""
    return order.get("fingerprint") == fingerprint and inputs in (None, order.get("inputs_sha256"))


def matching_attempts(
    run: RunPaths, fingerprint: str, inputs: dict[str, str] | None = None, count_from: int = 1
) -> list[AttemptPaths]:
    """The attempts, from a number on, of this spec on these inputs (None: any)."""
    return [
        attempt
        for attempt in run.attempts()
        if attempt.number >= count_from and is_order_for(read_object(attempt.order), fingerprint, inputs)
    ]


def attempts_of_job(run: RunPaths, job: int) -> list[AttemptPaths]:
    """The attempts of one submission."""
    return [attempt for attempt in run.attempts() if read_object(attempt.order).get("job") == job]


def without_new_step(attempts: Sequence[AttemptPaths]) -> int:
    """The number of attempts in a row, up to the last, that reached no step beyond the earlier ones."""
    best = fruitless = 0
    for attempt in attempts:
        reached = last_step(attempt.metrics)
        fruitless = 0 if reached > best else fruitless + 1
        best = max(best, reached)
    return fruitless


def end_reason(attempt: AttemptPaths) -> str:
    """A word or a sentence on an attempt's end."""
    end = read_object(attempt.exit)
    return str(end.get("detail") or end.get("cause") or end.get("kind") or "it vanished without a report")


def why_unfinished(attempt: AttemptPaths, fingerprint: str, steps: int | None, inputs: dict[str, str] | None) -> str:
    """Why an attempt's done.json does not prove that the run is finished; empty if it does. None is not compared.

    Raises OSError if the file exists and cannot be read: that does not mean unfinished.
    """
    try:
        done = read_json(attempt.done)
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
