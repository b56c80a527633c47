"""The logs of trainers that are only imported: NeMo-RL, OpenRLHF, SkyRL, slime; of AReaL, ROLL, prime-rl, wandb's."""

import json

import pytest

from analysis.imports.formats import format_of, read_source
from analysis.sources.wandb_api import RUN_FILE
from common.errors import UserError
from tests.analysis.imports_of import run_of
from tests.analysis.sources.other_logs import (
    NEMO,
    NEMO_ASYNC,
    SLIME,
    SLIME_ROLLOUT,
    nemo_block,
    openrlhf_line,
    skyrl_block,
    skyrl_timer,
    skyrl_timers,
    slime_lines,
)
from trainers.logs.record import TIMERS
from trainers.registry import trainer_named, tree_for
from trainers.timers.exclusive import exclusive_s
from trainers.timers.flat import nest_timers


def read(tmp_path, text):
    log = tmp_path / "run.log"
    log.write_text(text)
    return read_source(str(log), None, (), tmp_path)


def imported(folder, source, trainer, version, engine="vllm"):
    """The table of a run, and what is said of it."""
    run = run_of(folder, [source], trainer, engine, version=version, arm="a")
    return run.table, run.timers, set(run.verdicts)


def divided(found, step, trainer, version, engine="vllm"):
    """A step's own seconds by path, which are the step; the timers that no tree declares."""
    tree = tree_for(trainer, version, engine)
    parts = nest_timers(found.read.records[step].scalars, tree)
    own = exclusive_s(parts.phases)
    inside = {path: value for path, value in own.items() if path.startswith("step")}
    assert sum(inside.values()) == pytest.approx(parts.phases["step"])
    return own, parts.undeclared


@pytest.mark.parametrize("print_step", [nemo_block, lambda step: slime_lines(step - 1)])
def test_lines_that_several_processes_print_are_one_step(tmp_path, print_step):
    once = [print_step(step).replace("35.70s", f"{30 + step}.00s") for step in (1, 2, 3)]
    twice = "".join(f"{line}\n{line}\n" for step in once for line in step.splitlines())
    found, right = (read(tmp_path, text).read.records for text in (twice, "".join(once)))
    assert [(one.step, one.scalars) for one in found.values()] == [(one.step, one.scalars) for one in right.values()]
    assert not any(one.resumed for one in found.values())


def test_the_steps_of_nemo_rls_epochs_go_on(tmp_path):
    def epoch(number, *steps):
        return f"{'=' * 25} Epoch {number}/9 {'=' * 25}\n" + "".join(nemo_block(s, 50) for s in steps)

    def steps(text):
        return list(read(tmp_path, text).read.records)

    assert steps(epoch(1, 1, 2) + epoch(2, 1, 2) + epoch(3, 1)) == [1, 2, 3, 4, 5]
    assert steps(epoch(3, 1, 2)) == [101, 102], "a log that begins in the third epoch"
    found = read(tmp_path, epoch(1, 1, 2, 3) + epoch(1, 3, 4).replace("35.70s", "35.80s"))
    assert list(found.read.records) == [1, 2, 3, 4] and found.read.records[3].resumed
    with pytest.raises(UserError, match="holds several runs"):
        steps(epoch(1, 1, 2) + epoch(1, 1, 2).replace("35.70s", "35.80s"))


def test_a_block_without_its_first_line_is_the_step_behind_and_none_before_the_first_that_has_one(tmp_path):
    """A log that was cut at its head, and of which a line was lost."""
    again = NEMO.replace("35.70s", "36.25s")
    found = read(tmp_path, NEMO + nemo_block(6, 50) + again + nemo_block(8, 50))
    assert {s: r.scalars["timing_s/total_step_time"] for s, r in found.read.records.items()} == {
        6: 35.7,
        7: 36.25,
        8: 35.7,
    }
    assert list(read(tmp_path, NEMO + f"{'=' * 25} Epoch 2/9 {'=' * 25}\n" + nemo_block(1, 50)).read.records) == [51]


def test_nemo_rls_controller_names_a_step_below_its_block(tmp_path):
    text = "".join(f"{NEMO}train step {step}/50  trainer_v={step}  lag=1  \n" for step in (41, 42, 43))
    found = read(tmp_path, text)
    assert list(found.read.records) == [41, 42, 43] and not found.read.verdicts


def test_a_validation_in_nemo_rls_step_makes_it_no_ordinary_one(tmp_path):
    validated = "📊 Validation Results:\n    • Accuracy: 0.5000\n  ⏱️  Validation Timing:\n"
    validated += "    • Total validation time: 5.25s\n" + NEMO
    (tmp_path / "a.log").write_text(nemo_block(1) + nemo_block(2, block=validated) + nemo_block(3))
    table, tree, codes = imported(tmp_path, str(tmp_path / "a.log"), "nemo-rl", "0.5.0")
    assert tree == "nemo-rl 0.5" and "undeclared-phase" not in codes
    assert table[table["name"] == "step/validation"]["value"].tolist() == [5.25]


def test_nemo_rls_asynchronous_loop_is_told_by_its_timers_and_has_a_step_alone(tmp_path):
    (tmp_path / "a.log").write_text("".join(nemo_block(step, block=NEMO_ASYNC) for step in (1, 2)))
    table, tree, codes = imported(tmp_path, str(tmp_path / "a.log"), "nemo-rl", "0.4.0")
    assert tree == "nemo-rl 0.4 async" and {"mode-by-timers", "overlapping-phases"} <= codes
    values = table[table["step"] == 2].set_index("name")["value"]
    assert values["step"] == 66.55 and values["overlapping_s/exposed_generation"] == 32.52


def test_openrlhfs_lines_are_steps_and_their_total_is_the_sum_of_four(tmp_path):
    lines = [openrlhf_line(step) for step in (1, 2, 3)]
    (tmp_path / "a.log").write_text("".join(["Eval\n", *lines[:2], lines[2].replace("step 3:", "step 3 [replay]:")]))
    found = read_source(str(tmp_path / "a.log"), None, (), tmp_path)
    assert found.format == "openrlhf-console" and list(found.read.records) == [1, 2, 3]
    assert found.read.records[3].scalars["train/reward"] == 0.5 and not found.read.records[3].rounding
    own, undeclared = divided(found, 3, "openrlhf", "0.9.10")
    assert own["step/generation"] == 31.5 and own["step"] == pytest.approx(0.0) and not undeclared
    _, tree, codes = imported(tmp_path, str(tmp_path / "a.log"), "openrlhf", "0.9.10")
    assert tree == "openrlhf 0.9.10" and "step-no-clock" in codes and not codes & {"undeclared-phase", "mode-by-timers"}


@pytest.mark.parametrize("row", [openrlhf_line, lambda step: slime_lines(step - 1)])
def test_a_row_that_a_terminal_wrapped_is_one(tmp_path, row):
    whole = "".join(row(step) for step in (1, 2, 3))
    pieces = (line[at : at + 150] for line in whole.splitlines() for at in range(0, len(line), 150))
    plain, wrapped = (read(tmp_path, text).read.records for text in (whole, "\n".join(pieces) + "\n"))
    assert list(wrapped) == [1, 2, 3]
    assert [one.scalars for one in wrapped.values()] == [one.scalars for one in plain.values()]


def test_openrlhfs_asynchronous_total_is_a_clock_and_no_sum(tmp_path):
    lines = "".join(openrlhf_line(s, **{"timing/step_total": 40.5}).replace("✨ ", "") for s in (1, 2))
    (tmp_path / "a.log").write_text(lines)
    table, tree, codes = imported(tmp_path, str(tmp_path / "a.log"), "openrlhf", "0.11.0")
    assert tree == "openrlhf 0.11 async" and {"mode-by-timers", "overlapping-phases"} <= codes
    assert "step-no-clock" not in codes
    assert table[table["name"] == "step"]["value"].tolist() == [40.5, 40.5]


def test_openrlhf_before_its_timers_has_no_steps(tmp_path):
    line = "✨ Global step 3: {'policy_loss': 0.1, 'actor_lr': 1e-06}\n"
    with pytest.raises(UserError, match="none of its rows has timing/step_total, the time of the whole step"):
        read(tmp_path, line)


@pytest.mark.parametrize("form", [skyrl_block, lambda step: skyrl_timers()])
def test_skyrls_console_is_read_as_its_tracker_or_its_timers_print_it(tmp_path, form):
    found = read(tmp_path, "".join(form(step) for step in (1, 2, 3)))
    assert found.format == "skyrl-console" and list(found.read.records) == [1, 2, 3]
    own, undeclared = divided(found, 2, "skyrl", "0.2.0")
    assert own["step/generate"] == 131.71 and own["step/train_critic_and_policy"] == pytest.approx(0.25)
    assert own["step"] == pytest.approx(142.27 - 131.71 - 2.75 - 5.87) and not undeclared
    by_place = [verdict.code for verdict in found.read.verdicts]
    assert by_place == (["step-by-place"] if form is not skyrl_block else [])
    half = 0.00005 if form is skyrl_block else 0.005
    assert found.read.records[2].rounding["timing_s/generate"] == pytest.approx(half)


def test_skyrls_steps_go_on_from_the_checkpoint_and_hold_what_was_thrown_away(tmp_path):
    begins = (
        skyrl_timer("init_weight_sync_state") + "Resuming from global_step: 40\n" + skyrl_timer("sync_weights", 9.0)
    )
    found = read(tmp_path, begins + skyrl_timers(thrown_away=2) + skyrl_timer("eval", 30.0) + skyrl_timers())
    assert {step: record.resumed for step, record in found.read.records.items()} == {41: True, 42: False}
    first = found.read.records[41].scalars
    assert first["timing_s/step"] == pytest.approx(142.27 + 2 * 50.5) and first["timing_s/generate"] == 231.71
    assert first["timing_s/sync_weights"] == 5.87, "the hand-over before the first step is no part of it"
    assert found.read.records[41].rounding["timing_s/step"] == pytest.approx(0.015)
    assert TIMERS + "eval" not in found.read.records[42].scalars


def test_a_step_of_skyrls_tracker_after_a_restart_is_told(tmp_path):
    lives = [skyrl_block(1) + skyrl_block(2), "Resuming from global_step: 2\n" + skyrl_block(3) + skyrl_block(4)]
    found = read(tmp_path, "".join(lives))
    assert [step for step, record in found.read.records.items() if record.resumed] == [3]


def test_the_step_behind_slimes_evaluation_is_no_ordinary_one(tmp_path):
    evaluation = "[2026-01-05 12:20:29] rollout.py:1100 - eval 0: {'eval/aime': 0.25}\n"
    (tmp_path / "a.log").write_text(slime_lines(0) + evaluation + slime_lines(1) + slime_lines(2))
    table, _, _ = imported(tmp_path, str(tmp_path / "a.log"), "slime", "0.3.1", "sglang")
    assert table[table["name"] == "step/train_wait/evaluation"]["step"].tolist() == [2]
    rows = SLIMES
    place = next(n for n, row in enumerate(rows) if row["rollout/step"] == 1)
    rows = [*rows[:place], {"eval/step": 0, "eval/aime": 0.25, "_step": 4}, *rows[place:]]
    table, _, _ = imported(tmp_path, in_wandb(tmp_path, rows), "slime", "0.3.1", "sglang")
    assert table[table["name"] == "step/train_wait/evaluation"]["step"].tolist() == [2]


def test_slimes_rollout_beside_the_training_is_asynchronous(tmp_path):
    (tmp_path / "a.log").write_text("".join(slime_lines(rollout, 400.0) for rollout in (0, 1)))
    _, tree, codes = imported(tmp_path, str(tmp_path / "a.log"), "slime", "0.2.2", "sglang")
    assert tree == "slime 0.2 async" and {"mode-by-timers", "overlapping-phases"} <= codes


SKYRL = [{"_step": s, "timing/step": 142.27, "timing/generate": 131.71, "trainer/global_step": s} for s in (1, 2, 3)]
SLIMES = [
    row | {"rollout/step": s, "_step": 5 * s + n}
    for s in (0, 1, 2)
    for n, row in enumerate(({"perf/rollout_time": 330.5}, SLIME_ROLLOUT, SLIME))
]


def in_wandb(folder, rows):
    cache = folder / "me" / "p" / "a"
    cache.mkdir(parents=True)
    (cache / RUN_FILE).write_text(json.dumps({"complete": True, "rows": len(rows), "history_lines": len(rows)}))
    (cache / "history-000000000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "wandb:me/p/a"


def test_rows_tell_their_trainer(tmp_path):
    source = in_wandb(tmp_path, SKYRL)
    with pytest.raises(UserError, match=r"is a run of SkyRL \(by the names in its rows\), and arm a says"):
        imported(tmp_path, source, "openrlhf", "0.11.0")


def test_a_name_of_theirs_in_anothers_history_is_no_row_of_theirs(tmp_path):
    rows = [
        {"_step": s, "training/global_step": s, "timing_s/step": 18.5, "timing_s/gen": 12.5, "timing/step": 1.0}
        for s in (1, 2, 3)
    ]
    rows[2:2] = [{"_step": 2, "rollout/step": 7, "perf/step_time": 1.0}]
    table, tree, _ = imported(tmp_path, in_wandb(tmp_path, rows), "verl", "0.4.1")
    assert tree == "verl 0.4.1"
    assert table[table["name"] == "step"]["value"].tolist() == [18.5] * 3


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("areal", "20260101-00:00:00 StatsLogger INFO: Epoch 1/3 Step 4/10 Train step 4/30 done.\n"),
        ("prime-rl", "12:00:00 SUCCESS Step 3 | Time: 12.34s | Loss: 0.0012 | Entropy: 0.5\n"),
        ("roll", "[2026-01-01 00:00:00] [rlvr_pipeline.py (487)] [INFO] [] pipeline step 3 start...\n"),
    ],
)
def test_a_console_that_is_not_read_is_named_with_the_way_to_its_run(tmp_path, name, line):
    log = tmp_path / "run.log"
    log.write_text("starting\n(TaskRunner pid=1) \x1b[32m" + line)
    with pytest.raises(UserError) as caught:
        format_of(str(log))
    said = str(caught.value)
    shown = trainer_named(name).label or name
    assert f"looks like {shown}'s console, which is not read" in said and "wandb:" in said and "column parent" in said
