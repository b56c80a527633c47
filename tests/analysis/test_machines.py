"""What disturbed runs: others on their machine, one another, an arm on a node of its own."""

import json
from dataclasses import replace

import pytest
from test_comparison import block, content, results, row

from analysis.machines import disturbances

pytestmark = pytest.mark.usefixtures("undrawn")
RUNS = {"b0": "transformers", "b1": "transformers", "a0": "vllm", "a1": "vllm"}
APART = {run: {"started": 10 * at, "finished": 10 * at + 9} for at, run in enumerate(RUNS)}
MEET = {"b0": {"started": 100, "finished": 109}, "a0": {"started": 105, "finished": 112}}
SHARED = ["2 runs trained at the same time on n1 (b0, a0)"]
OWN_NODE = ["transformers on gpu1; vllm on gpu2, gpu3: the arms have no node in common"]


def cores(b, a):
    return {"b0": {"affinity": b}, "a0": {"affinity": a}}


def on(*nodes):
    return dict(zip(RUNS, nodes, strict=True))


def busy(seconds, **hardware):
    """The first run of an arm, of whose seconds of two CPUs others take so many."""
    return {"cpu_s": seconds, "hardware": {"a0": hardware}}


# Of runs one after the other on one node and otherwise quiet: what is changed, and the findings.
CASES = {
    "nothing": ({}, []),
    "others' work": (busy(0.8), ["Other processes used the processors in the counted steps (a0: 20 %)"]),
    "hardly any": (busy(0.04), []),
    # Two nodes of four CPUs, a process on each: the seconds are the sum over both, `cpus` is of one.
    "of two processes": (busy(3.2, cpus=4, affinity=[0, 1, 2, 3], processes=2), ["(a0: 20 %)"]),
    "of four": (busy(3.1, cpus=4, affinity=[0, 1, 2, 3], processes=4), []),
    "at the same time": ({"times": MEET}, SHARED),
    "on another host": ({"times": MEET, "hardware": {"a0": {"host": "n2"}}}, []),
    "on cores of their own": ({"times": MEET, "hardware": cores([0, 1], [2, 3])}, []),
    "on some common cores": ({"times": MEET, "hardware": cores([0, 1], [1, 2])}, SHARED),
    "a common node": ({"nodes": on("gpu1", "gpu1", "gpu1", "gpu2")}, []),
    "an arm on a node of its own": ({"nodes": on("gpu1", "gpu1", "gpu3", "gpu2")}, OWN_NODE),
    # How nodes differ is how the runs of an arm differ.
    "a node for each run": ({"nodes": on("gpu1", "gpu2", "gpu3", "gpu4")}, []),
}


def changed(folder, nodes):
    """Gives the runs' attempts these nodes."""
    for run, node in nodes.items():
        file = folder / "runs" / run / "attempts" / "1" / "attempt.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"nodes": [node]}))


def of_four(folder, **more):
    runs = {
        run: (arm, int(run[1]), [[row(step, 2 if arm == "vllm" else 3) for step in (1, 2, 3)]], more.get(run, {}))
        for run, arm in RUNS.items()
    }
    return results(folder, runs)


@pytest.fixture(scope="module")
def made(tmp_path_factory, no_figures):
    folder = of_four(tmp_path_factory.mktemp("machines"))
    return folder, content(folder)


@pytest.mark.parametrize("name", CASES)
def test_what_disturbed_runs_is_found(made, name):
    change, says = CASES[name]
    folder, found = made
    changed(folder, change.get("nodes", on(*["gpu1"] * 4)))
    times = APART | change.get("times", {})
    machine = {"host": "n1", "cpus": 2}
    runs = [
        replace(
            run,
            done=run.done | times[run.run_id] | {"hardware": machine | change.get("hardware", {}).get(run.run_id, {})},
        )
        for run in found.runs
    ]
    steps = found.tables["steps"]
    others = (steps["run_id"] == "a0") * change.get("cpu_s", 0.0) * steps["timing_s/step"] / 2
    told = disturbances(runs, steps.assign(other_cpu_s=others), found.plan)
    assert len(told) == len(says) and all(word in one.what for word, one in zip(says, told, strict=True))


def test_the_verdict_is_no_more_certain_than_the_page(tmp_path):
    when = {run: {"done_more": APART[run] | MEET.get(run, {})} for run in RUNS}
    folder = of_four(tmp_path, **when)
    changed(folder, on("gpu1", "gpu1", "gpu3", "gpu2"))
    found = content(folder)
    first, *more = block(found).splitlines()
    assert ", on a shared machine, on different nodes: " in first
    assert any(line.startswith("≠ 2 runs trained at the same time on node1") for line in more)
    assert any(line.startswith(f"≠ {OWN_NODE[0]}") for line in more)
    assert "resolve it: runs one at a time; runs on the same nodes" in more[-1]
    assert {"shared-machine", "different-nodes"} <= {one.code for one in found.verdicts}
