"""Reads `trainer_state.json`, which transformers' Trainer keeps beside each checkpoint."""

from __future__ import annotations

from pathlib import Path

from common.errors import UserError
from trainers.logs.hf_rows import LoggedRow, imported_rows, is_training_row, logged_row
from trainers.logs.log_files import list_of
from trainers.logs.record import Imported

FORMAT = "trainer-state"


def read_trainer_state(path: Path) -> Imported:
    """The steps of its log_history, under wandb's names; a record's line is its place in that list, from 1.

    Evaluations and the summary at the end are no steps. `UserError` when the file is no such state.
    """
    rows: list[LoggedRow] = []
    place = 0
    try:
        history = list_of(path, "log_history")
        if history is None:
            raise UserError(f"{path} has no log_history (a list): it is no trainer_state.json")
        for place, row in enumerate(history, start=1):
            step = row.get("step") if isinstance(row, dict) else None
            if isinstance(step, bool) or not isinstance(step, int) or step < 1 or not is_training_row(row):
                continue
            rows.append(logged_row(step, {k: v for k, v in row.items() if k != "step"}, place))
    except (ValueError, RecursionError, OverflowError) as error:
        raise UserError(
            f"{path} is cut off or corrupt after record {place} of its log_history ({' '.join(str(error).split())}). "
            "Copy it again, or import the trainer_state.json of another checkpoint"
        ) from None
    return imported_rows(rows, path, FORMAT)
