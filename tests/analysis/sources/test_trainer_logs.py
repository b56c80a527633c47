"""The logs of TRL and ms-swift: printed dictionaries, trainer_state.json, logging.jsonl, averages since the start."""

import json

import pytest

from analysis.imports.formats import format_of
from analysis.imports.one_run import merged
from common.errors import UserError
from trainers.logs.hf_rows import WALL, read_trainer_state, windows_of
from trainers.logs.record import STEPS_LOGGED
from trainers.swift.trainer import read_swift_jsonl
from trainers.trl.console import read_trl_console

SUMMARY = {"train_runtime": 40.5, "train_samples_per_second": 1.2, "train_loss": 0.01, "epoch": 1.0}


def trl_row(step, step_time=3.25, **more):
    return {
        "loss": 0.0,
        "grad_norm": 0.125,
        "learning_rate": 1e-06,
        "completions/mean_length": 100.5,
        "rewards/accuracy/mean": 0.25,
        "reward": 0.25,
        "step_time": step_time,
        "epoch": 0.1 * step,
        **more,
    }


def as_texts(row):
    """As transformers 5 prints its numbers."""
    return {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}


def bar(done, of=20, elapsed="00:41"):
    return f" {100 * done // of:3d}%|█▌        | {done}/{of} [{elapsed}<05:02, 13.70s/it]"


def console(tmp_path, text):
    path = tmp_path / "train.log"
    path.write_text(text)
    return read_trl_console(path)


def codes(imported):
    return [v.code for v in imported.read.verdicts]


def test_trl_prints_dictionaries_without_a_step(tmp_path):
    rows = [trl_row(1, 9.5), trl_row(2, 3.5), {"eval_loss": 0.5, "eval_reward": 0.5}, trl_row(3, 3.25), SUMMARY]
    found = console(tmp_path, "".join(f"{row}\n" for row in rows))
    records = found.read.records
    assert [records[s].scalars["train/step_time"] for s in (1, 2, 3)] == [9.5, 3.5, 3.25] and len(records) == 3
    assert records[3].scalars["train/completions/mean_length"] == 100.5 and not records[3].rounding
    assert records[3].line == 4 and found.format == "trl-console"
    (said,) = found.read.verdicts
    assert said.code == "step-by-place" and "import trainer_state.json instead" in said.text


@pytest.mark.parametrize("every", [1, 5])
def test_the_bar_behind_a_row_tells_its_step(tmp_path, every):
    text = f"{bar(0)}\r"
    for n in (1, 2, 3):
        text += f"{bar(every * n)}\r" + " " * 80 + f"\r{trl_row(n)}\n\r{bar(every * n)}"
    found = console(tmp_path, text + f"\n{SUMMARY}\n")
    assert list(found.read.records) == [every, 2 * every, 3 * every]
    assert codes(found) == (["logging-window"] if every > 1 else [])
    assert {r.scalars.get(STEPS_LOGGED, 1) for r in found.read.records.values()} == {every}


def test_the_bar_of_a_row_tells_the_seconds_since_the_start(tmp_path):
    behind = "".join(f"{trl_row(n)}\n\r{bar(n, elapsed=f'1:00:{10 * n}')}" for n in (1, 2, 3))
    before = "".join(f"{bar(n, elapsed=f'{n}:30')}{trl_row(n)}\n" for n in (1, 2, 3))
    for text, told in ((behind, [3610.0, 3620.0, 3630.0]), (before, [90.0, 150.0, 210.0])):
        assert [one.elapsed_s for one in console(tmp_path, text).read.records.values()] == told


def with_bars(rows, every=1, of=100, seconds=10.6):
    """A console whose rows have their bars, which show whole seconds."""
    shown = [(n, int(n * every * seconds)) for n in range(1, len(rows) + 1)]
    pieces = [
        f"\r{row}\n\r{bar(n * every, of, f'{s // 60}:{s % 60:02}')}" for row, (n, s) in zip(rows, shown, strict=True)
    ]
    return f"{bar(0, of, '00:00')}" + "".join(pieces) + "\n"


def without_step_time(step):
    return {name: value for name, value in trl_row(step).items() if name != "step_time"}


@pytest.mark.parametrize("every", [1, 10])
def test_bars_are_the_clock_of_rows_without_step_time(tmp_path, every):
    rows = [without_step_time(n) for n in range(1, 11)]
    found = console(tmp_path, with_bars(rows, every))
    seconds = [record.scalars["timing_s/wall"] for record in found.read.records.values()]
    assert sum(seconds) * every == pytest.approx(int(106 * every)) and all(abs(s - 10.6) <= 1 / every for s in seconds)
    assert {record.rounding["timing_s/wall"] for record in found.read.records.values()} == {1 / every}
    (said,) = [v.text for v in found.read.verdicts if v.code == "times-from-bars"]
    assert f"whole seconds, up to {1 / every:.2g} s off each step, with checkpoints and evaluations" in said
    timed = console(tmp_path, with_bars([trl_row(n) for n in range(1, 11)], every))
    assert not any("timing_s/wall" in record.scalars for record in timed.read.records.values()), "step_time is better"


def test_the_first_step_after_a_restart_and_a_row_without_a_bar_have_no_time_by_bars(tmp_path):
    rows = [without_step_time(n) for n in range(1, 9)]
    again = with_bars(rows[:2]).replace(" 1/100", " 6/100").replace(" 2/100", " 7/100")
    found = console(tmp_path, with_bars(rows[:5]) + again)
    assert [step for step, r in found.read.records.items() if "timing_s/wall" in r.scalars] == [1, 2, 3, 4, 5, 7]


def test_bars_too_coarse_for_the_steps_are_no_clock(tmp_path):
    found = console(tmp_path, with_bars([without_step_time(n) for n in range(1, 11)], seconds=0.7))
    assert codes(found) == ["bars-too-coarse"] and "timing_s/wall" not in found.read.records[3].scalars


def test_the_trainers_own_time_counts_where_another_source_has_only_a_clock(tmp_path):
    found = console(tmp_path, with_bars([without_step_time(n) for n in range(1, 4)]))
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": [{"step": n, "loss": 0.0, "step_time": 9.5} for n in (1, 2, 3)]}))
    for reads in ([found.read, read_trainer_state(state).read], [read_trainer_state(state).read, found.read]):
        joined = merged(reads, "run").records[2]
        assert joined.scalars["train/step_time"] == 9.5 and "timing_s/wall" not in {**joined.scalars, **joined.rounding}


@pytest.mark.parametrize("told", [{}, {"global_step/max_steps": "3/20"}])
def test_rows_that_a_terminal_broke_are_read_at_any_width(tmp_path, told):
    """As a log is pasted: broken within names and numbers, the spaces at the breaks lost."""
    rows = [trl_row(s, 3.25 + s / 7, **{k: v.replace("3", str(s)) for k, v in told.items()}) for s in (1, 2, 3)]
    lines = [text for s, row in enumerate(rows, 1) for text in (str(row), bar(s))]
    whole = console(tmp_path, "\n".join([*lines, ""]))
    assert [r.step for r in whole.read.records.values()] == [1, 2, 3]
    for width in range(50, max(map(len, lines)) + 2):
        pasted = [line[i : i + width].rstrip() for line in lines for i in range(0, len(line), width)]
        found = console(tmp_path, "\n".join([*pasted, ""]))
        assert format_of(str(tmp_path / "train.log")) == found.format == whole.format
        assert [(r.step, r.scalars) for r in found.read.records.values()] == [
            (r.step, r.scalars) for r in whole.read.records.values()
        ], width
        assert codes(found) == codes(whole), width


def test_a_row_whose_end_is_lost_takes_no_other_lines(tmp_path):
    first, second = (str(trl_row(s)) for s in (1, 2))
    for between in ("Traceback (most recent call last):\n  file, line 3}\n", "", "saved\n\n"):
        found = console(tmp_path, f"{first[:90]}\n{between}{second}\n")
        assert [r.scalars["train/step_time"] for r in found.read.records.values()] == [3.25]


def test_a_resumed_run_is_placed_by_its_bars(tmp_path):
    text = "".join(f"{trl_row(n)}\n{bar(10 + n)}\n" for n in (1, 2, 3))
    assert list(console(tmp_path, text).read.records) == [11, 12, 13]


@pytest.mark.parametrize(
    "foreign",
    [
        "Map: 100%|██████████| 500/500 [00:01<00:00, 9.0it/s]",
        "Map (num_proc=4): 100%|██████████| 500/500 [00:01<00:00, 9.0it/s]",
        "Epoch 1: 100%|██████████| 500/500 [00:01<00:00, 9.0it/s]",
        "100%|██████████| 500/500 [00:01<00:00, 9.0it/s]",
        "  0%|          | 0/500 [00:00<?, ?it/s]",
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_bars_of_other_work_tell_no_steps(tmp_path, foreign, times):
    """One among the rows, or one behind each."""
    text = "".join(f"{trl_row(n)}\n" + (f"\r{foreign}\n" if times > 1 or n == 2 else "") for n in (1, 2, 3))
    found = console(tmp_path, text)
    assert list(found.read.records) == [1, 2, 3] and codes(found) == ["step-by-place"]


def test_bars_of_other_work_do_not_hide_those_of_the_training(tmp_path):
    foreign = "Processed prompts: 100%|██████████| 16/16 [00:01<00:00, 9.0it/s]"
    text = "".join(f"{trl_row(n)}\n\r{foreign}\n[rank0]: {bar(5 * n)}\n" for n in (1, 2, 3))
    found = console(tmp_path, text)
    assert list(found.read.records) == [5, 10, 15] and codes(found) == ["logging-window"]
    one_total_each = "".join(f"{trl_row(n)}\n{bar(5 * n, 20 * n)}\n" for n in (1, 2, 3))
    assert codes(console(tmp_path, one_total_each)) == ["step-by-place"]


def test_dictionaries_that_a_reward_function_prints_are_no_rows(tmp_path):
    text = ""
    for n in (1, 2, 3):
        text += f"{bar(n)}{ {'prompt': 'x', 'reward': 1.0} }\n{ {'loss': 0.5} }\n{trl_row(n)}\n{bar(n)}\n"
    found = console(tmp_path, text)
    assert list(found.read.records) == [1, 2, 3] and not any(r.resumed for r in found.read.records.values())
    assert not found.read.verdicts and found.read.records[2].scalars["train/step_time"] == 3.25


def test_numbers_that_transformers_printed_with_four_digits_carry_that(tmp_path):
    row = as_texts(trl_row(1, 123.456, kl=0.0, **{"completions/max_length": 31744.0}))
    record = console(tmp_path, f"{row}\n{bar(1)}\n").read.records[1]
    assert record.scalars["train/step_time"] == 123.5 and record.rounding["train/step_time"] == pytest.approx(0.05)
    assert record.scalars["train/learning_rate"] == 1e-06 and record.rounding["train/learning_rate"] == 5e-10
    assert record.rounding["train/completions/max_length"] == pytest.approx(5), "3.174e+04"
    assert record.scalars["train/kl"] == 0.0 and "train/kl" not in record.rounding


def test_nan_numpy_and_none_in_a_row(tmp_path):
    text = "{'loss': nan, 'kl': np.float64(0.5), 'x': None, 'y': inf, 'reward': tensor(0.25, device='cuda:0')}\n"
    scalars = console(tmp_path, text).read.records[1].scalars
    assert scalars["train/kl"] == 0.5 and scalars["train/y"] == float("inf") and scalars["train/reward"] == 0.25
    assert scalars["train/loss"] != scalars["train/loss"] and "train/x" not in scalars


def test_a_row_that_was_cut_off_is_left_out_and_told(tmp_path):
    found = console(tmp_path, f"{trl_row(1)}\n{bar(1)}\n{str(trl_row(2))[:60]}")
    assert list(found.read.records) == [1] and codes(found) == ["value-cut-off"]


def swift_row(step, speed=None, step_time=None, elapsed=None, **more):
    row = {"loss": 0.0, "learning_rate": 1e-06, "reward": 0.25, "completions/mean_length": 100.5, "epoch": 0.1}
    row |= {"global_step/max_steps": f"{step}/20", "memory(GiB)": 40.5}
    row |= {"train_speed(s/it)": speed} if speed is not None else {}
    row |= {"step_time": step_time} if step_time is not None else {}
    return row | ({"elapsed_time": elapsed} if elapsed is not None else {}) | more


def jsonl(tmp_path, rows):
    path = tmp_path / "logging.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return read_swift_jsonl(path)


TIMES = [40.25, 12.5, 11.75, 13.125]


def averages(start=0, times=TIMES):
    return [swift_row(start + n, round(sum(times[:n]) / n, 6)) for n in range(1, len(times) + 1)]


def test_step_times_are_differences_of_the_average_with_its_error(tmp_path):
    found = jsonl(tmp_path, averages())
    for step, took in enumerate(TIMES, start=1):
        record = found.read.records[step]
        assert abs(record.scalars[WALL] - took) <= record.rounding[WALL] * 1.000001
        assert record.rounding[WALL] == pytest.approx(5e-7 * (2 * step - 1))
        assert "train/train_speed(s/it)" not in record.scalars
    assert codes(found) == ["times-from-average"]


def test_its_megatron_trainer_tells_the_step_as_an_iteration(tmp_path):
    """ms-swift 4 (megatron/callbacks/print.py): the same rows on the console and in logging.jsonl."""
    rows = []
    for step in (1, 2, 3):
        row = swift_row(step, 10.0 + step, grad_norm=0.125)
        rows.append(row | {"iteration": row.pop("global_step/max_steps")})
    printed = console(
        tmp_path, "".join(f"{row}\n\rTrain:  15%|█▌ | {n}/20 [00:10<05:02]" for n, row in enumerate(rows, 1))
    )
    assert format_of(str(tmp_path / "train.log")) == printed.format == "swift-console"
    logged = jsonl(tmp_path, rows)
    for found in (printed, logged):
        assert {s: r.scalars[WALL] for s, r in found.read.records.items()} == pytest.approx({1: 11.0, 2: 13.0, 3: 15.0})


def test_its_megatron_trainer_of_3_prints_megatrons_line(tmp_path):
    """Of issue 8173 of ms-swift: the mean seconds since the line before, in milliseconds."""
    line = (
        " [2026-03-03 16:38:36] iteration        {}/     624 | consumed samples:          256 | elapsed time per "
        "iteration (ms): {} | memory(GiB): 83.46 | elapsed time: 3m {}s | remaining time: 16h 12m 43s | "
        "learning rate: 9.999746E-07 | loss: -2.529132E-02 | reward: 7.636719E-01 | "
        "completions/mean_length: 4.817969E+02 | grad norm: 75.173 | number of skipped iterations:   0 |\n"
    )
    found = console(tmp_path, line.format(2, 3988.6, 8) + line.format(3, 3953.8, 12))
    assert format_of(str(tmp_path / "train.log")) == found.format == "swift-console"
    assert {s: (r.scalars[WALL], r.rounding[WALL]) for s, r in found.read.records.items()} == {
        2: (pytest.approx(3.9886), pytest.approx(5e-5)),
        3: (pytest.approx(3.9538), pytest.approx(5e-5)),
    }
    record = found.read.records[3]
    assert record.scalars["train/completions/mean_length"] == 481.7969 and record.scalars["train/reward"] == 0.7636719
    assert record.scalars["train/grad_norm"] == 75.173 and record.elapsed_s == 192.0


def test_steps_per_second_are_of_all_steps_since_the_trainer_was_made(tmp_path):
    """ms-swift 3.0 to 3.12 (trainers/mixin.py, callback.py): a run that went on from step 100, with steps of 30 s. Its
    trainer was made 88 s before its training began, as in a public log of 3.7."""
    rows = []
    for step in (105, 110, 115):
        trained_s = 30 * (step - 100)
        row = swift_row(step, 1.0) | {"elapsed_time": f"{trained_s // 60}m {trained_s % 60}s"}
        del row["train_speed(s/it)"]
        rows.append(row | {"train_speed(iter/s)": round(step / (trained_s + 88), 6)})
    records = jsonl(tmp_path, rows).read.records
    assert [records[s].scalars[WALL] for s in (110, 115)] == pytest.approx([30.0, 30.0], abs=0.01)


def test_averages_of_a_restarted_run_begin_anew(tmp_path):
    again = [row for row in averages(start=2, times=[20.0, 21.0, 22.0])]
    for row, elapsed in zip(again, ("20s", "41s", "1m 3s"), strict=True):
        row["elapsed_time"] = elapsed
    found = jsonl(tmp_path, [*averages(), *again])
    times = {s: r.scalars[WALL] for s, r in found.read.records.items()}
    assert times == pytest.approx({1: 40.25, 2: 12.5, 3: 20.0, 4: 21.0, 5: 22.0}, abs=1e-4)
    assert [s for s, r in found.read.records.items() if r.resumed] == [3]


def timed(rows, times):
    """With the time since the start, as ms-swift tells it."""
    elapsed = [int(sum(times[:n])) for n in range(1, len(times) + 1)]
    return [row | {"elapsed_time": f"{e // 60}m {e % 60}s"} for row, e in zip(rows, elapsed, strict=True)]


@pytest.mark.parametrize("steps_timed", [False, True])
def test_a_run_that_went_on_right_behind_its_last_row_is_told_by_its_elapsed_time(tmp_path, steps_timed):
    """Also where the steps have times of their own: the first one behind a restart does not count."""
    times = [30.0, 20.0, 24.0, 20.0]
    rows = [*timed(averages(), TIMES), *timed(averages(start=4, times=times), times)]
    if steps_timed:
        rows = [row | {"step_time": 3.0} for row in rows]
    records = jsonl(tmp_path, rows).read.records
    assert [s for s, r in records.items() if r.resumed] == [5]
    if not steps_timed:
        assert [r.scalars[WALL] for r in records.values()] == pytest.approx([*TIMES, *times], abs=1e-4)


def test_an_excerpt_of_averages_was_not_logged_every_so_many_steps(tmp_path):
    """Steps 56 to 58 of a log: the first one's average is of all 56."""
    found = jsonl(tmp_path, [swift_row(step, 89.37 + step / 100) for step in (56, 57, 58)])
    assert [r.scalars.get(STEPS_LOGGED, 1) for r in found.read.records.values()] == [56, 1, 1]
    (told,) = [v.text for v in found.read.verdicts if v.code == "logging-window"]
    assert "every" not in told and "1 record of 3" in told and "56 steps" in told


def test_an_average_that_was_written_twice_is_one(tmp_path):
    rows = averages()
    records = jsonl(tmp_path, [*rows[:2], rows[1], *rows[2:]]).read.records
    assert [r.scalars[WALL] for r in records.values()] == pytest.approx(TIMES, abs=1e-4)


def test_averages_that_are_too_coarse_are_refused(tmp_path):
    rows = [as_texts(swift_row(s, 12.0 + 0.01 * s)) for s in range(2000, 2010)]
    with pytest.raises(UserError, match=r"only the average since the start.*took .* s, give or take"):
        jsonl(tmp_path, rows)


def test_trainer_state(tmp_path):
    history = [trl_row(s) | {"step": s} for s in (10, 20, 30)]
    history.insert(2, {"eval_reward": 0.5, "step": 20})
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": [*history, SUMMARY | {"step": 30}], "logging_steps": 10}, indent=2))
    found = read_trainer_state(path)
    assert list(found.read.records) == [10, 20, 30] and codes(found) == ["logging-window"]
    assert {r.scalars[STEPS_LOGGED] for r in found.read.records.values()} == {10.0}
    path.write_text(json.dumps({"log_history": [{"step": 3, "loss": 0.1, "step_time": 2.0}]}))
    alone = read_trainer_state(path)
    assert codes(alone) == [] and STEPS_LOGGED not in alone.read.records[3].scalars, "a single record says nothing"
    assert found.read.records[30].scalars["train/step_time"] == 3.25 and found.read.records[30].line == 4
    path.write_text("{}")
    with pytest.raises(UserError, match="has no log_history"):
        read_trainer_state(path)


@pytest.mark.parametrize(
    ("order", "windows"),
    [
        ([], []),
        ([5, 10, 15], [5, 5, 5]),
        ([1, 5, 10, 15], [1, 4, 5, 5]),
        ([5, 10, 15, 17], [5, 5, 5, 2]),
        ([5, 10, 20], [5, 5, 5]),
        ([10, 20, 50, 60], [10, 10, 10, 10]),
        ([1, 2, 3, 31, 32], [1, 1, 1, 1, 1]),
        ([5, 10, 15, 10, 15], [5, 5, 5, 5, 5]),
    ],
)
def test_how_many_steps_a_record_stands_for(order, windows):
    """The first record, logging_first_step, a last odd step, a log that begins later, holes, a restart, lines twice."""
    assert windows_of(order) == windows


def test_an_average_since_the_start_stands_for_all_steps_since_the_row_before(tmp_path):
    rows = [swift_row(step, 10.0 + 0.1 * step) for step in (5, 10, 20)]
    found = jsonl(tmp_path, rows)
    assert [r.scalars[STEPS_LOGGED] for r in found.read.records.values()] == [5, 5, 10]
    assert found.read.records[20].scalars[WALL] == pytest.approx((20 * 12 - 10 * 11) / 10)
    assert "every 5 to 10 steps" in next(v.text for v in found.read.verdicts if v.code == "logging-window")
