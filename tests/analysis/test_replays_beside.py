"""Trainings and their engines alone in one report: no ratio of one with the other; other conditions are named."""

import make_results
import numpy as np
import pytest

from analysis.collect import collect_run
from analysis.report.content import read_content
from analysis.steps import write_steps

pytestmark = pytest.mark.usefixtures("undrawn")
ARMS = {
    "vllm": {"trainer": "trl", "engine": "vllm"},
    "other": {"trainer": "trl", "engine": "sglang"},
    "vllm-alone": {"trainer": "replay", "engine": "vllm"},
    "other-alone": {"trainer": "replay", "engine": "sglang"},
}


def content_of(tmp_path):
    results = tmp_path / "case"
    generation = {"vllm": 3.0, "other": 2.0, "vllm-alone": 1.5, "other-alone": 1.25}
    runs = []
    for place, (arm, words) in enumerate(ARMS.items()):
        alone = words["trainer"] == "replay"
        for seed in range(2):
            draw, rows = np.random.default_rng([place, seed]), []
            for step in range(1, 9):
                gen, length = generation[arm] * draw.uniform(0.97, 1.03), 20
                if alone:
                    phases = {"step": gen + 0.1, "step/generate": gen, "step/sync_weights": 0.1}
                else:
                    phases = make_results.phases_from_leaves(make_results.leaves(gen, 0.1, 0.2))
                names = ("replay/mean_length", "replay/max_length")
                names = names if alone else ("train/completions/mean_length", "train/completions/max_length")
                scalars = dict.fromkeys(names, float(length))
                rows.append(make_results.metrics_row(step, phases, lengths=[length] * 4, scalars=scalars))
            runs.append(f"{arm}-s{seed}")
            make_results.write_run(
                results, runs[-1], arm, seed, [rows], engine=words["engine"], spec_more={"trainer": words["trainer"]},
                done_more={"versions": {"replay": "1"}} if alone else {},
            )  # fmt: skip
            write_steps(collect_run(results / "runs" / runs[-1]), results / "runs" / runs[-1] / "steps.parquet")
    make_results.write_plan(results, ARMS, runs, 1)
    return read_content(results / "plan.json", results, None, None)


def test_trainings_are_compared_with_trainings_and_replays_with_replays(tmp_path):
    content = content_of(tmp_path)
    found = [(one.arm, one.baseline) for one in content.arm_verdicts]
    assert found == [("other", "vllm"), ("other-alone", "vllm-alone")]
    assert set(content.tables["estimates"]["arm"]) == set(content.tables["comparison"]["arm"]) == {"other"}
