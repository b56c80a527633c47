"""The seconds of a step that grow with its responses, and the length at which two arms cross."""

import re

import numpy as np
import pandas as pd
import pytest
from test_estimates import arm_rows, plan
from test_verdict import caveats, said

from analysis.compared import compared
from analysis.comparison_tables import cost_lines
from trainers.registry import tree_named

TREE = tree_named("verl 0.4.1")


def runs(arm, fixed, per_1000, lengths=(400, 1600), seeds=3, steps=30, noise=0.01):
    """Runs of an arm whose generation is a line of the mean response, and 10 s of other work."""
    draw = np.random.default_rng([ord(arm), seeds])
    for seed in range(seeds):
        length = draw.uniform(*lengths, steps)
        gen = (fixed + per_1000 * length / 1000) * np.exp(draw.normal(0, noise, steps) + draw.normal(0, noise))
        columns = {"response_tokens": length * 64, "max_response_length": length * 2, "mean_response_length": length}
        columns |= {"timing_s/step/gen": gen, "timing_s/step/update_actor": np.full(steps, 10.0)}
        yield arm_rows(arm, gen + 10, seed=seed, **columns)


def table(*frames):
    wide = pd.concat(frames, ignore_index=True)
    return cost_lines(wide, compared(wide, plan("a", "b")), [TREE]).set_index(["arm", "path"])


def test_each_phase_has_its_seconds_for_a_thousand_tokens():
    found = table(*runs("a", 5, 20), *runs("b", 2, 25))
    for arm, per_1000 in (("a", 20), ("b", 25)):
        gen = found.loc[arm, "step/gen"]
        assert gen["per_1000_s"] == pytest.approx(per_1000, rel=0.03)
        assert gen["low"] < per_1000 < gen["high"]
        assert found.loc[(arm, "step/update_actor"), "per_1000_s"] == pytest.approx(0, abs=1e-9)
        assert "fixed_s" not in found, "where the longest response costs, the line's end at no token is below 0"


def test_lengths_that_hardly_vary_and_few_steps_give_no_line():
    assert table(*runs("a", 5, 20, lengths=(1000, 1010)), *runs("b", 5, 20, seeds=1, steps=11)).empty


@pytest.mark.parametrize(("long", "short"), ["ab", "ba"])
def test_the_length_at_which_two_arms_cross_is_a_caveat(long, short):
    """15 + 20 x against 5 + 30 x: they cross at 1,000 tokens."""
    (found,) = said([*runs(long, 15, 20, noise=0.003), *runs(short, 5, 30, noise=0.003)])
    text = re.search(r"depends on the length: (\w) above ([\d,]+) tokens a response, (\w) below\.", caveats(found))
    assert (text[1], text[3]) == (long, short) and 950 <= int(text[2].replace(",", "")) <= 1050


@pytest.mark.parametrize("lengths", [(400, 900), (1100, 1600)])
def test_nothing_is_said_of_lengths_that_no_step_had(lengths):
    (found,) = said([*runs("a", 15, 20, lengths), *runs("b", 5, 30, lengths)])
    assert "depends on the length" not in caveats(found)


def test_one_run_an_arm_and_equal_engines_do_not_cross():
    (found,) = said([*runs("a", 15, 20, seeds=1), *runs("b", 5, 30, seeds=1)])
    assert "depends on the length" not in caveats(found)
    step, alike = "timing_s/step", [*runs("a", 10, 20), *runs("b", 10, 20)]
    draws = map(np.random.default_rng, range(20))
    noisy = ([f.assign(**{step: f[step] * np.exp(draw.normal(0, 0.02, len(f)))}) for f in alike] for draw in draws)
    assert sum("depends on the length" in caveats(said(frames)[0]) for frames in noisy) <= 1
