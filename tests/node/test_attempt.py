"""Checks of a stack on a compute node, with its GPUs."""

import json
import platform
import sys
from pathlib import Path

import pytest

from node.attempt import stack_origin
from node.exit_codes import UNFIT_NODE

from ..attempts import TRANSFORMERS, run_python

# Its checks compile nothing, unlike vLLM's: 15 s of CPU.
ANOTHER = "swift-transformers-cpu"
CHECK = """
import json, sys
from node import attempt
from node.attempt import require_working_gpus
from node.exit_codes import run
attempt._CHECK_LIMIT_S = float(sys.argv[3]) if sys.argv[3:] else attempt._CHECK_LIMIT_S
sys.exit(run(lambda: require_working_gpus({"attempt_dir": sys.argv[1]}, sys.argv[2])))
"""

# Two nodes of a Ray cluster on this machine, of which this process is on the first; the second has two "GPUs".
NODES = """
import json, os, sys, time
import ray
from ray._private import node
from ray.cluster_utils import Cluster
from common.errors import UserError
from node.attempt import require_working_nodes
attempt, stack = json.loads(sys.argv[1]), sys.argv[2]
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray gives its own start thirty seconds: of this process's CPU time, as a busy machine may take more of any other.
class Clock:
    def __getattr__(self, name):
        return getattr(time, "process_time" if name == "monotonic" else name)
node.time = Clock()
head = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=1, num_gpus=2, object_store_memory=80_000_000)
ray.init(address=cluster.address, log_to_driver=False)
errors = []
for GPUS in ("0,1", "0,1,2"):
    open(os.path.join(stack, "wanted"), "w").write(GPUS)
    waited = []
    try:
        require_working_nodes(attempt, stack, lambda: waited.append(1))
        errors.append("")
    except UserError as error:
        errors.append(str(error))
    assert waited
require_working_nodes({}, "of no stack", lambda: None)
print(json.dumps(errors))
"""
# A stack's own check that works where the GPUs in sight are those in the file `wanted`.
PROBE = """
import json, os, sys
from pathlib import Path
got, wanted = os.environ.get("CUDA_VISIBLE_DEVICES"), (Path(__file__).parent / "wanted").read_text()
check = {"name": "GPUs", "expected": wanted, "got": got, "ok": got == wanted}
Path(sys.argv[sys.argv.index("--out") + 1]).write_text(json.dumps({"checks": [check], "gpu": "--gpu" in sys.argv}))
sys.exit(got != wanted)
"""


@pytest.fixture(scope="module")
def python(stack_python):
    return stack_python(TRANSFORMERS)


@pytest.mark.full("libraries of a stack")
def test_a_working_stack_is_recorded_in_the_attempts_folder(python, tmp_path):
    done = run_python(python, "-c", CHECK, tmp_path, TRANSFORMERS)
    assert done.returncode == 0, done.stderr
    verdict = json.loads((tmp_path / "verify.json").read_text())
    assert (verdict["ok"], verdict["gpu"]) == (True, True)


@pytest.mark.full("libraries of a stack")
def test_a_stack_that_does_not_work_is_rejected_with_the_failed_checks(python, tmp_path):
    done = run_python(python, "-c", CHECK, tmp_path, ANOTHER)  # another stack's expectations
    assert done.returncode == UNFIT_NODE
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: the stack {ANOTHER} does not work on ")
    assert "got not installed" in last
    assert "Traceback" not in done.stderr


def test_a_check_that_hangs_is_killed_and_reported(python, tmp_path):
    done = run_python(python, "-c", CHECK, tmp_path, TRANSFORMERS, "0.5")  # no check of a stack is done in that time
    assert done.returncode == UNFIT_NODE and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "did not end within 0 s on" in last and "was killed" in last and "Exclude the node" in last


@pytest.mark.full("libraries of a stack")
def test_every_other_node_of_a_ray_cluster_is_checked_with_all_its_gpus(tmp_path):
    """The interpreter is not the stack's, as in an image: the attempt's command tells where the stack is."""
    (tmp_path / "verify.json").write_text("{}")
    (tmp_path / "verify.py").write_text(PROBE)
    attempt = {"attempt_dir": str(tmp_path), "command": [str(tmp_path / "env" / "bin" / "python")]}
    done = run_python(Path(sys.executable), "-c", NODES, json.dumps(attempt), tmp_path)
    assert done.returncode == 0, done.stderr
    well, failed = json.loads(done.stdout.splitlines()[-1])
    assert well == ""
    assert failed.startswith(
        f"the stack {tmp_path} does not work on {platform.node()}: GPUs: expected 0,1,2, got 0,1. "
    )
    assert "Exclude the node" in failed
    verdict = json.loads((tmp_path / f"verify-{platform.node()}.json").read_text())
    assert verdict["gpu"] and verdict["checks"][0]["got"] == "0,1"


def test_a_run_records_where_its_stack_comes_from(tmp_path, monkeypatch):
    """A built one, too; and whatever becomes of verify.json, which Snakemake may delete while the run lasts."""
    env = tmp_path / "env"
    env.mkdir()
    monkeypatch.setattr(sys, "prefix", str(env))
    assert stack_origin({}) is None  # no stack
    (tmp_path / "verify.json").write_text('{"origin": {}}')
    assert stack_origin({}) == {"state": "built"}
    origin = {"state": "registered, not built", "python": "/opt/python"}
    (env / "origin.json").write_text(json.dumps(origin))
    assert stack_origin({}) == origin
    (tmp_path / "verify.json").unlink()
    assert stack_origin({}) == origin
    # An interpreter that is elsewhere, as in an image: the attempt's command names the stack.
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert stack_origin({"command": [str(env / "bin" / "python")]}) == origin
    assert stack_origin({"command": ["/usr/bin/python3"]}) is None
