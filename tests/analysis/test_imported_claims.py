"""Sources that are of another trainer or engine than their arm says."""

import json

import pyarrow as pa
import pytest

from analysis.imports.import_run import import_run
from analysis.imports.source_check import require_of_arm
from common.errors import UserError
from common.files import fingerprint_of
from trainers.logs.record import Imported, SourceRead
from trainers.timers.lookup import tree_for

VERL = "step:1 - timing_s/gen:1.500 - timing_s/step:2.000\n"
TRL = "{'loss': 0.0, 'reward': 0.25, 'step_time': 3.25, 'learning_rate': 1e-06}\n"
SWIFT = "{'loss': 0.0, 'step_time': 3.25, 'global_step/max_steps': '1/20'}\n"
STATE = json.dumps({"log_history": [{"step": 1, "loss": 0.0, "step_time": 3.0}]})
# As main_ppo.py prints it.
VERL_SGLANG = "{'actor_rollout_ref': {'rollout': {'name': 'sglang'}},\n 'trainer': {'n_gpus_per_node': 8}}\n" + VERL


def run_of(tmp_path, text, trainer, engine="vllm", version="0.4.1", arm="one", name="run.log"):
    source = tmp_path / name
    source.write_text(text)
    facts = {"sources": [str(source)], "version": version, "mode": "", "format": None}
    spec = {"run_id": f"{arm}-s0", "arm": arm, "trainer": trainer, "engine": engine, "seed": 0, "factors": {}}
    spec |= {"experiment": "x", "stack": "", "import": facts}
    tables, end = import_run(spec | {"fingerprint": fingerprint_of(spec)}, tmp_path / "out")
    return pa.concat_tables(tables), end


def refused(tmp_path, *args, **more):
    with pytest.raises(UserError) as caught:
        run_of(tmp_path, *args, **more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "trainer", "version", "what"),
    [
        (VERL, "trl", "1.0.0", "run.log is verl's console log, and arm one says trainer: trl"),
        (TRL, "verl", "0.4.1", "run.log is TRL's console log, and arm one says trainer: verl"),
        (SWIFT, "trl", "1.0.0", "run.log is ms-swift's console log, and arm one says trainer: trl"),
        (STATE, "verl", "0.4.1", "run.log is trainer_state.json of transformers' Trainer, and arm one says"),
    ],
)
def test_the_log_of_another_trainer_is_told_before_its_timers(tmp_path, text, trainer, version, what):
    said = refused(tmp_path, text, trainer, version=version)
    assert what in said and "arms.one.import" in said and "arms.one.trainer" in said and len(said) < 350


def test_a_log_whose_configuration_names_another_engine_is_refused(tmp_path):
    said = refused(tmp_path, VERL_SGLANG, "verl")
    assert "run.log has the configuration of a run with actor_rollout_ref.rollout.name: sglang" in said
    assert "arm one says engine: vllm. Were the sources of two arms swapped?" in said
    run_of(tmp_path, VERL_SGLANG, "verl", "sglang")


def test_a_table_of_another_engine_alone_is_refused(tmp_path):
    table = "engine,step,phase,seconds\nsglang,1,step,2.0\nsglang,1,gen,1.5\n"
    said = refused(tmp_path, table, "verl", name="a.csv")
    assert "a.csv has only rows of engine sglang for this run, and arm one says engine: vllm" in said
    run_of(tmp_path, table, "verl", "sglang", name="a.csv")


@pytest.mark.parametrize(
    ("config", "trainer", "engine", "says"),
    [
        ({"actor_rollout_ref.rollout.name": "sglang_async"}, "verl", "vllm", "engine: vllm"),
        ({"actor_rollout_ref": {"rollout": {"name": "sglang_async"}}}, "verl", "sglang", None),
        ({"actor_rollout_ref": {"rollout": {"name": "${x}"}}}, "verl", "vllm", None),
        ({"actor_rollout_ref": {}}, "trl", "vllm", "trainer: trl"),
        ({"use_vllm": True}, "trl", "vllm", None),
        ({"use_vllm": True}, "swift", "transformers", "engine: transformers"),
        ({"use_vllm": False}, "trl", "vllm", "engine: vllm"),
        ({"use_vllm": False}, "verl", "vllm", "trainer: verl"),
        ({}, "verl", "vllm", None),
    ],
)
def test_what_wandbs_configuration_says(config, trainer, engine, says):
    spec = {"arm": "one", "trainer": trainer, "engine": engine}
    parts = [("wandb:a/b/c", Imported(SourceRead(), "wandb", config=config))]
    if says is None:
        require_of_arm(spec, parts)
        return
    with pytest.raises(UserError, match=f"wandb:a/b/c .* and arm one says {says}"):
        require_of_arm(spec, parts)


def test_a_missing_tree_names_what_is_near_and_denies_nothing_that_it_lists():
    with pytest.raises(UserError) as caught:
        tree_for("trl", "1.0.0", "vllm")
    said = str(caught.value)
    assert "trl 1.0 native with transformers/vllm: that release with vllm only in mode native, not in the def" in said
    assert "verl" not in said and "1.16" not in said
    with pytest.raises(UserError, match=r"\(declared: those of trainers trl, verl, swift, replay, nemo-rl, "):
        tree_for("nemo", "1", "vllm")


@pytest.mark.parametrize(
    ("text", "trainer"), [(TRL, "trl"), (STATE, "trl"), (SWIFT, "swift"), (SWIFT.replace("'", '"'), "swift")]
)
def test_a_log_of_the_step_alone_needs_no_declared_release(tmp_path, text, trainer):
    table, end = run_of(tmp_path, text, trainer, version="9.9.1")
    assert table.to_pandas().query("kind == 'phase'")["name"].tolist() == ["step"]
    told = table.schema.metadata[b"rolloutbench"].decode()
    assert "release-by-data" in told and f"the timers of {trainer} 9.9.1 are not declared" in told
    assert end["versions"] == {trainer: "9.9.1"}
    declared = "4.6.0" if trainer == "swift" else "1.9.0"
    table, _ = run_of(tmp_path, text, trainer, version=declared)
    assert "release-by-data" not in table.schema.metadata[b"rolloutbench"].decode()


def test_an_undeclared_releases_phases_are_those_of_the_nearest(tmp_path):
    text = "step,phase,seconds\n1,train/step_time,2.0\n1,_prepare_inputs,1.5\n"
    table, _ = run_of(tmp_path, text, "trl", version="9.9.1", name="a.csv")
    told = table.schema.metadata[b"rolloutbench"].decode()
    assert "the timers of trl 9.9.1 are not declared" in told and "trl 1.16" in told
