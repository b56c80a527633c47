"""Measures what it takes to import a log of 300 MB, in every format that grows with the training.

The importer as it was before its memory was bounded reads the same log in the same run, from a commit of this
repository's history.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.long_logs import FORMATS, write_log, write_wandb_offline
from bench.measure import ROOT, Cost, Line, cost_of
from common.files import fingerprint_of

BYTES = 300_000_000
RELEASES = {"swift-jsonl": ("swift", "4.6.0"), "trainer-state": ("trl", "1.16.0"), "wandb": ("trl", "1.16.0")}

BEFORE, BEFORE_MODULE = "ba03167", "analysis.imported"
"""The commit before the importer's memory was bounded, and its command."""
# A busy machine moves CPU time by that much.
SLOWER = 1.1


def import_lines(forms: Sequence[str] = (*FORMATS, "wandb-offline"), size: int = BYTES) -> list[Line]:
    """Memory and time of the importing process for each format, beside those of the importer as it was before."""
    lines = []
    with tempfile.TemporaryDirectory() as tree:
        before = _before(Path(tree))
        for form in forms:
            with tempfile.TemporaryDirectory() as folder:
                spec = _spec(Path(folder), form, size)
                cost = _imported(Path(folder), spec, ROOT, "analysis.imports")
                old = _imported(Path(folder), spec, before, BEFORE_MODULE) if before else None
            old_mb, old_s, old_cpu_s = (old.peak_mb, old.seconds, old.cpu_s) if old else (None, None, None)
            lines += [
                Line(f"import {size / 1e6:.0f} MB of {form}: memory", cost.peak_mb, 500, "MB", old_mb),
                Line("... time", cost.seconds, None, "s", old_s),
                Line("... CPU time", cost.cpu_s, old_cpu_s and SLOWER * old_cpu_s, "s", old_cpu_s),
            ]
    return lines


def _before(into: Path) -> Path | None:
    """The tree of `BEFORE`; None, and a word of it, where this clone does not have that commit."""
    packed = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True)
    if packed.returncode != 0:
        print(f"no commit {BEFORE} in this clone (git fetch --unshallow): measured without it", file=sys.stderr)
        return None
    subprocess.run(["tar", "-x", "-C", str(into)], input=packed.stdout, check=True)
    return into


def _spec(folder: Path, form: str, size: int) -> str:
    """Writes a log; the spec of its import."""
    source = str(folder / "log")
    if form == "wandb-offline":
        source = str(write_wandb_offline(folder, size))
    elif form == "wandb":
        run = folder / "cache" / "a" / "b" / "c"
        run.mkdir(parents=True)
        (run / "run.json").write_text(json.dumps({"complete": True}))
        write_log(run / "history-000000000.jsonl", form, size)
        source = "wandb:a/b/c"
    else:
        write_log(Path(source), form, size)
    trainer, version = RELEASES.get(form, ("verl", "0.4.1"))
    spec: dict[str, Any] = {"run_id": "long", "arm": "long", "trainer": trainer, "engine": "vllm", "seed": 0}
    spec |= {"factors": {}, "import": {"sources": [source], "version": version, "batch_size": 16}}
    spec["fingerprint"] = fingerprint_of(spec)
    return json.dumps(spec)


def _imported(folder: Path, spec: str, tree: Path, module: str) -> Cost:
    command = [sys.executable, "-m", module, spec, "--out", str(folder / module / "steps.parquet")]
    return cost_of([*command, "--cache", str(folder / "cache")], cwd=tree)
