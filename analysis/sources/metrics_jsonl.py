"""What an attempt's metrics.jsonl holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.verdicts import Verdict
from trainers.logs.json_lines import json_lines
from trainers.logs.record import TIMERS, SourceRead, StepRecord, as_number


def read_metrics_jsonl(path: Path, shown_as: str, flat: bool = False) -> SourceRead:
    """The steps of one metrics.jsonl (format: docs/files.md), by step.

    A last line without its newline that does not parse was cut off by a kill and is ignored. A corrupt line
    in the middle, a value that is no number, or a step that comes twice (the later line counts) is a verdict
    with its line number. `shown_as` names the file there. `flat`: the trainer's timers are among the scalars,
    and a line that has none of them (a validation before training, or after a resume) is no training step.
    """
    found = SourceRead()

    def record_of(row: Any, number: int) -> StepRecord | None:
        return None if flat and is_untimed(row) else _record(row, path, number)

    for record in json_lines(path, shown_as, record_of, found.verdicts):
        earlier = found.records.get(record.step)
        if earlier is not None:
            found.verdicts.append(
                Verdict(
                    "warning",
                    "duplicate-step",
                    f"{shown_as} has step {record.step} on lines {earlier.line} and {record.line}; "
                    f"line {record.line} counts",
                )
            )
        found.records[record.step] = record
    return found


def is_untimed(raw: Any) -> bool:
    """Whether a row holds numbers but no seconds at all."""
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
    numbers = {name: as_number(value) for name, value in raw.items()}
    for name, value in numbers.items():
        # None is how a writer that keeps to strict JSON spells not-a-number.
        if value is None and raw[name] is not None:
            raise ValueError(f"{what}[{name!r}] must be a number (got {raw[name]!r})")
    return {name: float("nan") if value is None else value for name, value in numbers.items()}
