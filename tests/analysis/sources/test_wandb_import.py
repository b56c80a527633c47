"""Offline folders of real runs of wandb: attempts, several runs, what wandb knows besides, calls of timers."""

import json
import os
import sys
import time

import pytest

from analysis.imports.one_run import configurations
from analysis.sources.wandb_files import read_wandb_offline_folder, records
from analysis.sources.wandb_rows import History, steps_of_lives
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


def test_a_folder_above_has_all_attempts_and_an_attempts_folder_or_file_its_own(folder):
    first = sorted((folder / "one" / "wandb").glob("offline-run-*"))[0]
    assert list(read_wandb_offline_folder(folder / "one" / "wandb").read.records) == [1, 2, 3, 4, 5]
    for own in (first, next(first.glob("run-*.wandb"))):
        assert list(read_wandb_offline_folder(own).read.records) == [1, 2, 3]


@pytest.mark.parametrize("size", [0, 7])
def test_a_run_killed_before_wandb_wrote(folder, tmp_path, size):
    whole = next((folder / "two").glob("wandb/offline-run-*/run-a.wandb"))
    (tmp_path / "run-a.wandb").write_bytes(whole.read_bytes()[:size])
    with pytest.raises(UserError, match="has no record"):
        read_wandb_offline_folder(tmp_path)


def rows_of(listed, tmp_path):
    return ((tmp_path / "run.wandb", number, row) for number, row in enumerate(listed, start=1))


GENERATE = TIMER + "vLLM.generate"


def call(seconds=10.0):
    return {GENERATE: seconds}


def logged(step, **more):
    return {"train/loss": 0.1, "train/step_time": 14.0, "train/global_step": step, **more}


def codes(read):
    return [verdict.code for verdict in read.verdicts]


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


def test_counters_of_attempts_that_went_on_are_compared_too(tmp_path):
    def row(step, tokens, runtime, loss):
        return {"train/step_time": 3.0, "train/loss": loss, "train/num_tokens": tokens, "_runtime": runtime}

    first = [row(s, 100.0 * s, 3.0 * s, 0.5) | {"train/global_step": s} for s in (1, 2, 3)]
    for begins, tokens, expected in ((4, 400.0, []), (4, 50.0, ["counter-fell"]), (3, 300.0, ["duplicate-step"])):
        second = [row(begins, tokens, 3.0, 0.4) | {"train/global_step": begins}]
        found = steps_of_lives([History(rows_of(rows, tmp_path)) for rows in (first, second)], "run")
        assert [v.code for v in found.verdicts] == expected and found.records[begins].resumed
