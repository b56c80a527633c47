"""What does a `trainer_state.json` hold, which transformers' Trainer keeps beside each checkpoint?"""

from __future__ import annotations

from pathlib import Path

from analysis.errors import UserError
from analysis.files import read_json_object
from analysis.sources.hf_logs import is_training_row
from analysis.sources.logged_rows import LoggedRow, imported_rows
from analysis.sources.record import Imported

FORMAT = "trainer-state"


def read_trainer_state(path: Path) -> Imported:
    """The steps of its log_history, under wandb's names; a record's line is its place in that list, from 1.

    Evaluations and the summary at the end are no steps. `UserError` when the file is no such state.
    """
    raw = read_json_object(path, "transformers' Trainer, beside each checkpoint")
    history = raw.get("log_history")
    if not isinstance(history, list):
        raise UserError(
            f"{path} has no log_history (got the keys {', '.join(sorted(raw)[:8]) or 'none'}): it is no "
            "trainer_state.json"
        )
    rows = []
    for place, row in enumerate(history, start=1):
        step = row.get("step") if isinstance(row, dict) else None
        if isinstance(step, bool) or not isinstance(step, int) or step < 1 or not is_training_row(row):
            continue
        rows.append(LoggedRow(step, {k: v for k, v in row.items() if k != "step"}, place))
    return imported_rows(rows, path, FORMAT)
