"""Reads the rows of a parquet file that is not larger than its size lets one expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError

MOST_COLUMNS, MOST_VALUES = 5_000, 20_000_000
"""Of any table."""
_MOST_BYTES, _ROWS_AT_ONCE = 1 << 30, 10_000


def parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a parquet file, which may be a thousandth of what it holds: its footer says how much that is."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            about = file.metadata
            fits = about.num_columns <= MOST_COLUMNS
            groups = [about.row_group(at) for at in range(about.num_row_groups)] if fits else []
            values = sum(one.column(at).num_values for one in groups for at in range(one.num_columns))
            size = sum(one.total_byte_size for one in groups)
            if not (fits and values <= MOST_VALUES and size <= _MOST_BYTES):
                raise UserError(
                    f"{path} holds {about.num_rows:,} rows of {about.num_columns:,} columns, {size:,} bytes; at "
                    f"most {MOST_COLUMNS:,} columns, {MOST_VALUES:,} values and {_MOST_BYTES:,} bytes are read. Give "
                    "only the columns that the comparison needs"
                )
            for batch in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path} is no parquet file ({' '.join(str(error).split())}); copy it again") from None
