"""Jobs on several nodes, whose loss ends the life and not the run; and pairs of runs on the same nodes."""

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

from .. import guarded
from ..job.run_bench import ROOT

pytestmark = pytest.mark.promise("a-job-over-two", "a-server-beside-the", "a-trainer-of-several", "ray-has-a-runs")

OPTIONS = ("nodes=2", "mem_mb=4000")


@pytest.fixture
def ray(run):
    one = run(steps=4, options=(*OPTIONS, "private_nodes=true"))
    one.spec["workload"] |= {"nodes": 2, "gpus_per_node": 8}
    one.spread_by_ray()
    return one


def rays(folder):
    """The Ray processes on this machine that belong to a run's folder."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            if process.info["name"] in ("raylet", "gcs_server") and str(folder) in " ".join(process.environ().values()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_two_nodes_are_one_ray_cluster_and_nothing_of_it_is_left(ray):
    """And another's Ray on the same node is let alone."""
    setup = ray.folder / "setup.sh"
    setup.write_text("export NCCL_SOCKET_IFNAME=ib7\n")
    ray.options = (*ray.options, f"setup={setup}")
    ray.spec["env"] = {"NCCL_DEBUG": "INFO"}
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3000)", "raylet"])
    try:
        ray.finish(ray.start())
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()
    seen = ray.read("attempts", "1", "ray.json")
    assert (seen["nodes"], seen["cpus"], seen["gpus"]) == (2, 4, 16)
    for worker in seen["workers"]:
        assert worker.pop("CUDA_VISIBLE_DEVICES") in set("01234567"), "Ray gives each worker its own"
    # The site's and the arm's variables reach every node; what the trainer's own process sets reaches none.
    reaches = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "ib7"}
    assert seen["workers"] == [reaches | {"WANDB_RUN_ID": None}] * 2
    assert ray.read("attempts", "1", "attempt.json")["slurm"]["nodes"] == "gpu[1-2]"
    ray.wait(lambda: not rays(ray.folder))


def test_ray_has_as_many_gpus_of_each_node_as_the_experiment_wants(ray):
    """With more it could put both nodes' parts onto one of them."""
    ray.spec["workload"]["gpus_per_node"] = 4
    said = ray.finish(ray.start())
    assert "requests 8 GPUs per node from Slurm (gres: 'gpu:h100:8') and uses 4" in said
    assert ray.read("attempts", "1", "ray.json")["gpus"] == 8


def test_a_lost_node_ends_the_life_and_the_next_one_finishes(ray):
    ray.spec["env"] = {"RAY_TRAINER": "lose_a_node"}
    head = ray.start()
    ray.wait(lambda: ray.attempts() and ray.attempts()[0])
    end = ray.attempts()[0]
    assert end["kind"] == "node lost" and "rank 1 (gpu2)" in end["detail"]
    ray.release()
    said = ray.finish(head)
    assert "attempt 1 node lost after step 0" in said
    # At an exit code of rank 1's srun would have killed rank 0 while it ended the life.
    log = "".join(file.read_text() for file in ray.run.glob("submitit/1/*.out"))
    assert "waiting for rank 0 to end the life" in log and "Exited with exit code" not in log
    assert ray.read("attempts", "2", "ray.json")["nodes"] == 2
    ray.wait(lambda: not rays(ray.folder))


@pytest.fixture
def ranks(run):
    one = run(steps=4, options=OPTIONS)
    one.spec["workload"] |= {"nodes": 2, "gpus_per_node": 2}
    one.spread_by_torchrun()
    return one


def test_a_process_for_each_gpu_of_two_nodes(ranks):
    ranks.spec["env"] = {"NCCL_DEBUG": "INFO"}
    ranks.finish(ranks.start())
    seen = [ranks.read("attempts", "1", f"rank-{rank}.json") for rank in range(4)]
    assert [one["LOCAL_RANK"] for one in seen] == ["0", "1", "0", "1"]
    meets = {(one.pop("MASTER_ADDR"), one.pop("MASTER_PORT"), one.pop("LOCAL_RANK")) for one in seen}
    assert len({meet[:2] for meet in meets}) == 1
    alike = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO"}
    assert seen == [alike] * 4
    ranks.wait(lambda: not ranks.processes())


def test_a_process_that_dies_on_the_other_node_ends_the_life_and_is_named(ranks):
    ranks.spec["workload"]["gpus_per_node"] = 0
    ranks.spec["env"] = {"RANKS_TRAINER": "lose_a_rank"}
    said = ranks.ended(head := ranks.start())
    assert head.returncode != 0
    (end,) = ranks.attempts()
    assert end["kind"] == "killed" and end["rank"].startswith("rank 1 of 2 on gpu2 was killed by SIGKILL")
    assert "rank 1 of 2 on gpu2 was killed by SIGKILL" in said
    ranks.wait(lambda: not ranks.processes())


@pytest.mark.promise("invariant-3", "on-several-nodes-all")
def test_all_nodes_leave_at_once_when_the_first_has_nothing_to_train(ranks):
    """The others wait for it to begin, and would keep the whole allocation until their patience is over."""
    ranks.spec["env"] = {"STAND_IN": "deaf_at_first"}
    ranks.options = (*ranks.options, "restarts=0")
    head = ranks.start()
    log = ranks.run / "attempts" / "1" / "log"
    ranks.wait(lambda: log.is_file() and "hanging" in log.read_text())
    job = ranks.job_id()
    ranks.cluster.run("scancel", "--signal=USR2", job)
    ranks.release()
    assert "made no progress: 1 attempts in a row without a new step" in ranks.ended(head)

    def ended():
        ended = ranks.cluster.run("scontrol", "show", "job", job).stdout
        return re.search(r"JobState=(?!RUNNING|PENDING|COMPLETING)(\w+)", ended)

    assert ranks.wait(ended)[1] == "COMPLETED"
    # An administrator requeues it although it has ended.
    ranks.cluster.run("scontrol", "requeue", job)
    ranks.release()
    ranks.wait(lambda: ranks.output().count("Job completed successfully") == 6)
    assert ranks.wait(ended)[1] == "COMPLETED"


@pytest.fixture
def served(run):
    one = run(steps=6, options=(*OPTIONS, "private_nodes=true"))
    one.spec["workload"] |= {"nodes": 2, "gpus_per_node": 1}
    one.spread_beside_a_server(gpus=1, patience_s=30)
    return one


def test_a_trainer_and_the_server_on_the_other_node_are_requeued_and_resume(served):
    """Slurm's signals reach the server, which lives until the trainer's checkpoint; then it is lost, and named."""
    served.spec["env"] = {"STAND_IN_WAIT": "2"}
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


def test_a_server_that_is_lost_ends_the_life_and_is_named(served):
    served.spec["env"] = {"STAND_IN_WAIT": "2"}
    head = served.start(2)
    os.kill(served.read("attempts", "1", "server.json")["pid"], signal.SIGKILL)
    served.wait(lambda: served.attempts()[0])
    end = served.attempts()[0]
    assert end["kind"] == "killed" and end["again"], "it goes on from its checkpoint"
    assert end["rank"].startswith("the server on rank 1 (gpu2) was killed by SIGKILL")
    served.release()
    served.finish(head)
    served.wait(lambda: not served.processes())
