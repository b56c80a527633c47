"""Reads TensorBoard's event files: the scalars of each step, single precision, with TensorBoard's own record reader.

transformers' callback (TRL, ms-swift), verl and others write a step's scalars one after another, under the names that
they give wandb. A process writes a file; the files of a folder are the lives of one run.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from analysis.imports.source_check import trainers_by_data
from analysis.sources import plain_table
from analysis.sources.table_frame import framed
from analysis.sources.wandb_facts import plain_config
from analysis.sources.wandb_rows import HF_STEP, WANDB_STEP, History, Row, steps_of_lives
from common.errors import UserError
from common.messages import join_first
from common.shown import require_shown, shown
from common.verdicts import Verdict, count_of
from trainers.logs.hf_rows import TRAIN
from trainers.logs.log_files import parse_json
from trainers.logs.record import STEPS_LOGGED, Imported, StepRecord

FORMAT = "tensorboard"
# TensorBoard itself knows its files by this part of their names (backend/event_processing/io_wrapper.py).
_NAME = "tfevents"
# Each file begins with an event that has this version of it.
_MARK = b"brain.Event:"
# A trainer's output folder has them in runs/<time>_<host>, as torch's SummaryWriter names a process's folder.
_PLACES = (f"*{_NAME}*", f"*/*{_NAME}*", f"*/*/*{_NAME}*")
_OF_A_PROCESS = re.compile(r"\S+\d\d_\d\d-\d\d-\d\d_.+")
# transformers' callback writes the run's arguments here, before the first step.
_ARGUMENTS = "args/text_summary"
# Half a unit in the last of a single-precision number's 24 bits.
ROUNDING = 2.0**-24
# A record has 16 bytes beside its event: its length, and two checksums.
_FRAME, _LENGTH = 16, 8
# The columns that events have beside their scalars.
_STEP, _CLOCK = "step", "wall_time"


def is_event_file(path: Path, head: bytes | None = None) -> bool:
    """Whether a file is TensorBoard's, by its name or its first record; `head` are its first bytes, if known."""
    if not path.is_file() or _NAME in path.name:
        return path.is_file()
    if head is None:
        with path.open("rb") as file:
            head = file.read(64)
    return _MARK in head[:64]


def event_files(path: Path) -> list[Path]:
    """The event files of a run, unread: a file itself, or those of a folder or of the nearest folders in it.

    `UserError` where several folders have them, unless each is named by its process's start.
    """
    if path.is_file():
        return [path]
    files: list[Path] = next((sorted(some) for place in _PLACES if (some := list(path.glob(place)))), [])
    files = [file for file in files if file.is_file()]
    for file in files:
        require_shown(str(file))
    folders = list(dict.fromkeys(file.parent for file in files))
    if len(folders) > 1 and not all(_OF_A_PROCESS.fullmatch(folder.name) for folder in folders):
        shown = join_first([str(folder) for folder in folders], 5)
        raise UserError(f"{path} holds event files of {len(folders)} runs; name the folder of one: {shown}")
    return files


class _Life:
    """One file, read when it is made: its history as wandb has it, and what it says beside that."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.config: dict[str, Any] = {}
        self.began = self.last_at = math.nan
        self.verdicts: list[Verdict] = []
        self.history = History(self._as_logged())

    def _events(self) -> Iterator[tuple[int, int, float, dict[str, float]]]:
        """(record number, step, seconds since 1970, scalars) of every event with scalars, in file order."""
        # Loads protobuf, which other sources do without.
        from google.protobuf.message import DecodeError
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event

        size, read, number = self.file.stat().st_size, 0, 0
        records = RawEventFileLoader(str(self.file)).Load()
        with self.file.open("rb") as lengths:
            # The loader asks for all bytes that a record says it has: not for more than the file has.
            while _is_whole(lengths, read, size) and (record := next(records, None)) is not None:
                number += 1
                try:
                    event = Event.FromString(record)
                except DecodeError:
                    break
                read += len(record) + _FRAME
                if not math.isfinite(event.wall_time):
                    continue
                self.began = event.wall_time if math.isnan(self.began) else self.began
                values = event.summary.value
                if values and values[0].tag == _ARGUMENTS:
                    self.config = _arguments(values[0])
                scalars = {shown(value.tag): scalar for value in values if (scalar := _scalar(value)) is not None}
                if scalars:
                    self.last_at = event.wall_time
                    yield number, event.step, event.wall_time, scalars
            if read < size:
                self.verdicts = [_unread(self.file, lengths, read, size)]

    def _rows(self) -> Iterator[tuple[int, int, float, dict[str, float]]]:
        """The same with the scalars together that were written one after another under one step."""
        for step, events in groupby(self._events(), key=lambda event: event[1]):
            some = list(events)
            yield some[0][0], step, some[-1][2], {name: value for event in some for name, value in event[3].items()}

    def _as_logged(self) -> Iterator[Row]:
        for number, step, at, row in self._rows():
            # In wandb the callback logs its step beside the scalars.
            counter = {HF_STEP: step} if any(name.startswith(TRAIN) for name in row) else {}
            row_s = {"_timestamp": at, "_runtime": at - self.began}
            yield self.file, number, {**counter, **row, **row_s, WANDB_STEP: step}

    def table(self) -> Iterator[tuple[tuple[Path, int], dict[str, Any]]]:
        """A row for each step with its place, in the order of steps: scalars may be written at several places.

        `UserError` where the file's first step comes again after others: it has several trainings, or processes.
        """
        rows: dict[int, tuple[int, dict[str, Any]]] = {}
        again = set()
        for number, step, at, scalars in self._rows():
            _, row = rows.setdefault(step, (number, {}))
            again |= {step} if scalars.keys() & row.keys() else set()
            row |= {**scalars, _STEP: step, _CLOCK: at}
        if list(rows) == [0]:
            raise UserError(
                f"{self.file}: all its scalars are of step 0, because its program gave none (global_step): they cannot "
                "be joined to steps. Import another log of the run"
            )
        if len(again) > 1 and min(rows) in again:
            raise UserError(
                f"{self.file} holds several runs, or several processes of one: {count_of(len(again), 'step')} "
                f"({min(again)} to {max(again)}) come again after others. Let one process log, or import another log"
            )
        yield from (((self.file, number), row) for _, (number, row) in sorted(rows.items()))


def _scalar(value: Any) -> float | None:
    """A summary's number; None for texts, images and distributions."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor":
        return None
    # The shape may ask for all memory, beside one number.
    if any(dimension.size != 1 for dimension in value.tensor.tensor_shape.dim):
        return None
    from tensorboard.util.tensor_util import make_ndarray

    try:
        array = make_ndarray(value.tensor)
    except (TypeError, ValueError):  # an unknown type, or not the bytes of one number
        return None
    return float(array.item()) if array.size == 1 and array.dtype.kind in "fiu" else None


def _arguments(value: Any) -> dict[str, Any]:
    try:
        found = parse_json(value.tensor.string_val[0])
    except (ValueError, IndexError):
        return {}
    return plain_config(found) if isinstance(found, dict) else {}


def _is_whole(file: BinaryIO, begins: int, size: int) -> bool:
    """Whether a file of this size can have the whole record that begins at a byte."""
    length = os.pread(file.fileno(), _LENGTH, begins)
    return len(length) == _LENGTH and int.from_bytes(length, "little") + _FRAME <= size - begins


def _unread(path: Path, file: BinaryIO, begins: int, size: int) -> Verdict:
    """What is said of a file whose last bytes are no whole record."""
    if not _is_whole(file, begins, size):
        text = f"{path}: its last record is cut off and is left out"
        return Verdict("note", "value-cut-off", text)
    rest = size - begins
    text = f"{path}: the record at byte {begins:,} is damaged, and the {rest:,} bytes from there on cannot be read"
    return Verdict("warning", "corrupt-line", text)


def read_event_files(path: Path, step_seconds: str | None = None, unit: str | None = None) -> Imported:
    """The steps of a run's event files: a known trainer's by its names, others as a plain table.

    Files are read in the order in which they began; of a step that two have, the later one counts. `UserError` where a
    later file begins with the first one's first step: they are of several runs.
    """
    lives = sorted(map(_Life, event_files(path)), key=lambda life: (math.isnan(life.began), life.began))
    verdicts = [verdict for life in lives for verdict in life.verdicts]
    if all(math.isnan(life.last_at) for life in lives):
        unread = "".join(f". {verdict.text}" for verdict in verdicts)
        raise UserError(
            f"{path} holds no event files of TensorBoard with scalars (events.out.tfevents..., {len(lives)} here): the "
            f"run ended before its first step, or logs elsewhere. Name another folder, or import another log{unread}"
        )
    read = steps_of_lives([life.history for life in lives], str(path), from_scratch=False)
    if len(known := trainers_by_data(read)) == 1:
        read.written_by = known[0]
    found = Imported(read, FORMAT)
    if not known or any(step_seconds in record.scalars for record in read.records.values()):
        cells = framed((row for life in lives for row in life.table()), path)
        table = plain_table.table_of(cells, path, step_seconds, unit, _CLOCK)
        found = replace(table, format=FORMAT)
    found.read.verdicts += verdicts
    for step, record in found.read.records.items():
        found.read.records[step] = replace(record, rounding=_rounding(record))
    found.config = next((life.config for life in reversed(lives) if life.config), {})
    found.started = lives[0].began
    found.finished = max(life.last_at for life in lives if not math.isnan(life.last_at))
    return found


def _rounding(record: StepRecord) -> dict[str, float]:
    exact = (STEPS_LOGGED, HF_STEP)
    numbers = {name: abs(value) for name, value in record.scalars.items() if value and name not in exact}
    return {name: value * ROUNDING for name, value in numbers.items() if math.isfinite(value)}
