"""Runs of trainers that are not ours: what is said of their logs, and their tables in a report beside ours."""

import pytest
import yaml

from analysis.report.__main__ import write_report
from common.errors import UserError
from workflow.config.entry import require_sources
from workflow.config.plan import load_plan

from .analysis.sources.other_logs import nemo_block
from .importing import ROOT, imported_report

NEMO = (ROOT / "tests" / "answers" / "trees_of_tables" / "first.csv").read_text(encoding="utf-8")
VERL = "step:{} - timing_s/gen:12.500 - timing_s/update_actor:4.100 - timing_s/step:18.200 - {}\n"
VERL = VERL.replace("- {}\n", "- response_length/mean:800.000\n")
ROLL = "[2026-01-01 00:00:00] [rlvr_pipeline.py (487)] [INFO] [] pipeline step 3 start...\n"


def experiment(folder, **nemo):
    """A verl console against a run of NeMo-RL."""
    (folder / "verl.log").write_text("".join(VERL.format(step) for step in (1, 2, 3)))
    arm = {"trainer": "nemo-rl", "engine": "vllm", "import": "nemo.csv"} | nemo
    verl = {"trainer": "verl", "engine": "vllm", "import": {"version": "0.4.1", "runs": ["verl.log"]}}
    return {"experiment": "x", "baseline": "verl", "warmup_steps": 0, "arms": {"verl": verl, "nemo": arm}}


@pytest.mark.parametrize("first", ["verl", "nemo"])
def test_a_nemo_rl_table_against_a_verl_console_in_one_report(tmp_path, monkeypatch, first):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nemo.csv").write_text(NEMO)
    found = imported_report(experiment(tmp_path) | {"baseline": first})
    assert {run.tree.name for run in found.runs} == {"verl 0.4.1", "nemo-rl own tree"}
    phases = found.tables["phases"].set_index(["arm", "path"])
    nemo = phases.loc["nemo"]
    assert nemo.loc["step/generation"][["label", "category", "mean_s"]].tolist() == ["generation", "generation", 12.5]
    assert nemo.loc["step/policy_training/backward"]["parent"] == "step/policy_training"
    assert nemo.loc["step"]["own_mean_s"] == pytest.approx(20.5 - 12.5 - 1.25 - 4.25)
    assert phases.loc["verl"].loc["step/gen"][["label", "category"]].tolist() == ["Generate", "generation"]
    for arm, mean in (("verl", 18.2), ("nemo", 20.5)):
        own = found.tables["phases"][found.tables["phases"]["arm"] == arm]["own_mean_s"]
        assert own.sum() == pytest.approx(mean), "own times and the residual are the step"
    assert set(nemo["category"]) == {"generation", "weight sync", "loss+backward", "residual"}
    other = "nemo" if first == "verl" else "verl"
    (row,) = found.tables["comparison"].to_dict("records")
    assert (row["arm"], row["arm_steps"]) == (other, 2)
    assert row["raw_speedup"] == pytest.approx(18.2 / 20.5 if first == "verl" else 20.5 / 18.2)
    assert found.arm_verdicts and found.preflight is not None
    codes = {verdict.code for verdict in found.verdicts}
    assert not codes & {"undeclared-phase", "run-left-out", "children-exceed-parent"}
    write_report(found, tmp_path / "out")
    page = "".join(path.read_text() for path in (tmp_path / "out").rglob("report.*"))
    assert "nemo-rl" in page and "policy_training" in page


def test_a_category_is_that_of_the_arms_own_table(tmp_path, monkeypatch):
    """A table may call something else `gen`: verl's stays generation, and the table's what it says."""
    monkeypatch.chdir(tmp_path)
    rows = "1,total,,,20.0\n1,gen,total,rewards,12.0\n2,total,,,20.0\n2,gen,total,rewards,12.0\n"
    (tmp_path / "nemo.csv").write_text("step,phase,parent,category,seconds\n" + rows)
    found = imported_report(experiment(tmp_path) | {"baseline": "nemo"})
    assert found.tables["phases"].set_index(["arm", "path"])["category"].loc[:, "step/gen"].to_dict() == {
        "nemo": "rewards",
        "verl": "generation",
    }


def test_lengths_beside_the_sum_are_compared_as_a_trainers_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{s},total,,20.0\n{s},gen,total,12.0\n{s},response_length/mean,-,900.0\n" for s in (1, 2, 3)]
    (tmp_path / "nemo.csv").write_text("step,phase,parent,seconds\n" + "".join(rows))
    raw = experiment(tmp_path, **{"import": {"batch_size": 16, "runs": ["nemo.csv"]}})
    raw["arms"]["verl"]["import"]["batch_size"] = 16
    found = imported_report(raw)
    steps = found.tables["steps"].set_index(["arm", "step"])["response_tokens"]
    assert steps.loc[("nemo", 2)] == 16 * 900 and steps.loc[("verl", 2)] == 16 * 800


@pytest.mark.parametrize("trainer", ["nemo-rl", "rllm", "my-own"])
def test_a_foreign_trainer_is_no_misspelling_of_ours(tmp_path, monkeypatch, trainer):
    monkeypatch.chdir(tmp_path)
    raw = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    raw["arms"]["vllm"]["trainer"] = trainer
    with pytest.raises(UserError) as caught:
        load_plan(raw)
    said = str(caught.value)
    assert f"arms.vllm.trainer is {trainer}, which cannot be trained from here" in said
    assert "did you mean" not in said and "import" in said
    assert ("column parent" in said) == (trainer in ("rllm", "my-own")), "of the others the logs are read"


@pytest.mark.parametrize(
    ("source", "content", "trainer", "says"),
    [
        ("nemo.csv", "step,phase,seconds\n1,step,2.0\n", "rllm", "nemo.csv has no column parent. Runs of"),
        ("nemo.log", nemo_block(1), "rllm", "nemo.log is NeMo-RL's console, and arm nemo says trainer: rllm"),
        ("nemo.log", ROLL * 60_000, "rllm", "nemo.log looks like ROLL's console"),
        ("wandb:team/grpo/1abc", "", "rllm", "wandb:team/grpo/1abc is not a table"),
    ],
)  # fmt: skip
def test_what_else_than_a_table_of_a_foreign_trainer_is_told_at_the_start(
    tmp_path, monkeypatch, source, content, trainer, says
):
    monkeypatch.chdir(tmp_path)
    if not source.startswith("wandb:"):
        (tmp_path / source).write_text(content)
    with pytest.raises(UserError) as caught:
        require_sources(load_plan(experiment(tmp_path, trainer=trainer, **{"import": source})))
    said = str(caught.value)
    assert says in said, said
    assert ("did you mean" in said) == (trainer == "verll")
