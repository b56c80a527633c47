"""Plain tables that are no text, the flags of a saved comparison, and large tables; others are in tests/answers."""

import json
import resource
import time
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest

from analysis.imports.formats import read_source
from common.errors import UserError
from workflow.cli import main

TIMES = {n: 27.0 + n % 5 for n in range(1, 21)}
"""Step -> its seconds."""


@pytest.mark.parametrize("kind", [float, timedelta, Decimal, datetime])
def test_a_parquet_files_numbers_decimals_and_times_are_numbers(tmp_path, kind):
    cells = {
        float: [*TIMES.values()],
        timedelta: [timedelta(seconds=s) for s in TIMES.values()],
        Decimal: [Decimal(str(s)) for s in TIMES.values()],
        datetime: [datetime(2026, 3, 1) + timedelta(seconds=20.5 * n) for n in TIMES],
    }[kind]
    name, root = ("timestamp", "wall") if kind is datetime else ("step_time", "step_time")
    file = tmp_path / "a.parquet"
    pd.DataFrame({"step": [*TIMES], name: cells, "reward": 9.5}).to_parquet(file)
    records = read_source(str(file), None, (), None).read.records
    right = dict.fromkeys(range(2, 21), 20.5) if kind is datetime else TIMES
    assert {step: record.scalars[f"timing_s/{root}"] for step, record in records.items()} == pytest.approx(right)


def test_the_flags_are_saved_and_planned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"{n},{1000 * s},{1300 * s}" for n, s in TIMES.items()]
    Path("both.csv").write_text("\n".join(["step,a - took,b - took", *rows]) + "\n")
    flags = ["--step-seconds", "took", "--unit", "ms", "--verdict-only", "--save", "mine.yaml"]
    assert main(["compare", "a=both.csv", "b=both.csv", *flags]) == 0
    assert "0.77x" in capsys.readouterr().out
    assert "step_seconds: took" in Path("mine.yaml").read_text() and "unit: ms" in Path("mine.yaml").read_text()
    assert main(["check", "mine.yaml"]) == 0


def test_a_line_of_a_hundred_thousand_cells_is_looked_at_at_once(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"latencies": [0.5] * 100_000, "step": 1}))
    began = time.monotonic()
    with pytest.raises(UserError):
        read_source(str(tmp_path / "a.json"), None, (), None)
    assert time.monotonic() - began < 10


@pytest.mark.full("a million rows")
def test_a_million_rows_take_bounded_memory(tmp_path):
    with (tmp_path / "a.csv").open("w") as file:
        file.write("step,step_s,gen_s,loss\n")
        file.writelines(f"{n},{2 + n % 7 / 10},{1 + n % 5 / 10},0.5\n" for n in range(1, 1_000_001))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    assert len(read_source(str(tmp_path / "a.csv"), None, (), None).read.records) == 1_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000, "kilobytes"
    assert time.process_time() - began < 120, "seconds: about 25 where each row costs the same"
