"""Sets the length of each completion in each step: read from a run, or drawn from mean, shortest and longest.

The controller checks the option and pins the file; the driver reads the file in the stack.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError

_NUMBERS = ("mean", "shortest", "longest")


def check_lengths(lengths: object, longest: int) -> dict[str, Any]:
    """An arm's checked option: `{"source": path}`, or `mean`, `shortest` (default 1) and `longest` (the workload's)."""
    option = "options.lengths of a replay"
    if not isinstance(lengths, Mapping) or not lengths:
        raise UserError(
            f"{option} must give the lengths of the completions: {{source: "
            f"results/<experiment>/runs/<run>/steps.parquet}}, or {{mean: 300, shortest: 1, longest: {longest}}} "
            f"(got {lengths!r})"
        )
    if "source" in lengths:
        if set(lengths) != {"source"} or not isinstance(lengths["source"], str):
            raise UserError(f"{option}: source is a path and the only key (got {dict(lengths)!r})")
        return dict(lengths)
    if unknown := sorted(set(lengths) - set(_NUMBERS)):
        raise UserError(f"{option} has no {unknown[0]!r}; it has source, or mean, shortest and longest")
    asked = {"shortest": 1, "longest": longest, **lengths}
    for name in _NUMBERS:
        if isinstance(asked.get(name), bool) or not isinstance(asked.get(name), int | float):
            raise UserError(f"{option}: {name} must be a number of tokens (got {asked.get(name)!r})")
    if not 1 <= asked["shortest"] <= asked["mean"] <= asked["longest"] <= longest:
        raise UserError(
            f"{option} must be 1 <= shortest <= mean <= longest <= workload.max_response_length ({longest}) (got "
            f"shortest {asked['shortest']}, mean {asked['mean']}, longest {asked['longest']})"
        )
    return {"mean": float(asked["mean"]), "shortest": int(asked["shortest"]), "longest": int(asked["longest"])}


def draw_lengths(mean: float, shortest: int, longest: int, count: int, seed: str) -> list[int]:
    """`count` lengths with that mean (their sum is exact to a token), the shortest and the longest among them.

    The others come from a beta distribution between the two with the remaining mean and a concentration of four (a wide
    bell, skewed if the mean is near an end). Single tokens are then added or removed until the sum is exact. A single
    completion gets the mean.
    """
    total = min(max(round(mean * count), shortest * count), longest * count)
    if count == 1 or shortest == longest:
        return [min(max(total // count, shortest), longest)] * count
    made = [longest, shortest]
    left, rest = total - sum(made), count - len(made)
    if not shortest * rest <= left <= longest * rest:
        # With so few completions, or a mean so near an end, both ends cannot be among them.
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


def idle_share(lengths: Sequence[int], places: int) -> float:
    """The share of the engine's places that are empty before the last completion ends.

    It follows from the lengths alone: each iteration writes one token per place, and the next completion takes a place
    as soon as it is free.
    """
    ends = [0] * min(places, len(lengths))
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return 1 - sum(lengths) / (len(ends) * max(ends))


def step_lengths(asked: Mapping[str, Any], folder: Path, steps: int, count: int, longest: int) -> list[list[int]]:
    """The lengths of each step; a path is relative to the folder.

    `UserError` if the run has too few steps, another number of completions, or lengths outside 1 to `longest`.
    """
    if "source" not in asked:
        return [
            draw_lengths(asked["mean"], asked["shortest"], asked["longest"], count, f"step {step}")
            for step in range(1, steps + 1)
        ]
    path = folder / asked["source"]
    found = _logged_lengths(path)
    if len(found) < steps:
        raise UserError(f"{path} has the lengths of {len(found)} steps, and workload.steps is {steps}; use fewer steps")
    for step, lengths in enumerate(found[:steps], 1):
        if len(lengths) != count:
            raise UserError(
                f"{path}: step {step} has {len(lengths)} completions, and workload.batch_size is {count}; use the "
                "batch_size of that run"
            )
        if wrong := [length for length in lengths if not 1 <= length <= longest]:
            raise UserError(
                f"{path}: step {step} has a completion of {wrong[0]} tokens; a replay makes 1 to "
                f"workload.max_response_length = {longest}"
            )
    return found[:steps]


def _logged_lengths(path: Path) -> list[list[int]]:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=["step", "kind", "name", "value"])
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"options.lengths.source {path} is no run's steps.parquet: {str(error).splitlines()[0]}"
        ) from None
    samples: dict[int, list[int]] = {}
    rows = zip(*(table.column(name).to_pylist() for name in ("step", "kind", "name", "value")), strict=True)
    for step, kind, name, value in rows:
        if kind == "sample" and name == "response_length":
            samples.setdefault(step, []).append(int(value))
    if not samples:
        raise UserError(
            f"options.lengths.source {path} has no step with the length of each completion; give its mean, shortest "
            "and longest as numbers"
        )
    return [samples[step] for step in sorted(samples)]
