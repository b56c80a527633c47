"""Reads ms-swift's `logging.jsonl`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.verdicts import Verdict
from trainers.logs.hf_rows import LoggedRow, imported_rows, is_training_row, logged_row
from trainers.logs.log_files import json_lines
from trainers.logs.record import Imported
from trainers.trl.console import swift_step

FORMAT = "swift-jsonl"


def read_swift_jsonl(path: Path) -> Imported:
    """The steps of ms-swift's log, under wandb's names; numbers that it wrote as texts carry their rounding.

    Evaluations and the summary at the end are no steps. A line that is no JSON is a verdict, but for a last one that
    was cut off.
    """
    verdicts: list[Verdict] = []
    rows = list(json_lines(path, str(path), _row, verdicts))
    return imported_rows(rows, path, FORMAT, verdicts)


def _row(row: Any, number: int) -> LoggedRow | None:
    if not isinstance(row, dict):
        raise TypeError(f"expected an object, got {type(row).__name__}")
    step = swift_step(row)
    return logged_row(step, row, number) if step is not None and is_training_row(row) else None
