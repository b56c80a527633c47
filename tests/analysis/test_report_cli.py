import math
from pathlib import Path

import make_results
import pandas as pd
import pytest

from analysis.report.__main__ import OPTIONAL_TABLES, main
from analysis.report.rendering import escaped, markdown_table
from common.contracts import read_file
from common.verdicts import ReportFile


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "quick"
    arms = {"transformers": ("transformers", 3.2), "vllm": ("vllm", 0.9)}
    make_results.realistic(folder, arms, seeds=2, steps=6)
    return folder


def run(results, out, *more):
    return main(["--plan", str(results / "plan.json"), "--results", str(results), "--out", str(out), *more])


@pytest.mark.full("many reports")
def test_writes_everything_the_same_way_twice(results, tmp_path, capsys):
    assert run(results, tmp_path / "a") == 0 and run(results, tmp_path / "b") == 0
    assert "faster than transformers: " in capsys.readouterr().out
    written = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file())
    names = {folder: {p.name for p in written if p.parent.name == folder} for folder in ("tables", "figures")}
    for folder, ends in (("tables", ("csv", "parquet")), ("figures", ("svg", "png"))):
        stems = {name.rpartition(".")[0] for name in names[folder]}
        assert names[folder] == {f"{stem}.{end}" for stem in stems for end in ends}
    tables = {"steps", "phases", "sums", "comparison", "estimates", "phase_speedups", "runs"}
    assert {f"{name}.csv" for name in tables} <= names["tables"]
    figures = ("phases", "step-time", "reward")
    assert {f"{name}.svg" for name in figures} <= names["figures"]
    of_report = {"report.html", "report.md", "report.json", "verdict.json"}
    assert {p.as_posix() for p in written if p.parent == Path()} == of_report
    for path in written:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path


@pytest.mark.full("many reports")
def test_report_json_has_the_numbers_of_the_files_and_no_verdict_of_its_own(results, tmp_path):
    assert run(results, tmp_path) == 0
    found = read_file(ReportFile, tmp_path / "report.json", "the report", ReportFile.__annotations__)
    assert set(found) == set(ReportFile.__annotations__) and found["arms"] == ["transformers", "vllm"]
    assert {"arm_verdicts", "words", "caveats", "settle"}.isdisjoint(found)
    counted = 0
    for name, rows in found["tables"].items():
        if name in OPTIONAL_TABLES and not rows:
            continue
        frame = pd.read_parquet(tmp_path / "tables" / f"{name}.parquet")
        assert len(rows) == len(frame), name
        for row, truth in zip(rows, frame.to_dict("records"), strict=True):
            assert set(row) == set(truth), name
            for column, value in truth.items():
                missing = value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value))
                assert row[column] is None if missing else row[column] == value, (name, column)
                counted += not missing
    assert set(found["tables"]) >= {"estimates", "comparison", "phases", "runs"} and counted > 300


def test_markdown_escapes_what_it_is_given():
    assert escaped("a|b <i>*x*") == "a\\|b \\<i\\>\\*x\\*"
    assert markdown_table(["h", "n"], [["a|b", "1"]]) == "| h | n |\n| --- | ---: |\n| a\\|b | 1 |\n"
