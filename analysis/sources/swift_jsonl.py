"""What does ms-swift's `logging.jsonl` hold?"""

from __future__ import annotations

import json
from pathlib import Path

from analysis.sources.hf_logs import is_training_row
from analysis.sources.logged_rows import LoggedRow, imported_rows
from analysis.sources.record import Imported
from analysis.sources.trl_console import swift_step
from analysis.sources.verl_jsonl import corrupt_line
from analysis.verdicts import Verdict

FORMAT = "swift-jsonl"


def read_swift_jsonl(path: Path) -> Imported:
    """The steps of ms-swift's log, under wandb's names; numbers that it wrote as texts carry their rounding.

    Evaluations and the summary at the end are no steps. A line that is no JSON is a verdict, but for a last one that
    was cut off.
    """
    rows: list[LoggedRow] = []
    verdicts: list[Verdict] = []
    lines = path.read_bytes().split(b"\n")
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        try:
            row = json.loads(raw)
            if not isinstance(row, dict):
                raise TypeError(f"expected an object, got {type(row).__name__}")
        except (ValueError, TypeError) as error:
            if number < len(lines):
                verdicts.append(corrupt_line(path, number, error))
            continue
        step = swift_step(row)
        if step is not None and is_training_row(row):
            rows.append(LoggedRow(step, row, number))
    return imported_rows(rows, path, FORMAT, verdicts)
