"""Resampling against arch's own, and intervals against what is known of normal numbers."""

import math

import numpy as np
import pytest
from scipy.stats import t

from analysis.estimates.bootstrap import (
    SPARED,
    Interval,
    block_length,
    half_width,
    interval_of,
    optimal_length,
    resampled_sums,
    students_t,
)


def mean(sums):
    return sums[..., 1] / sums[..., 0]


def of(values):
    return np.stack([np.ones(len(values)), np.asarray(values, dtype=float)], axis=1)


def autoregressive(draw, steps, keeps=0.7):
    series = np.zeros(steps)
    for i in range(1, steps):
        series[i] = keeps * series[i - 1] + draw.normal()
    return series


def test_the_optimal_block_length_is_archs():
    from arch.bootstrap import optimal_block_length

    draw = np.random.default_rng(5)
    for steps in (9, 10, 12, 25, 40, 100, 400):
        for keeps in (-0.6, 0.0, 0.3, 0.7, 0.95):
            series = autoregressive(draw, steps, keeps)
            with np.errstate(all="ignore"):
                wanted = float(optimal_block_length(series)["circular"].iloc[0])
            assert optimal_length(series) == pytest.approx(wanted, rel=1e-9, nan_ok=True), (steps, keeps)


def test_a_block_leaves_the_blocks_that_a_fit_needs():
    """By chance the steps' own length may be any: with three coefficients a fifth of one run's steps is the most."""
    tied = autoregressive(np.random.default_rng(7), 40, 0.99)
    assert [block_length([tied], spent) for spent in (1, 2, 3)] == [10, 10, 8]
    # Two runs have blocks enough between them.
    assert block_length([tied, tied], 3) == 10


def test_a_run_has_four_blocks_at_the_least():
    """The cube root of five to seven steps is two, of which they hold three; eight steps hold four."""
    assert [block_length([np.ones(steps)] * 3) for steps in (5, 7, 8, 12)] == [1, 1, 2, 2]


@pytest.mark.parametrize("spent, factor", [(1, 4 / 3), (2, 4 / 2)])
def test_few_blocks_vary_less_than_other_blocks_would(spent, factor):
    """Of 4 blocks, drawn with replacement, the spread is that of 3, or of 2 where a coefficient was fitted, too."""
    sums = resampled_sums(of(np.random.default_rng(10).normal(size=40)), [40], 10, 500)
    found = interval_of(mean, sums, spent)
    assert found.standard_error == pytest.approx(mean(sums.within).std() * factor**0.5, rel=1e-12)
    assert found.freedom == 4 - spent


def test_no_interval_where_nothing_can_be_drawn():
    assert interval_of(mean, resampled_sums(of([3.0]), [1], 1)) is None
    assert interval_of(mean, resampled_sums(of([3.0, 4.0]), [2], 1)) is None
    assert interval_of(mean, resampled_sums(of([3.0, 4.0, 5.0]), [3], 1)) is not None
    assert interval_of(mean, resampled_sums(of([3.0, 4.0, 5.0]), [3], 1), spent=2) is None
    hardly = resampled_sums(of(np.arange(20.0)), [20], 2)
    assert interval_of(lambda s: np.where(s[..., 1] > 190, mean(s), np.nan), hardly) is None


def test_few_runs_give_students_t_of_their_means():
    """Steps that do not differ within a run: three means are all there is to know."""
    means = np.array([1.0, 2.0, 6.0])
    found = interval_of(mean, resampled_sums(of(np.repeat(means, 10)), [10] * 3, 2))
    half = t.ppf(0.9775, 2) * means.std(ddof=1) / 3**0.5
    assert found.freedom == 2 and (found.high - found.low) / 2 == pytest.approx(half, rel=1e-6)
    assert found.low < 3 < found.high


def test_runs_that_happen_to_agree_do_not_shrink_the_interval_below_the_steps_noise():
    draw = np.random.default_rng(5)
    steps = draw.normal(size=40)
    values = np.concatenate([steps, steps[::-1]])
    found = interval_of(mean, resampled_sums(of(values), [40, 40], 4))
    alone = interval_of(mean, resampled_sums(of(values), [80], 4))
    assert found.freedom > 1 and found.high - found.low == pytest.approx(alone.high - alone.low, rel=0.1)


def of_two(a, b):
    return np.stack([np.ones(len(a)), a, b], axis=1)


def side_a(sums):
    return sums[..., 1] / sums[..., 0]


def side_b(sums):
    return -sums[..., 2] / sums[..., 0]


def test_the_arms_spreads_between_runs_are_added_and_estimate_each_other():
    a, b = np.array([1.0, 2.0, 6.0]), np.array([8.0, 3.0, 4.0])
    sums = resampled_sums(of_two(np.repeat(a, 10), np.repeat(b, 10)), [10] * 3, 2)
    paired = interval_of(lambda s: side_a(s) + side_b(s), sums)
    assert paired.standard_error == pytest.approx((a - b).std(ddof=1) / 3**0.5) and paired.sides == 1
    apart = interval_of(lambda s: side_a(s) + side_b(s), sums, 1, (side_a, side_b))
    assert apart.standard_error == pytest.approx((a.var(ddof=1) / 3 + b.var(ddof=1) / 3) ** 0.5)
    assert apart.freedom == pytest.approx(4) and apart.sides == 2
    # Where one arm alone varies, more than its own runs is known, and less than of two.
    sums = resampled_sums(of_two(np.repeat(a, 10), np.ones(30)), [10] * 3, 2)
    alone = interval_of(lambda s: side_a(s) + side_b(s), sums, 1, (side_a, side_b))
    assert alone.freedom == pytest.approx(3.2) and alone.standard_error == pytest.approx(a.std(ddof=1) / 3**0.5)
    assert apart.more_runs(6.0) < Interval(0, 1, apart.standard_error, 2, 3).more_runs(6.0)


def test_runs_whose_pairs_share_their_noise_are_compared_in_pairs_at_a_stricter_level():
    a = np.array([1.0, 2.0, 6.0, 9.0])
    b = a + np.array([0.1, 0.0, -0.1, 0.2])
    sums = resampled_sums(of_two(np.repeat(a, 10), np.repeat(b, 10)), [10] * 4, 2)
    found = interval_of(lambda s: side_a(s) + side_b(s), sums, 1, (side_a, side_b))
    assert found.sides == 1 and found.freedom == 3
    assert (found.high - found.low) / 2 == pytest.approx(t.ppf(1 - 0.009 / 2, 3) * (a - b).std(ddof=1) / 2)


# Table 1 of Armstrong and Kolesár 2020, "Simple and honest confidence intervals in nonparametric regression".
@pytest.mark.parametrize(("bias", "published"), [(0.0, 1.960), (0.1, 1.970), (0.5, 2.181), (1.0, 2.646), (2.0, 3.645)])
def test_a_bias_widens_an_interval_to_the_published_critical_values(bias, published):
    normal, nominal = 1e9, 1 - 0.05 / SPARED
    assert half_width(3.0, normal, 3 * bias, nominal) == pytest.approx(3 * published, abs=2e-3)


@pytest.mark.parametrize("freedom", [2, 4, 18])
@pytest.mark.parametrize("bias", [0.01, 0.3, 1.0, 30.0])
def test_an_interval_holds_the_truth_at_the_worst_bias_and_no_more_often(freedom, bias):
    half = half_width(1.0, freedom, bias)
    assert t.cdf(half - bias, freedom) - t.cdf(-half - bias, freedom) == pytest.approx(1 - SPARED * 0.05)
    # Adding the bias to the interval without one covers more than that.
    assert max(bias, half_width(1.0, freedom)) < half < half_width(1.0, freedom) + bias


def test_without_chance_an_interval_is_its_bias():
    assert half_width(0.0, 4, 0.2) == 0.2 and half_width(1e-300, 4, 0.2) == pytest.approx(0.2)


def test_what_more_runs_would_do():
    draw = np.random.default_rng(7)
    values = (draw.normal(0.1, 0.1, 4)[:, None] + draw.normal(0, 0.01, (4, 20))).ravel()
    found = interval_of(mean, resampled_sums(of(values), [20] * 4, 2))
    assert found.detectable == pytest.approx(found.standard_error * (t.ppf(0.9775, 3) + 0.9785), rel=1e-3)
    for effect in (0.2, 0.1, 0.05):
        runs = 4 + found.more_runs(effect)
        needed = [
            found.standard_error * 2 / n**0.5 * (t.ppf(0.9775, n - 1) + students_t(n - 1, 0.8))
            for n in (runs - 1, runs)
        ]
        assert needed[0] > effect >= needed[1] or runs == 5
    assert found.more_runs(0.05) > found.more_runs(0.1)
    # To show that a small effect is within 0.2 takes fewer runs than to show that it is not 0.
    assert found.more_runs(0.03, 0.2) < found.more_runs(0.03) and found.more_runs(0.0, 0.2) < math.inf
    assert math.isnan(found.more_runs(0.0))
