"""What people and programs write into the cells and names of a table: each is read as what it says, or not at all."""

import json
import time
from datetime import datetime, timedelta
from decimal import Decimal

import pandas as pd
import pytest

from analysis.imports.formats import read_source
from analysis.sources.any_table import COLUMNS_TAKEN
from common.errors import UserError
from workflow.cli import main

STEPS = 12


def whole(step):
    """A step's whole seconds, which do not only rise."""
    return 20 + 7 * step % 5


def seconds_of(found):
    scalars = [record.scalars for record in found.read.records.values()]
    (name,) = {name for row in scalars for name in row if name.startswith("timing_s/")}
    return [row[name] for row in scalars]


def taken_in(found):
    (text,) = [verdict.text for verdict in found.read.verdicts if verdict.code == COLUMNS_TAKEN]
    return text


def table(path, header, cell, delimiter=","):
    lines = [header, *(delimiter.join([str(step), cell(step)]) for step in range(1, STEPS + 1))]
    path.write_text("\n".join(lines) + "\n")
    return read_source(str(path), None, (), None)


@pytest.mark.parametrize("decimals", [1, 2])
@pytest.mark.parametrize("form", ["{},{}s", "{},{} s", "0:00:{},{}"])
@pytest.mark.parametrize(("delimiter", "quote"), [("\t", ""), (",", '"')])
def test_a_decimal_comma_counts_in_a_cell_with_a_unit_or_of_a_clock(tmp_path, decimals, form, delimiter, quote):
    found = table(
        tmp_path / "a.csv",
        f"step{delimiter}step_time",
        lambda step: quote + form.format(whole(step), "7" * decimals) + quote,
        delimiter,
    )
    assert seconds_of(found) == pytest.approx([whole(step) + float("0." + "7" * decimals) for step in range(1, 13)])


def test_the_minutes_of_a_spreadsheet_are_no_hours(tmp_path):
    found = table(tmp_path / "a.csv", "step,step_time", lambda step: f"0{step % 2}:{whole(step)}.5")
    assert seconds_of(found) == [60 * (step % 2) + whole(step) + 0.5 for step in range(1, STEPS + 1)]


def test_the_times_of_pythons_logging_are_a_clock(tmp_path):
    found = table(
        tmp_path / "a.csv",
        "step,asctime",
        lambda step: '"' + (datetime(2026, 3, 1) + timedelta(seconds=20.5 * step)).strftime("%F %T,%f")[:-3] + '"',
    )
    assert seconds_of(found) == pytest.approx([20.5] * (STEPS - 1))


def test_a_unit_beside_thousands_is_not_guessed_either(tmp_path):
    with pytest.raises(UserError, match="the comma in 1,207"):
        table(tmp_path / "a.tsv", "step\tstep_time", lambda step: f"1,{206 + step} ms", "\t")


def test_of_two_columns_of_one_name_none_is_taken_before_one_is_named(tmp_path):
    path = tmp_path / "a.csv"
    with pytest.raises(UserError, match=r"for certain: time \(mean [\d.]+ s\), \(2\) time"):
        table(path, "step,time,time", lambda step: f"{whole(step)},{whole(step + 1)}")
    found = read_source(str(path), None, (), None, step_seconds="(2) time")
    assert [row.scalars["timing_s/(2) time"] for row in found.read.records.values()] == [
        whole(step + 1) for step in range(1, STEPS + 1)
    ]


def test_an_export_with_two_runs_of_one_name_is_not_read_as_the_last(tmp_path):
    with pytest.raises(UserError, match=r"holds several runs: grpo, \(2\) grpo"):
        table(tmp_path / "a.csv", "Step,grpo - timing_s/step,grpo - timing_s/step", lambda step: f"{20 + step},9.5")


@pytest.mark.parametrize("kind", [timedelta, Decimal, datetime])
def test_a_parquet_files_times_and_decimals_are_numbers(tmp_path, kind):
    steps = range(1, STEPS + 1)
    cells = {
        timedelta: [timedelta(seconds=0.5 + whole(step)) for step in steps],
        Decimal: [Decimal(f"{0.5 + whole(step)}") for step in steps],
        datetime: [datetime(2026, 3, 1) + timedelta(seconds=20.5 * step) for step in steps],
    }[kind]
    path = tmp_path / "a.parquet"
    pd.DataFrame({"step": steps, "step_time": cells, "reward": 9.5}).to_parquet(path)
    right = [20.5] * (STEPS - 1) if kind is datetime else [0.5 + whole(step) for step in steps]
    assert seconds_of(read_source(str(path), None, (), None)) == pytest.approx(right)


def sparse(path):
    rows = [
        {"step": n, "gen_time": 12.0 + n % 3} | ({"step_time": 20.0 + n * 3 % 8} if n % 4 == 0 else {})
        for n in range(1, 41)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_whole_step_in_few_rows_is_named_beside_a_phase_and_its_rows_count_where_it_is_given(tmp_path):
    source = sparse(tmp_path / "a.jsonl")
    text = taken_in(read_source(source, None, (), None))
    assert "only 10 of 40 rows have step_time" in text and "--step-seconds step_time" in text
    found = read_source(source, None, (), None, step_seconds="step_time")
    assert list(found.read.records) == list(range(4, 41, 4))
    assert [row.scalars["timing_s/step_time"] for row in found.read.records.values()] == [
        20.0 + n * 3 % 8 for n in range(4, 41, 4)
    ]


def test_what_a_group_of_times_counts_is_no_time(tmp_path):
    elapsed, lines = 0, ["time/fps,time/iterations,time/time_elapsed,time/total_timesteps,train/n_updates"]
    for n in range(1, 61):
        elapsed += 1 + n % 2 if n % 3 == 0 else 0
        lines.append(f"{2048 * n // max(elapsed, 1)},{n},{elapsed},{2048 * n},{10 * n}")
    path = tmp_path / "progress.csv"
    path.write_text("\n".join(lines) + "\n")
    text = taken_in(read_source(str(path), None, (), None))
    assert "time/iterations counts the steps; time/time_elapsed is a clock" in text


@pytest.mark.parametrize("counter", ["step", "reward"])
def test_steps_that_share_a_second_of_a_coarse_clock_keep_their_time(tmp_path, capsys, monkeypatch, counter):
    """Differences of 0 s are left out: of steps of 0.9 s and of 0.6 s those of 1 s would remain."""
    monkeypatch.chdir(tmp_path)
    for name, step_s in (("a", 0.9), ("b", 0.6)):
        times = [datetime(2026, 3, 1) + timedelta(seconds=step_s * step) for step in range(1, 121)]
        lines = [f"{counter},timestamp", *(f"{step},{at:%F %T}" for step, at in enumerate(times, start=1))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    main(["compare", "a.csv", "b.csv", "--verdict-only"])
    assert "one run an arm: 1.5" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["it", "Itr", "step_id", "Step No.", "iteration_index"])
def test_a_counter_is_found_by_any_of_its_names(tmp_path, name):
    path = tmp_path / "a.csv"
    path.write_text(f"{name},elapsed_s\n" + "".join(f"{10 * n},{205.0 * n}\n" for n in range(1, STEPS)))
    assert seconds_of(read_source(str(path), None, (), None)) == pytest.approx([20.5] * (STEPS - 2))


NO_TIMES = ["time_left", "time/fps", "time_per_10_steps", "gen_tok_s", "gen_time (%)", "env_steps_lifetime"]


@pytest.mark.parametrize("name", NO_TIMES)
def test_what_is_left_or_a_rate_or_a_share_is_no_step(tmp_path, name):
    with pytest.raises(UserError, match="no column is named like seconds"):
        table(tmp_path / "a.csv", f"step,{name}", lambda step: str(900 - 20 * step))


@pytest.mark.parametrize("label", ["", "name"])
def test_a_summary_below_the_rows_is_no_step(tmp_path, label):
    """As pandas' `describe()` pasted below, in a table without a counter."""
    rows = [*((f"run {step}", float(whole(step))) for step in range(STEPS)), ("mean", 21.9), ("std", 1.5), ("50%", 22)]
    path = tmp_path / "a.csv"
    path.write_text(f"{label},step_time\n" + "".join(f"{name},{value}\n" for name, value in rows))
    found = read_source(str(path), None, (), None)
    assert seconds_of(found) == [whole(step) for step in range(STEPS)]
    assert "no-step-line" in [verdict.code for verdict in found.read.verdicts]


@pytest.mark.parametrize("unit", ["\u00b5s", "\u03bcs", "us"])
def test_a_microsecond_has_two_letters_in_unicode(tmp_path, unit):
    assert seconds_of(table(tmp_path / "a.csv", f"step,step_time ({unit})", lambda step: "20500000")) == [20.5] * STEPS


def test_rows_of_requests_are_not_taken_for_steps_without_a_word(tmp_path):
    rows = [{"latency_s": 5.0 + n % 3, "ttft_s": 0.2, "completion_tokens": 800 + n} for n in range(STEPS)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "rows look like single requests (ttft_s)" in taken_in(read_source(str(path), None, (), None))


def test_a_time_that_cannot_be_read_is_shown(tmp_path):
    with pytest.raises(
        UserError, match=r"timestamp has '1/3/2026 10:00 AM', which is no time here: write 2026-03-01 10"
    ):
        table(tmp_path / "a.csv", "step,timestamp", lambda step: f"{step}/3/2026 10:00 AM")
    found = table(tmp_path / "b.csv", "step,gen_time,step_time", lambda step: f"{whole(step)},{40 + step}s/it")
    assert "step_time has '41s/it', which is no time here" in taken_in(found)


def test_rows_of_a_part_of_a_step_are_doubted(tmp_path):
    """Two micro-steps beside four are as fast, but not the step of them."""
    found = table(tmp_path / "a.csv", "step,global_step,step_time", lambda step: f"{(step + 1) // 2},{whole(step)}")
    assert "each global_step has 2 rows: if these are parts of one step, sum them" in taken_in(found)


def test_the_steps_of_two_ranks_are_no_phases_of_each_other(tmp_path):
    with pytest.raises(UserError, match=r"rank0_step_time .* rank1_step_time"):
        table(
            tmp_path / "a.csv",
            "step,rank0_step_time,rank1_step_time",
            lambda step: f"{whole(step)},{1.02 * whole(step):.2f}",
        )


def test_a_list_of_one_number_is_that_number(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"step": step, "step_time": [whole(step)], "reward": 0.5} for step in range(1, STEPS + 1)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert seconds_of(read_source(str(path), None, (), None)) == [whole(step) for step in range(1, STEPS + 1)]


ROWS = [{"step": n, "step_time": 0.5 + whole(n)} for n in range(1, STEPS + 1)]


@pytest.mark.parametrize(
    "document",
    [
        {"config": {"lr": 1e-6}, "history": ROWS, "total_time": 500.0},
        {name: {str(at): row[name] for at, row in enumerate(ROWS)} for name in ROWS[0]},
        {str(at): row for at, row in enumerate(ROWS)},
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_document_of_json_has_its_rows_in_any_place(tmp_path, document, indent):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document, indent=indent))
    assert seconds_of(read_source(str(path), None, (), None)) == pytest.approx([row["step_time"] for row in ROWS])


def test_a_row_for_each_metric_is_not_called_a_process(tmp_path):
    lines = [
        "step,key,value",
        *(f"{n},{key},{n + len(key)}" for n in range(1, STEPS) for key in ("step_time", "reward")),
    ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match="of several metrics: a column for each"):
        read_source(str(path), None, (), None)


def test_a_line_of_a_hundred_thousand_cells_is_looked_at_at_once(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"latencies": [0.5] * 100_000, "step": 1}))
    began = time.monotonic()
    with pytest.raises(UserError):
        read_source(str(path), None, (), None)
    assert time.monotonic() - began < 10
