"""Stands for a trainer that spreads over a job's nodes by Ray: it looks at its cluster, then trains as it is told to.

RAY_TRAINER=lose_a_node ends the raylet of the other node in its first attempt, as a node that dies would.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import ray

order = json.loads(Path(sys.argv[-1]).read_text())
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
seen = {
    "nodes": len([node for node in ray.nodes() if node["Alive"]]),
    "gpus": ray.cluster_resources().get("GPU", 0),
    "address": os.environ["RAY_ADDRESS"],
}
(Path(order["attempt_dir"]) / "ray.json").write_text(json.dumps(seen))
if os.environ.get("RAY_TRAINER") == "lose_a_node" and order["attempt"] == 1:
    mine = ray.get_runtime_context().get_node_id()
    other = next(node for node in ray.nodes() if node["NodeID"] != mine)

    @ray.remote(num_cpus=0)
    def raylet() -> int:
        """A worker's parent is its node's raylet."""
        return os.getppid()

    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(other["NodeID"], soft=False)
    os.kill(ray.get(raylet.options(scheduling_strategy=there).remote()), signal.SIGKILL)
    time.sleep(120)
ray.shutdown()
runpy.run_path(str(Path(__file__).parents[1] / "cluster" / "stand_in_trainer.py"))
