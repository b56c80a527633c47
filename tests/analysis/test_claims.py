"""Every sentence of the verdict that makes a claim: a case that has it, and a near case where it must not appear."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_estimates import arm_rows
from test_verdict import EQUAL, UNEQUAL, UNKNOWN, claim, engines, ledger_row, said

from analysis.estimates.arm import ROUNDED
from analysis.pairs import COMPARISON_COLUMNS
from analysis.verdict import caveats as sentences
from analysis.verdict.verdict_table import _remedies
from common.findings import COMPARED, Preflight

NAN = math.nan
NOTHING = pd.DataFrame(columns=COMPARISON_COLUMNS)


def block(frames, preflight=EQUAL):
    """The whole verdict of `b` against `a`, without the bound on caveats."""
    (found,) = said(frames, preflight=preflight)
    return " ".join([found.words, found.basis, *(one.text for one in found.caveats), *found.settle])


def of(*claims):
    caveats = sentences.caveats_of("b", claims, NOTHING, None, EQUAL, [])
    return " ".join([*(one.text for one in caveats), *_remedies(claims, NOTHING, EQUAL, [])])


def with_reward(b, frames=None, missing=False):
    out = []
    for frame in frames or engines(2.0):
        is_b, noise = frame["arm"].iloc[0] == "b", 0.01 * (frame["step"] % 3)
        reward = (b if is_b else 0.5) + noise
        out.append(frame.assign(reward=reward.where(~(missing & is_b & (frame["step"] == 5)))))
    return out


def swept(worse_at):
    return [
        frame
        for f in (1, 2)
        for frame in with_reward(0.3 if f in worse_at else 0.5, engines(2.0, factors=f'{{"f": {f}}}'))
    ]


def without(*columns, frames=None):
    return [frame.drop(columns=list(columns)) for frame in frames or engines(2.0)]


def timed(arm, factor, frames):
    step = "timing_s/step"
    return [f.assign(**{step: f[step] * factor(f)}) if f["arm"].iloc[0] == arm else f for f in frames]


def whole(code):
    return replace(UNEQUAL, findings=(*UNEQUAL.findings, replace(UNEQUAL.findings[0], code=code)))


EMPTY = Preflight((), (), ())
DIFFERENT = Preflight((), (ledger_row("batch", "equal"), ledger_row("cap", "different")), ())
COMPARING = Preflight((), (EQUAL.ledger[0], replace(DIFFERENT.ledger[1], why=COMPARED)), ())
STEP = "timing_s/step"
# The sentence, a verdict that has it, and a near one that must not.
CASES = {
    "there is no preflight": (lambda: block(engines(2.0), None), lambda: block(engines(2.0), EMPTY)),
    "the fairness ledger is empty": (lambda: block(engines(2.0), EMPTY), lambda: block(engines(2.0), UNKNOWN)),
    "one log may have another unit": (
        lambda: block(timed("b", lambda f: 1e-3, engines(2.0))),
        lambda: block(timed("b", lambda f: 0.1, engines(2.0))),
    ),
    "the engines alone do not explain": (
        lambda: block(engines(2.0), UNEQUAL),
        lambda: block(engines(2.0), whole("trainers")),
    ),
    "terms equal": (lambda: block(engines(2.0), EQUAL), lambda: block(engines(2.0), DIFFERENT)),
    "terms equal (0 unequal of 2 settings)": (
        lambda: block(engines(2.0), COMPARING),
        lambda: block(engines(2.0), DIFFERENT),
    ),
    "0 unequal": (lambda: block(engines(2.0), UNKNOWN), lambda: block(engines(2.0), DIFFERENT)),
    "gate fails: b is worse in reward.": (
        lambda: block(with_reward(0.3)),
        # Better, and worse at one factor combination only, which is named.
        lambda: block(with_reward(0.7)) + block(swept((1,))),
    ),
    "gate fails: b is worse in reward at f = 1.": (lambda: block(swept((1,))), lambda: block(swept((1, 2)))),
    "cannot judge reward: some steps have numbers in one arm only": (
        lambda: block(with_reward(0.5, missing=True)),
        # It is judged: it fails.
        lambda: block(with_reward(0.3, missing=True)),
    ),
    "One step of one run each": (
        lambda: block([f.head(1) for f in engines(2.0, seeds=1)]),
        lambda: block([f.head(2) for f in engines(2.0, seeds=1)]),
    ),
    "One run pair": (lambda: block(engines(2.0, seeds=1)), lambda: block(engines(2.0, seeds=2))),
    "the seeds disagree": (
        lambda: block(timed("b", lambda f: 3.0 if f["seed"].iloc[0] else 1.0, engines(2.0))),
        lambda: block(timed("b", lambda f: 1.5 if f["seed"].iloc[0] else 1.0, engines(2.0))),
    ),
    "No ratio: its 95% interval is wider": (
        lambda: of(claim(raw=(2.0, 0.5, 20.0, ROUNDED))),
        lambda: of(claim(raw=(2.0, 0.7, 5.9, ""))),
    ),
    "more steps": (lambda: of(claim(raw=(2.0, NAN, NAN, ""))), lambda: of(claim(raw=(2.0, NAN, NAN, ROUNDED)))),
    "resolve only ratios of": (lambda: block(engines(1.0, noise=0.3)), lambda: block(engines(2.0))),
    "The estimates disagree: raw and roofline point to the other arm": (
        lambda: of(claim(standardised=1.1, roofline=0.95, raw=0.9, per_token=1.1)),
        lambda: of(claim(standardised=1.1, roofline=1.15, raw=0.9, per_token=1.1)),
    ),
    "equal work disagree": (lambda: block(engines(1.0, scale=1.6)), lambda: block(engines(2.0))),
    "× as many tokens as the baseline, so step time alone misleads": (
        lambda: of(claim(standardised=1.0, per_token=1.0, raw=0.5)),
        lambda: of(claim(standardised=1.0, per_token=0.5, raw=0.5)),
    ),
    "step time alone may mislead": (
        lambda: of(claim(standardised=(1.0, NAN, NAN, ""), per_token=1.0, raw=0.5)),
        lambda: of(claim(standardised=1.0, per_token=1.0, raw=0.5)),
    ),
    "both arms generated equally many tokens": (
        lambda: of(claim(standardised=1.0, per_token=0.5, raw=0.5)),
        lambda: of(claim(standardised=1.0, per_token=1.0, raw=0.5)),
    ),
    "Per step and per response token disagree on which arm is faster: the arm generated 1.33× as many": (
        lambda: of(claim(per_token=1.2, raw=0.9)),
        lambda: of(claim(per_token=1.2, raw=1.1)),
    ),
    "Per step and per response token disagree on which arm is faster at f = 1": (
        lambda: of(claim("f = 1", per_token=1.2, raw=0.9), claim("f = 2", per_token=1.2, raw=1.1)),
        lambda: of(claim("f = 1", per_token=1.2, raw=0.9), claim("f = 2", per_token=1.2, raw=0.8)),
    ),
    "The median steps point to the other arm": (
        lambda: block(timed("b", lambda f: np.where(f["step"] == 4, 1e4, 1.0), engines(2.0))),
        lambda: block(timed("b", lambda f: np.where(f["step"] == 4, 1e4, 1.0), engines(0.8))),
    ),
    "The median steps have another ratio": (
        lambda: block(timed("b", lambda f: np.where(f["step"] == 4, 1e4, 1.0), engines(0.8))),
        lambda: block(timed("b", lambda f: np.where(f["step"] == 4, 1.2, 1.0), engines(0.8))),
    ),
    "By wall clock, which includes the time between steps": (
        lambda: block([f.assign(between_steps_s=f[STEP].mean() * (f["arm"] == "b")) for f in engines(2.0)]),
        lambda: block([f.assign(between_steps_s=0.05 * f[STEP].mean()) for f in engines(2.0)]),
    ),
    "settings cannot be verified": (lambda: block(engines(2.0), UNKNOWN), lambda: block(engines(2.0), EQUAL)),
}


@pytest.mark.parametrize("sentence", CASES)
def test_a_sentence_appears_where_its_numbers_say_so_and_nowhere_else(sentence):
    has, lacks = (make() for make in CASES[sentence])
    assert sentence in has
    assert sentence not in lacks


def test_equally_long_responses_are_not_said_to_differ_in_length():
    """Twice as many responses of 812.5 tokens: a line of a log may stand for several steps."""
    frames = []
    for arm, count in (("a", 64), ("b", 128)):
        columns = {"mean_response_length": 812.5, "response_tokens": 812.5 * count}
        frames += [arm_rows(arm, np.full(20, 10.0 if arm == "a" else 16.0), seed, **columns) for seed in (0, 1)]
    told = block(frames)
    assert "Per step and per response token disagree" in told and "the arm generated 2.00× as many tokens" in told
    assert "length" not in told
