"""Stands for a trainer that spreads over a job's nodes by Ray: it looks at its cluster, then trains as it is told to.

What it saw is in ray.json: the cluster's nodes, CPUs and GPUs, and of each node some variables that a worker has there.

STAND_IN=lose_a_node ends the raylet of the other node in its first attempt, as a node that dies would.
"""

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

order = json.loads(Path(sys.argv[-1]).read_text())
os.environ["WANDB_RUN_ID"] = "set by the trainer's own process"
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
ENVIRONMENT = (
    "PYTHONPATH", "OMP_NUM_THREADS", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "WANDB_RUN_ID", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


@ray.remote(num_cpus=1, num_gpus=1)
def environment():
    """What a worker has."""
    return {name: os.environ.get(name) for name in ENVIRONMENT}


@ray.remote(num_cpus=0)
def niceness():
    """How urgent a worker is."""
    return os.nice(0)


def on(node):
    """Where a task shall run."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
temporary, token = Path(os.environ["RAY_TMPDIR"]), Path(os.environ["RAY_AUTH_TOKEN_PATH"])
seen = {
    "nodes": len(nodes),
    "cpus": ray.cluster_resources()["CPU"],
    "gpus": ray.cluster_resources().get("GPU", 0),
    "address": os.environ["RAY_ADDRESS"],
    "folder": str(temporary),
    "modes": [oct(path.stat().st_mode & 0o777) for path in (temporary.parent, token)],
    "niceness": ray.get(niceness.remote()) - os.nice(0),
    "workers": ray.get([environment.options(scheduling_strategy=on(node)).remote() for node in nodes]),
}
(Path(order["attempt_dir"]) / "ray.json").write_text(json.dumps(seen))
if os.environ.get("STAND_IN") == "lose_a_node" and order["attempt"] == 1:
    mine = ray.get_runtime_context().get_node_id()
    other = next(node for node in ray.nodes() if node["NodeID"] != mine)

    @ray.remote(num_cpus=0)
    def raylet():
        """A worker's parent is its node's raylet."""
        return os.getppid()

    os.kill(ray.get(raylet.options(scheduling_strategy=on(other["NodeID"])).remote()), signal.SIGKILL)
    time.sleep(120)
ray.shutdown()
runpy.run_path(str(Path(__file__).with_name("stand_in_trainer.py")))
