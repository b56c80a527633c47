"""Simulated engines of known speed: the biases have the known shape, and the intervals hold what they promise."""

from functools import cache

import numpy as np
import pytest

from bench.coverage import HULL, experiments
from bench.engines import REGIMES

BY_NAME = {regime.name: regime for regime in REGIMES}
CALM = ("tail-bound, none", "queue-bound, none")
DRIFTS = tuple(name for name in BY_NAME if name not in CALM)


@cache
def of(name, runs, speed=1.0, run_sd=0.02, count=20):
    return experiments(BY_NAME[name], runs, count, speed=speed, run_sd=run_sd, resamples=200)


@pytest.mark.parametrize("name", CALM)
def test_without_a_drift_no_estimate_is_biased(name):
    found = of(name, 1)
    for estimate in ("raw", "per_token", "roofline", "standardised"):
        assert abs(found.bias(estimate)) < 3 * max(found.spread(estimate), 0.005) / 20**0.5


@pytest.mark.parametrize(
    "name, raw, per_token",
    [
        ("tail-bound, B's tail grows", (-0.30, -0.10), (-0.25, -0.07)),
        ("tail-bound, B gets short", (0.45, 0.90), (0.20, 0.40)),
        ("queue-bound, longer", (-0.20, -0.08), (-0.06, 0.06)),
        ("queue-bound, short", (0.40, 0.80), (0.02, 0.15)),
    ],
)
def test_drifts_mislead_raw_and_per_token_and_not_those_at_equal_work(name, raw, per_token):
    found = of(name, 1)
    assert raw[0] < found.bias("raw") < raw[1]
    assert per_token[0] < found.bias("per_token") < per_token[1]
    assert abs(found.bias("roofline")) < 0.09 and abs(found.bias("standardised")) < 0.04
    assert abs(found.bias("raw")) > 4 * abs(found.bias("standardised"))


@pytest.mark.parametrize("speed", [1.0, 1.25])
def test_intervals_hold_the_truth_when_runs_differ(speed):
    """Three runs per arm that differ by 2%; each cell is few experiments, together they are many."""
    calm, drifting = ([of(name, 3, speed) for name in names] for names in (CALM, DRIFTS))
    for estimate in ("raw", "per_token", "roofline", "standardised"):
        assert np.mean([one.coverage(estimate) for one in calm]) >= 0.90
    assert np.mean([one.coverage("standardised") for one in calm + drifting]) >= 0.85
    assert np.mean([one.coverage(HULL) for one in calm + drifting]) >= 0.90
    assert min(one.coverage(HULL) for one in calm + drifting) >= 0.80
    # And they are no more sure of themselves than that: a drift makes raw miss.
    assert np.mean([one.coverage("raw") for one in drifting]) < 0.40


def test_within_one_run_the_interval_is_of_that_run_only():
    """Right where runs do not differ, too narrow where they do: why it is labelled."""
    alike = [of(name, 1, run_sd=0.0) for name in CALM]
    assert np.mean([one.coverage("standardised") for one in alike]) >= 0.85
    assert np.mean([of(name, 1).coverage("roofline") for name in CALM]) < 0.80


@pytest.mark.parametrize("runs", [1, 3])
def test_the_banner_warns_of_drifts_and_not_without(runs):
    assert all(of(name, runs).warnings >= 0.6 for name in DRIFTS)
    assert np.mean([of(name, runs).warnings for name in CALM]) <= 0.1
