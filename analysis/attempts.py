"""Reads a run's attempts, and chooses the one whose record of each step counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.steps import ChosenStep
from common.contracts import AttemptFile, DoneFile, read_file
from common.verdicts import Level, Verdict, count_of
from trainers.logs.log_files import json_lines
from trainers.logs.record import TIMERS, SourceRead, StepRecord, as_number


def read_metrics_jsonl(path: Path, shown_as: str, flat: bool = False) -> SourceRead:
    """The steps of one metrics.jsonl (format: docs/files.md), by step.

    A truncated last line is ignored: a kill cut it off. A corrupt line elsewhere, a value that is not a number, or a
    step that comes twice (the later line counts) is a finding with its line number. `shown_as` names the file there.
    `flat`: the trainer's timers are among the scalars, and a line without any of them (a validation before training, or
    after a resume) is not a training step.
    """
    found = SourceRead()

    def record_of(row: Any, number: int) -> StepRecord | None:
        return None if flat and _is_untimed(row) else _record(row, path, number)

    for record in json_lines(path, shown_as, record_of, found.verdicts):
        earlier = found.records.get(record.step)
        if earlier is not None:
            lines = f"on lines {earlier.line} and {record.line}; line {record.line} counts"
            text = f"{shown_as} has step {record.step} {lines}"
            found.verdicts.append(Verdict("warning", "duplicate-step", text))
        found.records[record.step] = record
    return found


def _is_untimed(raw: Any) -> bool:
    """Whether a row has numbers but no seconds."""
    scalars = raw.get("scalars") if isinstance(raw, dict) and not raw.get("phases") else None
    return isinstance(scalars, dict) and not any(name.startswith(TIMERS) for name in scalars)


def _record(raw: Any, path: Path, line: int) -> StepRecord:
    if not isinstance(raw, dict):
        raise TypeError(f"expected an object, got {type(raw).__name__}")
    step = raw.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise ValueError(f"step must be a whole number from 1 (got {step!r})")
    samples = raw.get("samples", {})
    if not isinstance(samples, dict) or not all(isinstance(v, list) for v in samples.values()):
        raise ValueError("samples must be lists by name")
    return StepRecord(
        step=step,
        phases=_numbers(raw.get("phases", {}), "phases"),
        scalars=_numbers(raw.get("scalars", {}), "scalars"),
        samples={name: list(_numbers(dict(enumerate(v)), name).values()) for name, v in samples.items()},
        resumed=bool(raw["resumed"]) if "resumed" in raw else None,
        file=path,
        line=line,
    )


def _numbers(raw: Any, what: str) -> dict[str, float]:
    if not isinstance(raw, dict):
        raise ValueError(f"{what} must be numbers by name (got {type(raw).__name__})")
    numbers = {}
    for name, value in raw.items():
        # Strict JSON writes not-a-number as null.
        number = math.nan if value is None else as_number(value)
        if number is None:
            raise ValueError(f"{what}[{name!r}] must be a number (got {value!r})")
        numbers[name] = number
    return numbers


Attempts = dict[int, dict[int, StepRecord]]
"""The steps of each attempt of the run, by its number."""


def read_attempts(
    run_dir: Path, run_id: str, fingerprint: str, done: DoneFile, flat: bool = False
) -> tuple[Attempts, list[Verdict]]:
    """The attempts that led to a done.json: of its spec, its data and its model, and none after it.

    `flat`: the trainer logs its timers under flat keys, which stay among the scalars here.
    """
    attempts: Attempts = {}
    verdicts: list[Verdict] = []
    root = run_dir / "attempts"
    folders = {int(p.name): p for p in root.iterdir() if p.name.isdigit()} if root.is_dir() else {}
    for number, folder in sorted(folders.items()):
        if reason := _left_out(folder, number, fingerprint, done):
            level, code, why = reason
            verdicts.append(Verdict(level, code, f"{run_id}: attempt {number} {why}; left out"))
            continue
        metrics, read = folder / "metrics.jsonl", SourceRead()
        if metrics.is_file():
            read = read_metrics_jsonl(metrics, f"{run_id}: {metrics.relative_to(run_dir).as_posix()}", flat)
        verdicts += read.verdicts
        attempts[number] = read.records
    return attempts, verdicts


def _left_out(folder: Path, number: int, fingerprint: str, done: DoneFile) -> tuple[Level, str, str] | None:
    """Why an attempt is not of the run that done.json finished: a finding's level, code and text."""
    if not (folder / "attempt.json").is_file():
        return "warning", "no-attempt-json", "has no attempt.json"
    attempt = read_file(AttemptFile, folder / "attempt.json", "the job on the node")
    if (got := attempt.get("fingerprint")) != fingerprint:
        return "note", "other-fingerprint", f"was made for another spec (fingerprint {str(got)[:12]})"
    if attempt.get("inputs_sha256") != done.get("inputs"):
        return "note", "other-inputs", "was made with other data or another model"
    if number > done.get("attempt", number):
        return "note", "later-attempt", f"came after attempt {done['attempt']} had finished"
    return None


def choose_steps(attempts: Attempts, run_id: str) -> tuple[list[ChosenStep], list[Verdict]]:
    """Each step from the last attempt that has it, in step order.

    An attempt that died after its last checkpoint leaves steps that the next one trains again: those overlap.
    """
    attempts_of: dict[int, list[int]] = {}
    for number, records in attempts.items():
        for step in records:
            attempts_of.setdefault(step, []).append(number)
    first = {number: min(records, default=0) for number, records in attempts.items()}
    chosen = []
    for step, numbers in sorted(attempts_of.items()):
        last = numbers[-1]
        record = attempts[last][step]
        resumed = step == first[last] and step > 1 if record.resumed is None else record.resumed
        chosen.append(ChosenStep(last, record, resumed, overlap=len(numbers) > 1))
    again = [c.record.step for c in chosen if c.overlap]
    return chosen, [overlap_verdict(run_id, again)] if again else []


def overlap_verdict(shown_as: str, again: Sequence[int]) -> Verdict:
    """The finding that several attempts trained the same steps."""
    text = (
        f"{shown_as}: more than one attempt trained {count_of(len(again), 'step')} ({again[0]} to {again[-1]}); the "
        "last attempt's timings count"
    )
    return Verdict("note", "overlap", text)
