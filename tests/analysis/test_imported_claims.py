"""Sources that are of another trainer or engine than their arm says."""

import pytest

from analysis.imports.source_check import require_of_arm
from common.errors import UserError
from tests.analysis.imports_of import run_of, written
from trainers.logs.record import Imported, SourceRead


def refused(tmp_path, text, name="run.log"):
    with pytest.raises(UserError) as caught:
        run_of(tmp_path, [written(tmp_path, text, name)], "verl", version="0.4.1")
    return str(caught.value)


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
        ({"actor_rollout_ref": {"rollout": {"name": "vllm"}}}, "trl", "vllm", "trainer: trl"),
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
