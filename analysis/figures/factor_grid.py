"""Which factors a sweep varies, and each estimate's place among them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.estimates.equal_work import EQUAL_WORK
from analysis.figures.estimate_rows import UNRESOLVED, comparable, interval_or_none, shape_of
from analysis.rows import rows_of


def _factors(key: str) -> dict[str, Any]:
    return json.loads(key) if key else {}


def _text(value: Any) -> str:
    return " ".join(str(value).split())


def swept(keys: Sequence[str]) -> dict[str, list[str]]:
    """The factors with more than one value, each with its values in order: numbers by size, texts as they come."""
    values: dict[str, dict[str, Any]] = {}
    for key in keys:
        for name, value in _factors(key).items():
            values.setdefault(name, {}).setdefault(_text(value), value)
    found = {}
    for name, texts in values.items():
        if len(texts) > 1:
            numbers = all(isinstance(v, int | float) for v in texts.values())
            found[name] = sorted(texts, key=texts.__getitem__) if numbers else list(texts)
    return found


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Each factor by the last part of its path, or by the whole where two would be called the same."""
    short = {name: name.rsplit(".", 1)[-1] for name in names}
    return short if len(set(short.values())) == len(short) else {name: name for name in names}


def combination(key: str, factors: Sequence[str], names: Mapping[str, str]) -> str:
    """The values of some factors as `temperature = 0.9, batch = 8`."""
    values = _factors(key)
    return ", ".join(f"{names[f]} = {_text(values[f])}" for f in factors if f in values)


def place(key: str, factor: str) -> str | None:
    values = _factors(key)
    return _text(values[factor]) if factor in values else None


def shown_estimates(estimates: pd.DataFrame) -> list[str]:
    """The raw estimate, and that at equal work with the most values, the less biased of two alike; else per token."""
    counts = comparable(estimates)["estimate"].value_counts()
    best = max(EQUAL_WORK, key=lambda name: int(counts.get(name, 0)))
    return [name for name in ("raw", best if best in counts else "per_token") if name in counts]


def points(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every estimate with `low`, `high` (NaN without an interval), `shape`, and `comparable`."""
    drawable = set(comparable(estimates).index)
    rows = []
    for row in rows_of(estimates):
        low, high = interval_or_none(row)
        value = float(row.value) if row.Index in drawable else float("nan")
        shape = shape_of(row.verdict, low, high)
        rows.append((row.factors, row.arm, row.estimate, value, low, high, shape, row.Index in drawable))
    return pd.DataFrame(rows, columns=["factors", "arm", "estimate", "value", "low", "high", "shape", "comparable"])


def not_resolved(drawn: pd.DataFrame) -> str:
    """Why values among these `points` are not resolved, in words; empty where all are."""
    hollow = drawn[drawn["shape"] == UNRESOLVED]
    if hollow.empty:
        return ""
    apart = (hollow["low"] > 1) | (hollow["high"] < 1)
    return "not resolved, the interval includes 1" + (
        ", the value lies within the noise, or there is one pair of runs" if apart.any() else ""
    )
