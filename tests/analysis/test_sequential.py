"""The verdict after each pair of runs: what resolves it, what it answers otherwise, and its errors."""

import json

import numpy as np
import pandas as pd
import pytest
from make_results import realistic

from analysis.estimates.bootstrap import confidence_at, interval_from
from analysis.verdict.look_at import look_at, sequential_verdict
from common.verdicts import FIRST_LOOK

STEPS = 10


def pairs_of(ratio, runs, run_sd=0.01, seed=0):
    """Paired steps without lengths of an arm that is `ratio` times as fast; each run has a speed of its own."""
    draw = np.random.default_rng(seed)
    frames = [
        pd.DataFrame(
            {
                "seed": run,
                "step": np.arange(STEPS) + 1,
                "timing_s/step_a": 100 * np.exp(draw.normal(0, run_sd) + draw.normal(0, 0.005, STEPS)),
                "timing_s/step_b": 100 / ratio * np.exp(draw.normal(0, run_sd) + draw.normal(0, 0.005, STEPS)),
            }
        )
        for run in range(runs)
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


@pytest.mark.parametrize(("ratio", "runs", "verdict"), [(1.5, 3, "+"), (1 / 1.5, 3, "-"), (1.0, 8, "=")])
def test_it_is_resolved_by_a_direction_or_by_equality(ratio, runs, verdict):
    found = sequential_verdict(pairs_of(ratio, runs), 1.05, 8)
    assert (found.verdict, found.more, found.pairs) == (verdict, 0, runs)
    assert found.interval[0] < found.value < found.interval[1]


def test_an_open_one_says_how_many_more_pairs_are_likely():
    assert sequential_verdict(pairs_of(1.5, 0), 1.05, 8).more == FIRST_LOOK
    assert sequential_verdict(pairs_of(1.5, 1), 1.05, 8).more == 1
    found = sequential_verdict(pairs_of(1.0, 3, run_sd=0.03), 1.05, 8)
    assert found.verdict == "~" and 1 <= found.more <= 5
    assert sequential_verdict(pairs_of(1.0, 8, run_sd=0.2), 1.05, 8).more == 0


@pytest.mark.parametrize("imported", [False, True])
def test_no_pair_is_wanted_for_an_imported_arm_that_has_no_further_log(imported, tmp_path):
    file = realistic(tmp_path / "e", {"a": ("vllm", 1.0), "b": ("transformers", 1.0)}, seeds=2)
    plan = json.loads(file.read_text()) | {"until": 1.05, "most": 8}
    if imported:
        plan["arms"]["b"]["import"] = {"runs": [{"source": ["0.log"]}, {"source": ["1.log"]}]}
    file.write_text(json.dumps(plan))
    found = look_at(file, tmp_path / "e", plan["runs"])
    assert found["verdicts"][0]["verdict"] == "~" and (found["more"] == 0) == imported


@pytest.mark.parametrize(("until", "most"), [(1.0, 8), (0.95, 8), (float("nan"), 8), (1.05, 1)])
def test_what_cannot_be_resolved_is_an_error(until, most):
    with pytest.raises(ValueError, match="until must be above 1 and most at least 2, got"):
        sequential_verdict(pairs_of(1.5, 2), until, most)


@pytest.mark.parametrize("most", [2, pytest.param(8, marks=pytest.mark.full("many experiments"))])
def test_all_looks_together_are_wrong_as_often_as_one_interval(most):
    """Runs of equal arms: how often an interval excludes 1 at one look or more, which is 14% for 95% at each of 5."""
    draw = np.random.default_rng(1)
    wrong = sum(excludes_1_at_a_look(*draw.normal(size=(2, most))) for _ in range(4000))
    assert 0.03 < wrong / 4000 <= 0.05


def excludes_1_at_a_look(a, b):
    """Whether the interval of runs without steps' noise excludes 1 after one pair of them or another."""
    for pairs in range(FIRST_LOOK, len(a) + 1):
        means = [np.mean(side[:pairs]) for side in (a, -b)]
        without = [mean + (mean - side[:pairs]) / (pairs - 1) for mean, side in zip(means, (a, -b), strict=True)]
        found = interval_from(sum(means), np.zeros(9), without, 9.0, 1, confidence_at(pairs, len(a)), arms=True)
        if not found.low <= 0 <= found.high:
            return True
    return False
