"""Where a counter of a log falls, another run or a restart begins: in every format, and in no healthy log."""

import json
import re
import subprocess

import pytest

from analysis.imports.formats import read_source
from analysis.sources.wandb_rows import History, steps_of, steps_of_lives
from common.errors import UserError


def verl_console(rows):
    lines = []
    for step, counted in rows:
        values = {"training/global_step": step, **counted, "timing_s/gen": 1.5, "timing_s/step": 2.0 + step / 8}
        lines.append(" - ".join([f"step:{step}", *(f"{k}:{v}" for k, v in values.items())]))
    return "run.log", "".join(line + "\n" for line in lines)


def verl_jsonl(rows):
    lines = [{"step": s, "data": {"timing_s/step": 2.0 + s / 8, **counted}} for s, counted in rows]
    return "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines)


def hf_row(step, counted):
    return {"loss": 0.5, "learning_rate": 1e-6, "reward": step / 8, "step_time": 2.0 + step / 8, **counted}


def trl_console(rows):
    text = "".join(f"{hf_row(s, c)}\n\r 10%|█   | {s}/400 [00:41<05:02, 13.70s/it]\n" for s, c in rows)
    return "run.log", text


def swift_console(rows):
    return "run.log", "".join(f"{ {**hf_row(s, c), 'global_step/max_steps': f'{s}/400'} }\n" for s, c in rows)


def swift_jsonl(rows):
    lines = [{**hf_row(s, c), "global_step/max_steps": f"{s}/400"} for s, c in rows]
    return "logging.jsonl", "".join(json.dumps(line) + "\n" for line in lines)


def trainer_state(rows):
    return "trainer_state.json", json.dumps({"log_history": [{**hf_row(s, c), "step": s} for s, c in rows]})


FILES = {
    "verl-console": (verl_console, ("training/epoch", "training/global_step")),
    "verl-jsonl": (verl_jsonl, ("training/epoch", "training/global_step")),
    "trl-console": (trl_console, ("epoch", "num_tokens")),
    "swift-console": (swift_console, ("epoch", "num_tokens", "elapsed_time")),
    "swift-jsonl": (swift_jsonl, ("epoch", "num_input_tokens_seen", "elapsed_time")),
    "trainer-state": (trainer_state, ("epoch", "num_tokens")),
}


def as_logged(name, value):
    return f"{int(value) // 60}m {int(value) % 60}s" if name == "elapsed_time" else value


def imported(tmp_path, form, rows):
    name, text = FILES[form][0](rows)
    path = tmp_path / name
    path.write_text(text)
    return read_source(str(path), form, (), tmp_path / "cache")


def counted(name, values, steps):
    return [(step, {name: as_logged(name, v)}) for step, v in zip(steps, values, strict=True)]


EACH = [(form, name) for form, (_, names) in FILES.items() for name in names]


@pytest.mark.parametrize("missing", [0, 47])
@pytest.mark.parametrize(("form", "name"), EACH)
def test_a_counter_that_falls_is_a_restart_or_where_steps_are_missing_perhaps_another_run(
    tmp_path, form, name, missing
):
    steps = [1, 2, 3, 4 + missing, 5 + missing]
    read = imported(tmp_path, form, counted(name, [100.0, 200.0, 300.0, 50.0, 150.0], steps)).read
    assert [s for s, r in read.records.items() if r.resumed] == [4 + missing] and list(read.records) == steps
    (told,) = [v for v in read.verdicts if v.code == "counter-fell"]
    assert f"{name.replace('_time', ' time')} falls from 300 to 50 from step 3 to {4 + missing}" in told.text
    assert told.level == ("warning" if missing else "note")
    wanted = "the first 3, or those after them" if form == "trainer-state" else "head -n "
    assert not missing or ("or another run begins there. In that case, " in told.text and wanted in told.text)


@pytest.mark.parametrize("form", FILES)
def test_no_counter_of_a_healthy_log_is_told(tmp_path, form):
    """Counters that stand still or whose printing was rounded, and evaluations between the steps."""
    rows = []
    for step in range(1, 9):
        values = {"training/epoch": step // 4, "epoch": f"{step / 300:.4g}", "num_tokens": f"{1e7 + step:.4g}"}
        rows.append((step, {n: as_logged(n, values.get(n, 9.0 * step)) for n in FILES[form][1]}))
    name, text = FILES[form][0](rows)
    evaluation = {"eval_loss": 0.5, "eval_num_tokens": 1.0, "epoch": 0.0, "eval_runtime": 3.0}
    if form in ("trl-console", "swift-console"):
        lines = text.splitlines(keepends=True)
        text = "".join([*lines[:8], f"{evaluation}\n", *lines[8:]])
    path = tmp_path / name
    path.write_text(text)
    read = read_source(str(path), form, (), tmp_path / "cache").read
    assert list(read.records) == list(range(1, 9)) and not read.verdicts
    assert not any(r.resumed for r in read.records.values())


def test_a_restart_that_repeats_steps_is_told_as_one_and_no_more(tmp_path):
    rows = [(s, {"epoch": s / 10, "num_tokens": 100.0 * s}) for s in (1, 2, 3, 4, 3, 4, 5)]
    for form in ("trl-console", "swift-jsonl", "trainer-state"):
        read = imported(tmp_path, form, rows).read
        # The same numbers again are still a restart, as step 3 comes behind step 4.
        assert [v.code for v in read.verdicts] == ["duplicate-step"], form
        assert [s for s, r in read.records.items() if r.resumed] == [3]


def by_place(rows):
    return "".join(f"{hf_row(step, more)}\n" for step, more in rows)


def two_runs(first=40, second=40):
    one = [(s, {"epoch": s / 400, "num_tokens": 15000.0 * s}) for s in range(1, first + 1)]
    return one, [(s, {"epoch": s / 400, "num_tokens": 14000.0 * s}) for s in range(1, second + 1)]


def test_two_runs_of_trl_in_one_log_without_bars_are_refused_with_the_commands_that_part_them(tmp_path):
    path = tmp_path / "my run.log"
    one, other = two_runs()
    path.write_text(by_place(one) + by_place(other))
    with pytest.raises(UserError) as caught:
        read_source(str(path), None, (), tmp_path)
    said = str(caught.value)
    assert "on line 41 train/num_tokens falls from 600000 to 14000 and train/epoch falls from 0.1 to 0.0025" in said
    assert "holds several runs, or one that was started again" in said and "last trainer_state.json" in said
    command = re.search(r"each run by itself: (.*) \(if", said)[1]
    subprocess.run(["bash", "-c", command], check=True, cwd="/")
    for part in ("my run-1.log", "my run-2.log"):
        assert len(read_source(str(tmp_path / part), None, (), tmp_path).read.records) == 40


@pytest.mark.parametrize(
    "more",
    [
        # TRL 0.16 counts its tokens anew after a restart, transformers its epoch where no data are skipped.
        {"epoch": 0.6, "num_tokens": 100.0},
        {"epoch": 0.0, "num_tokens": 700.0},
    ],
)
def test_rows_without_steps_go_on_where_one_of_their_counters_does(tmp_path, more):
    rows = [(s, {"epoch": s / 10, "num_tokens": 100.0 * s}) for s in range(1, 6)]
    path = tmp_path / "run.log"
    path.write_text(by_place([*rows, (6, more)]))
    read = read_source(str(path), None, (), tmp_path).read
    assert list(read.records) == [1, 2, 3, 4, 5, 6] and [s for s, r in read.records.items() if r.resumed] == [6]
    assert sorted(v.code for v in read.verdicts) == ["counter-fell", "step-by-place"]


HF = {"train/step_time": 3.0, "train/loss": 0.5}
VERL = {"timing_s/step": 3.0}


def wandb_rows(tmp_path, counted, step="train/global_step", row=HF):
    return [(tmp_path, n, {**row, step: s, **more}) for n, (s, more) in enumerate(counted, 1)]


@pytest.mark.parametrize(
    ("name", "step", "row"),
    [
        ("train/epoch", "train/global_step", HF),
        ("train/num_tokens", "train/global_step", HF),
        ("_runtime", "train/global_step", HF),
        ("training/epoch", "training/global_step", VERL),
        ("_runtime", "training/global_step", VERL),
        ("training/epoch", "_step", VERL),
    ],
)
@pytest.mark.parametrize("missing", [0, 20])
def test_a_counter_that_falls_in_a_history_of_wandb(tmp_path, name, step, row, missing):
    """Its own server's and an offline file's rows are read by the same code."""
    values = [100.0, 200.0, 300.0, 50.0, 150.0]
    rows = [(s + missing * (s > 3), {name: v}) for s, v in enumerate(values, 1)]
    read = steps_of(wandb_rows(tmp_path, rows, step, row), "run")
    assert [s for s, r in read.records.items() if r.resumed] == [4 + missing]
    (told,) = [v for v in read.verdicts if v.code == "counter-fell"]
    assert told.level == ("warning" if missing else "note") and "run:4: " in told.text
    assert name.replace("_runtime", "elapsed time") + " falls from 300 to 50" in told.text


def test_a_healthy_history_of_wandb(tmp_path):
    rows = []
    for s in range(1, 9):
        more = {"train/epoch": s / 8, "train/num_tokens": 10.0 * s, "_runtime": 3.0 * s, "_timestamp": 1e9 + 3.0 * s}
        rows += wandb_rows(tmp_path, [(s, more)])
        rows.append((tmp_path, 99, {"train/global_step": s, "train/epoch": 0.0, "eval/runtime": 1.0, "_runtime": 0.5}))
    read = steps_of(rows, "run")
    assert list(read.records) == list(range(1, 9)) and not read.verdicts
    assert not any(r.resumed for r in read.records.values())
    # NTP set the clock back.
    rows[8][2]["_runtime"] -= 4.0
    assert not steps_of(rows, "run").verdicts


def test_counters_of_attempts_that_went_on_are_compared_too(tmp_path):
    first = wandb_rows(tmp_path, [(s, {"train/num_tokens": 100.0 * s, "_runtime": 3.0 * s}) for s in (1, 2, 3)])
    for begins, tokens, codes in ((4, 400.0, []), (4, 50.0, ["counter-fell"]), (3, 300.0, ["duplicate-step"])):
        second = wandb_rows(tmp_path, [(begins, {"train/num_tokens": tokens, "_runtime": 3.0, "train/loss": 0.4})])
        found = steps_of_lives([History(rows) for rows in (first, second)], "run")
        assert [v.code for v in found.verdicts] == codes and found.records[begins].resumed


def table(tmp_path, rows):
    path = tmp_path / "phases.csv"
    path.write_text("step,phase,seconds\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return read_source(str(path), None, (), tmp_path).read


def phases(steps, extra=0.0):
    return [(s, name, seconds + extra) for s in steps for name, seconds in (("gen", s + 1.0), ("step", s + 2.0))]


@pytest.mark.parametrize("by", [0, 1])
def test_a_table_of_phases_has_one_run_in_any_order(tmp_path, by):
    """Sorted by step or by phase; of two runs, or two rows a phase, it is not known which count."""
    rows = sorted(phases((1, 2, 3)), key=lambda row: row[by])
    for same in (rows, rows[::-1], rows + rows):
        read = table(tmp_path, same)
        assert not read.verdicts and [r.scalars["timing_s/gen"] for r in read.records.values()] == [2.0, 3.0, 4.0]
    with pytest.raises(UserError, match=r"phases.csv:8: gen of step 1 is on line 2 too, with other seconds. Leave one"):
        table(tmp_path, [*rows, (1, "gen", 9.0)])
