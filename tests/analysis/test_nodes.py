"""The nodes of the runs in a report: an arm on a node of its own."""

import json

import pytest
from test_comparison import block, codes, content, results, row, text

from common.findings import LedgerRow, Preflight

pytestmark = pytest.mark.usefixtures("undrawn")


def experiment(folder, places):
    """A report on runs of two arms; `places` maps run id to its node."""
    runs = {}
    for run_id in places:
        arm = "transformers" if run_id.startswith("b") else "vllm"
        runs[run_id] = (arm, int(run_id[1:]), [[row(step, 2 if arm == "vllm" else 3) for step in (1, 2, 3)]])
    made = results(folder, runs)
    for run_id, node in places.items():
        file = made / "runs" / run_id / "attempts" / "1" / "attempt.json"
        attempt = json.loads(file.read_text()) | {"nodes": [node]}
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
