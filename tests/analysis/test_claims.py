"""Every sentence of the verdict that makes a claim: a case that has it, and a near case where it must not appear."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_verdict import EQUAL, UNEQUAL, UNKNOWN, claim, engines, ledger_row, said

from analysis.comparison_tables import COMPARISON_COLUMNS
from analysis.verdict import caveats as sentences
from analysis.verdict.verdict_table import _remedies
from common.findings import COMPARED, Preflight

NAN = math.nan
NOTHING = pd.DataFrame(columns=COMPARISON_COLUMNS)


def block(frames, preflight=EQUAL):
    """The whole verdict of `b` against `a`, without the bound on caveats."""
    (found,) = said(frames, preflight=preflight)
    return " ".join([found.words, found.basis, *(one.text for one in found.caveats), *found.settle])


def of(*claims, tokens=1.0):
    """The caveats and remedies of claims, where the arm generated so many times the baseline's tokens."""
    row = {name: math.nan for name in COMPARISON_COLUMNS} | {"factors": "", "tokens_ratio": tokens, "rounding": 0.0}
    table = pd.DataFrame([row | {"by_number": True, "short_runs": ""}])
    caveats = sentences.caveats_of("b", claims, table, None, EQUAL, [])
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
    "gate fails: b is worse in reward (": (
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
    "One run an arm": (lambda: block(engines(2.0, seeds=1)), lambda: block(engines(2.0, seeds=2))),
    "No ratio: its 95% interval is wider": (
        lambda: of(claim(per_step=(2.0, 0.5, 20.0, "why"))),
        lambda: of(claim(per_step=(2.0, 0.7, 5.9, ""))),
    ),
    "more steps": (
        lambda: block([f.head(1) for f in engines(2.0, seeds=1)]),
        lambda: block([f.head(9) for f in engines(2.0, seeds=1)]),
    ),
    "resolve only ratios of": (lambda: block(engines(1.0, apart=0.3)), lambda: block(engines(2.0))),
    "equal work disagree": (lambda: block(engines(1.0, scale=1.6)), lambda: block(engines(2.0))),
    "× as many tokens as the baseline, so step time alone misleads": (
        lambda: of(claim(equal_work=1.0, per_step=0.5), tokens=2.0),
        lambda: of(claim(equal_work=1.0, per_step=0.5)),
    ),
    "step time alone may mislead": (
        lambda: of(claim(equal_work=(1.0, NAN, NAN, ""), per_step=0.5), tokens=2.0),
        lambda: of(claim(equal_work=1.0, per_step=0.5), tokens=2.0),
    ),
    "both arms generated equally many tokens": (
        lambda: of(claim(equal_work=1.0, per_step=0.5)),
        lambda: of(claim(equal_work=1.0, per_step=0.5), tokens=2.0),
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
