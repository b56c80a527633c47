"""Reads what a run's attempts have done, from their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.ownership import read_own_json
from common.retry import exists
from trainers import Spread
from workflow.runs.paths import AttemptPaths, RunPaths

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
    """Whether an order or an attempt's request is for this spec on these inputs (None: any)."""
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


def attempts_of_order(run: RunPaths, order: Mapping[str, Any]) -> list[AttemptPaths]:
    """The attempts that an order has led to."""
    return matching_attempts(run, order["fingerprint"], order["inputs_sha256"], order["count_from"])


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


def log_of(run: RunPaths, end: Mapping[str, Any]) -> Path | None:
    """The log that explains an order's end: its last attempt's, or before the first attempt its script's output."""
    if end.get("kind") == "setup failed":
        return run.setup_log
    if end.get("attempt"):
        return run.attempt(end["attempt"]).log
    for folder in reversed(run.submissions()):
        for found in [*sorted(folder.glob("*_log.out")), *sorted(folder.glob("*_log.err"))]:
            return found
    return None


def is_own_command(spec: Mapping[str, Any]) -> bool:
    """Whether a spec or an order runs the user's own command, in the user's environment, without a stack."""
    return Spread.from_spec(spec) is Spread.OWN


def begins_anew(spec: Mapping[str, Any]) -> bool:
    """Whether each attempt of a user's script begins with step 1 (`resume: restart`)."""
    return is_own_command(spec) and spec["trainer_args"]["resume"] != "script"
