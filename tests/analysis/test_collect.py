import json

import make_results
import pyarrow.parquet as pq
import pytest
from make_results import collected
from roofline_results import row as verl_row

from analysis.collect import main
from analysis.steps import METADATA_KEY, SCHEMA
from trainers.registry import nearest_tree

pytestmark = pytest.mark.promise("a-number-that-differs")

GEN = "step/training_step/prepare_inputs/generate"


def a_row(step, gen_s=1.0, **more):
    return make_results.metrics_row(step, make_results.phases_from_leaves(make_results.leaves(gen_s), 0.01), **more)


def failure(run_dir, capsys):
    assert main([str(run_dir), "--out", str(run_dir / "steps.parquet")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "Traceback" not in error
    assert not (run_dir / "steps.parquet").exists()
    return error


def codes(metadata):
    return [v["code"] for v in metadata["verdicts"]]


def test_one_attempt(tmp_path):
    run_dir = make_results.write_run(tmp_path, "r", "vllm", 3, [[a_row(1, 1 / 3), a_row(2)]])
    frame, metadata = collected(run_dir)
    assert pq.read_schema(run_dir / "steps.parquet").remove_metadata() == SCHEMA
    assert METADATA_KEY in pq.read_schema(run_dir / "steps.parquet").metadata
    assert metadata == {"timers": "trl 1.16", "attempts": [1], "verdicts": []}
    gen = frame[(frame["name"] == GEN) & (frame["step"] == 1)].iloc[0]
    assert gen["value"] == 1 / 3 and gen["exclusive_s"] == 1 / 3 and gen["unit"] == "s"
    assert gen["parent"] == "step/training_step/prepare_inputs"
    assert (gen["arm"], gen["seed"], gen["attempt"]) == ("vllm", 3, 1)
    assert (gen["source_file"], gen["source_line"]) == ("attempts/1/metrics.jsonl", 1)
    assert frame[(frame["kind"] == "sample") & (frame["step"] == 2)]["value"].tolist() == [10, 20, 30, 40]
    phases = frame[frame["kind"] == "phase"]
    for _, step in phases.groupby("step"):
        root = step.loc[step["name"] == "step", "value"].iloc[0]
        assert step["exclusive_s"].sum() == pytest.approx(root, abs=1e-9)
    assert frame.loc[frame["name"] == "response_tokens", "unit"].unique().tolist() == ["tokens"]


@pytest.mark.promise("the-report-shows-a")
def test_attempts_on_other_data_or_after_the_finished_one_are_left_out(tmp_path):
    """Data A, then B, then A again: A's done.json must not be told with B's timings."""
    rows = [[a_row(1, 1.0), a_row(2, 1.0)], [a_row(1, 2.0), a_row(2, 2.0)], [a_row(1, 3.0), a_row(2, 3.0)]]
    run_dir = make_results.write_run(tmp_path, "r", "vllm", 0, rows)
    other = json.loads((run_dir / "attempts" / "2" / "attempt.json").read_text())
    other["inputs_sha256"] = other["inputs_sha256"] | {"data_sha256": "b" * 64}
    (run_dir / "attempts" / "2" / "attempt.json").write_text(json.dumps(other))
    done = json.loads((run_dir / "done.json").read_text())
    (run_dir / "done.json").write_text(json.dumps(done | {"attempt": 1}))
    frame, metadata = collected(run_dir)
    assert set(frame["attempt"]) == {1}
    assert codes(metadata) == ["other-inputs", "later-attempt"]
    (run_dir / "done.json").write_text(json.dumps(done | {"attempt": 3}))
    frame, metadata = collected(run_dir)
    assert set(frame["attempt"]) == {3}
    assert codes(metadata) == ["other-inputs", "overlap"]


def test_last_attempt_that_has_the_step_counts(tmp_path):
    first = [a_row(s, 1.0) for s in (1, 2, 3, 4)]
    second = [a_row(3, 2.0, resumed=True), a_row(4, 2.0), a_row(5, 2.0)]
    run_dir = make_results.write_run(tmp_path, "r", "vllm", 0, [first, second])
    frame, metadata = collected(run_dir)
    gen = frame[frame["name"] == GEN].set_index("step")
    assert gen["attempt"].to_dict() == {1: 1, 2: 1, 3: 2, 4: 2, 5: 2}
    assert gen["value"].to_dict() == {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0, 5: 2.0}
    assert gen["overlap"].to_dict() == {1: False, 2: False, 3: True, 4: True, 5: False}
    assert gen["resumed"].to_dict() == {1: False, 2: False, 3: True, 4: False, 5: False}
    assert codes(metadata) == ["overlap"]


def test_lines_of_a_validation_only_are_no_training_steps(tmp_path):
    """verl logs its validation before training at step 0, and after a resume at the step that was resumed from."""
    seconds = {"timing_s/gen": 8.0, "timing_s/step": 9.0}
    validation = verl_row(0, {"val-core/acc": 0.1})
    first = [validation, verl_row(1, seconds), verl_row(2, seconds)]
    second = [validation | {"step": 2, "resumed": True}, verl_row(3, seconds) | {"resumed": True}]
    spec = {"trainer": "verl", "trainer_args": {"version": "0.4.1", "overrides": []}}
    done = {"versions": {"verl": "0.4.1"}, "resolved": {}}
    made = make_results.write_run(tmp_path, "r", "vllm", 0, [first, second], spec_more=spec, done_more=done)
    frame, metadata = collected(made)
    assert not metadata["verdicts"] and frame.groupby("step")["attempt"].first().to_dict() == {1: 1, 2: 1, 3: 2}
    assert frame.groupby("step")["resumed"].first().to_dict() == {1: False, 2: False, 3: True}


@pytest.mark.promise("the-report-shows-a")
def test_attempts_of_another_fingerprint_are_left_out(tmp_path):
    run_dir = make_results.write_run(
        tmp_path, "r", "vllm", 0, [[a_row(1)], [a_row(1, 9.0)]], done_more={"last_step": 1}
    )
    order = run_dir / "attempts" / "2" / "attempt.json"
    order.write_text(json.dumps({"fingerprint": "0" * 64}))
    (run_dir / "attempts" / "3").mkdir()
    frame, metadata = collected(run_dir)
    assert frame["attempt"].unique().tolist() == [1]
    assert codes(metadata) == ["other-fingerprint", "no-attempt-json"]


def test_missing_steps_are_an_error(tmp_path, capsys):
    run_dir = make_results.write_run(tmp_path, "r", "vllm", 0, [[a_row(1), a_row(4)]])
    assert "2 of its 4 steps" in (error := failure(run_dir, capsys)) and "missing: 2, 3" in error


def test_steps_beyond_the_last_are_an_error(tmp_path, capsys):
    run_dir = make_results.write_run(tmp_path, "r", "vllm", 0, [[a_row(1), a_row(2)]], done_more={"last_step": 1})
    assert "have step 2" in failure(run_dir, capsys)


@pytest.mark.parametrize("name", ["spec.json", "done.json"])
@pytest.mark.parametrize(
    ("content", "said"), [(None, "is not there"), ("{", "is not JSON"), ("[]", "must be a JSON object")]
)
def test_bad_files_are_errors(tmp_path, capsys, name, content, said):
    run_dir = make_results.write_run(tmp_path, "r", "vllm", 0, [[a_row(1)]])
    (run_dir / name).unlink() if content is None else (run_dir / name).write_text(content)
    error = failure(run_dir, capsys)
    assert said in error and name in error


def test_done_of_another_fingerprint_is_an_error(tmp_path, capsys):
    run_dir = make_results.write_run(tmp_path, "r", "vllm", 0, [[a_row(1)]], done_more={"fingerprint": "0" * 64})
    assert "the plan changed after the run" in failure(run_dir, capsys)


@pytest.mark.parametrize("version", ["1.12.0", "1.99.0", "2.0.0", "main"])
def test_a_finished_run_is_collected_whatever_its_trainers_release(tmp_path, version):
    row = a_row(2)
    row["phases"] |= {"step/new_timer": 0.001}
    run_dir = make_results.write_run(
        tmp_path, "r", "vllm", 0, [[a_row(1), row]], done_more={"versions": {"trl": version}}
    )
    frame, metadata = collected(run_dir)
    told = {verdict["code"]: verdict["text"] for verdict in metadata["verdicts"]}
    assert list(told) == ["release-undeclared", "undeclared-phase"]
    assert f"the timers of trl {version} are not declared" in told["release-undeclared"]
    assert "read as those of trl 1." in told["release-undeclared"]
    declared = collected(make_results.write_run(tmp_path / "declared", "r", "vllm", 0, [[a_row(1), row]]))[0]
    assert frame["value"].tolist() == declared["value"].tolist()


@pytest.mark.parametrize(
    ("trainer", "version", "engine", "mode", "tree"),
    [
        ("verl", "0.9.0", "vllm", "", "verl 0.9.1"),
        ("verl", "0.9.0", "vllm", "separate_async", "verl 0.9.1 separate_async"),
        ("verl", "0.4.2", "sglang", "", "verl 0.4.1"),
        ("verl", "0.10.0.dev3", "lmdeploy", "", "verl 0.9.1"),
    ],
)
def test_an_undeclared_release_has_the_tree_of_the_nearest(trainer, version, engine, mode, tree):
    assert nearest_tree(trainer, version, engine, mode).name == tree


def test_undeclared_phase_is_kept_and_named(tmp_path):
    row = a_row(1)
    row["phases"] |= {"step/validate": 0.5, "save": 0.1}
    row["phases"]["step"] += 0.5
    run_dir = make_results.write_run(tmp_path, "r", "vllm", 0, [[row]])
    frame, metadata = collected(run_dir)
    assert frame.loc[frame["name"] == "step/validate", "value"].tolist() == [0.5]
    assert frame.loc[frame["name"] == "save", "parent"].isna().all()
    assert codes(metadata) == ["undeclared-phase", "undeclared-phase", "outside-step"]


def test_responses_that_the_engine_shortened_are_a_warning(tmp_path):
    rows = [a_row(1), a_row(2), a_row(3)]
    rows[1]["scalars"]["shortened_responses"] = 5
    rows[2]["scalars"]["shortened_responses"] = 1
    _, metadata = collected(make_results.write_run(tmp_path, "r", "sglang", 0, [rows]))
    (warning,) = metadata["verdicts"]
    assert (warning["level"], warning["code"]) == ("warning", "responses-shortened")
    assert "r: the engine shortened 6 responses in 2 steps (2, 3)" in warning["text"]
    assert "lower workload.max_response_length" in warning["text"]


def test_children_that_exceed_their_parent_are_named(tmp_path):
    row = a_row(1)
    row["phases"]["step/training_step"] -= 0.05
    run_dir = make_results.write_run(tmp_path, "r", "vllm", 0, [[row]])
    _, metadata = collected(run_dir)
    (verdict,) = metadata["verdicts"]
    assert verdict["code"] == "children-exceed-parent" and verdict["level"] == "error"
    assert "r, step 1" in verdict["text"] and "step/training_step" in verdict["text"]
    assert "the step is left out" in verdict["text"]
