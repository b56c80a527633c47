"""Which files a report consists of."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from analysis.report.content import Content
from analysis.report.markdown import markdown
from analysis.report.page import html_page
from common.files import write_whole


def write_report(content: Content, out: Path) -> list[Path]:
    """Write report.html, report.md, tables/ and figures/ under `out`; returns what was written.

    The page comes last: where it is, the rest is too.
    """
    written = []
    for name, frame in content.tables.items():
        written += write_table(frame, out / "tables" / name)
    for figure in content.figures:
        written += [out / "figures" / f"{figure.name}.svg", out / "figures" / f"{figure.name}.png"]
        write_whole(written[-2], figure.standalone_svg.encode())
        write_whole(written[-1], figure.png())
    for name, text in (("report.md", markdown(content)), ("report.html", html_page(content))):
        write_whole(out / name, text.encode())
        written.append(out / name)
    return written


def write_table(frame: pd.DataFrame, stem: Path) -> list[Path]:
    """A table as CSV and parquet, floats in full."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    paths = [stem.with_name(f"{stem.name}.csv"), stem.with_name(f"{stem.name}.parquet")]
    csv, parquet = io.BytesIO(), io.BytesIO()
    pyarrow.csv.write_csv(table, csv)
    pyarrow.parquet.write_table(table, parquet, compression="zstd")
    write_whole(paths[0], csv.getvalue())
    write_whole(paths[1], parquet.getvalue())
    return paths
