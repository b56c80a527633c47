"""The verdict after each pair of runs: what resolves it, what it answers otherwise, and its errors."""

import json

import numpy as np
import pandas as pd
import pytest
from make_results import realistic

from analysis.compared import COLUMNS, Compared, common_of
from analysis.quantiles import confidence_at
from analysis.ratio import RunNumbers, reach
from analysis.verdict.look_at import look_at, sequential_verdict
from common.verdicts import FIRST_LOOK

STEPS = 10


def runs_of(ratio, runs, run_sd=0.01):
    """Runs without lengths of an arm that is `ratio` times as fast; each has a speed of its own."""
    draw, sides = np.random.default_rng(0), []
    for arm, step_s in (("a", 100), ("b", 100 / ratio)):
        seconds = step_s * np.exp(draw.normal(0, run_sd, (runs, 1)) + draw.normal(0, 0.005, (runs, STEPS)))
        columns = {
            "run": np.repeat([f"{arm}{n}" for n in range(runs)], STEPS),
            "step": np.tile(np.arange(STEPS) + 1, runs),
            "n": 1,
            "gap": 1.0,
        }
        columns |= dict.fromkeys(("longest", "tokens", *COLUMNS, "floor"), np.nan)
        sides.append(
            pd.DataFrame(columns | {"seconds": seconds.ravel(), "discarded": False, "off_s": 0.0, "by_clock": False})
        )
    return Compared("", "a", "b", common_of(*sides))


@pytest.mark.parametrize(("ratio", "runs", "verdict"), [(1.5, 3, "+"), (1 / 1.5, 3, "-"), (1.0, 8, "=")])
def test_it_is_resolved_by_a_direction_or_by_equality(ratio, runs, verdict):
    found = sequential_verdict(runs_of(ratio, runs), 1.05, 8)
    assert (found.verdict, found.more, found.pairs) == (verdict, 0, runs)
    assert found.interval[0] < found.value < found.interval[1]


def test_an_open_one_says_how_many_more_pairs_are_likely():
    assert sequential_verdict(runs_of(1.5, 0), 1.05, 8).more == FIRST_LOOK
    assert sequential_verdict(runs_of(1.5, 1), 1.05, 8).more == 1
    found = sequential_verdict(runs_of(1.0, 3, run_sd=0.03), 1.05, 8)
    assert found.verdict == "~" and 1 <= found.more <= 5
    assert sequential_verdict(runs_of(1.0, 8, run_sd=0.2), 1.05, 8).more == 0


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
        sequential_verdict(runs_of(1.5, 2), until, most)


@pytest.mark.parametrize("most", [2, pytest.param(8, marks=pytest.mark.full("many experiments"))])
def test_all_looks_together_are_wrong_as_often_as_one_interval(most):
    """Runs of equal arms: how often an interval excludes 1 at one look or more, which is 14% for 95% at each of 5."""
    draw = np.random.default_rng(1)
    wrong = sum(excludes_1_at_a_look(*draw.normal(size=(2, most))) for _ in range(4000))
    assert 0.02 < wrong / 4000 <= 0.05


def excludes_1_at_a_look(a, b):
    """Whether the interval of runs without steps' noise excludes 1 after one pair of them or another."""
    for pairs in range(FIRST_LOOK, len(a) + 1):
        sample = RunNumbers(a[:pairs], b[:pairs])
        half, _ = reach(sample, confidence_at(pairs, len(a)))
        if abs(sample.log_ratio) > half:
            return True
    return False
