"""Reads offline wandb files with wandb's own `leet inspect`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from analysis.sources.wandb_rows import CALLS, HF_STEP, steps_of
from common.dotted import as_mapping
from common.errors import UserError
from trainers.logs.record import SourceRead, timers_as_phases

# The identifier, the magic number 0xBEE1 and the format's version, 0 (wandb 0.31 core/pkg/leveldb/record.go).
HEADER = b":W&B\xe1\xbe\x00"


def wandb_files(attempt_dir: Path) -> list[Path]:
    """The attempt's offline files, oldest first (their folders are named by time)."""
    return sorted(attempt_dir.glob("wandb/offline-run-*/run-*.wandb"))


@cache
def inspect_command() -> tuple[str, ...]:
    """The command that prints a file's records as JSON, without the file's path. It sends nothing anywhere.

    `wandb leet` only starts this program of the wheel, after a second of imports.
    """
    wheel = find_spec("wandb")
    for place in wheel.submodule_search_locations or () if wheel else ():
        core = Path(place) / "bin" / "wandb-core"
        if core.is_file():
            return (str(core), "leet", "inspect", "--no-observability", "--json", "--run-file")
    return (sys.executable, "-P", "-m", "wandb", "leet", "inspect", "--json")


def records(path: Path, *kinds: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(record number, kind, content) of every record of these kinds in an offline wandb file, in file order.

    wandb's reader skips truncated and corrupt records. `UserError` when it fails altogether.
    """
    marks = {f'"type":"{kind}"': kind for kind in kinds}
    argv = [*inspect_command(), str(path.resolve())]
    with (
        tempfile.TemporaryFile() as stderr,
        # Not in the user's folder: wandb reads ./wandb/settings.
        subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                # Each line begins {"num":1,"type":"history": the many records of other kinds are not parsed.
                head = raw[:60].decode("utf-8", "replace")
                kind = next((kind for mark, kind in marks.items() if mark in head), None)
                if kind is not None:
                    record = json.loads(raw)
                    yield record["num"], kind, {**as_mapping(record.get(kind))}
        except GeneratorExit:
            process.kill()
            raise
        if process.wait() == 0:
            return
        stderr.seek(0)
        *_, last_line = ["no message", *stderr.read().decode("utf-8", "replace").strip().splitlines()]
    if _lacks_header(path):
        raise UserError(
            f"{path} is damaged: it does not begin with wandb's header. Copy it again from the machine that wrote it; "
            "or import the run from wandb's server (wandb:entity/project/id), or the log that the trainer printed"
        )
    raise UserError(
        f"wandb cannot read {path} ({last_line}). `wandb leet inspect` is needed (wandb 0.31 or later): check the "
        "wandb of the controller's environment, or move the file out of the attempt's folder"
    )


def _lacks_header(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(HEADER)) != HEADER


def history_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(record number, row) of every history record."""
    for number, _, content in records(path, "history"):
        yield number, {**as_mapping(content.get("item"))}


def read_wandb_offline(path: Path, shown_as: str, flat: bool = False) -> SourceRead:
    """The steps of an attempt's offline wandb file, by the trainer's own step.

    `flat`: the trainer logs its timers under flat keys, which stay among the scalars. Otherwise our driver's timers,
    whose names are paths, become phases; they are in the rows that transformers numbers. TRL's own timers are left out.
    """
    if flat:
        return steps_of(((path, number, row) for number, row in history_rows(path)), shown_as)
    rows = (
        (path, number, {name: value for name, value in row.items() if not name.startswith(CALLS)})
        for number, row in history_rows(path)
        if HF_STEP in row
    )
    read = steps_of(rows, shown_as)
    read.records = {step: timers_as_phases(record, {HF_STEP}) for step, record in read.records.items()}
    return read
