"""Measures what it takes to import a log of 300 MB, in every format that grows with the training."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.long_logs import FORMATS, write_log, write_wandb_offline
from bench.measure import Cost, Line, cost_of
from common.files import fingerprint_of

BYTES = 300_000_000
RELEASES = {"swift-jsonl": ("swift", "4.6.0"), "trainer-state": ("trl", "1.16.0"), "wandb": ("trl", "1.16.0")}


def import_lines() -> list[Line]:
    """Time and memory of the importing process, for each format."""
    lines = []
    for form in (*FORMATS, "wandb-offline"):
        with tempfile.TemporaryDirectory() as folder:
            cost = _imported(Path(folder), form)
        lines += [
            Line(f"import {BYTES / 1e6:.0f} MB of {form}: memory", cost.peak_mb, 500, "MB"),
            Line("... time", cost.seconds, None, "s"),
            Line("... CPU time", cost.cpu_s, None, "s"),
        ]
    return lines


def _imported(folder: Path, form: str) -> Cost:
    source = str(folder / "log")
    if form == "wandb-offline":
        source = str(write_wandb_offline(folder, BYTES))
    elif form == "wandb":
        run = folder / "cache" / "a" / "b" / "c"
        run.mkdir(parents=True)
        (run / "run.json").write_text(json.dumps({"complete": True}))
        write_log(run / "history-000000000.jsonl", form, BYTES)
        source = "wandb:a/b/c"
    else:
        write_log(Path(source), form, BYTES)
    trainer, version = RELEASES.get(form, ("verl", "0.4.1"))
    spec: dict[str, Any] = {"run_id": "long", "arm": "long", "trainer": trainer, "engine": "vllm", "seed": 0}
    spec |= {"factors": {}, "import": {"sources": [source], "version": version, "batch_size": 16}}
    spec["fingerprint"] = fingerprint_of(spec)
    command = [sys.executable, "-m", "analysis.imports", json.dumps(spec), "--out", str(folder / "out/steps.parquet")]
    return cost_of([*command, "--cache", str(folder / "cache")])
