"""What verl's own metric functions and Tracking write gives a tree whose parts sum to the step."""

import json

import pytest
from make_results import collected

from tests.trainers.verl.runs import write_verl_run

pytestmark = pytest.mark.full("runs of both releases' own loggers")

VERSIONS = ("0.4.1", "0.9.1")


@pytest.fixture(scope="module", params=VERSIONS)
def run_dir(request, warm_verl, tmp_path_factory):
    return write_verl_run(warm_verl(request.param), tmp_path_factory.mktemp("verl") / "run", request.param, 4)


def test_a_run_gives_a_tree(run_dir, tmp_path):
    version = json.loads((run_dir / "done.json").read_text())["versions"]["verl"]
    frame, metadata = collected(run_dir, tmp_path / "steps.parquet")
    assert metadata["timers"] == f"verl {version}"
    # The made-up batch ends no response by a token, and 0.9.1's buffer is polled: both are said; no timer is in doubt.
    said = {v["code"] for v in metadata["verdicts"]}
    assert said <= {"timer-place", "responses-shortened", "wait-polled"}, "no warning of undeclared timers"
    assert sorted(set(frame["step"])) == [1, 2, 3, 4], "the validation before the first step is none"
    phases = frame[frame["kind"] == "phase"]
    root = phases[phases["name"] == "step"].set_index("step")
    assert root["exclusive_s"].tolist() == pytest.approx([0.004] * 4, abs=1e-9)
    sums = phases.groupby("step")["exclusive_s"].sum()
    assert sums.tolist() == pytest.approx(root["value"].tolist(), abs=1e-9)
