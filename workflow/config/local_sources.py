"""Do local data and a local model hold what the experiment reads? Looked at before a stack is built.

What a look tells: a parquet file's schema, the first row of a .jsonl file, the names in a model's folder. All the rest
is for the job that prepares them (node/inputs.py), which has the stack's libraries and says the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.messages import did_you_mean
from trainers.workload import source_kind
from workflow.config.plan import Plan


def require_readable(plan: Plan) -> None:
    """A `UserError` for a data file without the columns that are asked for, or a folder that holds no model."""
    for request in plan.inputs.values():
        data, model = request["data"], request["model"]
        for key in ("source", "test_source"):
            if data[key] and source_kind(data[key]) == "local":
                _require_columns(f"workload.data.{key}", data[key], data)
        if source_kind(model["source"]) == "local":
            _require_model(model["source"])


def _require_columns(where: str, source: str, data: Mapping[str, Any]) -> None:
    path = Path(source).expanduser()
    if not path.is_file():
        raise UserError(f"{where} {source!r} is not a file; give a .jsonl, .json or .parquet file")
    found = _columns(where, path)
    if found is None:
        return
    for setting in ("prompt_column", "answer_column"):
        if data[setting] not in found:
            raise UserError(
                f"workload.data.{setting} is {data[setting]!r}, but {source!r} has the columns "
                f"{', '.join(found) or '(none)'}{did_you_mean(data[setting], found)}; name one of them, or add it there"
            )


def _columns(where: str, path: Path) -> list[str] | None:
    """The columns of the first row, or nothing where only a whole reading would tell."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        try:
            return list(pyarrow.parquet.read_schema(path).names)
        except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
            said = " ".join(str(error).split())
            raise UserError(f"{where} {str(path)!r} cannot be read as parquet: {said}") from None
    if path.suffix == ".jsonl":
        # A later row may have a column that the first one lacks, which is refused in any case: a blank is no prompt.
        with path.open(encoding="utf-8", errors="replace") as file:
            first = next((line for line in file if line.strip()), "")
        try:
            row = json.loads(first)
        except ValueError:
            return None  # the job names the line
        return list(row) if isinstance(row, dict) else None
    return None


def _require_model(source: str) -> None:
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise UserError(f"workload.model.source {source!r} is not a folder; give the one that holds config.json")
    if not (folder / "config.json").is_file():
        inside = sorted(path.name for path in folder.iterdir())
        raise UserError(
            f"workload.model.source {source!r} is no model: it lacks config.json (in it: "
            f"{', '.join(inside[:8]) or 'nothing'}{', ...' * (len(inside) > 8)}); give the folder that holds it"
        )
