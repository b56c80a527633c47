"""Writes a report's files: `python -m analysis.report --plan .../plan.json --results results/X --out results/X`."""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from analysis.report.content import Content, read_content
from analysis.report.provenance import runs_in_report
from analysis.report.rendering import html_page, markdown
from analysis.verdict.verdict_block import print_verdict
from common.errors import UserError
from common.files import atomic_path, write_bytes
from common.shown import shown, shown_output
from common.verdicts import REPORT_FORMAT, ReportFile, count_of

# Tables of rare options, which are not written without rows.
OPTIONAL_TABLES = ("ranking", "mismatch", "per_gpu", "loops", "step_costs")
# A sign alone, such as a verdict's, computes nothing.
_FORMULA, _NUMBER = r"(?s)^ *[=@+\-\t\r\n].", r"^ *[-+](\d+\.?\d*|\.\d+)(e[-+]?\d+)?$"
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
IN_JSON = (
    *("estimates", "comparison", "phases", "sums", "phase_speedups", "gate", "mismatch", "per_gpu", "loops", "cost"),
    "runs",
)


def write_report(content: Content, out: Path) -> None:
    """Writes report.html and .md, report.json, verdict.json, tables/ and figures/ under `out`.

    The page is last: where it exists, the rest does too.
    """
    for name, frame in content.tables.items():
        if len(frame) or name not in OPTIONAL_TABLES:
            _write_table(frame, out / "tables" / name)
    dump = partial(json.dumps, indent=1, ensure_ascii=False, allow_nan=False)
    _write_text(out / "verdict.json", dump(content.verdict_file))
    _write_text(out / "report.json", dump(_report_file(content)))
    for figure in content.figures:
        write_bytes(out / "figures" / f"{figure.name}.svg", figure.standalone_svg.encode())
        write_bytes(out / "figures" / f"{figure.name}.png", figure.png())
    _write_text(out / "report.md", markdown(content))
    _write_text(out / "report.html", html_page(content))


def _report_file(content: Content) -> ReportFile:
    """The content of report.json."""
    return {
        "format": REPORT_FORMAT,
        "experiment": content.plan.experiment,
        "baseline": content.plan.baseline,
        "arms": list(content.plan.arms),
        "warmup_steps": content.plan.warmup_steps,
        "findings": [verdict.as_dict() for verdict in content.verdicts],
        "runs": runs_in_report(content.runs, content.tables["steps"]),
        "tables": {name: _json_rows(content.tables[name]) for name in IN_JSON},
    }


def _write_text(path: Path, text: str) -> None:
    write_bytes(path, f"{text.rstrip()}\n".encode())


def _json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows for report.json, None for a missing number."""
    finite = frame.replace([math.inf, -math.inf], math.nan)
    rows: list[dict[str, Any]] = pa.Table.from_pandas(finite, preserve_index=False).to_pylist()
    return rows


def _write_table(frame: pd.DataFrame, stem: Path) -> None:
    """Writes a table as CSV and parquet, floats in full."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    with atomic_path(stem.with_name(f"{stem.name}.csv")) as csv:
        pyarrow.csv.write_csv(_without_formulas(table), csv)
    with atomic_path(stem.with_name(f"{stem.name}.parquet")) as parquet:
        pyarrow.parquet.write_table(table, parquet, compression="zstd")


def _without_formulas(table: pa.Table) -> pa.Table:
    """A table for spreadsheets: an apostrophe before each text that they would compute, as it begins like a formula."""
    for at, field in enumerate(table.schema):
        column = table[at].cast(pa.string()) if pa.types.is_dictionary(field.type) else table[at]
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            table = table.set_column(at, field.name, _as_texts(column))
    return table.rename_columns(_as_texts(pa.array(table.column_names, pa.string())).to_pylist())


def _as_texts(column: Any) -> Any:
    begins, number = (pc.match_substring_regex(column, one, ignore_case=True) for one in (_FORMULA, _NUMBER))
    computed = pc.fill_null(pc.and_not(begins, number), False)
    as_text = pc.binary_join_element_wise(pa.scalar("'", column.type), column, pa.scalar("", column.type))
    return pc.if_else(computed, as_text, column)


def give_back_freed_memory() -> None:
    """Lets glibc return freed arrays to the system: thirty large ones come and go beside the table of steps.

    With each array that ends, glibc raises the size from which an array has memory of its own (mallopt(3)); smaller
    ones then leave holes between those that stay, in the memory of each thread.
    """
    with suppress(AttributeError):  # another C library
        for option, value in ((M_MMAP_THRESHOLD, 128 * 1024), (M_ARENA_MAX, 2)):
            ctypes.CDLL(None).mallopt(option, value)


@shown_output()
def main(argv: Sequence[str] | None = None) -> int:
    give_back_freed_memory()
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Render an experiment's report.")
    parser.add_argument("--plan", type=Path, required=True, help="results/<experiment>/plan.json")
    parser.add_argument("--results", type=Path, required=True, help="results/<experiment>, with its runs/")
    parser.add_argument("--out", type=Path, required=True, help="where report.html, report.md, tables/, figures/ go")
    parser.add_argument("--baseline", metavar="ARM", help="the baseline, instead of the plan's")
    parser.add_argument("--stacks", type=Path, metavar="DIR", help=".stacks, to show the result of each stack's check")
    parser.add_argument("--preflight", type=Path, help="the preflight's file (default: preflight.json in the results)")
    parser.add_argument("--all-runs", action="store_true", help="for the rule: fail unless all runs are read")
    args = parser.parse_args(argv)
    try:
        content = read_content(args.plan, args.results, args.baseline, args.stacks, args.preflight)
        left_out = [v.text for v in content.verdicts if v.code == "run-left-out"]
        if args.all_runs and left_out:
            raise UserError("no report was written:\n" + "\n".join(left_out))
        write_report(content, args.out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if content.arm_verdicts:
        print_verdict(content.arm_verdicts)
    if content.no_comparison:
        print(shown(content.no_comparison))
    serious = sum(v.level != "note" for v in content.verdicts)
    # A rule moves it from there to the results.
    print(
        f"{(args.results if args.all_runs else args.out) / 'report.html'}"
        + (f" ({count_of(serious, 'thing')} to read first)" if serious else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
