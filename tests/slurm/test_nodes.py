"""Jobs on several nodes, where it takes more than a scenario to see (scenarios.toml)."""

import subprocess
import sys

import pytest

from .. import guarded
from ..job.run_bench import ROOT
from .runs import rays


@pytest.mark.promise("a-job-over-two", "ray-has-a-runs")
def test_two_nodes_are_one_ray_cluster_beside_another_and_nothing_of_it_is_left(run, tmp_path):
    """Two runs share the nodes, of which each is this machine; and another's Ray there is let alone."""
    setup = tmp_path / "setup.sh"
    setup.write_text("export NCCL_SOCKET_IFNAME=ib7\n")
    options = ("nodes=2", "mem_mb=4000", "private_nodes=true", "gres=gpu:h100:4", f"setup={setup}")
    two = [run(folder=tmp_path / name, steps=8, env={"STAND_IN_WAIT": "4"}, options=options) for name in "ab"]
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3000)", "raylet"])
    try:
        heads = []
        for one in two:
            one.spec["workload"] |= {"nodes": 2, "gpus_per_node": 4}
            one.spec["env"]["NCCL_DEBUG"] = "INFO"
            one.spread_by_ray()
            heads.append(one.start())
        for one in two:
            one.wait_for_step(4)
        for one, head in zip(two, heads, strict=True):
            one.go()
            one.finish(head)  # and the other goes on
            one.wait(lambda one=one: not rays(one.folder))
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()
    seen = [one.read("attempts", "1", "ray.json") for one in two]
    assert len({one["address"] for one in seen}) == 2
    for one in seen:
        assert (one["nodes"], one["cpus"], one["gpus"], one["niceness"]) == (2, 4, 8, 0)
        # Whoever reads a token runs programs as this user.
        assert set(one["modes"]) == {"0o700", "0o600"}
        for worker in one["workers"]:
            assert len(worker.pop("CUDA_VISIBLE_DEVICES")) == 1, "Ray gives each worker its own"
        # The site's and the arm's variables reach every node; what the trainer's own process sets reaches none.
        reaches = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "ib7"}
        assert one["workers"] == [reaches | {"WANDB_RUN_ID": None}] * 2
        assert not one["folder"].startswith("/tmp/ray")


@pytest.mark.promise("a-server-beside-the")
def test_a_trainer_and_the_server_on_the_other_node_are_requeued_and_resume(run):
    """Slurm's signals reach the server, which lives until the trainer's checkpoint."""
    served = run(steps=6, env={"STAND_IN_WAIT": "2"}, options=("nodes=2", "mem_mb=4000", "private_nodes=true"))
    served.spec["workload"] |= {"nodes": 2, "gpus_per_node": 1}
    served.spread_beside_a_server(gpus=1, patience_s=30)
    head = served.start(2)
    before = served.read("attempts", "1", "server.json")
    served.cluster.run("scancel", "--signal=USR2", served.job_id())
    served.cluster.run("scancel", "--signal=TERM", f"{served.job_id()}.0")
    served.wait(lambda: served.attempts()[0])
    assert served.attempts()[0]["kind"] == "stopped"
    assert served.read("attempts", "1", "trainer.json")["answered"], "after its last step"
    served.release()
    served.finish(head)
    after, trainer = (served.read("attempts", "2", f"{who}.json") for who in ("server", "trainer"))
    assert after["pid"] != before["pid"] and after["CUDA_VISIBLE_DEVICES"] == trainer["CUDA_VISIBLE_DEVICES"] == "0"
    assert (after["ROLLOUTBENCH_SHARE"], trainer["WORLD_SIZE"]) == (None, None), "each has its node"
    # The secret is the life's, goes from node to node in a private file, and is in no file afterwards.
    secrets = [one["ROLLOUTBENCH_SERVER_SECRET"] for one in (before, after)]
    assert trainer["ROLLOUTBENCH_SERVER_SECRET"] == secrets[1] != secrets[0] and len(secrets[1]) > 40
    shown = [path for secret in secrets for path in guarded.files_with(served.folder, secret)]
    assert {path.name for path in shown} == {"server.json", "trainer.json"}, "the stand-ins' own"
    served.wait(lambda: not served.processes())
