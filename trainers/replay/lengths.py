"""Gives each step's completions their lengths: those of a run, or drawn about a mean between a shortest and a longest.

Runs in the controller, which reads what is asked for and pins the file, and in the stack, which reads the file.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError

_NUMBERS = ("mean", "shortest", "longest")
_LOGGED: Mapping[str, tuple[str, ...]] = {
    "mean": ("train/completions/mean_length", "response_length/mean", "replay/mean_length"),
    "shortest": ("train/completions/min_length", "response_length/min"),
    "longest": ("train/completions/max_length", "response_length/max", "replay/max_length"),
}
"""Scalars of trainers that tell a step's lengths where the single ones were not logged."""


def checked(lengths: object, longest: int) -> dict[str, Any]:
    """What an arm asks for: `{"source": path}`, or numbers of `mean`, `shortest` (1) and `longest` (the workload's)."""
    words = "options.lengths of a replay"
    if not isinstance(lengths, Mapping) or not lengths:
        raise UserError(
            f"{words} must say how long the completions are: {{source: "
            f"results/<experiment>/runs/<run>/steps.parquet}}, or {{mean: 300, shortest: 1, longest: {longest}}} "
            f"(got {lengths!r})"
        )
    if "source" in lengths:
        if set(lengths) != {"source"} or not isinstance(lengths["source"], str):
            raise UserError(f"{words}: source is a path and stands alone (got {dict(lengths)!r})")
        return dict(lengths)
    if unknown := sorted(set(lengths) - set(_NUMBERS)):
        raise UserError(f"{words} has no {unknown[0]!r}; it has source, or mean, shortest and longest")
    asked = {"shortest": 1, "longest": longest, **lengths}
    wrong = [
        name for name in _NUMBERS if isinstance(asked.get(name), bool) or not isinstance(asked.get(name), int | float)
    ]
    if wrong:
        raise UserError(f"{words}: {wrong[0]} must be a number of tokens (got {asked.get(wrong[0])!r})")
    if not 1 <= asked["shortest"] <= asked["mean"] <= asked["longest"] <= longest:
        raise UserError(
            f"{words} must be 1 <= shortest <= mean <= longest <= workload.max_response_length ({longest}) (got "
            f"shortest {asked['shortest']}, mean {asked['mean']}, longest {asked['longest']})"
        )
    return {"mean": float(asked["mean"]), "shortest": int(asked["shortest"]), "longest": int(asked["longest"])}


def drawn(mean: float, shortest: int, longest: int, count: int, seed: str) -> list[int]:
    """So many lengths with that mean (to the nearest token in their sum), the shortest and the longest among them.

    One is the longest, one the shortest; the others are drawn from a beta distribution between the two whose mean is
    what is left, with a concentration of four (a wide bell; skewed where the mean lies near an end), and then moved by
    single tokens until the sum is right. A single completion has the mean.
    """
    total = min(max(round(mean * count), shortest * count), longest * count)
    if count == 1 or shortest == longest:
        return [min(max(total // count, shortest), longest)] * count
    made = [longest, shortest]
    left, rest = total - sum(made), count - len(made)
    if not shortest * rest <= left <= longest * rest:
        # So few completions, or a mean so near an end, that an end cannot be among them.
        made, left, rest = [], total, count
    chance = random.Random(seed)
    if rest:
        share = (left / rest - shortest) / (longest - shortest)
        if 0 < share < 1:
            made += [
                shortest + round((longest - shortest) * chance.betavariate(4 * share, 4 * (1 - share)))
                for _ in range(rest)
            ]
        else:
            made += [shortest if share <= 0 else longest] * rest
    first = count - rest
    while (off := total - sum(made)) != 0:
        at = chance.randrange(first, count)
        moved = made[at] + (1 if off > 0 else -1)
        if shortest <= moved <= longest:
            made[at] = moved
    chance.shuffle(made)
    return made


def idle_share(lengths: Sequence[Sequence[int]], places: int) -> float:
    """The share of all engines' places that stand empty until the last completion is done; lengths of each engine.

    By lengths alone: each iteration writes a token in every place that is taken, in order, as soon as one is free.
    """
    taken, ends = 0, []
    for of_engine in lengths:
        of_places = [0] * min(places, len(of_engine))
        for length in of_engine:
            heapq.heapreplace(of_places, of_places[0] + length)
        taken += len(of_places)
        ends.append(max(of_places))
    return 1 - sum(map(sum, lengths)) / (taken * max(ends))


def of_steps(asked: Mapping[str, Any], folder: Path, steps: int, count: int, longest: int) -> list[list[int]]:
    """The lengths of each of the steps; a path is relative to the folder.

    `UserError` where a run has too few steps, another number of completions, or a length that is not 1 to `longest`.
    """
    if "source" not in asked:
        return [
            drawn(asked["mean"], asked["shortest"], asked["longest"], count, f"step {step}")
            for step in range(1, steps + 1)
        ]
    path = folder / asked["source"]
    found = _logged_lengths(path, count)
    if len(found) < steps:
        raise UserError(
            f"{path} has the lengths of {len(found)} steps, and workload.steps is {steps}; ask for fewer steps"
        )
    for step, lengths in enumerate(found[:steps], 1):
        if len(lengths) != count:
            raise UserError(
                f"{path}: step {step} has {len(lengths)} completions, and workload.batch_size is {count}; give the "
                "batch_size of that run"
            )
        if wrong := [length for length in lengths if not 1 <= length <= longest]:
            raise UserError(
                f"{path}: step {step} has a completion of {wrong[0]} tokens; a replay makes 1 to "
                f"workload.max_response_length = {longest}"
            )
    return found[:steps]


def _logged_lengths(path: Path, count: int) -> list[list[int]]:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=["step", "kind", "name", "value"])
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"options.lengths.source {path} is no run's steps.parquet: {str(error).splitlines()[0]}"
        ) from None
    samples: dict[int, list[int]] = {}
    told: dict[int, dict[str, float]] = {}
    known = {key: name for name, keys in _LOGGED.items() for key in keys}
    rows = zip(*(table.column(name).to_pylist() for name in ("step", "kind", "name", "value")), strict=True)
    for step, kind, name, value in rows:
        if kind == "sample" and name == "response_length":
            samples.setdefault(step, []).append(int(value))
        elif kind == "scalar" and name in known:
            of_step = told.setdefault(step, {})
            if value is not None and math.isfinite(value):
                of_step[known[name]] = value
    if not samples and not told:
        raise UserError(
            f"options.lengths.source {path} holds no step with lengths; give a run that logged some, or numbers"
        )
    if samples:
        return [samples[step] for step in sorted(samples)]
    return [_from_summary(path, step, told[step], count) for step in sorted(told)]


def _from_summary(path: Path, step: int, told: Mapping[str, float], count: int) -> list[int]:
    mean = told.get("mean")
    if mean is None:
        raise UserError(
            f"{path}: step {step} tells no lengths, neither single ones nor their mean; give numbers instead"
        )
    longest = round(told.get("longest", mean))
    return drawn(mean, round(told.get("shortest", 1)), longest, count, f"step {step}")
