"""A run of one arm that is imported from given sources: its table, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from analysis.imports.import_run import import_run
from common.files import fingerprint_of


@dataclass(frozen=True)
class ImportedRun:
    """What an import makes: the tidy table, the timers that it was read by, its verdicts and its imported.json."""

    table: pd.DataFrame
    timers: str
    verdicts: dict[str, dict[str, Any]]  # by code
    end: dict[str, Any]


def spec_of(sources, trainer, engine="vllm", arm="one", **facts):
    known = {"sources": sources, "version": None, "mode": "", "format": None, **facts}
    spec = {"run_id": f"{arm}-s0", "arm": arm, "trainer": trainer, "engine": engine, "seed": 0, "factors": {}}
    spec |= {"experiment": "x", "stack": "", "import": known}
    return spec | {"fingerprint": fingerprint_of(spec)}


def run_of(folder, sources, trainer, engine="vllm", **facts):
    """`folder` is also where runs of wandb lie that were fetched before."""
    tables, end = import_run(spec_of(sources, trainer, engine, **facts), folder / "out", folder)
    table = pa.concat_tables(tables)
    told = json.loads(table.schema.metadata[b"rolloutbench"])
    verdicts = {verdict["code"]: verdict for verdict in told["verdicts"]}
    return ImportedRun(table.to_pandas(), told["timers"], verdicts, end)


def written(folder, text, name="run.log"):
    (folder / name).write_text(text)
    return str(folder / name)
