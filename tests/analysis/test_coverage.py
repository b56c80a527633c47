"""Simulated engines of known speed: biases have the known shape, intervals hold the truth, claims are right."""

from functools import cache

import numpy as np
import pytest

from bench.coverage import experiments, pooled
from bench.engines import FIXED_REST, OWN, REGIMES

BY_NAME = {regime.name: regime for regime in REGIMES}
CALM = tuple(regime.name for regime in REGIMES if not regime.drifts)
DRIFTS = tuple(name for name in BY_NAME if name not in CALM)
ESTIMATES = ("raw", "per_token", "roofline", "standardised")


@cache
def of(name, runs, speed=1.0, run_sd=0.02, count=10, steps=20):
    return experiments(BY_NAME[name], runs, count, steps=steps, speed=speed, run_sd=run_sd, resamples=100)


@pytest.mark.parametrize("name", CALM)
def test_without_a_drift_no_estimate_is_biased(name):
    found = of(name, 3, run_sd=0.0)
    for estimate in ESTIMATES:
        assert abs(found.bias(estimate)) < 3.5 * max(found.spread(estimate), 0.005) / 10**0.5


@pytest.mark.parametrize(
    "name, raw, roofline",
    [
        ("tail-bound, B's tail grows", (-0.30, -0.10), (-0.01, 0.03)),
        ("tail-bound, B gets short", (0.45, 0.90), (-0.05, -0.01)),
        ("queue-bound, longer", (-0.20, -0.08), (-0.01, 0.04)),
        ("fixed rest, +30% constant", (-0.26, -0.11), (0.03, 0.11)),
        ("fixed rest, -30% constant", (0.17, 0.45), (-0.16, -0.06)),
        ("fixed rest, heavier tail", (-0.40, -0.20), (0.04, 0.15)),
    ],
)
def test_a_drift_moves_raw_to_one_side_of_the_truth_and_roofline_to_the_other(name, raw, roofline):
    """Why both must point the other way before they contradict the fit."""
    found = of(name, 3)
    assert raw[0] < found.bias("raw") < raw[1] and roofline[0] < found.bias("roofline") < roofline[1]
    assert abs(found.bias("standardised")) < 0.025


@pytest.mark.full("many reports")
@pytest.mark.parametrize("speed", [1.0, 1.1])
def test_the_verdicts_interval_holds_the_truth_and_claims_are_right(speed):
    """Each cell is few experiments, together they are 120 at each speed."""
    found = [of(name, 3, speed) for name in BY_NAME]
    assert np.mean([one.coverage() for one in found]) >= 0.95 and min(one.coverage() for one in found) >= 0.80
    assert np.mean([one.claimed("-" if speed > 1 else "+-") for one in found]) <= 0.025
    # And they are no more sure of themselves than that: a drift makes raw miss, and the roofline with a fixed rest.
    assert np.mean([of(name, 3, speed).coverage("raw") for name in DRIFTS]) < 0.60
    rests = [of(regime.name, 3, speed) for regime in FIXED_REST if regime.drifts]
    assert np.mean([one.coverage("roofline") for one in rests]) < 0.85


def test_five_runs_of_60_steps_claim_a_tenth_under_every_drift_of_the_lengths():
    found = [of(regime.name, 5, 1.1, count=4, steps=60) for regime in FIXED_REST]
    assert pooled(found).claimed("+") >= 0.85 and pooled(found).claimed("-") == 0


def test_one_pair_of_runs_has_no_interval_over_runs_and_claims_nothing():
    """Its steps' interval is right where runs do not differ, too narrow where they do: why it is labelled."""
    alike = [of(name, 1, run_sd=0.0, count=20) for name in CALM]
    apart = [of(name, 1, count=20) for name in CALM]
    assert np.mean([one.coverage("roofline") for one in alike]) >= 0.80
    assert np.mean([one.coverage("roofline") for one in apart]) < 0.85
    for one in alike + apart:
        assert one.claimed("~") == 1 and np.isnan(one.coverage())


def test_a_warning_tells_of_drifts_and_not_without():
    assert all(of(regime.name, 3).warnings >= 0.6 for regime in OWN if regime.drifts)
    assert np.mean([of(name, 3).warnings for name in CALM]) <= 0.1
