"""Mismatch beside speed: one number a run, at equal lengths, by one definition; what makes it incomparable is said."""

from dataclasses import replace

import numpy as np
import pytest
from test_verdict import caveats, engines, ledger_row, plan, said

from analysis.mismatch import Mismatch, mismatch_line
from common.findings import LedgerRow, Preflight

GAP, K3 = "rollout_logp_gap", "rollout_k3"


def with_mismatch(baseline, arm, name=GAP, seeds=3, scale=1.0, spread=0.1, grows=True):
    """Runs that differ by `spread`, whose mismatch is proportional to the mean length."""
    draw = np.random.default_rng(4)
    frames = []
    for frame in engines(1.5, seeds=seeds, scale=scale):
        level = (arm if frame["arm"].iloc[0] == "b" else baseline) * np.exp(draw.normal(0, spread))
        length = frame["mean_response_length"] / 1000 if grows else 1.0
        frames.append(frame.assign(**{name: level * length * np.exp(draw.normal(0, 0.02, len(frame)))}))
    return frames


def test_no_direction_is_told_of_an_interval_that_holds_1_as_printed():
    one = Mismatch(GAP, 0.01, 0.01003, 1.003, (1.0004, 1.006), True)
    assert mismatch_line(("a", "b"), one).startswith("b and a are equally far from their trainers: ")
    assert mismatch_line(("a", "b"), replace(one, interval=(1.006, 1.01))).startswith("b is 1.00 times as far")


def test_alike_engines_are_not_resolved_and_one_run_an_arm_has_no_interval():
    (found,) = said(with_mismatch(0.011, 0.011))
    assert found.mismatch.startswith("How far b and a are from their trainers is not resolved: b 0.0")
    (found,) = said(with_mismatch(0.011, 0.036, seeds=1))
    assert "not resolved" in found.mismatch and "95% CI" not in found.mismatch
    (found,) = said(engines(1.5))
    assert found.mismatch == ""


def test_engines_that_differ_from_their_trainers_by_rounding_have_no_order():
    (found,) = said(with_mismatch(2e-7, 6e-7))
    assert found.mismatch.startswith("b and a are as near to their trainers as float32 rounds: ")
    assert "times as far" in said(with_mismatch(2e-7, 6e-5))[0].mismatch


def test_longer_responses_are_taken_out():
    """The arm's responses are half as long again, and its mismatch grows with them and with nothing else."""
    (found,) = said(with_mismatch(0.02, 0.02, scale=1.5, spread=0.01))
    assert "is not resolved" in found.mismatch and "unequal lengths" not in found.mismatch


def test_other_definitions_are_not_mixed():
    frames = with_mismatch(0.011, 0.036)
    frames = [f.rename(columns={GAP: K3}) if f["arm"].iloc[0] == "b" else f for f in frames]
    assert said(frames)[0].mismatch == ""
    (found,) = said([f.assign(**{K3: f[GAP] if GAP in f else f[K3]}) for f in frames])
    assert "KL by k3" in found.mismatch


def test_a_kl_whose_sign_is_turned_is_not_compared():
    assert said(with_mismatch(-0.011, -0.036, "rollout_kl"))[0].mismatch == ""


def test_a_jump_is_named_with_its_step_and_noise_is_not():
    frames = with_mismatch(0.015, 0.015, spread=0.0, grows=False)
    assert "jumps" not in caveats(said(frames)[0], "gate")
    stale = [
        f.assign(**{GAP: f[GAP] * np.where(f["step"] >= 20, 13.0, 1.0)}) if i == 1 else f for i, f in enumerate(frames)
    ]
    text = caveats(said(stale)[0], "gate")
    assert "The mismatch of b-s0 jumps at step 20 and stays 13" in text
    one_step = [f.assign(**{GAP: f[GAP] * np.where(f["step"] == 20, 13.0, 1.0)}) for f in frames]
    assert "jumps" not in caveats(said(one_step)[0], "gate")


@pytest.mark.parametrize(("value", "cut"), [("0.9", True), ("1.0", False), ("unknown", False)])
def test_sampling_that_is_cut_makes_it_incomparable(value, cut):
    row = ledger_row("workload.top_p", "equal")
    terms = Preflight((), (type(row)(row.setting, {"a": value, "b": value}, "equal", "", ""),), ())
    (found,) = said(with_mismatch(0.011, 0.036), preflight=terms)
    assert ("workload.top_p cut what the engines sample from" in caveats(found, "data")) is cut


def test_of_runs_from_here_it_is_said_why_none_is_logged():
    """A driver logs none where sampling is cut; a log from elsewhere may have none for any reason."""
    terms = with_rows(("workload.top_p", "0.9", "0.9"))
    (found,) = said(engines(1.5), preflight=terms)
    assert "The mismatch is not comparable: workload.top_p cut what the engines sample from." in caveats(found, "data")
    elsewhere = replace(plan("a", "b"), arms={name: {"trainer": "trl", "import": ["log"]} for name in "ab"})
    (found,) = said(engines(1.5), elsewhere, preflight=terms)
    assert "not comparable" not in caveats(found, "data")


def with_rows(*rows):
    return Preflight((), tuple(LedgerRow(name, {"a": a, "b": b}, "equal", "why", "source") for name, a, b in rows), ())
