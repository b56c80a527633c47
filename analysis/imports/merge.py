"""Joins several sources of one run by step and name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.errors import UserError
from trainers.logs.record import STEPS_LOGGED, SourceRead, StepRecord

# Two programs that write the same number in full may differ in its last bit.
RELATIVE_TOLERANCE = 1e-9


def merged(reads: Sequence[SourceRead], run_id: str) -> SourceRead:
    """The steps of several sources of one run, joined by step and name.

    Where two hold a value they must agree within both roundings; the more precise one counts, the first if they are
    equal. `UserError` names both places where they do not.
    """
    if len(reads) == 1:
        return reads[0]
    found = SourceRead()
    for read in reads:
        found.verdicts += read.verdicts
        found.repeated |= read.repeated
        for step, record in read.records.items():
            earlier = found.records.get(step)
            found.records[step] = record if earlier is None else _joined(earlier, record, run_id)
    found.records = dict(sorted(found.records.items()))
    return found


def _joined(a: StepRecord, b: StepRecord, run_id: str) -> StepRecord:
    scalars, rounding, origins = dict(a.scalars), dict(a.rounding), dict(a.origins)
    for name, value in b.scalars.items():
        if name == STEPS_LOGGED and name in scalars:
            # Told by the rows before: the source that has more of them knows better, and finds fewer.
            scalars[name] = min(value, scalars[name])
            continue
        exactness = b.rounding.get(name, 0.0)
        if name in scalars:
            _require_agreement(name, a, b, run_id)
            if not _more_precise(value, exactness, scalars[name], rounding.get(name, 0.0)):
                continue
        scalars[name] = value
        origins[name] = place(b, name)
        rounding.pop(name, None)
        if exactness:
            rounding[name] = exactness
    samples = {**b.samples, **a.samples}
    resumed = a.resumed if b.resumed is None else b.resumed or bool(a.resumed)
    time = a.time if a.time is not None else b.time
    return replace(a, scalars=scalars, rounding=rounding, origins=origins, samples=samples, resumed=resumed, time=time)


def _more_precise(value: float, rounding: float, than: float, its_rounding: float) -> bool:
    if math.isnan(than):
        return not math.isnan(value)
    return not math.isnan(value) and rounding < its_rounding


def place(record: StepRecord, name: str) -> tuple[Path, int]:
    """The file and line where a value was read."""
    return record.origins.get(name, (record.file, record.line))


def _require_agreement(name: str, a: StepRecord, b: StepRecord, run_id: str) -> None:
    x, y = a.scalars[name], b.scalars[name]
    if x == y or math.isnan(x) or math.isnan(y):
        return
    allowed = a.rounding.get(name, 0.0) + b.rounding.get(name, 0.0) + RELATIVE_TOLERANCE * max(abs(x), abs(y))
    if abs(x - y) <= allowed:
        return
    (file_a, line_a), (file_b, line_b) = place(a, name), place(b, name)
    raise UserError(
        f"run {run_id}, step {a.step}, {name}: {file_a}:{line_a} says {x!r}, {file_b}:{line_b} says {y!r}, and "
        f"rounding explains only {allowed:.3g}. Sources of one run must agree, so these are of two runs, or one was "
        "changed: leave one out. If they are the attempts of a run that was started again, join them to one file "
        "first, in their order"
    )
