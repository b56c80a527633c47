"""What is told of imported runs' sources before any of them is read."""

import pytest

from common.errors import UserError
from workflow.config.entry import require_sources
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config

VERL = "step:1 - timing_s/gen:1.500 - timing_s/step:2.000\n"
VERL_SGLANG = "{'actor_rollout_ref': {'rollout': {'name': 'sglang'}}, 'trainer': {'x': 1}}\n" + VERL
TRL = "{'loss': 0.0, 'reward': 0.25, 'step_time': 3.25, 'learning_rate': 1e-06}\n"
TABLE = "step,phase,seconds\n1,step,2.0\n"


def looked_at(folder, sources, **arm):
    """Of two arms, the baseline's source as it should be, and the other's in its arm."""
    folder.joinpath("good.log").write_text(VERL)
    for name, content in sources.items():
        folder.joinpath(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    facts = {"version": "0.4.1", **arm.pop("facts", {})}
    runs = arm.pop("runs", [{"source": str(folder / name)} for name in sources])
    other = {"trainer": "verl", "engine": "vllm", **arm, "import": {**facts, "runs": runs}}
    base = {"trainer": "verl", "engine": "vllm", "env": {"A": "1"}}
    base["import"] = {"version": "0.4.1", "runs": [{"source": str(folder / "good.log")}]}
    raw = {"experiment": "x", "baseline": "base", "arms": {"base": base, "other": other}}
    require_sources(plan_runs(parse_config(raw), stack_facts))


@pytest.mark.parametrize(
    ("content", "arm", "says"),
    [
        (TRL, {}, "is TRL's console log, and arm other says trainer: verl"),
        (VERL, {"facts": {"format": "trl-console"}}, "run.log is verl-console by its content (verl's console log"),
        (VERL_SGLANG, {}, "rollout.name: sglang, and arm other says engine: vllm"),
    ],
)
def test_a_wrong_source_is_told_before_anything_runs(tmp_path, content, arm, says):
    with pytest.raises(UserError) as caught:
        looked_at(tmp_path, {"run.log": content}, **arm)
    assert str(caught.value).startswith("arms.other.import: ") and says in str(caught.value)


@pytest.mark.parametrize(
    ("content", "arm"),
    [
        (VERL, {}),
        (VERL_SGLANG, {"engine": "sglang"}),
        # More than its first step tells: what is meant is given.
        (TRL + VERL, {"facts": {"format": "verl-console"}}),
        (VERL + "noise\n" * 10_000 + "verl==0.4.1\n", {"facts": {"version": None}}),
        # The run's timers tell the release.
        (VERL, {"facts": {"version": None}}),
        (TABLE, {"trainer": "trl", "facts": {"version": "9.9"}}),
        # Its step time is that of every release.
        (TRL, {"trainer": "trl", "facts": {"version": "9.9"}}),
    ],
)
def test_a_source_of_its_arm_is_none_to_tell_of(tmp_path, content, arm):
    looked_at(tmp_path, {"run.log": content}, **arm)


@pytest.mark.parametrize(
    ("names", "facts", "says"),
    [
        (
            ["offline-run-20260101_000000-1abc/files/config.yaml"],
            {},
            "give wandb:entity/project/1abc, on wandb's server",
        ),
        (
            ["checkpoint-20/trainer_state.json", "checkpoint-20/optimizer.pt", "checkpoint-5/trainer_state.json"],
            {},
            "name a log: FOLDER/checkpoint-20/trainer_state.json, FOLDER/checkpoint-5/trainer_state.json",
        ),
        (["run-a.wandb", "wandb/run-1-a/run-b.wandb"], {}, None),
        (["wandb/run-1-a/run-a.wandb", "wandb/run-1-b/run-b.wandb"], {}, "holds 2 runs of wandb (a, b)"),
    ],
)
def test_a_folder_is_looked_at_before_anything_runs(tmp_path, names, facts, says):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    # A run's own folder of wandb, without its file.
    folder = next(folder.glob("offline-run-*"), folder)
    if says is None:
        looked_at(tmp_path, {}, runs=[{"source": str(folder)}], facts=facts)
        return
    with pytest.raises(UserError) as caught:
        looked_at(tmp_path, {}, runs=[{"source": str(folder)}], facts=facts)
    assert says.replace("FOLDER", str(folder)) in str(caught.value)
