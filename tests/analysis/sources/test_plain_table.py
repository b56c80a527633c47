"""Plain tables: a header, a column of steps, one of the step's seconds; all else takes one flag, which is printed."""

import json
import re
import resource
import shlex
import time
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest

from analysis.imports.formats import format_of, read_source
from analysis.sources.plain_table import COLUMNS_TAKEN
from analysis.sources.table_frame import FORMAT
from common.dotted import flatten
from common.errors import UserError
from trainers.logs.record import STEPS_LOGGED, WALL
from workflow.cli import main

TIMES = {n: 27.0 + n % 5 for n in range(1, 21)}
"""Step -> its seconds."""


def csv(names, *columns):
    """A CSV with a row for each of `TIMES`; each column is made of its step and its seconds."""
    rows = (",".join(str(make(n, s)) for make in (lambda n, s: n, *columns)) for n, s in TIMES.items())
    return "\n".join([names, *rows]) + "\n"


def times(scale=1.0):
    return lambda n, s: s * scale


PLAIN = csv("step,step_time", times())


def read(path, text=None, names=(), **given):
    if text is not None:
        path.write_text(text)
    return read_source(str(path), None, names, None, **given)


def seconds_of(found):
    """Step -> its seconds, of those that have any."""
    root = next(f"timing_s/{name}" for name, phase in found.tree.items() if not phase.parent)
    steps = found.read.records.items()
    return {step: record.scalars[root] for step, record in steps if root in record.scalars}


def said(found, code=COLUMNS_TAKEN):
    return " ".join(verdict.text for verdict in found.read.verdicts if verdict.code == code)


ROWS = [{"step": n, "step_time": s} for n, s in TIMES.items()]
READ = {
    "plain.csv": PLAIN,
    "semicolons.csv": PLAIN.replace(",", ";"),
    "table.tsv": PLAIN.replace(",", "\t"),
    "no-name-of-a-table.txt": PLAIN.replace(",", "\t"),
    "pipes.csv": PLAIN.replace(",", "|"),
    "spaces.csv": PLAIN.replace(",", ", "),
    "comments.csv": "# 8 GPUs\n\n" + PLAIN,
    "excel.csv": "sep=;\n" + PLAIN.replace(",", ";"),
    "mark-of-utf-8.csv": "\ufeff" + PLAIN,
    "capitals.csv": PLAIN.replace("step,step_time", "Step,Step Time"),
    "backwards.csv": "\n".join([PLAIN.splitlines()[0], *PLAIN.splitlines()[:0:-1]]),
    "twice.csv": "step,step_time\n" + "".join(f"{n},{s}\n" * 2 for n, s in TIMES.items()),
    "others.csv": csv("step,step_time,gen_time,loss,note", times(), times(0.7), times(-1), lambda n, s: "warm"),
    "other-steps.csv": csv("total_env_steps,step_time,step", times(), lambda n, s: n),
    "from-zero.csv": "step,step_time\n" + "".join(f"{n - 1},{s}\n" for n, s in TIMES.items()),
    "before-the-first.csv": PLAIN.replace("\n", "\n0,\n", 1),
    "without-a-counter.csv": "reward,step_time\n" + "".join(f"0.5,{s}\n" for s in TIMES.values()),
    "lines.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "texts.jsonl": "".join(json.dumps({n: str(v) for n, v in row.items()}) + "\n" for row in ROWS),
    "in-parts.jsonl": "".join(
        f'{{"step": {n}, "loss": 0.5}}\n{{"step": {n}, "step_time": {s}, "lengths": [1, 2]}}\n'
        for n, s in TIMES.items()
    ),
    "with-evaluations.jsonl": "".join(
        json.dumps(row) + "\n" + (row["step"] % 4 == 3) * f'{{"step": {row["step"]}, "eval/time_s": 99.0}}\n'
        for row in ROWS
    ),
    "nested.log": "".join(
        json.dumps({"iteration": n, "time": {"step": s, "gen": s - 7}, "loss": 0.5}) + "\n" for n, s in TIMES.items()
    ),
    "rows.json": json.dumps(ROWS, indent=1),
    "columns.json": json.dumps({"step": list(TIMES), "step_time": list(TIMES.values())}),
}


@pytest.mark.parametrize("name", READ)
def test_a_table_is_read_in_any_of_its_forms(tmp_path, name):
    found = read(tmp_path / name, READ[name])
    assert found.format == FORMAT and seconds_of(found) == TIMES
    assert found.column["unit"] is None and "is the step's seconds" in said(found)


@pytest.mark.parametrize("kind", [float, timedelta, Decimal, datetime])
def test_a_parquet_files_numbers_decimals_and_times_are_numbers(tmp_path, kind):
    ends = [datetime(2026, 3, 1) + timedelta(seconds=20.5 * n) for n in TIMES]
    cells = {
        float: [*TIMES.values()],
        timedelta: [timedelta(seconds=s) for s in TIMES.values()],
        Decimal: [Decimal(str(s)) for s in TIMES.values()],
        datetime: ends,
    }[kind]
    name = "timestamp" if kind is datetime else "step_time"
    pd.DataFrame({"step": [*TIMES], name: cells, "reward": 9.5}).to_parquet(tmp_path / "a.parquet")
    right = dict.fromkeys(range(2, 21), 20.5) if kind is datetime else TIMES
    assert seconds_of(read(tmp_path / "a.parquet")) == pytest.approx(right)


@pytest.mark.parametrize(
    ("column", "scale", "unit"),
    [
        *[(name, 1e3, "ms") for name in ("step_ms", "Step Time (ms)", "step_time[ms]", "time/total_ms")],
        *[(name, 1.0, "s") for name in ("step_s", "step_time_s", "time/total_s", "step_seconds", "iteration_time_sec")],
        *[("step_time_us", 1e6, "us"), ("step_time_min", 1 / 60, "min"), ("step time (minutes)", 1 / 60, "min")],
        *[(name, 1.0, None) for name in ("step_time", "time/step", "time/total", "iteration_time")],
    ],
)
def test_the_names_of_the_steps_seconds_and_of_their_unit(tmp_path, column, scale, unit):
    found = read(tmp_path / "a.csv", csv(f"step,{column}", times(scale)))
    assert seconds_of(found) == pytest.approx(TIMES) and found.column["unit"] == unit


@pytest.mark.parametrize(("unit", "scale"), [("s", 1.0), ("ms", 1e3), ("us", 1e6), ("min", 1 / 60)])
def test_a_flag_names_the_column_and_the_unit(tmp_path, unit, scale):
    found = read(tmp_path / "a.csv", csv("step,took,loss", times(scale), times()), step_seconds="took", unit=unit)
    assert seconds_of(found) == pytest.approx(TIMES) and found.column == {"name": "took", "unit": unit}


def test_a_flag_may_name_the_sum_of_columns_which_are_the_phases(tmp_path):
    text = csv("step,gen_time,train_time_ms", times(0.75), times(250))
    found = read(tmp_path / "a.csv", text, step_seconds="gen_time+train_time_ms")
    assert seconds_of(found) == pytest.approx(TIMES) and found.column == {"name": "gen_time+train_time", "unit": None}
    assert [name for name, phase in found.tree.items() if phase.parent] == ["gen_time", "train_time_ms"]
    assert found.read.records[1].scalars["timing_s/train_time_ms"] == pytest.approx(0.25 * TIMES[1])


def test_columns_with_the_steps_prefix_are_its_phases_unless_they_nest(tmp_path):
    names = "step,time/total_s,time/gen_s,time/train_s,time/tokens_per_s,other_s"
    found = read(tmp_path / "a.csv", csv(names, times(), times(0.7), times(0.2), times(99), times(0.1)))
    assert [name for name, phase in found.tree.items() if phase.parent] == ["time/gen_s", "time/train_s"]
    assert found.read.records[1].scalars["other_s"] == 0.1 * TIMES[1]
    nested = csv("step,time/step,time/do_train_step,time/train_step", times(), times(0.7), times(0.6))
    found = read(tmp_path / "b.csv", nested)
    assert len(found.tree) == 1 and seconds_of(found) == TIMES
    assert "time/do_train_step, time/train_step together exceed it, so some are inside others" in said(found)
    assert found.read.records[1].scalars["time/train_step"] == 0.6 * TIMES[1], "it is kept"


ENDS = {n: sum(list(TIMES.values())[:n]) for n in TIMES}
CLOCKS = {
    "elapsed_s": lambda n, s: ENDS[n] + 5,
    "timestamp": lambda n, s: datetime.fromtimestamp(1.7e9 + ENDS[n]).isoformat(),
    "_timestamp": lambda n, s: 1.7e9 + ENDS[n],
    "timestamp_ms": lambda n, s: 1000 * (1.7e9 + ENDS[n]),
    "Wall time": lambda n, s: (
        f"2025-11-11 {10 + int(ENDS[n]) // 3600}:{int(ENDS[n]) // 60 % 60:02}:{ENDS[n] % 60:06.3f}Z"
    ),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_a_clocks_differences_are_the_wall_time_of_steps(tmp_path, name):
    found = read(tmp_path / "a.csv", csv(f"step,{name},gen_time", CLOCKS[name], times(0.5)))
    assert seconds_of(found) == pytest.approx({n: s for n, s in TIMES.items() if n > 1}), "the first has no beginning"
    assert f"{name} is a clock" in said(found) and found.column["name"] == "a clock" and list(found.tree) == ["wall"]
    if name in ("timestamp", "Wall time"):
        assert seconds_of(read(tmp_path / "a.csv", unit="ms")) == seconds_of(found), "a date has its own unit"
    both = read(tmp_path / "b.csv", csv(f"step,{name},step_time", CLOCKS[name], times()))
    assert seconds_of(both) == TIMES, "a step's own seconds count instead"


def test_a_clock_counts_all_steps_since_the_row_before_that_shows_another_time(tmp_path):
    rows = ["step,elapsed_s,steps_logged", *(f"{10 * n},{120 * n},7" for n in range(1, 9))]
    found = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert found.read.records[40].scalars == {WALL: 12.0, STEPS_LOGGED: 10.0}
    assert "ours" not in said(found) and "steps_logged is left out" in said(found, "name-taken")
    whole = ["step,elapsed_s", *(f"{n},{int(0.9 * n)}" for n in range(1, 100))]
    records = read(tmp_path / "b.csv", "\n".join(whole) + "\n").read.records.values()
    spent = sum(record.scalars[WALL] * record.scalars.get(STEPS_LOGGED, 1.0) for record in records)
    assert spent == int(0.9 * 99) and min(record.scalars[WALL] for record in records) > 0
    anew = ["step,elapsed_s", *(f"{n},{27 * (n if n < 13 else n - 12)}" for n in range(1, 21))]
    found = read(tmp_path / "c.csv", "\n".join(anew) + "\n")
    assert seconds_of(found) == dict.fromkeys([*range(2, 13), *range(14, 21)], 27.0)


# Text, and the words of its refusal.
REFUSED = {
    "phases": (csv("step,generation_time,training_time", times(), times()), "no column is named as the step's seconds"),
    "one phase": (csv("step,generation_time", times()), "it has generation_time"),
    "two clocks": (csv("step,seconds_a,seconds_b", times(0.2), times()), "it has seconds_a, seconds_b"),
    "no time": (csv("step,loss,tokens_per_s", times(), times()), "it has loss, tokens_per_s"),
    "a bare time": (csv("step,time", times()), "it has time"),
    "a share": (csv("step,gen_time (%)", times()), "it has gen_time (%)"),
    "two names": (
        csv("step,step_time,time/total", times(), times()),
        "has several columns named as the step's seconds",
    ),
    "a minimum": (csv("step,step_time_min,step_time_max", times(0.9), times(1.1)), "it has step_time_min"),
    "a name with spaces": (csv("step,my seconds", times()), "it has my seconds"),
    "a rate": (csv("step,it/s", times()), "it has it/s. Give it a first line of names"),
    "arms as columns": (
        csv("step,g10_step_time_s,g11_step_time_s", times(), times()),
        "Save a table for each arm, with the columns step,step_time",
    ),
    "no column": ("step\n1\n2\n", "it has none but the step. Give it a first line of names such as step,step_time"),
    "decimal commas": (PLAIN.replace(",", ";").replace(".0", ",5"), ":2: step_time is '28,5', no plain number"),
    "commas in cells": (csv("step,step_time", lambda n, s: f'"1,{200 + n}"'), ":2: step_time is '1,201', no plain"),
    "commas between": (csv("step,step_time", lambda n, s: f"1,{200 + n}"), "without commas (27.5, 1234.5)"),
    "two more cells": (csv("step,step_time", lambda n, s: f"1,{200 + n},5,5"), "without commas (27.5, 1234.5)"),
    "one more cell": (PLAIN + "21,27,5\n", "without commas (27.5, 1234.5)"),
    "spaces in numbers": (csv("step,step_time", lambda n, s: f"115 {600 + n}"), ":2: step_time is '115 601'"),
    "units in cells": (csv("step,step_time", lambda n, s: f"{s}s"), "write it so, with its unit in the column's name"),
    "a row of units": (PLAIN.replace("\n", "\n#,ms\n", 1), ":2: step is '#', no plain number"),
    "merged cells": (",Timing,\n" + csv("step,gen,total", times(), times()), "it has Timing"),
    "a title": ("Run A: 8 GPUs,\n" + PLAIN, "Run A: 8 GPUs"),
    "a mean below": (PLAIN + "mean,29.0\n", ":22: step is 'mean', no plain number"),
    "a total without a step": (PLAIN + ",580.0\n", ":22: step is no whole number; correct it, or leave the row out"),
    "steps as texts": ("step,step_time\nStep 1,2\nStep 2,3\n", ":2: step is 'Step 1'"),
    "half steps": ("step,step_time\n1,2\n1.5,3\n", ":3: step is no whole number"),
    "names twice": (PLAIN + PLAIN, ":22: step is 'step', no plain number"),
    "two of one name": (csv("step,step_time,step_time", times(), times()), "two columns step_time; rename one"),
    "no names": (PLAIN.partition("\n")[2], "does not name its columns in its first line"),
    "zeros": (csv("step,step_time", times(0)), "step_time is above 0 in no row"),
    "ranks": (
        "step,rank,step_time\n" + "".join(f"{n},{rank},{s + rank}\n" for n, s in TIMES.items() for rank in (0, 1)),
        "several rows a step (step) with other seconds. Of several processes",
    ),
    "an open quote": ('step,step_time\n1,"2\n', "is no table of the columns that it names"),
    "one time of a clock": ("step,timestamp\n1,2026-03-01\n", "timestamp is a clock with 1 time"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_plain_is_refused_in_one_line_with_a_flag_that_works_as_printed(
    tmp_path, monkeypatch, capsys, name
):
    monkeypatch.chdir(tmp_path)
    text, words = REFUSED[name]
    for file in ("a.csv", "b.csv"):
        Path(file).write_text(text)
    assert main(["compare", "a.csv", "b.csv", "--verdict-only"]) == 1
    refusal = capsys.readouterr().err
    assert words in refusal and refusal.count("\n") == 1 and len(refusal) < 500, refusal
    flags = [shlex.split(flag) for flag in re.findall(r"--step-seconds (?:'[^']*'|\S+)", refusal)]
    assert flags or "Give it a first line" in refusal or "Save a table" in refusal or "columns named" not in refusal
    for flag in flags:
        assert main(["compare", "a.csv", "b.csv", "--verdict-only", *flag]) == 0, flag
        assert f"{flag[1]} is the step's seconds" in capsys.readouterr().out


def test_an_unknown_column_and_a_flag_that_is_not_used_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"has no column step_tim \(did you mean step_time\?\); it has step_time"):
        read(tmp_path / "a.csv", PLAIN, step_seconds="step_tim")
    for name in "ab":
        Path(f"{name}.log").write_text(f"step:1 - timing_s/gen:1.5 - timing_s/step:{2.5 if name == 'a' else 2.0}\n")
    assert main(["compare", "a.log", "b.log", "--verdict-only", "--unit", "ms"]) == 0
    assert "--unit was not used" in capsys.readouterr().out


def test_the_flags_are_saved_and_planned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, scale in (("a", 1000.0), ("b", 1300.0)):
        Path(f"{name}.csv").write_text(csv("step,took", times(scale)))
    flags = ["--step-seconds", "took", "--unit", "ms", "--verdict-only", "--save", "mine.yaml"]
    assert main(["compare", "a.csv", "b.csv", *flags]) == 0
    assert "0.77x" in capsys.readouterr().out
    assert "step_seconds: took" in Path("mine.yaml").read_text() and "unit: ms" in Path("mine.yaml").read_text()
    assert main(["check", "mine.yaml"]) == 0


def verdict_of(capsys, *given):
    assert main(["compare", *given, "--verdict-only", "--json"]) == 0
    (arm,) = json.loads(capsys.readouterr().out)["arms"]
    return arm["verdict"], " ".join(caveat["text"] for caveat in arm["caveats"])


@pytest.mark.parametrize("column", ["step_time", "time/total", "elapsed"])
def test_a_ratio_beyond_5_claims_nothing_until_the_unit_is_said(tmp_path, monkeypatch, capsys, column):
    """Seconds against minutes."""
    monkeypatch.chdir(tmp_path)
    for arm, scale in (("a", 1.0), ("b", 1.5 / 60)):
        for run in range(3):
            total, rows = 0.0, [f"step,{column}"]
            for n, s in TIMES.items():
                total += (s + run / 10) * scale
                rows.append(f"{n},{total if column == 'elapsed' else (s + run / 10) * scale}")
            Path(f"{arm}{run}.csv").write_text("\n".join(rows) + "\n")
    arms = ["a=a0.csv,a1.csv,a2.csv", "b=b0.csv,b1.csv,b2.csv"]
    verdict, caveats = verdict_of(capsys, *arms)
    assert verdict == "~" and "nothing says the unit of" in caveats and "--unit s" in caveats
    assert "nothing says the unit" not in verdict_of(capsys, *arms, "--unit", "s")[1]


def test_arms_that_are_read_by_other_columns_are_not_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, column, scale in (("a", "step_time", 1.0), ("b", "iteration_time", 0.5), ("c", "step_time_ms", 500.0)):
        Path(f"{name}.csv").write_text(csv(f"step,{column}", times(scale)))
    assert main(["compare", "a.csv", "b.csv", "--verdict-only"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "not comparable, other columns of the step's seconds (a: step_time; b: iteration_time)" in told
    assert main(["compare", "a.csv", "c.csv", "--verdict-only"]) == 0
    assert "2.00x" in capsys.readouterr().out, "a unit makes no other column"


def test_an_export_of_several_runs_gives_the_named_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = {"vllm-a": 0.0, "sglang - b": 5.0, "c": 9.0}
    names = ["Step", *(f"{run} - timing_s/step{end}" for run in runs for end in ("", "__MIN", "__MAX"))]
    rows = [",".join(map(str, [n, *(s + more for more in runs.values() for _ in range(3))])) for n, s in TIMES.items()]
    Path("export.csv").write_text("\n".join([",".join(f'"{name}"' for name in names), *rows]) + "\n")
    for run, more in runs.items():
        found = read(Path("export.csv"), names=("x-s0", run))
        assert found.read.records[3].scalars["timing_s/step"] == TIMES[3] + more
    with pytest.raises(UserError, match=r"holds several runs: vllm-a, sglang - b, c. Name the arm as its run"):
        read(Path("export.csv"))
    assert main(["compare", "vllm-a=export.csv", "c=export.csv", "--verdict-only", "--save", "mine.yaml"]) == 0
    assert "0.76x" in capsys.readouterr().out
    assert main(["check", "mine.yaml"]) == 0


@pytest.mark.parametrize("by", ["run", "Engine"])
def test_rows_of_several_runs_are_those_of_the_named_one(tmp_path, by):
    rows = [f"{run},{n},{s * more}" for n, s in TIMES.items() for run, more in (("a", 1), ("b", 2))]
    path = tmp_path / "a.csv"
    found = read(path, "\n".join([f"{by},step,step_time", *rows]) + "\n", names=("b-s0", "b"))
    assert seconds_of(found) == {n: 2 * s for n, s in TIMES.items()} and found.selected == {by.lower(): "b"}
    with pytest.raises(UserError, match=f"holds several runs: column {by} has a, b. Name the arm as the table does"):
        read(path)


@pytest.mark.parametrize(("form", "first"), [("history.csv", 1), ("nested.jsonl", 1), ("history.csv", 0)])
def test_a_table_with_a_trainers_names_is_of_that_trainer(tmp_path, form, first, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, more in (("a", 0), ("b", 3)):
        timers = [
            {"gen": s + more, "generate_sequences": s - 2, "adv": 0.5, "step": s + more + 1} for s in TIMES.values()
        ]
        table = [
            {"_step": n, "timing_s": one, "response_length": {"mean": 512.0, "max": 900.0}}
            for n, one in enumerate(timers, start=first)
        ]
        if form == "history.csv":
            flat = [flatten(row, separator="/") for row in table]
            pd.DataFrame(flat).to_csv(f"{name}-{form}", index=False)
        else:
            Path(f"{name}-{form}").write_text("".join(json.dumps(row) + "\n" for row in table))
    files = [f"a-{form}", f"b-{form}"]
    assert main(["compare", *files, "--report", "out", "--save", "mine.yaml"]) == 0
    assert ": verl (read as 0." in capsys.readouterr().out
    steps = pd.read_parquet(next(Path("out").glob("runs/b-*/steps.parquet")))
    (own_s,) = steps[(steps["step"] == 3) & (steps["name"] == "step/gen")]["exclusive_s"]
    assert own_s == 5.0, "generate_sequences is within gen"
    assert main(["check", "mine.yaml"]) == 0
    assert read(Path(files[0]), trainer="mine").tree is not None, "an arm of another trainer"


def test_a_console_is_no_table(tmp_path):
    lines = [
        f'2025-11-11T10:00:00Z,"(TaskRunner pid=1) step:{n} - timing_s/gen:1.5 - timing_s/step:2.5"' for n in TIMES
    ]
    found = read(tmp_path / "export.csv", "\n".join(["timestamp,message", *lines]) + "\n")
    assert found.format == "verl-console"
    assert {record.scalars["timing_s/step"] for record in found.read.records.values()} == {2.5}
    log = tmp_path / "run.log"
    log.write_text("step:1 - timing_s/gen:1.500 - timing_s/step:2.000\n" + '{"a": 1, "b": 2}\n')
    assert format_of(str(log)) == "verl-console"


@pytest.mark.parametrize(
    ("last", "cut"), [("1", True), ("27.", True), ("27.3", True), ("27.35", False), ("270.35", False), ("", False)]
)
@pytest.mark.parametrize("names", ["step,step_time", "step,phase,seconds"])
def test_a_last_number_that_is_cut_off_does_not_count(tmp_path, names, last, cut):
    between = ",step" if "phase" in names else ""
    lines = [names, *(f"{n}{between},{s + 0.25:.2f}" for n, s in TIMES.items())]
    found = read(tmp_path / "a.csv", "\n".join([*lines, f"21{between},{last}" if last else ""]))
    assert (21 in found.read.records) == (bool(last) and not cut)
    assert [v.code for v in found.read.verdicts if v.code == "corrupt-line"] == ["corrupt-line"] * cut


def test_a_last_line_without_an_end_counts_in_a_table_of_a_few_rows(tmp_path):
    assert seconds_of(read(tmp_path / "a.csv", "step,step_time\n1,27.5\n2,28.25\n3,30"))[3] == 30.0
    assert len(seconds_of(read(tmp_path / "b.csv", PLAIN.rstrip()))) == 20


def test_a_damaged_line_leaves_out_its_step_alone_and_a_restart_is_one(tmp_path):
    found = read(tmp_path / "a.jsonl", READ["lines.jsonl"].replace('"step": 5, "step_time": 27.0', '"step": 5, "st'))
    assert 5 not in found.read.records and len(found.read.records) == 19
    assert "1 line cannot be read" in said(found, "corrupt-line")
    found = read(
        tmp_path / "b.jsonl", READ["lines.jsonl"].replace('"step": 5, "step_time": 27.0', '"step": 5, "step_time": NaN')
    )
    assert 5 not in seconds_of(found) and 5 in found.read.records
    steps = [*range(1, 41), *range(39, 60)]
    again = "step,step_time\n" + "".join(f"{n},{2 + at % 3}\n" for at, n in enumerate(steps))
    found = read(tmp_path / "c.csv", again)
    assert list(found.read.records) == list(range(1, 60)) and found.read.records[39].resumed


def test_a_value_has_its_line(tmp_path):
    records = read(tmp_path / "a.csv", "# a note\n\n" + PLAIN).read.records
    assert [records[n].line for n in (1, 20)] == [4, 23]
    records = read(tmp_path / "a.jsonl", "\n" + READ["lines.jsonl"]).read.records
    assert [records[n].line for n in (1, 20)] == [2, 21]


def test_a_line_of_a_hundred_thousand_cells_is_looked_at_at_once(tmp_path):
    began = time.monotonic()
    with pytest.raises(UserError):
        read(tmp_path / "a.json", json.dumps({"latencies": [0.5] * 100_000, "step": 1}))
    assert time.monotonic() - began < 10


@pytest.mark.full("a million rows")
def test_a_million_rows_take_bounded_memory(tmp_path):
    with (tmp_path / "a.csv").open("w") as file:
        file.write("step,step_s,gen_s,loss\n")
        file.writelines(f"{n},{2 + n % 7 / 10},{1 + n % 5 / 10},0.5\n" for n in range(1, 1_000_001))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    assert len(read(tmp_path / "a.csv").read.records) == 1_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000, "kilobytes"
    assert time.process_time() - began < 120, "seconds: about 25 where each row costs the same"
