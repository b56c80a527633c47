"""The steps of TRL's rows where stdout came late: bars before them tell, or the whole training."""

import pytest

from common.errors import UserError
from trainers.logs.record import STEPS_LOGGED
from trainers.trl.console import read_trl_console

PLAN = "***** Running training *****\n  Num examples = 7,473\n  Num Epochs = 1\n  Total optimization steps = {:,}\n"


def bars(done, of, elapsed="33:20"):
    at = [(n * done // 4, "00:00" if n == 0 else "10:00" if n < 4 else elapsed) for n in range(5)]
    return "\r".join(f" {100 * n // of:3d}%|█▌   | {n}/{of} [{t}<05:02, 10.00s/it]" for n, t in at) + "\n"


def rows(steps, of=200):
    return "".join(
        f"{ {'loss': 0.5, 'reward': 0.25, 'step_time': 10.0, 'num_tokens': 1000.0 * s, 'epoch': round(s / of, 2)} }\n"
        for s in steps
    )


SUMMARY = "{'train_runtime': 2000.5, 'train_samples_per_second': 1.2, 'train_loss': 0.01, 'epoch': 1.0}\n"
KILLED = [(10, 5), (12, 6), (40, 20), (57, 28), (30, 10), (20, 8)]
EVERY_5 = range(5, 201, 5)


def read(tmp_path, text):
    path = tmp_path / "run.log"
    path.write_text(text)
    return read_trl_console(path).read


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (PLAN.format(200) + bars(200, 200) + rows(EVERY_5) + SUMMARY, EVERY_5),
        # As transformers is by default: the plan is not printed, and the bar ran as long as the training.
        (bars(200, 200) + rows(EVERY_5) + SUMMARY, EVERY_5),
        # A file of stdout with that of stderr behind it; bars switched off.
        (rows(EVERY_5) + SUMMARY + PLAN.format(200) + bars(200, 200), EVERY_5),
        # Ended early: the bar tells how far it came, whatever was planned.
        (PLAN.format(200) + bars(43, 200) + rows(range(5, 44, 5)) + SUMMARY, range(5, 44, 5)),
        # Killed, and each step has a row.
        (PLAN.format(200) + bars(40, 200) + rows(range(1, 41)), range(1, 41)),
        (
            PLAN.format(200)
            + "  Continuing training from global step 100\n"
            + bars(200, 200)
            + rows(range(105, 201, 5))
            + SUMMARY,
            range(105, 201, 5),
        ),
        # Resumed behind a step that is no multiple: rows 4 and 8 lie within 5 steps.
        (
            PLAN.format(8) + "  Continuing training from global step 3\n" + bars(8, 8) + rows([4, 8], 8) + SUMMARY,
            [4, 8],
        ),
    ],
)
def test_the_steps_of_the_whole_training_tell_those_of_its_rows(tmp_path, text, steps):
    found = read(tmp_path, text)
    assert list(found.records) == list(steps)
    assert {r.scalars.get(STEPS_LOGGED, 1.0) for r in found.records.values()} == {float(steps[1] - steps[0])}
    codes = [v.code for v in found.verdicts]
    assert codes == ["step-by-total"] + ["logging-window"] * (steps[1] - steps[0] > 1)


def test_rows_that_name_their_steps_have_them(tmp_path):
    text = "".join(f"{ {'step': n, 'reward': 0.25, 'step_time': 9.5 + n} }\n" for n in range(10, 101, 10))
    found = read(tmp_path, text)
    assert list(found.records) == list(range(10, 101, 10)) and "step-by-place" not in {v.code for v in found.verdicts}


def test_a_row_that_several_processes_print_is_one(tmp_path):
    text = "".join(f"{rank}: {row}\n" for row in rows(range(1, 9)).splitlines() for rank in range(4))
    assert list(read(tmp_path, text).records) == list(range(1, 9))


def test_bars_before_all_rows_have_the_seconds_of_their_steps(tmp_path):
    drawn = "".join(f" {n // 2}%|█▌  | {n}/200 [{n // 6:02d}:{n % 6 * 10:02d}<33:20, 10.00s/it]" for n in range(201))
    late = drawn + "\n" + rows(EVERY_5).replace("'step_time': 10.0, ", "") + SUMMARY
    found = read(tmp_path, late)
    seconds = {step: record.scalars["timing_s/wall"] for step, record in found.records.items()}
    assert seconds == dict.fromkeys(EVERY_5, 10.0)
    assert [v.code for v in found.verdicts] == ["step-by-total", "times-from-bars", "logging-window"]


@pytest.mark.parametrize(
    "text",
    [
        # Killed, or logged every 5 steps: nothing tells which.
        PLAN.format(200) + rows(range(1, 41)),
        # Resumed, and the log does not tell where: the epochs are none of steps 10, 20, ...
        bars(200, 200) + rows(range(105, 201, 5)) + SUMMARY,
        # Rows are missing; or more than one logging_steps makes one row.
        PLAN.format(200) + bars(200, 200) + rows(range(5, 96, 5)) + SUMMARY,
        # A bar of other work alone.
        bars(400, 400, "01:00") + rows(range(1, 41)) + SUMMARY,
        # Two plans.
        PLAN.format(200) + PLAN.format(400) + bars(200, 200) + rows(EVERY_5) + SUMMARY,
        # Killed with rows still in the buffer of stdout: steps 1 to 8 at logging_steps 1 look like every fifth of 43.
        PLAN.format(200) + bars(43, 200) + rows(range(5, 44, 5)),
        *(PLAN.format(200) + bars(done, 200) + rows(range(1, n + 1)) for done, n in KILLED),
        # The last rows alone, with epochs that are too small to tell.
        *(bars(200, 200) + rows(range(161, 201), of) + SUMMARY for of in (1_000_000, 20_000, 8_000)),
    ],
)
def test_what_does_not_tell_the_steps_leaves_the_rows_their_places(tmp_path, text):
    found = read(tmp_path, text)
    assert list(found.records) == list(range(1, len(found.records) + 1))
    (told,) = found.verdicts
    assert told.code == "step-by-place" and ("that were planned" in told.text) == ("Total" in text)


@pytest.mark.parametrize("of", [200, 1_000_000, 20_000])
@pytest.mark.parametrize("planned", [PLAN.format(200), ""])
def test_epochs_that_are_too_small_to_tell_leave_it_to_the_tokens(tmp_path, of, planned):
    found = read(tmp_path, planned + bars(200, 200) + rows(EVERY_5, of) + SUMMARY)
    assert list(found.records) == list(EVERY_5)
    without = rows(EVERY_5, of).replace("'num_tokens'", "'other'")
    found = read(tmp_path, planned + bars(200, 200) + without + SUMMARY)
    assert list(found.records) == list(EVERY_5 if of == 200 else range(1, 41))


@pytest.mark.parametrize("of", [200, 1_000_000, 20_000, 8_000])
def test_two_runs_behind_their_bars_are_not_taken_for_one(tmp_path, of):
    """Whether their epochs tell it, or are printed as 0.0 or 0.01."""
    one = PLAN.format(200) + bars(200, 200) + rows(EVERY_5, of) + SUMMARY
    with pytest.raises(UserError, match=r"holds several runs, or one that was started again: on line \d+ .*num_tokens"):
        read(tmp_path, one + one)


def bar(done):
    return f" 15%|█▌        | {done}/50 [00:53<04:09,  2.93s/it]"


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("begun", [0, 10])
@pytest.mark.parametrize("glue", ["", "\n", "\r" + " " * 80 + "\r"])
@pytest.mark.parametrize("bar_each_step", [False, True])
def test_a_bar_before_its_row_and_none_behind_it_tells_its_step(tmp_path, every, begun, glue, bar_each_step):
    """stdout came later than stderr: `15/100 [00:53<04:09,  2.93s/it]{'loss': 0.0, ...}`, and then `16/100`."""
    if glue and begun and every > 1 and bar_each_step:
        return  # Nothing tells these bars from those that are drawn behind a row.
    steps = [begun + every * n for n in (1, 2, 3, 4)]
    text = ""
    for step in range(begun + 1, steps[-1] + 1):
        if step in steps:
            text += bar(step) + glue + rows([step])
        elif bar_each_step:
            text += f"{bar(step)}\n"
    found = read(tmp_path, f"{text}{bar(steps[-1])}\n{SUMMARY}")
    assert list(found.records) == steps and not any(record.resumed for record in found.records.values())
    assert not {verdict.code for verdict in found.verdicts} & {"step-by-place", "duplicate-step"}


@pytest.mark.parametrize("behind", ["", bar(10) + "\n"])
def test_a_single_row_is_of_the_bar_on_its_line(tmp_path, behind):
    assert list(read(tmp_path, bar(9) + rows([9]) + behind).records) == [9]
