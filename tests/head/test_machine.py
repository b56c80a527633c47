"""An experiment for GPUs on a machine without them ends before its stacks are built."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from common.errors import UserError
from workflow.config.entry import require_gpus_here
from workflow.config.plan import load_plan

from ..programs import executable

ROOT = Path(__file__).resolve().parents[2]


def snakemake(executor="local", **settings):
    """What is asked of Snakemake's object."""
    return SimpleNamespace(
        executor_plugin=SimpleNamespace(name=executor),
        dag_settings=SimpleNamespace(**{"targets": frozenset(), "until": frozenset()} | settings),
    )


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """The GPU smoke test's, with results below an empty folder, and no program or device of NVIDIA's."""
    planned = load_plan(yaml.safe_load((ROOT / "experiments" / "gpu-smoke.yaml").read_text(encoding="utf-8")))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program = tmp_path / "bin" / "nvidia-smi"
    executable(program, "echo NVIDIA-SMI has failed >&2\nexit 9")
    return planned


def test_too_few_gpus_are_told_with_how_that_is_known(plan):
    with pytest.raises(
        UserError,
        match=r"gpu-smoke trains on 1 GPU .* this machine has none to use \(nvidia-smi -L: NVIDIA-SMI has failed",
    ):
        require_gpus_here(snakemake(), plan)


def test_slurms_machines_named_targets_and_finished_runs_are_let_be(plan):
    require_gpus_here(snakemake("slurm"), plan)
    require_gpus_here(snakemake(until={"stack"}), plan)
    require_gpus_here(snakemake(targets={"plan"}), plan)
    for run_id in plan.runs:
        folder = Path(plan.folder, "runs", run_id)
        folder.mkdir(parents=True)
        (folder / "done.json").write_text("{}")
    require_gpus_here(snakemake(), plan)
