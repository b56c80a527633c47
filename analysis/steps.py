"""Defines the tidy table of a run's steps, and turns records into its rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from common.contracts import SpecFile, StepRow
from common.errors import UserError
from common.files import atomic_path
from trainers.logs.record import TIMERS, StepRecord
from trainers.timers.exclusive import exclusive_s, parents
from trainers.timers.tree import TimerTree


def _schema() -> pa.Schema:
    """The columns of `StepRow`; whole numbers have 32 bits unless the contract gives another width."""
    widths = {str: pa.string(), bool: pa.bool_(), float: pa.float64(), int: pa.int32()}
    fields = []
    for name, hint in get_type_hints(StepRow, include_extras=True).items():
        kind, _, *width = get_args(hint)
        of, nullable = (get_args(kind)[0], True) if get_args(kind) else (kind, False)
        fields.append(pa.field(name, pa.type_for_alias(width[0]) if width else widths[of], nullable=nullable))
    return pa.schema(fields)


SCHEMA = _schema()
TEXTS = [field.name for field in SCHEMA if field.type == pa.string()]
METADATA_KEY = b"rolloutbench"
# Rows of one table, and of one row group in the file.
ROWS_AT_A_TIME = 1 << 15


@dataclass(frozen=True, slots=True)
class ChosenStep:
    """A step's record from the attempt that counts; `overlap` when an earlier attempt had the step too."""

    attempt: int
    record: StepRecord
    resumed: bool
    overlap: bool


def unit_of(kind: str, name: str, tree: TimerTree | None = None) -> str:
    """`s` or `tokens` where that is known, otherwise `1`."""
    if tree is not None and kind == "scalar" and (unit := tree.unit_not_summed(name)) is not None:
        return unit
    if kind == "phase" or name.endswith("_s") or name.split("/")[0].endswith("_s") or name == "perf/time_per_step":
        return "s"
    head, _, last = name.rpartition("/")
    lengths = head.endswith(("_length", "_length_non_aborted")) and last in ("mean", "max", "min")
    if name.endswith(("_tokens", "_length")) or lengths or head == "global_seqlen":
        return "tokens"
    return "1"


def step_tables(
    spec: SpecFile, run_dir: Path, chosen: Iterable[ChosenStep], tree: TimerTree, metadata: dict[str, Any]
) -> Iterator[pa.Table]:
    """At least one table of one row per step and quantity, in step order, phases first in the tree's order.

    Each table has about `ROWS_AT_A_TIME` rows. Values keep their full precision. `metadata` goes into the file's
    key-value metadata.
    """
    packed = json.dumps(metadata, sort_keys=True, ensure_ascii=False).encode()
    schema = SCHEMA.with_metadata({METADATA_KEY: packed})
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    units: dict[tuple[str, str], str] = {}
    in_order = lru_cache(tree.in_order)
    for step in chosen:
        if len(columns["step"]) >= ROWS_AT_A_TIME:
            yield pa.Table.from_arrays([pa.array(columns[one.name], one.type) for one in schema], schema=schema)
            columns = {name: [] for name in SCHEMA.names}
        count = _add_rows(columns, step.record, in_order(tuple(step.record.phases)), run_dir)
        pairs = list(zip(columns["kind"][-count:], columns["name"][-count:], strict=True)) if count else []
        for pair in set(pairs).difference(units):
            units[pair] = unit_of(*pair, tree)
        columns["unit"] += [units[pair] for pair in pairs]
        same = {name: spec[name] for name in ("run_id", "arm", "seed")}
        same |= {"attempt": step.attempt, "step": step.record.step, "resumed": step.resumed, "overlap": step.overlap}
        for name, value in same.items():
            columns[name].extend([value] * count)
    # pa.table(columns, schema) takes six times as long for a short log.
    yield pa.Table.from_arrays([pa.array(columns[one.name], one.type) for one in schema], schema=schema)


def _add_rows(columns: dict[str, list[Any]], record: StepRecord, phases: Sequence[str], run_dir: Path) -> int:
    """Adds a record's values with their rounding and places, the phases in this order; returns their number."""
    seconds, scalars, samples = dict(record.phases), dict(record.scalars), record.samples
    above, own_s, rounding = parents(seconds), exclusive_s(seconds), dict(record.rounding)
    numbers, listed = sorted(scalars), [(name, value) for name in sorted(samples) for value in samples[name]]
    names = [*phases, *numbers, *(name for name, _ in listed)]
    others = [None] * (len(names) - len(phases))
    columns["kind"] += ["phase"] * len(phases) + ["scalar"] * len(numbers) + ["sample"] * len(listed)
    columns["name"] += names
    columns["parent"] += [*map(above.get, phases), *others]
    columns["value"] += [*map(seconds.get, phases), *map(scalars.get, numbers), *(value for _, value in listed)]
    columns["exclusive_s"] += [*map(own_s.get, phases), *others]
    keys = [*(TIMERS + path for path in phases), *names[len(phases) :]]
    columns["rounding"] += map(rounding.get, keys)
    places = [record.origins.get(key, (record.file, record.line)) for key in keys]
    # Relative to the run's folder, or as it was given where it is elsewhere.
    files = {file: file.relative_to(run_dir) if file.is_relative_to(run_dir) else file for file, _ in {*places}}
    columns["source_file"] += [files[file].as_posix() for file, _ in places]
    columns["source_line"] += [line for _, line in places]
    return len(names)


def write_steps(table: pa.Table | Iterable[pa.Table], path: Path) -> int:
    """Writes one table or several to steps.parquet, the same bytes for the same tables; returns the number of rows."""
    tables = iter([table] if isinstance(table, pa.Table) else table)
    first, rows = next(tables), 0
    with atomic_path(path) as part, pq.ParquetWriter(part, first.schema, compression="zstd") as writer:
        for one in chain([first], tables):
            writer.write_table(one)
            rows += one.num_rows
    return rows


def read_steps(path: Path, columns: Sequence[str] = SCHEMA.names) -> tuple[pa.Table, dict[str, Any]]:
    """steps.parquet as (table with dictionary columns, metadata); `UserError` when it is another file."""
    try:
        # A thousand of these files are read four times for a report: no buffer beforehand, and one schema for each.
        with pq.ParquetFile(path, read_dictionary=TEXTS, pre_buffer=False) as file:
            schema = file.schema_arrow
            if missing := set(SCHEMA.names) - set(schema.names):
                raise UserError(f"{path} lacks the columns {', '.join(sorted(missing))}; collect the run again")
            packed = (schema.metadata or {}).get(METADATA_KEY)
            return file.read(columns, use_threads=False), json.loads(packed) if packed else {}
    except (pa.ArrowInvalid, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} cannot be read ({first}); collect the run again") from None
