"""Offline folders of real runs of wandb: attempts, several runs, what wandb knows besides, calls of timers."""

import json
import math
import os
import sys
import time

import pytest

from analysis.imports.one_run import configurations
from analysis.sources.wandb_facts import git_in, hardware_in
from analysis.sources.wandb_files import read_wandb_offline_folder, records
from analysis.sources.wandb_rows import History, steps_of, steps_of_lives
from common.errors import UserError
from common.redaction import HIDDEN
from tests.patience import run

WRITER = """
import json, sys, wandb
for run_id, config, rows in json.load(open(sys.argv[1])):
    run = wandb.init(project="p", id=run_id, resume="allow", config=config,
                     settings=wandb.Settings(x_disable_stats=True, console="off"))
    for row in rows:
        run.log(row)
    run.finish()
"""
TIMER = "profiling/Time taken: GRPOTrainer."


def trl_step(step, generate=2.0, logps=(0.25, 0.5), policy=1.0, step_time=None):
    """The rows of one TRL step: every call of a timer in a row of its own, then transformers' row."""
    calls = [("vLLM.generate", generate), *(("_get_per_token_logps_and_entropies", s) for s in logps)]
    calls += [("_prepare_inputs", generate + sum(logps)), ("_get_per_token_logps_and_entropies", policy)]
    calls += [("compute_loss", policy + 0.125)]
    whole = generate + sum(logps) + policy + 0.125 if step_time is None else step_time
    logged = {"train/reward": 0.1 * step, "train/step_time": whole, "train/global_step": step}
    return [{TIMER + name: seconds} for name, seconds in calls] + [logged]


def evaluation(step):
    return [{TIMER + "vLLM.generate": 100.0}, {"eval/reward": 0.5, "eval/runtime": 101.0, "train/global_step": step}]


def flat(rows):
    return [row for step in rows for row in step]


CONFIG = {"algorithm": {"use_kl": False}, "hub_token": "hf_secret", "model": {"path": "https://me:pw@host/model"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A wandb folder with two attempts of run a (the second goes on from step 2), and one with another run besides."""
    root = tmp_path_factory.mktemp("wandb")
    first = ["a", CONFIG, flat([evaluation(0), *(trl_step(s) for s in (1, 2, 3)), evaluation(3)]) + trl_step(4)[:3]]
    second = ["a", CONFIG | {"algorithm": {"use_kl": True}}, flat([trl_step(s, generate=3.0) for s in (3, 4, 5)])]
    second[2].append({"train_runtime": 9.0, "train/reward": -1.0, "train/global_step": 5})
    for name, runs in (("one", [first, second]), ("two", [["a", {}, trl_step(1)], ["b", {}, trl_step(1)]])):
        (root / name).mkdir()
        (root / f"{name}.json").write_text(json.dumps(runs))
    # Offline folders are named by the second.
    for name, wait in (("one", "import time; time.sleep(1.1)"), ("two", "")):
        code = WRITER.replace("    run.finish()", f"    run.finish(); {wait}")
        env = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(root / name), "WANDB_SILENT": "true"}
        assert run([sys.executable, "-c", code, f"{root}/{name}.json"], 60, env=env, cwd=root).returncode == 0
    return root


@pytest.mark.full("many damaged files")
def test_calls_of_a_timer_are_summed_over_their_step_and_an_evaluations_are_not(folder):
    read = read_wandb_offline_folder(folder / "one").read
    assert list(read.records) == [1, 2, 3, 4, 5]
    scalars = read.records[2].scalars
    assert scalars[TIMER + "_get_per_token_logps_and_entropies"] == 0.25 + 0.5 + 1.0, (
        "two of old and ref, one of policy"
    )
    assert scalars[TIMER + "vLLM.generate"] == 2.0 and scalars["train/step_time"] == 3.875
    assert read.records[1].scalars[TIMER + "vLLM.generate"] == 2.0, "without the evaluation before training"


def test_the_later_attempt_counts_and_what_a_killed_one_had_begun_does_not(folder):
    read = read_wandb_offline_folder(folder / "one").read
    assert [read.records[s].scalars[TIMER + "vLLM.generate"] for s in (2, 3, 4, 5)] == [2.0, 3.0, 3.0, 3.0]
    assert [s for s, record in read.records.items() if record.resumed] == [3]
    assert read.records[5].scalars["train/reward"] == 0.5, "the closing summary does not replace the step's own value"
    assert [(v.level, v.code) for v in read.verdicts] == [("note", "duplicate-step")]
    assert "(3 to 3)" in read.verdicts[0].text and read.repeated == {3}
    assert read.records[3].time > read.records[2].time > 1.7e9
    record = read.records[4]
    row = next(content["item"] for n, _, content in records(record.file, "history") if n == record.line)
    assert row["train/global_step"] == 4, "a step knows its file and record"


def test_what_wandb_knows_of_the_run(folder):
    found = read_wandb_offline_folder(folder / "one")
    assert found.format == "wandb-offline"
    assert found.config["algorithm"] == {"use_kl": False} and "_wandb" not in found.config
    assert found.config["hub_token"] == HIDDEN and found.config["model"]["path"] == "https://[hidden]@host/model"
    assert found.versions["wandb"] == "0.31.0" and found.versions["python"].startswith("3.")
    assert found.hardware["host"]
    assert (folder / "one.json").stat().st_mtime - 1 < found.started < found.finished < time.time() + 1


def test_each_attempts_configuration_counts_from_its_first_step_on(folder):
    found = read_wandb_offline_folder(folder / "one")
    (later,) = found.later
    assert (later.from_step, later.config["algorithm"]) == (3, {"use_kl": True})
    first, (changed,) = configurations([found])
    assert first == found.config and changed["changed"] == {"algorithm.use_kl": [False, True]}


@pytest.mark.parametrize("name", ["one/wandb", "one"])
def test_the_folder_above_is_found_too(folder, name):
    assert list(read_wandb_offline_folder(folder / name).read.records) == [1, 2, 3, 4, 5]


def test_one_attempt_alone_by_folder_or_file(folder):
    first = sorted((folder / "one" / "wandb").glob("offline-run-*"))[0]
    assert list(read_wandb_offline_folder(first).read.records) == [1, 2, 3]
    assert list(read_wandb_offline_folder(next(first.glob("run-*.wandb"))).read.records) == [1, 2, 3]


@pytest.mark.parametrize("size", [0, 7])
def test_a_run_killed_before_wandb_wrote(folder, tmp_path, size):
    whole = next((folder / "two").glob("wandb/offline-run-*/run-a.wandb"))
    (tmp_path / "run-a.wandb").write_bytes(whole.read_bytes()[:size])
    with pytest.raises(UserError, match="has no record"):
        read_wandb_offline_folder(tmp_path)


def rows_of(listed, tmp_path):
    return ((tmp_path / "run.wandb", number, row) for number, row in enumerate(listed, start=1))


def test_rows_logged_every_ten_steps_are_means(tmp_path):
    listed = [{TIMER + "vLLM.generate": 1.0}] * 10 + [{"train/step_time": 1.5, "train/global_step": 10}]
    listed += [{TIMER + "vLLM.generate": 2.0}] * 10 + [{"train/step_time": 2.5, "train/global_step": 20}]
    read = steps_of(rows_of(listed, tmp_path), "log")
    assert {s: r.scalars[TIMER + "vLLM.generate"] for s, r in read.records.items()} == {10: 1.0, 20: 2.0}
    (verdict,) = read.verdicts
    assert verdict.code == "logging-window" and "every 10 steps" in verdict.text
    assert {r.scalars["steps_logged"] for r in read.records.values()} == {10.0}


GENERATE = TIMER + "vLLM.generate"


def call(seconds=10.0):
    return {GENERATE: seconds}


def logged(step, **more):
    return {"train/loss": 0.1, "train/step_time": 14.0, "train/global_step": step, **more}


def codes(read):
    return [verdict.code for verdict in read.verdicts]


@pytest.mark.parametrize("before", [{}, {"train/global_step": 0}])
def test_what_a_users_code_logs_within_a_step_takes_no_calls(tmp_path, before):
    """wandb fills in the step before; the row is of the next."""
    listed = []
    for step in (1, 2, 3):
        own = before and {"train/global_step": step - 1}
        users = [{"my_reward/format": 0.5, **own}, call(5.0) | own, {"eval/my_benchmark": 0.4 + step, **own}]
        listed += [call(), *users, logged(step)]
    read = steps_of(rows_of(listed, tmp_path), "log")
    assert [r.scalars[GENERATE] for r in read.records.values()] == [15.0] * 3 and not read.verdicts
    assert [r.scalars["train/step_time"] for r in read.records.values()] == [14.0] * 3
    assert read.records[1].scalars.get("my_reward/format") == (0.5 if before else None)
    assert read.records[1].scalars.get("eval/my_benchmark") == (2.4 if before else None)


def test_an_evaluation_among_the_steps_of_a_row(tmp_path):
    """Whose calls are thrown away with the evaluation's is not said: those after it are of the steps since then."""
    listed = []
    for step in range(1, 31):
        listed += [call()] + [logged(step)] * (step % 10 == 0) + evaluation(step) * (step % 5 == 0)
    read = steps_of(rows_of(listed, tmp_path), "log")
    assert {s: r.scalars[GENERATE] for s, r in read.records.items()} == {10: 10.0, 20: 10.0, 30: 10.0}
    assert {r.scalars["steps_logged"] for r in read.records.values()} == {10.0}
    assert codes(read) == ["logging-window", "evaluation-in-window"] and "of 5 of 10" in read.verdicts[1].text


@pytest.mark.parametrize("at", [2, 3])
def test_calls_that_an_evaluation_leaves_of_nobody_knows_how_many_steps(tmp_path, at):
    listed = [call(), logged(1), call(), *evaluation(at), call(3.0), logged(2), call(), logged(3)]
    read = steps_of(rows_of(listed, tmp_path), "log")
    found = [read.records[s].scalars[GENERATE] for s in (1, 2, 3)]
    assert found[::2] == [10.0, 10.0] and math.isnan(found[1]), "not 0 s of that step, which then does not count"
    assert codes(read) == ["calls-left-out"] and "1 step (2)" in read.verdicts[0].text


def test_a_single_row_does_not_tell_of_how_many_steps_its_calls_are(tmp_path):
    read = steps_of(rows_of([call(), call(), logged(31)], tmp_path), "log")
    assert GENERATE not in read.records[31].scalars and "steps_logged" not in read.records[31].scalars
    assert codes(read) == ["calls-left-out"]
    first = steps_of(rows_of([call(), call(), logged(1)], tmp_path), "log")
    assert first.records[1].scalars[GENERATE] == 20.0 and not first.verdicts
    evaluated = steps_of(rows_of([*evaluation(30), call(), call(), logged(32)], tmp_path), "log")
    assert evaluated.records[32].scalars[GENERATE] == 10.0


@pytest.mark.parametrize(("every", "last"), [(1, 31), (10, 40)])
def test_an_attempt_of_a_single_row_has_the_windows_of_the_others(tmp_path, every, last):
    def attempt(first, end):
        listed = flat([call()] + [logged(s)] * (s % every == 0) for s in range(first, end + 1))
        return History(rows_of(listed, tmp_path))

    scalars = steps_of_lives([attempt(1, 30), attempt(31, last)], "log").records[last].scalars
    assert scalars[GENERATE] == 10.0 and scalars.get("steps_logged", 1) == every


def verl_steps(steps, seconds):
    return [{"training/global_step": step, "timing_s/step": seconds} for step in steps]


def test_an_attempt_that_began_anew_leaves_out_those_before(tmp_path):
    lives = [verl_steps(range(1, 11), 10.0), verl_steps([8, 9], 20.0), verl_steps(range(1, 5), 50.0)]
    found = steps_of_lives([History(rows_of(life, tmp_path)) for life in lives], "wandb")
    assert {s: r.scalars["timing_s/step"] for s, r in found.records.items()} == dict.fromkeys((1, 2, 3, 4), 50.0)
    assert codes(found) == ["began-anew"] and "10 steps (1 to 10)" in found.verdicts[0].text and not found.repeated


def test_ms_swifts_calls_in_rows_of_several_steps_are_the_last_steps(tmp_path):
    key = TIMER + "generate"
    listed = [logged(step, **{key: 5.0, TIMER + "compute_loss": 1.0}) for step in (1, 5, 10, 15)]
    read = steps_of(rows_of(listed, tmp_path), "swift")
    for record in read.records.values():
        assert key not in record.scalars and record.scalars["last_call_s/generate"] == 5.0
        assert record.scalars["last_call_s/compute_loss"] == 1.0 and record.scalars["train/step_time"] == 14.0
    assert codes(read) == ["logging-window", "last-calls-only"]
    alone = steps_of(rows_of(listed[1:2], tmp_path), "swift")
    assert key not in alone.records[5].scalars and codes(alone) == ["last-calls-only"]


def test_rows_without_calls_are_means_too_and_verls_never(tmp_path):
    swift = [{"train/step_time": 1.5, "train/global_step": step} for step in (5, 10, 15)]
    read = steps_of(rows_of(swift, tmp_path), "log")
    assert [r.scalars["steps_logged"] for r in read.records.values()] == [5, 5, 5]
    assert [v.code for v in read.verdicts] == ["logging-window"]
    verl = [{"training/global_step": step, "timing_s/step": 3.0} for step in (5, 10, 15)]
    read = steps_of(rows_of(verl, tmp_path), "log")
    assert not read.verdicts and not any("steps_logged" in r.scalars for r in read.records.values())


def test_a_run_that_went_on_from_a_checkpoint_is_no_window(tmp_path):
    read = steps_of(rows_of(flat([trl_step(s) for s in (501, 502)]), tmp_path), "log")
    assert read.records[501].scalars[TIMER + "vLLM.generate"] == 2.0 and not read.verdicts


def test_a_restart_within_one_history(tmp_path):
    listed = flat([trl_step(s) for s in (1, 2, 3)]) + flat([trl_step(s, generate=5.0) for s in (2, 3, 4)])
    read = steps_of(rows_of(listed, tmp_path), "me/p/a")
    assert {s: r.scalars[TIMER + "vLLM.generate"] for s, r in read.records.items()} == {1: 2, 2: 5, 3: 5, 4: 5}
    assert [s for s, r in read.records.items() if r.resumed] == [2]
    (verdict,) = read.verdicts
    assert verdict.code == "duplicate-step" and "trained 2 steps (2 to 3) once more" in verdict.text


def test_ms_swifts_calls_are_in_the_row_itself(tmp_path):
    key = "profiling/Time taken: GRPOTrainer.generate"
    listed = [
        {key: 2.0, "train/loss": 0.5, "train/global_step": 1},
        {key: 100.0, "eval/reward": 0.5, "eval/runtime": 101.0, "train/global_step": 1},
        {key: 3.0, "train/loss": 0.5, "train/global_step": 2},
    ]
    read = steps_of(rows_of(listed, tmp_path), "swift")
    assert {s: r.scalars[key] for s, r in read.records.items()} == {1: 2.0, 2: 3.0} and not read.verdicts


def test_verls_rows_by_its_own_counter_or_wandbs(tmp_path):
    listed = [
        {"_step": 0, "val-core/acc": 0.1},
        {"_step": 1, "training/global_step": 1, "timing_s/step": 3.0},
        {"_step": 2, "timing_s/step": 4.0, "actor/lr": "NaN"},
    ]
    read = steps_of(rows_of(listed, tmp_path), "verl")
    assert {s: r.scalars["timing_s/step"] for s, r in read.records.items()} == {1: 3.0, 2: 4.0}


def test_metadata_of_a_gpu_node():
    """As wandb's server and its offline records spell it (wandb-metadata.json of 0.16 to 0.31)."""
    each = {"name": "NVIDIA H100 80GB HBM3", "memoryTotal": "85520809984", "cudaCores": 16896}
    about = {"host": "gpu1", "gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 2, "gpu_nvidia": [each, each]}
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory_gib": 79.6}
    assert hardware_in(about)["gpus"] == [gpu, gpu]
    assert hardware_in({"gpu": "NVIDIA A100", "gpu_count": 2, "memory": {"total": 251.5}}) == {
        "memory_gib": 251.5,
        "gpus": [{"name": "NVIDIA A100"}] * 2,
    }
    assert git_in({"git": {"remote": "https://u:t@host/x.git", "commit": "abc"}}) == {
        "remote": "https://[hidden]@host/x.git",
        "commit": "abc",
    }
    assert git_in({}) is None and hardware_in({}) == {}
