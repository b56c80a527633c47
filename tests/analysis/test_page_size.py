"""A page of many runs stays light: the rows of runs go to the files, and the page says so."""

import make_results
import pytest

from analysis.report.__main__ import main

ARMS = {"transformers": ("transformers", 3.2), "vllm": ("vllm", 0.9)}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many") / "sweep"
    factors = [{"workload.temperature": t, "workload.num_generations": n} for t in (0.7, 1.0) for n in (4, 8)]
    make_results.realistic(folder, ARMS, seeds=8, steps=3, factors=factors)
    assert main(["--plan", str(folder / "plan.json"), "--results", str(folder), "--out", str(folder)]) == 0
    return folder


def test_its_size_does_not_grow_with_the_runs(many):
    """What grows is the number of factor combinations; of 4 they take less than an eighth of the 5 MB of 1,000 runs."""
    assert (many / "report.html").stat().st_size < 5e6 / 8
    assert (many / "report.md").stat().st_size < 60_000  # a pull request takes 65,536 characters
