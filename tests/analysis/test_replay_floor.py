"""The decode floor of a replay: of each completion's own length, on a GPU by its data sheet; none on a CPU."""

import make_results
import pytest
from roofline_results import PHI, SXM

from analysis.collect import collect_run
from analysis.counted import wide_steps
from analysis.roofline.floors import with_floors
from analysis.roofline.setup import setup_of
from analysis.runs import read_run
from analysis.steps import write_steps

# Phi-4's weights and the keys and values of one position, in bytes, at two bytes a number.
WEIGHTS, POSITION = 14_145_290_240 * 2, 2 * 40 * 10 * 128 * 2
LENGTHS = [11, 21]
# Their iterations are 10 and 20, and the positions that they read 10·11/2 and 20·21/2.
POSITIONS = 55 + 210


def replayed(folder, gpus, **held):
    workload = {"model": {"source": PHI}, "dtype": "bfloat16", "nodes": 1, "gpus_per_node": len(gpus)}
    scalars = {"replay/mean_length": 16.0, "replay/max_length": 21.0}
    rows = [
        make_results.metrics_row(step, {"step": 31.0, "step/generate": 30.0}, lengths=LENGTHS, scalars=scalars)
        for step in (1, 2)
    ]
    hardware = {"host": "n", "cpu": "c", "cpus": 2, "threads": 2, "memory_gib": 64, "gpus": gpus}
    engine = {"name": "vllm", "dtype": "bfloat16", "tensor_parallel_size": 1, **held}
    run = make_results.write_run(
        folder, "vllm-s0", "vllm", 0, [rows], hardware=hardware,
        spec_more={"trainer": "replay", "workload": workload, "trainer_args": {"prompts": 2, "num_generations": 1}},
        done_more={"versions": {"replay": "1"}, "resolved": {"trainer": {}, "engine": engine}},
    )  # fmt: skip
    write_steps(collect_run(run), run / "steps.parquet")
    return read_run(folder, "vllm-s0", None)[0]


def floor_s(run):
    wide = with_floors(wide_steps([run], 0)[0], [run])[0]
    assert wide["efficiency"].notna().all(), setup_of(run).unknown
    return float(wide["efficiency"].iloc[0] * 30.0)


@pytest.mark.parametrize(("held", "iterations"), [({}, 20), ({"max_num_seqs": 1}, 30), ({"max_num_seqs": 2}, 20)])
def test_on_a_gpu_it_is_of_each_completions_length(held, iterations, tmp_path):
    expected = (iterations * WEIGHTS + POSITIONS * POSITION) / 3.35e12
    assert floor_s(replayed(tmp_path, SXM[:1], **held)) == pytest.approx(expected, rel=1e-12)


def test_on_a_cpu_there_is_none(tmp_path):
    run = replayed(tmp_path, [])
    (verdict,) = with_floors(wide_steps([run], 0)[0], [run])[1]
    assert (verdict.code, "a GPU: it trained on the CPU" in verdict.text) == ("no-floor", True)
