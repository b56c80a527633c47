"""Sums paired steps into the four estimates of two arms' speed.

A is the baseline, B the arm, T the seconds of a step; above 1 the arm is faster. All are ratios of sums over the same
paired steps (factors, seed, step), and functions of sums alone, so that bootstrap.py can resample them.

raw           ΣT_A / ΣT_B
per token     (ΣT_A / Σtokens_A) / (ΣT_B / Σtokens_B)
roofline      (ΣT_A / Σfloor_A) / (ΣT_B / Σfloor_B); floor is the least time of the step's responses on A's hardware
standardised  T = a + b·Lmax + c·Σtokens + d·floor, fitted to each arm; the ratio of both predictions for equal steps.
              The floor has a term where the lengths of all responses are known: it knows how unequal they are
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.estimates.bootstrap import Floats
from analysis.pairs import MEAN_LENGTH, TOKENS
from analysis.wide import PHASE, numbers_of, threw_away
from analysis.windows import pair_weights
from common.verdicts import count_of

Row = dict[str, Any]
"""One estimate of one arm (columns: estimate_table.py)."""

ESTIMATES = ("raw", "per_token", "roofline", "standardised")
EQUAL_WORK = ("standardised", "roofline")
"""The estimates at equal work, the least biased first: below 1%, and up to 11% for a step with a large fixed part."""

STEP, LONGEST = PHASE + "step", "max_response_length"
FLOOR, FLOOR_BASIS, GENERATION = "equal_floor_s", "floor_basis", "generation_s"  # made by step_floors.py
NEEDS = {"raw": (), "per_token": (TOKENS,), "roofline": (FLOOR,), "standardised": (LONGEST, TOKENS)}
NO_ONE_ROOF = "the baseline's runs differ here in GPUs, model, tensor parallel size or caps: they have no common floor"
NO_SUPPORT = "no common support: hardly a step of one arm has lengths like those of the other"
LABELS = {TOKENS: "response tokens", LONGEST: "the longest response", FLOOR: "the floor"}
NOT_KNOWN = "not known"
_ARMS = {"a": "the baseline", "b": "the arm"}
MADE_OF = {
    "lengths": "all lengths",
    "scalars": "the number of responses, their mean and their longest",
    "longest": "the longest response alone",
}

# Two steps for each coefficient; with fewer a fit follows noise.
LEAST_STEPS_FOR_A_FIT = 6
LEAST_COMMON_STEPS = 3
STEPS_FOR_THE_FLOOR = 8
# Below this 1 - r² of the two regressors their effects cannot be separated.
COLLINEAR = 1e-6
# A longest response that nearly all steps share needs no coefficient: few steps would decide it.
SAME_IN = 0.9
MEANS_ALIKE = 2e-3
# Below this share of its variance the floor adds nothing to the other two regressors.
FLOOR_ADDS = 1e-3

# Columns whose sums make the estimates: `n`, and the others once for each arm.
_PLAIN = ("t", "tokens", "floor")
_REGRESSORS = (LONGEST, TOKENS, FLOOR)
_TERMS = range(len(_REGRESSORS))
_MOMENTS = (
    *(f"x{i}" for i in _TERMS),
    *(f"x{i}x{j}" for i in _TERMS for j in _TERMS if i <= j),
    *(f"x{i}t" for i in _TERMS),
)
_NAMES = ["n", *(f"{n}_{s}" for n in (*_PLAIN, *_MOMENTS) for s in "ab")]
_AT = {name: index for index, name in enumerate(_NAMES)}

Fitted = tuple[bool, bool, bool]


@dataclass(frozen=True)
class Paired:
    """Paired steps of two arms as a matrix of columns to sum (`_NAMES`), with the runs in sequence."""

    columns: Floats
    lengths: tuple[int, ...]
    """The rows of each run."""
    series: dict[str, list[Floats]]
    """Estimate -> each run's values step by step, which give the block length."""
    fitted: Fitted
    """Whether Lmax, Σtokens and the floor have a coefficient: a (nearly) constant Lmax needs none."""
    left_open: float | None
    """How far the arms' lengths may still differ where the fit compares them, as the logarithm of the ratio of their
    floors there: 0 with a term for the floor; None where the lengths of all responses are not known."""
    why: dict[str, str]
    """Estimate -> why it has no value."""

    @property
    def steps(self) -> int:
        return int(self.columns[:, _AT["n"]].sum())

    @property
    def rows(self) -> int:
        return len(self.columns)


def paired(pairs: pd.DataFrame) -> Paired:
    """The columns of `paired_steps`' table, and the estimates that they allow."""
    side = {s: {n: numbers_of(pairs, f"{n}_{s}") for n in (STEP, TOKENS, LONGEST, FLOOR)} for s in "ab"}
    if counts_assumed_equal(pairs):
        for s in "ab":
            side[s][TOKENS] = numbers_of(pairs, f"{MEAN_LENGTH}_{s}")
    # An arm with its own floor has the needed data; only a common floor with the baseline may be missing.
    own = {s: side[s] | {FLOOR: np.where(_has_own_floor(pairs, s), 1.0, side[s][FLOOR])} for s in "ab"}
    why = {name: reason for name in ESTIMATES if (reason := _missing(own, NEEDS[name], len(pairs)))}
    if "roofline" not in why and (reason := _mixed_floors(pairs)):
        why["roofline"] = reason
    elif "roofline" not in why and _missing(side, NEEDS["roofline"], len(pairs)):
        why["roofline"] = NO_ONE_ROOF
    if reason := discarded(pairs):
        why |= dict.fromkeys(ESTIMATES[1:], reason)
    zeros, weights = np.zeros(len(pairs)), pair_weights(pairs)
    columns = {"n": np.ones(len(pairs))}
    for s in "ab":
        columns[f"t_{s}"] = side[s][STEP]
        for name, source in (("tokens", TOKENS), ("floor", FLOOR)):
            columns[f"{name}_{s}"] = side[s][source] if np.isfinite(side[s][source]).all() else zeros
    fitted: Fitted = (False, False, False)
    left_open = None
    if "standardised" not in why:
        lengths_of = {s: np.stack([side[s][LONGEST], side[s][TOKENS]], axis=1) for s in "ab"}
        needed, reason = _regressors(lengths_of["a"], lengths_of["b"])
        if reason:
            why["standardised"] = reason
        else:
            all_lengths = "roofline" not in why and needed == (True, True) and _has_all_lengths(pairs)
            fitted = (*needed, all_lengths and _floor_adds(side))
            if all_lengths:
                left_open = 0.0 if fitted[-1] else _left_open(side, lengths_of, weights)
            columns |= _moments(side, lengths_of, fitted, weights)
    lengths = tuple(int(n) for n in pairs.groupby("seed", sort=False).size())
    series = {name: _series(name, side, fitted) for name in ESTIMATES if name not in why}
    by_run = {name: list(np.split(values, np.cumsum(lengths)[:-1])) for name, values in series.items()}
    return Paired(_matrix(columns, weights), lengths, by_run, fitted, left_open, why)


def _matrix(columns: dict[str, Floats], weights: Floats) -> Floats:
    """The columns of `_NAMES`: a row that is the mean of several steps counts for all of them."""
    zeros = np.zeros(len(weights))
    found: Floats = np.stack([columns.get(name, zeros) for name in _NAMES], axis=1) * weights[:, None]
    return found


def counts_assumed_equal(pairs: pd.DataFrame) -> bool:
    """Whether no step of either arm has its number of responses and all have their mean length.

    The mean lengths then stand for the tokens: this takes the responses of a step as equally many in both arms.
    """
    lengths = [numbers_of(pairs, f"{MEAN_LENGTH}_{s}") for s in "ab"]
    counted = any(np.isfinite(numbers_of(pairs, f"{TOKENS}_{s}")).any() for s in "ab")
    return not counted and all(bool((values > 0).all()) for values in lengths)


def discarded(pairs: pd.DataFrame) -> str:
    """Why the paired steps' work is unknown, where completions were thrown away; otherwise ""."""
    steps = {arm: int(threw_away(pairs, f"_{s}").sum()) for s, arm in _ARMS.items()}
    shown = " and ".join(f"{arm} in {count_of(n, 'paired step')}" for arm, n in steps.items() if n)
    text = f"completions were thrown away ({shown}): tokens and lengths are of the rest, the seconds of all"
    return text if shown else ""


def _series(name: str, side: dict[str, dict[str, Floats]], fitted: Fitted) -> Floats:
    """An estimate's value step by step; a drift of the lengths is not noise where the estimate removes it."""
    if name == "standardised":
        left = {}
        for s in "ab":
            t, x = side[s][STEP], [side[s][q] for q, used in zip(_REGRESSORS, fitted, strict=True) if used]
            design = np.stack([np.ones(len(t)), *(v / v.mean() for v in x)], axis=1)
            left[s] = (t - design @ np.linalg.lstsq(design, t, rcond=None)[0]) / t.mean()
        return np.asarray(left["a"] - left["b"], dtype=np.float64)
    work = {"raw": None, "per_token": TOKENS, "roofline": FLOOR}[name]
    per = {s: np.log(side[s][STEP] / (side[s][work] if work else 1.0)) for s in "ab"}
    return np.asarray(per["a"] - per["b"], dtype=np.float64)


def _missing(side: dict[str, dict[str, Floats]], needs: tuple[str, ...], steps: int) -> str:
    """Why an estimate has no value: its data is missing in some steps, and a part of the steps is other work."""
    for name in needs:
        bad = {s: int((~(np.isfinite(side[s][name]) & (side[s][name] > 0))).sum()) for s in "ab"}
        if most := max(bad.values()):
            arms = " and ".join(arm for s, arm in _ARMS.items() if bad[s])
            share = "" if most == steps else f" in {most} of {steps} paired steps"
            return f"{LABELS[name]} of {arms} {'are' if name == TOKENS else 'is'} {NOT_KNOWN}{share}"
    return ""


def _has_own_floor(pairs: pd.DataFrame, side: str) -> npt.NDArray[np.bool_]:
    """The steps of one arm that have their own floor."""
    name = f"{FLOOR_BASIS}_{side}"
    return (pairs[name] != "").to_numpy(bool) if name in pairs else np.zeros(len(pairs), dtype=np.bool_)


def _mixed_floors(pairs: pd.DataFrame) -> str:
    """Why the floors of paired steps are made of different data: less data gives a lower floor."""
    names = [f"{FLOOR_BASIS}_{s}" for s in "ab"]
    if any(name not in pairs for name in names):
        return ""
    mixed = pairs.loc[pairs[names[0]] != pairs[names[1]], names]
    if mixed.empty:
        return ""
    share = "" if len(mixed) == len(pairs) else f" in {len(mixed)} of {len(pairs)} paired steps"
    of = [" and ".join(MADE_OF.get(str(kind), str(kind)) for kind in mixed[name].unique()) for name in names]
    return (
        f"the floors are made of different data{share}: the baseline's of {of[0]}, the arm's of {of[1]}; missing "
        "length data lowers a floor"
    )


def _regressors(a: Floats, b: Floats) -> tuple[tuple[bool, bool], str]:
    """The regressors of (Lmax, Σtokens) that both arms' fits need, and why there is no fit, or ""."""
    if len(a) < LEAST_STEPS_FOR_A_FIT:
        return (False, False), f"a fit needs {LEAST_STEPS_FOR_A_FIT} paired steps (there are {len(a)})"
    if int(_in_common(a, b).sum()) < LEAST_COMMON_STEPS:
        return (False, False), NO_SUPPORT
    varies = [[bool(np.ptp(x[:, j]) > 0) for j in (0, 1)] for x in (a, b)]
    need = ((varies[0][0] or varies[1][0]) and not _at_the_cap(a[:, 0], b[:, 0]), varies[0][1] or varies[1][1])
    for j, label in enumerate(("the longest response", "the number of tokens")):
        if need[j] and not (varies[0][j] and varies[1][j]):
            constant = _ARMS["a" if not varies[0][j] else "b"]
            return need, f"singular fit: {label} is the same in every step of {constant} alone"
    if need == (True, True):
        for arm, x in zip(_ARMS.values(), (a, b), strict=True):
            if 1 - float(np.corrcoef(x[:, 0], x[:, 1])[0, 1]) ** 2 < COLLINEAR:
                return need, f"singular fit: in {arm} the longest response and the tokens are proportional"
    return need, ""


def _at_the_cap(a: Floats, b: Floats) -> bool:
    """Whether nearly all steps of both arms have the same longest response, and its means are alike."""
    cap = max(a.max(), b.max())
    apart = abs(float(np.log(a.mean() / b.mean())))
    return min(float((a == cap).mean()), float((b == cap).mean())) >= SAME_IN and apart < MEANS_ALIKE


def _in_common(a: Floats, b: Floats) -> npt.NDArray[np.bool_]:
    """The steps of both arms, a's first, that are within both arms' ranges of Lmax and of Σtokens."""
    low, high = np.maximum(a.min(axis=0), b.min(axis=0)), np.minimum(a.max(axis=0), b.max(axis=0))
    pooled = np.concatenate([a, b])
    inside: npt.NDArray[np.bool_] = ((pooled >= low) & (pooled <= high)).all(axis=1)
    return inside


def _has_all_lengths(pairs: pd.DataFrame) -> bool:
    """Whether the floors of both arms are made of all lengths, in enough steps for a coefficient.

    Made of their number, mean and longest a floor is a function of the other regressors.
    """
    names = [f"{FLOOR_BASIS}_{s}" for s in "ab"]
    return len(pairs) >= STEPS_FOR_THE_FLOOR and all(n in pairs and (pairs[n] == "lengths").all() for n in names)


def _floor_adds(side: dict[str, dict[str, Floats]]) -> bool:
    """Whether the floor says more of each arm's steps than the longest response and the tokens."""
    for of in side.values():
        design = np.stack(
            [np.ones(len(of[FLOOR])), of[LONGEST] / of[LONGEST].mean(), of[TOKENS] / of[TOKENS].mean()], 1
        )
        floor = of[FLOOR] / of[FLOOR].mean()
        left = floor - design @ np.linalg.lstsq(design, floor, rcond=None)[0]
        if not left.var() > FLOOR_ADDS * floor.var():
            return False
    return True


def _left_open(side: dict[str, dict[str, Floats]], lengths: dict[str, Floats], weights: Floats) -> float | None:
    """The logarithm of the ratio of both arms' floors at the step that is compared, by fits without the floor's term.

    None where such a fit is singular.
    """
    fitted = (True, True, False)
    floors = {s: of | {STEP: of[FLOOR]} for s, of in side.items()}
    columns = {"n": np.ones(len(weights)), **{f"t_{s}": of[FLOOR] for s, of in side.items()}}
    columns |= _moments(floors, lengths, fitted, weights)
    found = float(log_estimate("standardised", fitted, _matrix(columns, weights).sum(axis=0)))
    return None if np.isnan(found) else abs(found)


def _moments(
    side: dict[str, dict[str, Floats]], lengths: dict[str, Floats], fitted: Fitted, weights: Floats
) -> dict[str, Floats]:
    """The products whose sums make both fits, with regressors that are 0 at the mean step of the common support.

    This mean is the work at which the arms are compared, and is the same in every resample.
    """
    common, steps = _in_common(lengths["a"], lengths["b"]), np.concatenate([weights, weights])
    z: dict[str, dict[int, Floats]] = {"a": {}, "b": {}}
    for i in _TERMS:
        of = {s: side[s][_REGRESSORS[i]] if fitted[i] else np.zeros(len(weights)) for s in "ab"}
        pooled = np.concatenate([of["a"], of["b"]])
        centre = np.average(pooled[common], weights=steps[common])
        for s in "ab":
            z[s][i] = (of[s] - centre) / (pooled.std() or 1.0)
    found: dict[str, Floats] = {}
    for s in "ab":
        for i in _TERMS:
            found |= {f"x{i}_{s}": z[s][i], f"x{i}t_{s}": z[s][i] * side[s][STEP]}
            found |= {f"x{i}x{j}_{s}": z[s][i] * z[s][j] for j in _TERMS if i <= j}
    return found


def log_estimate(name: str, fitted: Fitted, sums: Floats) -> Floats:
    """The logarithm of an estimate from sums over steps (last axis: `_NAMES`); NaN where it has none."""
    found: Floats = log_side(name, fitted, sums, "a") - log_side(name, fitted, sums, "b")
    return found


def log_side(name: str, fitted: Fitted, sums: Floats, side: str) -> Floats:
    """The logarithm of one arm's seconds for the work of an estimate; NaN where there are none."""

    def of(column: str) -> Floats:
        found: Floats = sums[..., _AT[column]]
        return found

    with np.errstate(divide="ignore", invalid="ignore"):
        if name == "standardised":
            seconds = _predicted_s(of, side, fitted)
        else:
            work = {"raw": None, "per_token": "tokens", "roofline": "floor"}[name]
            seconds = of(f"t_{side}") / (of(f"{work}_{side}") if work else 1.0)
        found: Floats = np.where(seconds > 0, np.log(np.where(seconds > 0, seconds, 1.0)), np.nan)
    return found


def _predicted_s(of: Callable[[str], Floats], side: str, fitted: Fitted) -> Floats:
    """The seconds that an arm's fit predicts for the mean step of the common support."""
    n = of("n")
    mean = {name: of(f"{name}_{side}") / n for name in (*_MOMENTS, "t")}
    used = [i for i in _TERMS if fitted[i]]
    if not used:
        return mean["t"]
    spread = [[mean[f"x{min(i, j)}x{max(i, j)}"] - mean[f"x{i}"] * mean[f"x{j}"] for j in used] for i in used]
    matrix = np.moveaxis(np.array(spread), (0, 1), (-2, -1))
    with_t = np.stack([mean[f"x{i}t"] - mean[f"x{i}"] * mean["t"] for i in used], axis=-1)
    singular = ~(np.linalg.det(matrix) > COLLINEAR * np.prod(np.diagonal(matrix, axis1=-2, axis2=-1), axis=-1))
    matrix = np.where(singular[..., None, None], np.eye(len(used)), matrix)
    slopes = np.linalg.solve(matrix, with_t[..., None])[..., 0]
    at_centre: Floats = mean["t"] - (slopes * np.stack([mean[f"x{i}"] for i in used], axis=-1)).sum(axis=-1)
    return np.where(singular, np.nan, at_centre)
