"""Nodes and GPUs of an experiment against those that its runs would get."""

import json
import os
from pathlib import Path

import pytest

from common.errors import UserError
from workflow.head.train_rule import local_gpus, require_fit
from workflow.job.training import trainer_environment

from ..programs import executable

pytestmark = pytest.mark.promise("fewer-gpus-or-another")


def request(gres="", nodes=1, cluster="slurm", ray=True, **workload):
    spec = {"trainer": "verl", "ray": ray, "env": {}, "workload": workload}
    return {"spec": spec, "cluster": cluster, "cpus": 8, "site": {"gres": gres, "nodes": nodes, "private_nodes": True}}


ON_TWO = {"nodes": 2, "gpus_per_node": 8}
GOOD = request("gpu:8", gpus_per_node=8)
MORE = request("gpu:8", nodes=2, gpus_per_node=8) | {"cpus": 9}


def of(asked, site=None, **spec):
    """The same request with another specification or site."""
    return asked | {"spec": asked["spec"] | spec, "site": asked["site"] | (site or {})}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (GOOD, ""),
        (
            request("gpu:h100:4", gpus_per_node=8),
            r"needs 8 GPUs per node .* requests 4 from Slurm \(gres: 'gpu:h100:4'",
        ),
        (request("", gpus_per_node=1), "needs 1 GPU per node .* requests none from Slurm"),
        (of(GOOD, workload={"nodes": 2}), "needs 2 nodes per run .* requests 1 from Slurm;"),
        (MORE, "needs 1 node per run .* requests 2 from Slurm; remove `nodes`"),
        (of(MORE, ray=False, workload={"nodes": 2}), r"verl trains on one node \(got workload.nodes: 2\)"),
        (request(cluster="local", nodes=2) | {"cpus": 9}, ""),
        (
            of(request(cluster="local"), workload={"nodes": 2}),
            "needs 2 nodes .* this is one machine; use a profile for S",
        ),
        # CPUs that a trainer would wait for in vain.
        (of(MORE, least_cpus=17, workload=ON_TWO), ""),
        (of(MORE, least_cpus=19, workload=ON_TWO), "verl reserves 19 CPUs .* the profile gives 18, 9 on each node"),
        (of(MORE, ray=False, spread="torchrun", workload=ON_TWO), ""),
        (
            of(MORE, ray=False, spread="torchrun", workload=ON_TWO) | {"cpus": 7},
            "starts a process for each GPU, 8 on each node, but the profile gives 7 CPUs",
        ),
        # Ray needs private nodes, whatever the stack has.
        *(
            (
                of(GOOD, site={"private_nodes": False}, **stack),
                "verl starts servers .* ask nobody for a password: .* pri",
            )
            for stack in ({}, {"stack": "verl09-vllm"}, {"stack": "as-found-and-not-here"})
        ),
    ],
)
def test_what_contradicts_the_experiment_is_refused(asked, says):
    if not says:
        assert require_fit(asked) == ""
        return
    with pytest.raises(UserError, match=rf"{says}.*\(nothing was submitted\)"):
        require_fit(asked)


def test_gpus_that_would_idle_are_told():
    remark = require_fit(request("gpu:h100:8", gpus_per_node=4))
    assert remark == "requests 8 GPUs per node from Slurm (gres: 'gpu:h100:8') and uses 4 (workload.gpus_per_node)"


@pytest.mark.parametrize(
    ("cluster", "visible", "submitted_with", "own", "seen"),
    [
        ("slurm", "2,3,5", None, {}, "2,3"),
        ("slurm", None, "7", {}, "0,1"),
        ("slurm", "2,3,5", None, {"CUDA_VISIBLE_DEVICES": "5"}, "5"),
        ("local", "", None, {}, "0,1"),
        ("local", "", "GPU-a,GPU-b,GPU-c", {}, "GPU-a,GPU-b"),
        ("local", "", "4,5", {"CUDA_VISIBLE_DEVICES": "6,7"}, "6,7"),
    ],
)
def test_a_trainer_sees_as_many_gpus_as_the_experiment_wants(cluster, visible, submitted_with, own, seen, tmp_path):
    """submitit hides all GPUs of this machine: what counts there is what the launcher's shell had."""
    order = stack_order(tmp_path, {}) | {"cluster": cluster, "visible_gpus": submitted_with, "env": own}
    order["spec"] = {"workload": {"gpus_per_node": 2}}
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert trainer_environment(order, environ)["CUDA_VISIBLE_DEVICES"] == seen
    order["spec"] = {"workload": {"gpus_per_node": 0}}
    assert trainer_environment(order | {"env": {}}, environ).get("CUDA_VISIBLE_DEVICES") == visible, "not its matter"


@pytest.mark.parametrize(
    ("gpus", "own", "waits"), [(0, {}, "passive"), (0, {"OMP_WAIT_POLICY": "active"}, "active"), (2, {}, None)]
)
def test_threads_do_not_spin_where_they_compute(gpus, own, waits, tmp_path):
    order = stack_order(tmp_path, {}) | {"cluster": "slurm", "visible_gpus": None, "env": {}}
    order["spec"] = {"workload": {"gpus_per_node": gpus}}
    for env, environ in (({}, own), (own, {})):
        assert trainer_environment(order | {"env": env}, environ).get("OMP_WAIT_POLICY") == waits


def stack_order(folder, environment):
    """An order for a stack whose activation sets these variables."""
    (folder / "verify.json").write_text(json.dumps({"environment": environment}))
    order = {"python": str(folder / "env" / "bin" / "python"), "cwd": "/", "cpus": 2, "env": {}}
    return order | {"spec": {"workload": {}}}


def test_a_trainer_has_its_stacks_programs_and_compilers_and_the_arms_word_wins(tmp_path):
    order = stack_order(tmp_path, {"CUDA_HOME": "/stack", "CC": "/stack/gcc"}) | {"env": {"CC": "gcc-12"}}
    env = trainer_environment(order, {"PATH": "/usr/bin", "CUDA_HOME": "/site", "PYTHONHOME": "/controller"})
    assert (env["CUDA_HOME"], env["CC"]) == ("/stack", "gcc-12")
    assert env["PATH"] == f"{tmp_path / 'env' / 'bin'}:/usr/bin"
    assert "PYTHONHOME" not in env


def test_this_machines_gpus_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    executable(
        tmp_path / "nvidia-smi", "printf 'GPU 0: H100 (UUID: GPU-1)\\n  MIG 1g.10gb\\nGPU 1: H100 (UUID: GPU-2)\\n'"
    )
    assert local_gpus({})[0] == 2
    assert local_gpus({"CUDA_VISIBLE_DEVICES": "1"}) == (1, "CUDA_VISIBLE_DEVICES is '1'")
    assert local_gpus({"CUDA_VISIBLE_DEVICES": "0,1,2"})[0] == 2
    assert require_fit(request(cluster="local", gpus_per_node=2)) == ""
    with pytest.raises(UserError, match=r"needs 4 GPUs .* this machine has 2 to use \(nvidia-smi -L: it lists 2\)"):
        require_fit(request(cluster="local", gpus_per_node=4))
    mine = request(cluster="local", gpus_per_node=2)
    mine["spec"]["env"] = {"CUDA_VISIBLE_DEVICES": "1"}
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES in the experiment's env shows 1 of the 2 GPUs"):
        require_fit(mine)
    executable(tmp_path / "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    with pytest.raises(UserError, match=r"has none to use \(nvidia-smi -L: Failed to initialize NVML: Driver/library"):
        require_fit(request(cluster="local", gpus_per_node=1))


def test_without_nvidia_smi_the_device_files_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    there = len(list(Path("/dev").glob("nvidia[0-9]*")))
    assert local_gpus({}) == (there, f"no nvidia-smi, and {there or 'no'} /dev/nvidia*")
    assert require_fit(request(cluster="local", gpus_per_node=0)) == "", "nobody looks"
