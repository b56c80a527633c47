"""The nodes of the runs in a report: an arm on a node of its own, and a node that is slower than the others."""

import json

import pytest
from test_comparison import block, codes, content, results, row, text

from common.findings import LedgerRow, Preflight

pytestmark = pytest.mark.usefixtures("undrawn")


def experiment(folder, places, speeds=None):
    """A report on runs of two arms; `places` maps run id to its node, `speeds` node to a GPU product's TFLOP/s."""
    runs = {}
    for run_id in places:
        arm = "transformers" if run_id.startswith("b") else "vllm"
        runs[run_id] = (arm, int(run_id[1:]), [[row(step, 2 if arm == "vllm" else 3) for step in (1, 2, 3)]])
    made = results(folder, runs)
    for run_id, node in places.items():
        file = made / "runs" / run_id / "attempts" / "1" / "attempt.json"
        attempt = json.loads(file.read_text()) | {"nodes": [node]}
        if speeds:
            figures = [
                {"what": "GPU matrix product", "unit": "TFLOP/s", "gpu": gpu, "values": [value, value + 2, value - 200]}
                for gpu, value in enumerate(speeds[node])
            ]
            attempt["speeds"] = [{"node": node, "seconds": 3.0, "figures": figures, "not_measured": {}}]
        file.write_text(json.dumps(attempt))
    ledger = (LedgerRow("dtype", {"transformers": "bfloat16", "vllm": "bfloat16"}, "equal", "", ""),)
    (made / "preflight.json").write_text(json.dumps(Preflight((), ledger, (), "case").as_json()))
    return content(made)


def test_arms_with_a_common_node_are_not_named(tmp_path):
    found = experiment(tmp_path, {"b0": "gpu1", "a0": "gpu1", "b1": "gpu1", "a1": "gpu2"})
    assert "different-nodes" not in codes(found) and "node" not in block(found)


def test_an_arm_on_a_node_of_its_own_is_named(tmp_path):
    found = experiment(tmp_path, {"b0": "gpu1", "a0": "gpu3", "b1": "gpu1", "a1": "gpu2"})
    assert "transformers on gpu1; vllm on gpu2, gpu3: the arms have no node in common" in text(found, "different-nodes")
    assert "on different nodes" in block(found).splitlines()[0]


def test_nodes_that_differ_in_both_arms_are_in_the_interval(tmp_path):
    """Each run has a node of its own: how nodes differ is how the runs of an arm differ."""
    found = experiment(tmp_path, {"b0": "gpu1", "a0": "gpu3", "b1": "gpu2", "a1": "gpu4"})
    assert "different-nodes" not in codes(found)


def test_a_node_slower_than_its_peers_is_named_with_its_figures(tmp_path):
    speeds = {"gpu1": [640, 655], "gpu2": [648, 402], "gpu3": [650, 660]}
    places = {"b0": "gpu1", "a0": "gpu2", "b1": "gpu3", "a1": "gpu3"}
    found = experiment(tmp_path, places, speeds)
    assert "Node gpu2 is slower than the others: GPU matrix product on GPU 1 404 TFLOP/s (others 652 to 662)" in text(
        found, "slow-node"
    )
    assert "only vllm trained on it. To resolve it: runs without node gpu2" in text(found, "slow-node")
    assert "with a slow node" in block(found)


@pytest.mark.parametrize("slowest", [600, 590])
def test_a_node_within_the_spread_of_its_peers_is_not_named(tmp_path, slowest):
    speeds = {"gpu1": [620, 640], "gpu2": [648, slowest], "gpu3": [600, 660]}
    found = experiment(tmp_path, {"b0": "gpu1", "a0": "gpu2", "b1": "gpu3", "a1": "gpu3"}, speeds)
    assert "slow-node" not in codes(found)


def test_a_slow_node_of_both_arms_is_no_unequal_term(tmp_path):
    speeds = {"gpu1": [640], "gpu2": [400], "gpu3": [650]}
    places = {"b0": "gpu2", "a0": "gpu2", "b1": "gpu3", "a1": "gpu3", "b2": "gpu1", "a2": "gpu1"}
    found = experiment(tmp_path, places, speeds)
    assert "slow-node" in codes(found) and "slow" not in block(found)


def test_nodes_are_compared_by_measurements_of_the_same_stack(tmp_path):
    """Each stack has its own libraries: an arm that is always on one node does not make that node slow."""
    found = experiment(tmp_path, {"b0": "gpu1", "a0": "gpu2"}, {"gpu1": [640], "gpu2": [400]})
    assert "slow-node" not in codes(found)
