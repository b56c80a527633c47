"""Sources that are of another trainer or engine than their arm says."""

import json

import pytest

from analysis.imports.source_check import require_of_arm
from common.errors import UserError
from tests.analysis.imports_of import run_of, written
from trainers.logs.record import Imported, SourceRead

VERL = "step:1 - timing_s/gen:1.500 - timing_s/step:2.000\n"
TRL = "{'loss': 0.0, 'reward': 0.25, 'step_time': 3.25, 'learning_rate': 1e-06}\n"
SWIFT = "{'loss': 0.0, 'step_time': 3.25, 'global_step/max_steps': '1/20'}\n"
STATE = json.dumps({"log_history": [{"step": 1, "loss": 0.0, "step_time": 3.0}]})
# As main_ppo.py prints it.
VERL_SGLANG = "{'actor_rollout_ref': {'rollout': {'name': 'sglang'}},\n 'trainer': {'n_gpus_per_node': 8}}\n" + VERL


def refused(tmp_path, text, name="run.log"):
    with pytest.raises(UserError) as caught:
        run_of(tmp_path, [written(tmp_path, text, name)], "verl", version="0.4.1")
    return str(caught.value)


def test_a_log_whose_configuration_names_another_engine_is_refused(tmp_path):
    said = refused(tmp_path, VERL_SGLANG)
    assert "run.log has the configuration of a run with actor_rollout_ref.rollout.name: sglang" in said
    assert "arm one says engine: vllm. Were the sources of two arms swapped?" in said
    run_of(tmp_path, [written(tmp_path, VERL_SGLANG)], "verl", "sglang", version="0.4.1")


def test_a_table_of_another_engine_alone_is_refused(tmp_path):
    table = "engine,step,phase,seconds\nsglang,1,step,2.0\nsglang,1,gen,1.5\n"
    said = refused(tmp_path, table, "a.csv")
    assert "a.csv has only rows of engine sglang for this run, and arm one says engine: vllm" in said
    run_of(tmp_path, [written(tmp_path, table, "a.csv")], "verl", "sglang", version="0.4.1")


@pytest.mark.parametrize(
    ("config", "trainer", "engine", "says"),
    [
        ({"actor_rollout_ref.rollout.name": "sglang_async"}, "verl", "vllm", "engine: vllm"),
        ({"actor_rollout_ref": {"rollout": {"name": "${x}"}}}, "verl", "vllm", None),
        ({"actor_rollout_ref": {}}, "trl", "vllm", "trainer: trl"),
        ({"use_vllm": True}, "swift", "transformers", "engine: transformers"),
        ({"use_vllm": False}, "trl", "vllm", "engine: vllm"),
        ({"use_vllm": False}, "verl", "vllm", "trainer: verl"),
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
