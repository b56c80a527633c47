"""Tables with any columns: what is taken for the steps and their seconds, by name and by test, or not taken."""

import json
import random
import resource
import time
from pathlib import Path

import pandas as pd
import pytest

from analysis.imports.formats import format_of, read_source
from analysis.sources.any_table import COLUMNS_TAKEN, FORMAT
from common.dotted import flatten
from common.errors import UserError
from trainers.logs.record import STEPS_LOGGED
from workflow.cli import main

STEPS = 30


def rows(total="time/total_s", counter="iteration", scale=1.0, seed=0):
    draw = random.Random(seed)
    made = []
    for step in range(1, STEPS + 1):
        rollout, train = 8 + draw.random(), 1.5 + 0.1 * draw.random()
        row = {counter: step, "time/rollout_s": rollout, "time/train_s": train, total: rollout + train + 0.05}
        row = {name: value * (scale if name != counter else 1) for name, value in row.items()}
        made.append(row | {"tokens/response": 1000 + step % 7, "reward/mean": 0.1, "note": "warm"})
    return made


def write(path, table):
    if path.suffix == ".parquet":
        pd.DataFrame(table).to_parquet(path)
        return str(path)
    if path.suffix == ".csv":
        lines = [",".join(table[0]), *(",".join(map(str, row.values())) for row in table)]
    else:
        lines = list(map(json.dumps, table))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def read(source, **given):
    found = read_source(source, None, (), None, **given)
    (taken,) = [verdict.text.partition(": ")[2] for verdict in found.read.verdicts if verdict.code == COLUMNS_TAKEN]
    return found, taken


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.log"])
def test_the_total_is_the_column_that_the_others_add_up_to(tmp_path, name):
    table = rows()
    if name == "a.log":
        table = [
            {"iteration": row["iteration"], "time": {k[5:]: row[k] for k in row if k[:5] == "time/"}} for row in table
        ]
    found, taken = read(write(tmp_path / name, table))
    sep = "." if name == "a.log" else "/"
    total, parts = f"time{sep}total_s", [f"time{sep}rollout_s", f"time{sep}train_s"]
    assert found.format == FORMAT and list(found.read.records) == list(range(1, STEPS + 1))
    assert taken == f"iteration counts the steps; {total} is the step's seconds, {', '.join(parts)} its phases"
    assert {name: phase.parent for name, phase in found.tree.items()} == {total: "", **dict.fromkeys(parts, total)}
    assert found.read.records[3].scalars[f"timing_s/{total}"] == pytest.approx(rows()[2]["time/total_s"])


def seconds_of(found):
    """Step -> its seconds, of those that have any."""
    root = next(f"timing_s/{name}" for name, phase in found.tree.items() if not phase.parent)
    steps = found.read.records.items()
    return {step: record.scalars[root] for step, record in steps if root in record.scalars}


TIMES = {n: 27.0 + n % 5 for n in range(1, 21)}
CSV = "step,step_time,gen_time\n" + "".join(f"{n},{s},{s - 7}\n" for n, s in TIMES.items())


@pytest.mark.parametrize(
    ("column", "scale"),
    [
        *[(name, 1e3) for name in ("step_ms", "Step Time (ms)", "step_time[ms]", "stepTimeMs", "ms_per_step")],
        *[(name, 1.0) for name in ("timing_s/step", "time_per_step", "seconds_per_step", "s/it", "steptime(s)")],
        *[("duration_us", 1e6), ("duration_ns", 1e9), ("step_time_min", 1 / 60), ("minutes", 1 / 60)],
        *[("Step time (min)", 1 / 60), ("step_time_hours", 1 / 3600)],
    ],
)
def test_a_unit_is_read_from_any_way_to_write_a_name(tmp_path, column, scale):
    found, taken = read(write(tmp_path / "a.csv", [{"step": n, column: s * scale} for n, s in TIMES.items()]))
    assert seconds_of(found) == pytest.approx(TIMES)
    assert ("in minutes" in taken) == (scale == 1 / 60), "it may have been a minimum"


@pytest.mark.parametrize("shape", ["{:.1f}s", "{:.1f} s", "0:00:{:04.1f}", "{:.1f} sec"])
def test_times_are_read_from_texts(tmp_path, shape):
    found, _ = read(write(tmp_path / "a.csv", [{"step": n, "duration": shape.format(s)} for n, s in TIMES.items()]))
    assert seconds_of(found) == pytest.approx(TIMES)


@pytest.mark.parametrize("form", ["2025-11-11T10:{:02d}:{:02d}Z", "2025-11-11 10:{:02d}:{:02d}.000", "ms"])
def test_times_of_day_are_a_clock(tmp_path, form):
    ends = [int(sum(list(TIMES.values())[:n])) for n in range(1, 21)]
    day = [1000 * (1_762_855_200 + s) if form == "ms" else form.format(s // 60, s % 60) for s in ends]
    table = [{"step": n, "timestamp": at} for n, at in enumerate(day, start=1)]
    found, taken = read(write(tmp_path / "a.jsonl", table))
    assert seconds_of(found) == pytest.approx({n: s for n, s in TIMES.items() if n > 1})
    assert "timestamp is a clock" in taken


def test_a_time_of_day_and_a_short_clock_are_clocks(tmp_path):
    ends = [50_000 + 27 * n for n in TIMES]
    day = [{"Step": n, "Time": f"{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}"} for n, s in enumerate(ends, start=1)]
    found, _ = read(write(tmp_path / "a.csv", day))
    assert seconds_of(found) == dict.fromkeys(range(2, 21), 27.0)
    found, taken = read(write(tmp_path / "b.csv", [{"step": n, "time": 27.0 * n + 30} for n in range(1, 5)]))
    assert seconds_of(found) == dict.fromkeys(range(2, 5), 27.0) and "time is a clock" in taken
    found, _ = read(write(tmp_path / "c.csv", [{"step": n, "time": 27.0 + n} for n in range(1, 5)]))
    assert seconds_of(found) == {n: 27.0 + n for n in range(1, 5)}


def test_a_minimum_beside_its_mean_is_no_phase(tmp_path):
    columns = {"a - timing_s/step": 0, "a - timing_s/step__MIN": -1, "a - timing_s/step__MAX": 1}
    table = [{"Step": n} | {name: s + more for name, more in columns.items()} for n, s in TIMES.items()]
    found, taken = read(write(tmp_path / "wandb_export.csv", table))
    assert seconds_of(found) == TIMES and taken.endswith("a - timing_s/step is the step's seconds")


FORMS = {
    "semicolon.csv": CSV.replace(",", ";").replace(".", ","),
    "quoted.csv": "step;step_time\n" + "".join(f'{n};"{s}"\n'.replace(".", ",") for n, s in TIMES.items()),
    "thousands.csv": "step,step_us\n" + "".join(f'{n},"{1e6 * s:,.1f}"\n' for n, s in TIMES.items()),
    "decimals.tsv": "step\tstep_time\n"
    + "".join(f"{n}\t{s:.{1 + n % 3}f}\n".replace(".", ",") for n, s in TIMES.items()),
    "zeros.tsv": "step\twait_time_ratio\tstep_time\n"
    + "".join(f"{n}\t0.{n:03}\t{s:.3f}\n".replace(".", ",") for n, s in TIMES.items()),
    "comments.csv": "# 8 GPUs\n#\n" + CSV,
    "excel.csv": "sep=;\n" + CSV.replace(",", ";"),
    "pipes.csv": CSV.replace(",", "|"),
    "spaces.csv": CSV.replace(",", ", "),
    "table.txt": CSV.replace(",", "\t"),
    "mean.csv": CSV + "mean,29.0,22.0\n",
    "backwards.csv": "\n".join([CSV.splitlines()[0], *CSV.splitlines()[:0:-1]]),
    "rows.json": json.dumps([{"step": n, "step_time": s} for n, s in TIMES.items()], indent=1),
    "columns.json": json.dumps({"step": list(TIMES), "step_time": list(TIMES.values())}),
    "texts.jsonl": "".join(json.dumps({"step": str(n), "step_time": str(s)}) + "\n" for n, s in TIMES.items()),
    "two-rows.jsonl": "".join(
        f'{{"step": {n}, "gen_time": {s - 7}}}\n{{"step": {n}, "step_time": {s}}}\n' for n, s in TIMES.items()
    ),
    "evaluated.jsonl": "".join(
        json.dumps({"step": n, "step_time": s}) + "\n" + n % 4 // 3 * f'{{"step": {n}, "eval/time_s": 99.0}}\n'
        for n, s in TIMES.items()
    ),
    "split.jsonl": "".join(
        n % 4 // 3 * f'{{"step": {n}, "split": "eval", "time": 3.5}}\n'
        + json.dumps({"step": n, "split": "train", "time": s})
        + "\n"
        for n, s in TIMES.items()
    ),
    "stages.csv": "step,phase,seconds\n"
    + "".join(f"{n},train,{s}\n" + n % 4 // 3 * f"{n},eval,3.5\n" for n, s in TIMES.items()),
    "env-steps.csv": "total_env_steps,step,iteration_time\n"
    + "".join(f"{4000 * n},{n},{s}\n" for n, s in TIMES.items()),
    "others.csv": "step,step_time,wait_time_ratio,uptime\n"
    + "".join(f"{n},{s},0.{n},{90_000 + 30 * n}\n" for n, s in TIMES.items()),
    "constant.csv": "step,step_time,max_time\n" + "".join(f"{n},{s},3600\n" for n, s in TIMES.items()),
    "labels.csv": "step,step_time\n" + "".join(f"Step {n},{s}\n" for n, s in TIMES.items()) + "Eval 20,99\nTotal,580\n",
    "of.csv": "step,step_time\n" + "".join(f"{n}/20,{s}\n" for n, s in TIMES.items()) + "Total,580\n",
    "sum.csv": CSV + f"21,{sum(TIMES.values())},440\n",
    "twice.csv": "step,step_time\n" + "".join(f"{n},{s}\n" * 2 for n, s in TIMES.items()),
    "unit-row.csv": "step,step_time,gen\n#,(ms),[ms]\n"
    + "".join(f"{n},{1e3 * s},{1e3 * s - 7e3}\n" for n, s in TIMES.items()),
    "merged.csv": ",Timing (ms),,,\nstep,gen,train,total,reward\n"
    + "".join(f"{n},{1e3 * s - 7e3},5e3,{1e3 * s},0.5\n" for n, s in TIMES.items()),
    "title.csv": "Run A: 8 GPUs,,\n" + CSV,
    "thin-spaces.csv": "step,step_us\n" + "".join(f"{n},{s:.0f}\u202f000 000\n" for n, s in TIMES.items()),
    "apostrophes.csv": "step,step_us\n" + "".join(f"{n},{s:.0f}'000'000\n" for n, s in TIMES.items()),
    "rate.csv": "step,it/s,tok/s\n" + "".join(f"{n},{1 / s},{9 / s}\n" for n, s in TIMES.items()),
    "middle.csv": "step,step_time_p50,step_time_p99\n" + "".join(f"{n},{s},{s + 4}\n" for n, s in TIMES.items()),
    "days.csv": "step,step_time (days)\n" + "".join(f"{n},{s / 86400}\n" for n, s in TIMES.items()),
    "sentinel.csv": "step,step_time\n" + "".join(f"{n},{s}\n" for n, s in TIMES.items()) + "21,-1\n22,-1\n",
    "epochs.jsonl": "".join(
        json.dumps({"epoch": (n - 1) // 7, "step": (n - 1) % 7 + 1, "time": s}) + "\n" for n, s in TIMES.items()
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_table_is_read_as_people_write_it(tmp_path, name):
    (tmp_path / name).write_text(FORMS[name])
    found, taken = read(str(tmp_path / name))
    assert seconds_of(found) == pytest.approx(TIMES)
    assert taken.lower().startswith("step counts the steps") and "wait_time_ratio" not in taken


def test_commas_that_may_be_either_are_not_guessed(tmp_path):
    rows = [f"{n}\t{s:.3f}\t".replace(".", ",") for n, s in TIMES.items()]
    for more, right in (("", None), ("1,5", 1.0), ("0,125", 1.0), ("1.5", 1000.0), ("1,234.5", 1000.0)):
        path = tmp_path / "x.tsv"
        path.write_text("step\tstep_time\tx\n" + "".join(f"{row}{more}\n" for row in rows))
        if right is None:
            with pytest.raises(UserError, match=r"the comma in \d+,\d+ may be a decimal one or separate thousands"):
                read(str(path))
        else:
            assert seconds_of(read(str(path))[0]) == pytest.approx({n: right * s for n, s in TIMES.items()}), more


def test_an_export_of_several_runs_gives_the_named_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = {"vllm-a": 0.0, "sglang - b": 5.0, "c": 9.0}
    table = [{"Step": n} | {f"{run} - timing_s/step": s + more for run, more in runs.items()} for n, s in TIMES.items()]
    source = write(tmp_path / "export.csv", table)
    for run, more in runs.items():
        found = read_source(source, None, ("x-s0", run), None)
        assert seconds_of(found) == {n: s + more for n, s in TIMES.items()} and found.selected == {"run": run}
    with pytest.raises(UserError, match=r"holds several runs: vllm-a, sglang - b, c. Name the arm as its run"):
        read(source)
    assert main(["compare", "vllm-a=export.csv", "c=export.csv", "--verdict-only", "--save", "mine.yaml"]) == 0
    assert ": 0.76x, " in capsys.readouterr().out
    assert main(["plan", "mine.yaml"]) == 0


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
            table = [{key.replace(".", "/"): value for key, value in flatten(row).items()} for row in table]
        write(tmp_path / f"{name}-{form}", table)
    files = [f"a-{form}", f"b-{form}"]
    assert main(["compare", *files, "--report", "out", "--save", "mine.yaml"]) == 0
    assert ": verl 0." in capsys.readouterr().out
    steps = pd.read_parquet(next(Path("out").glob("runs/b-*/steps.parquet")))
    (own_s,) = steps[(steps["step"] == 3) & (steps["name"] == "step/gen")]["exclusive_s"]
    assert own_s == 5.0, "generate_sequences is within gen"
    assert main(["plan", "mine.yaml"]) == 0
    assert read_source(files[0], None, (), None, trainer="mine").tree is not None, "an arm of another trainer"


def test_several_rows_a_step_are_not_one(tmp_path):
    table = [{"step": n, "rank": rank, "step_time": s + rank} for n, s in TIMES.items() for rank in (0, 1)]
    with pytest.raises(UserError, match=r"several rows a step .step. with the same columns. Of several processes"):
        read(write(tmp_path / "a.jsonl", table))


def test_a_console_in_the_cells_of_an_export_is_a_console(tmp_path):
    lines = [
        f'2025-11-11T10:00:00Z,"(TaskRunner pid=1) step:{n} - timing_s/gen:1.5 - timing_s/step:2.5"' for n in TIMES
    ]
    (tmp_path / "export.csv").write_text("\n".join(["timestamp,message", *lines]) + "\n")
    found = read_source(str(tmp_path / "export.csv"), None, (), None)
    assert found.format == "verl-console"
    assert {record.scalars["timing_s/step"] for record in found.read.records.values()} == {2.5}


def test_a_line_with_more_cells_than_names_is_left_out(tmp_path):
    (tmp_path / "a.csv").write_text(CSV.replace("5,27.0,", "5,27,0,", 1))
    found, _ = read(str(tmp_path / "a.csv"))
    assert 5 not in found.read.records and len(found.read.records) == len(TIMES) - 1
    assert "1 lines cannot be read" in next(v.text for v in found.read.verdicts if v.code == "corrupt-line")
    (tmp_path / "b.csv").write_text("".join(CSV.splitlines(keepends=True)[1:]))
    with pytest.raises(UserError, match="does not name its columns in its first line"):
        read(str(tmp_path / "b.csv"))


@pytest.mark.parametrize(
    ("last", "cut"), [("1", True), ("27.", True), ("27.3", True), ("27.35", False), ("270.35", False), ("", False)]
)
@pytest.mark.parametrize("names", ["step,step_time", "step,phase,seconds"])
def test_a_last_number_that_is_cut_off_does_not_count(tmp_path, names, last, cut):
    between = ",step" if "phase" in names else ""
    lines = [names, *(f"{n}{between},{s + 0.25:.2f}" for n, s in TIMES.items())]
    (tmp_path / "a.csv").write_text("\n".join([*lines, f"21{between},{last}" if last else ""]))
    read_one = read_source(str(tmp_path / "a.csv"), None, (), None)
    assert (21 in read_one.read.records) == (bool(last) and not cut)
    assert [v.code for v in read_one.read.verdicts if v.code == "corrupt-line"] == ["corrupt-line"] * cut


def test_a_last_line_without_an_end_counts_in_a_table_of_a_few_rows_or_of_whole_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("step,step_time\n1,27.5\n2,28.25\n3,30")
    assert seconds_of(read(str(tmp_path / "a.csv"))[0])[3] == 30.0
    lines = [f"{n},{200 + n}" for n in range(1, 21)]
    (tmp_path / "b.csv").write_text("\n".join(["step,step_time", *lines]))
    assert len(seconds_of(read(str(tmp_path / "b.csv"))[0])) == 20
    (tmp_path / "b.csv").write_text("\n".join(["step,step_time", *lines, "21,22"]))
    assert 21 not in seconds_of(read(str(tmp_path / "b.csv"))[0])


def test_one_phase_beside_a_clock_is_not_the_step(tmp_path):
    table = [{"step": n, "elapsed_s": 40.0 * n, "generate_time": s} for n, s in TIMES.items()]
    found, taken = read(write(tmp_path / "a.csv", table))
    assert seconds_of(found) == pytest.approx(dict.fromkeys(range(2, 21), 40.0))
    assert taken.endswith("elapsed_s is a clock, and the step's seconds are its differences, generate_time its phase")


def test_ever_longer_steps_are_no_clock_and_a_clock_may_begin_anew(tmp_path):
    longer = {n: 20.0 + n for n in TIMES}
    found, _ = read(write(tmp_path / "a.csv", [{"step": n, "step_time": s} for n, s in longer.items()]))
    assert seconds_of(found) == longer
    since = [{"step": n, "elapsed_s": 27.0 * (n if n < 13 else n - 12)} for n in TIMES]
    found, _ = read(write(tmp_path / "b.csv", since))
    assert seconds_of(found) == dict.fromkeys([*range(2, 13), *range(14, 21)], 27.0)
    sums = [{"step": n, "gen_time": 20.0 * n, "total_time": 27.0 * n} for n in TIMES]
    found, taken = read(write(tmp_path / "c.csv", sums))
    assert seconds_of(found) == dict.fromkeys(range(2, 21), 27.0) and taken.endswith("gen_time its phase")


def mixed(factors, names=("step_time", "rollout_time", "train_time"), spoilt=(), phases=(10, 9)):
    """A whole of two phases, each column times its factor."""
    draw, made = random.Random(0), []
    for step in range(1, STEPS + 1):
        rollout, train = phases[0] + draw.random(), phases[1] + draw.random()
        values = (rollout + train + 0.05, rollout, train)
        row = {name: value * factor for name, value, factor in zip(names, values, factors, strict=True)}
        made.append({"step": step} | row | (dict.fromkeys(names, float("nan")) if step in spoilt else {}))
    return made


@pytest.mark.parametrize(
    ("factors", "milliseconds"), [((1, 1e3, 1e3), "rollout_time, train_time"), ((1e3, 1, 1), "step_time")]
)
@pytest.mark.parametrize("given", [{}, {"step_seconds": "step_time"}])
def test_a_unit_that_no_name_says_is_the_one_in_which_the_parts_add_up(tmp_path, factors, milliseconds, given):
    table = mixed(factors, spoilt=[3])
    found, taken = read(write(tmp_path / "a.csv", table), **given)
    assert taken == (
        "step counts the steps; step_time is the step's seconds, rollout_time, train_time its phases; "
        f"{milliseconds} in milliseconds: only so they add up"
    )
    plain, _ = read(write(tmp_path / "b.csv", mixed((1, 1, 1))))
    assert found.read.records[5].scalars == pytest.approx(plain.read.records[5].scalars)
    assert "timing_s/step_time" not in found.read.records[3].scalars


def test_a_unit_in_a_name_counts_more_than_a_sum(tmp_path):
    _, taken = read(
        write(tmp_path / "a.csv", mixed((1, 1e3, 1e3), ("step_time", "rollout_s", "train_s"), phases=(10, 2)))
    )
    assert taken == "step counts the steps; step_time is the step's seconds"
    _, taken = read(write(tmp_path / "b.csv", mixed((1, 1e3, 1e3), ("step_time", "rollout_ms", "train_ms"))))
    assert taken.endswith("step_time is the step's seconds, rollout_ms, train_ms its phases")


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_a_column_that_only_rises_is_a_clock(tmp_path, start):
    table = [{"step": n, "elapsed_s": start + 10.0 * n + n % 3, "loss": 1 / n} for n in range(1, 21)]
    found, taken = read(write(tmp_path / "a.csv", table))
    assert taken.endswith("elapsed_s is a clock, and the step's seconds are its differences")
    assert list(found.read.records) == list(range(2, 21)), "when the first one began is not known"
    assert found.read.records[2].scalars["timing_s/elapsed_s"] == pytest.approx(11.0)


def test_a_clock_counts_all_steps_since_the_row_before(tmp_path):
    table = [{"step": 10 * n, "elapsed_s": 120.0 * n + n % 3, "steps_logged": 7} for n in range(1, 21)]
    found, _ = read(write(tmp_path / "a.csv", table))
    record = found.read.records[40]
    assert record.scalars == {"timing_s/elapsed_s": pytest.approx(12.1), STEPS_LOGGED: 10.0}
    assert [verdict.code for verdict in found.read.verdicts] == [COLUMNS_TAKEN, "name-taken"], "ours, not the table's"


def test_of_two_that_may_be_it_none_is_taken_before_one_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = random.Random(1)
    for name in "ab":
        table = [(n, 3 + draw.random(), 35 + draw.random()) for n in range(1, 20)]
        write(
            tmp_path / f"{name}.csv", [dict(zip(("step", "seconds_a", "seconds_b"), row, strict=True)) for row in table]
        )
    assert main(["compare", "a.csv", "b.csv", "--verdict-only"]) == 1
    said = capsys.readouterr().err
    assert "no column is the step's seconds for certain: seconds_a (mean 3." in said and "seconds_b (mean 35" in said
    assert len(said.splitlines()) <= 3 and "--step-seconds seconds_a" in said
    assert main(["compare", "a.csv", "b.csv", "--step-seconds", "seconds_b", "--save", "mine.yaml"]) == 0
    assert "seconds_b is the step's seconds, seconds_a its phase" in capsys.readouterr().out
    assert "step_seconds: seconds_b" in (tmp_path / "mine.yaml").read_text()
    with pytest.raises(UserError, match="has no column second_b with numbers \\(did you mean seconds_b"):
        read_source("a.csv", None, (), None, step_seconds="second_b")


def test_a_table_without_seconds_says_what_it_has(tmp_path):
    with pytest.raises(UserError, match="no column is named like seconds; its numbers are in loss, tokens_per_s"):
        read_source(
            write(tmp_path / "a.jsonl", [{"step": n, "loss": 1.0, "tokens_per_s": 9.0} for n in range(9)]),
            None,
            (),
            None,
        )


def test_what_is_no_number_leaves_out_its_step_alone(tmp_path):
    table = rows(total="step_time")
    table[4]["step_time"] = float("nan")
    source = write(tmp_path / "a.jsonl", table)
    with Path(source).open("a") as file:
        file.write('{"iteration": 31, "time/rol\n')
    found, taken = read(source)
    assert "step_time is the step's seconds" in taken and "timing_s/step_time" not in found.read.records[5].scalars
    assert "1 lines cannot be read" in next(v.text for v in found.read.verdicts if v.code == "corrupt-line")


def test_a_minimum_beside_a_maximum_is_in_no_minutes_and_no_phase_and_gpu_hours_are_no_time(tmp_path):
    table = [{"step": n, "step_time_min": s - 2, "step_time_max": s + 2} for n, s in TIMES.items()]
    with pytest.raises(UserError, match=r"certain: step_time_min \(mean 27 s\), step_time_max \(mean 31 s\)"):
        read(write(tmp_path / "a.csv", table))
    with pytest.raises(UserError, match="no column is named like seconds; its numbers are in gpu_hours"):
        read(write(tmp_path / "b.csv", [{"step": n, "gpu_hours": s} for n, s in TIMES.items()]))


@pytest.mark.parametrize("by", ["run", "Engine"])
def test_rows_of_several_runs_are_those_of_the_named_one(tmp_path, by):
    rows = [{by: run, "step": n, "time": s * more} for n, s in TIMES.items() for run, more in (("a", 1), ("b", 2))]
    source = write(tmp_path / "a.csv", rows)
    found = read_source(source, None, ("b-s0", "b"), None)
    assert seconds_of(found) == {n: 2 * s for n, s in TIMES.items()} and found.selected == {by.lower(): "b"}
    with pytest.raises(UserError, match=f"holds several runs: column {by} has a, b. Name the arm as the table does"):
        read(source)


def test_a_rate_of_steps_is_the_inverse_of_their_seconds(tmp_path):
    table = [{"step": n, "time": 3.0 + n % 2, "steps_per_minute": 60.0 / s} for n, s in TIMES.items()]
    found, taken = read(write(tmp_path / "a.csv", table), step_seconds="steps_per_minute")
    assert seconds_of(found) == pytest.approx(TIMES) and "one over steps_per_minute" in taken


def test_the_only_time_that_is_named_like_a_phase_is_not_called_the_step(tmp_path):
    _, taken = read(write(tmp_path / "a.csv", [{"step": n, "generation_time": s} for n, s in TIMES.items()]))
    assert taken.endswith("generation_time is the only time: if it is a phase, its ratio is no step's")


@pytest.mark.parametrize(
    ("name", "beside", "averaged"),
    [
        ("avg_step_time", "", True),
        ("step_time_running", "", True),
        ("step_time", "", False),
        ("step_time_mean", "", True),
        ("step_time_mean", "step_time_max", False),
    ],
)
def test_an_average_over_steps_is_doubted_unless_it_is_one_of_ranks(tmp_path, name, beside, averaged):
    table = [{"step": n, name: s} | ({beside: s + 1} if beside else {}) for n, s in TIMES.items()]
    found, taken = read(write(tmp_path / "a.csv", table))
    assert seconds_of(found) == TIMES and ("an average over the steps before" in taken) == averaged


def test_a_sum_below_its_rows_is_no_step_and_the_names_come_once(tmp_path):
    lines = [f"{s},0.5\n" for s in TIMES.values()]
    for name, last in (("a.csv", "580,\n"), ("b.csv", "580.0,0.5\n")):
        (tmp_path / name).write_text("".join(["step_time,reward\n", *lines, last]))
        found, _ = read(str(tmp_path / name))
        assert seconds_of(found) == TIMES
        assert "line 22 is the sum" in next(v.text for v in found.read.verdicts if v.code == "no-step-line")
    (tmp_path / "c.csv").write_text("".join(["step_time,reward\n", *lines] * 2))
    with pytest.raises(UserError, match=r"names its columns again on line 22: .* head -n 21"):
        read(str(tmp_path / "c.csv"))


def test_rows_without_a_counter_are_counted_and_a_restart_is_one(tmp_path):
    _, taken = read(write(tmp_path / "a.csv", [{"seconds": 2.0 + n % 3} for n in range(9)]))
    assert taken == "no column counts the steps, so rows count as steps from 1; seconds is the step's seconds"
    table = [{"step": n, "seconds": 2.0 + at % 3} for at, n in enumerate([*range(1, 41), *range(39, 60)])]
    found, _ = read(write(tmp_path / "b.csv", table))
    assert list(found.read.records) == list(range(1, 60)) and found.read.records[39].resumed


def test_a_console_with_a_few_rows_of_json_is_none(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("step:1 - timing_s/gen:1.500 - timing_s/step:2.000\n" + '{"a": 1, "b": 2}\n')
    assert format_of(str(log)) == "verl-console"


@pytest.mark.full("a million rows")
def test_a_million_rows_take_bounded_memory(tmp_path):
    with (tmp_path / "a.csv").open("w") as file:
        file.write("step,step_s,gen_s,loss\n")
        file.writelines(f"{n},{2 + n % 7 / 10},{1 + n % 5 / 10},0.5\n" for n in range(1, 1_000_001))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    assert len(read(str(tmp_path / "a.csv"))[0].read.records) == 1_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000, "kilobytes"
    assert time.process_time() - began < 120, "seconds: about 25 where each row costs the same"
