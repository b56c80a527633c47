"""Simulated engines of known speed: biases have the known shape, intervals hold the truth, claims are right."""

from functools import cache

import numpy as np
import pytest

from analysis.estimates.estimate_table import EQUAL_WORK, ESTIMATES, PER_STEP
from tests.simulated.engines import FIXED_REST, OWN, REGIMES, SHAPES
from tests.simulated.experiments import experiments, shaped

BY_NAME = {regime.name: regime for regime in REGIMES}
CALM = tuple(regime.name for regime in REGIMES if not regime.drifts)
DRIFTS = tuple(name for name in BY_NAME if name not in CALM)


@cache
def of(name, runs, speed=1.0, run_sd=0.02, count=10, steps=20):
    return experiments(BY_NAME[name], runs, count, steps=steps, speed=speed, run_sd=run_sd)


@pytest.mark.parametrize("name", CALM)
def test_without_a_drift_no_estimate_is_biased(name):
    found = of(name, 3, run_sd=0.0)
    for estimate in ESTIMATES:
        assert abs(found.bias(estimate)) < 3.5 * max(found.spread(estimate), 0.005) / 10**0.5


@pytest.mark.parametrize(
    ("name", "count", "per_step"),
    [
        ("tail-bound, B's tail grows", 10, (-0.30, -0.10)),
        ("tail-bound, B gets short", 10, (0.45, 0.90)),
        ("queue-bound, longer", 10, (-0.20, -0.08)),
        ("fixed rest, +30% constant", 10, (-0.26, -0.11)),
        # Of few such experiments the lengths have steps in common.
        ("fixed rest, -30% constant", 20, (0.17, 0.45)),
        ("fixed rest, heavier tail", 10, (-0.40, -0.20)),
    ],
)
def test_a_drift_biases_step_time_and_not_equal_work(name, count, per_step):
    found = of(name, 3, count=count)
    assert per_step[0] < found.bias(PER_STEP) < per_step[1] and abs(found.bias(EQUAL_WORK)) < 0.025


@pytest.mark.full("many reports")
@pytest.mark.parametrize("speed", [1.0, 1.1])
def test_the_verdicts_interval_holds_the_truth_and_claims_are_right(speed):
    """Each cell is few experiments, together they are 120 at each speed."""
    found = [of(name, 3, speed) for name in BY_NAME]
    held = [one.coverage() for one in found]
    assert np.nanmean(held) >= 0.90 and np.nanmin(held) >= 0.70
    assert np.nanmean([one.claimed("-" if speed > 1 else "+-") for one in found]) <= 0.06
    # And it is no more sure of itself than that: a drift makes step time miss.
    assert np.mean([of(name, 3, speed).coverage(PER_STEP) for name in DRIFTS]) < 0.60


def test_five_runs_of_60_steps_claim_a_tenth_under_every_drift_of_the_lengths():
    found = [of(regime.name, 5, 1.1, count=4, steps=60) for regime in FIXED_REST]
    assert np.nanmean([one.claimed("+") for one in found]) >= 0.85
    assert not any(one.claimed("-") > 0 for one in found)


def test_one_run_an_arm_has_no_interval_and_claims_nothing():
    for name in CALM:
        found = of(name, 1)
        assert {case.verdict for case in found.cases} == {"~"} and np.isnan(found.coverage())


def test_a_warning_tells_of_drifts_and_not_without():
    assert all(of(regime.name, 3).warnings >= 0.6 for regime in OWN if regime.drifts)
    assert np.mean([of(name, 3).warnings for name in CALM]) <= 0.1


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_identical_engines_are_the_same_whatever_their_runs_and_steps(shape):
    """The bench has the rates; here a ratio that no chance gives would show."""
    found = shaped(shape, 10)
    assert abs(found.bias(PER_STEP)) < 4 * max(found.spread(PER_STEP), 0.002) / 10**0.5
    assert found.claimed("+-") <= 0.3
