"""An experiment for GPUs on a machine without them ends before its stacks are built."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from common.errors import UserError
from workflow.config.entry import require_requests_of
from workflow.config.plan import load_plan
from workflow.head.train_rule import machine_lacks

from ..programs import executable

ROOT = Path(__file__).resolve().parents[2]


def snakemake(**settings):
    """What is asked of Snakemake's object."""
    train = {"train": {"private_nodes": "true"}}
    resources = {"overwrite_resources": train, "overwrite_threads": {}, "resources": {}}
    return SimpleNamespace(
        executor_plugin=SimpleNamespace(name="local"),
        dag_settings=SimpleNamespace(**{"targets": frozenset(), "until": frozenset()} | settings),
        resource_settings=SimpleNamespace(**resources),
        is_main_process=True,
    )


def test_too_few_gpus_are_told_where_a_training_would_start(tmp_path, monkeypatch):
    plan = load_plan(yaml.safe_load((ROOT / "experiments" / "gpu-smoke.yaml").read_text(encoding="utf-8")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    executable(tmp_path / "bin" / "nvidia-smi", "echo NVIDIA-SMI has failed >&2\nexit 9")
    with pytest.raises(UserError, match=r"needs 1 GPU .* this machine has none to use \(nvidia-smi -L: NVIDIA-SMI has"):
        require_requests_of(snakemake(), "train", plan, starts=True)
    require_requests_of(snakemake(), "train", plan)
    require_requests_of(snakemake(until={"stack"}), "train", plan, starts=True)
    require_requests_of(snakemake(targets={"plan"}), "train", plan, starts=True)
    for run_id in plan.runs:
        folder = Path(plan.folder, "runs", run_id)
        folder.mkdir(parents=True)
        (folder / "done.json").write_text(json.dumps({"fingerprint": plan.runs[run_id].fingerprint}))
    require_requests_of(snakemake(), "train", plan, starts=True)


def test_a_machine_is_asked_for_its_gpus_once_for_all_runs_of_a_kind(tmp_path, monkeypatch):
    asked = tmp_path / "asked"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    executable(tmp_path / "bin" / "nvidia-smi", f"echo once >> {asked}\necho 'GPU 0: H100 (UUID: GPU-a)'")
    specs = [{"arm": arm, "workload": {"gpus_per_node": 2}, "env": {}} for arm in ("one", "two") for _ in range(3)]
    ((what, _), arms), *others = machine_lacks(specs).items()
    assert "needs 2 GPUs" in what and arms == ["one", "two"] and not others
    assert asked.read_text() == "once\n"
