"""Makes one row per run and step, and says why a row cannot count by itself; counted.py decides which do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.imports.one_run import change_reason
from analysis.roofline.setup import setup_of
from analysis.runs import Run
from common.errors import UserError
from common.verdicts import Verdict
from trainers.logs.record import EVALUATION, STEPS_LOGGED
from trainers.registry import QUANTITIES, discards, scalars_of
from trainers.timers.exclusive import TOLERANCE_S, TOLERANCE_SHARE
from trainers.timers.tree import TimerTree

PHASE = "timing_s/"
OWN = "own_s/"
ROUNDING = "rounding/"
TIMED = (PHASE, OWN, ROUNDING)
REWARD = "reward"
SAMPLES_S = "outside_step_s/samples"
"""The seconds of taking sample completions before the step."""
BY_CLOCK = "by_clock"
"""1 where a step's seconds are the wall clock from one logged step to the next, with all that lies between."""
OCCASIONAL_S = "occasional_s"
"""The seconds of checkpoints and evaluations that a step's own timers name; they are no part of the step."""
BESIDE_S = "beside_s"
"""The seconds of those that the trainer times beside the step; the time between steps has them, where it is known."""
KEYS = ["run_id", "arm", "factors", "seed", "attempt", "step", "resumed", "overlap", "counted", "left_out"]

OVERRUN = "children exceed their parent"
BAD_TIME = "a time that is no positive number, or above 100 days"
INCOMPLETE = "completions failed, and the step went on without them"
UNTIMED = "an evaluation within it that no timer covers"

# Longer "steps" are times of day that were logged as seconds.
ABSURD_S = 100 * 86400.0
_RUNS_AT_A_TIME = 50
# Response lengths are bounded, so steps are too, unless a clock jumps or the machine sleeps.
JUMP = 100.0
JUMPED = f"over {JUMP:.0f} times its run's median step: taken for a clock that jumped, or a process that stood still"
# A quantity's scalar as a trainer spells it: `x`, `-x` or `-log(x)`.
_MADE_OF = re.compile(r"(?P<log>-log\()?(?P<minus>-)?(?P<name>[^()]+)\)?")

Columns = dict[str, npt.NDArray[Any]]
"""A run's steps as one row each: a column's values by its name."""


def wide_run(run: Run) -> Columns:
    """A run's steps as one row each, with columns `timing_s/<path>`, `own_s/<path>` and the scalars.

    `rounding/<path>` is half a unit of a phase's last printed digit, in seconds, where its source printed it rounded.
    A missing phase is NaN. A step's checkpoint and evaluation are no part of it: their timers stand beside it, and the
    step is shorter by their seconds. `steps_logged` is the number of steps, up to its own, of which a row is the mean:
    1 where its source says nothing. `left_out` says why a step cannot count, judged by its own row. Quantities that
    trainers name differently also have one common name (trainers/registry.py). In numpy: pandas takes three times as
    long.
    """
    tidy = run.tidy
    steps, first, row = np.unique(tidy["step"].to_numpy(), return_index=True, return_inverse=True)
    phases = _grid(tidy, "phase", row, len(steps), "value", "exclusive_s", "rounding")
    scalars = _grid(tidy, "scalar", row, len(steps), "value")
    if run.tree.root not in phases.names:
        raise UserError(f"none of its steps has the root timer {run.tree.root!r}")
    other = scalars.columns("value")
    left_out = _left_out(run, phases, other)
    if later := run.done.get("later"):
        left_out[steps >= later[0]["from_step"]] = change_reason(later)
    # A trainer may log a scalar with the name of one of these columns.
    reserved = {*KEYS, *QUANTITIES}
    other = {f"scalar/{name}" if name in reserved else name: values for name, values in other.items()}
    seconds = phases.columns("value", PHASE)
    for quantity in QUANTITIES:
        if (values := _quantity(quantity, other | seconds)) is not None:
            other[quantity] = values
    if "truncated_share" in other and run.tree.padded:
        other["truncated_share"] = _truncated_share(other, setup_of(run).max_response_length)
    logged = other.get(STEPS_LOGGED, np.full(len(steps), np.nan))
    rounding = phases.columns("rounding", ROUNDING) if "rounding" in phases.tables else {}
    return {
        "run_id": np.full(len(steps), run.run_id, dtype=object),
        "arm": np.full(len(steps), run.arm, dtype=object),
        "factors": np.full(len(steps), run.factors_key, dtype=object),
        "seed": np.full(len(steps), run.seed),
        "step": steps.astype(np.int64),
        **{name: tidy[name].to_numpy()[first] for name in ("attempt", "resumed", "overlap")},
        "counted": np.zeros(len(steps), dtype=np.bool_),
        "left_out": left_out,
        **_without_occasional(run.tree, seconds, phases.columns("exclusive_s", OWN), rounding),
        **other,
        **({BY_CLOCK: np.ones(len(steps))} if run.done.get("clock") == "wall" else {}),
        STEPS_LOGGED: np.where(np.isnan(logged), 1.0, logged),
    }


def _quantity(quantity: str, columns: Columns) -> npt.NDArray[np.float64] | None:
    """A quantity's values, made of the first of its scalars that there is; None without one."""
    for spelled in scalars_of(quantity):
        made = _MADE_OF.fullmatch(spelled)
        if made is not None and (values := columns.get(made["name"])) is not None:
            with np.errstate(all="ignore"):
                return -np.log(values) if made["log"] else -values if made["minus"] else values
    return None


def _without_occasional(tree: TimerTree, seconds: Columns, own: Columns, rounding: Columns) -> Columns:
    """The columns of phases with checkpoints and evaluations beside the step instead of in it.

    How often a run saves or evaluates is no property of its engine.
    """
    paths = [name.removeprefix(PHASE) for name in seconds]
    inside = [path for path in paths if path.startswith(tree.root + "/") and tree.is_occasional(path)]
    beside = [path for path in paths if "/" not in path and path != tree.root and tree.declared(path)]
    found = seconds | own | {name: values for name, values in rounding.items() if not np.isnan(values).all()}
    if beside:
        found[BESIDE_S] = np.sum([np.nan_to_num(seconds[PHASE + path]) for path in beside], axis=0)
    if not inside:
        return found
    outermost = [path for path in inside if not any(path.startswith(f"{other}/") for other in inside)]
    for path in outermost:
        for prefix in (PHASE, ROUNDING):
            if (took := found.get(prefix + path)) is None:
                continue
            sign = -1.0 if prefix == PHASE else 1.0
            for above in (one for one in paths if path.startswith(f"{one}/") and prefix + one in found):
                found[prefix + above] = found[prefix + above] + sign * np.nan_to_num(took)
    found[OCCASIONAL_S] = np.sum([np.nan_to_num(seconds[PHASE + path]) for path in outermost], axis=0)
    moved = {prefix + path: prefix + path.removeprefix(tree.root + "/") for path in inside for prefix in TIMED}
    return {moved.get(name, name): values for name, values in found.items()}


@dataclass(frozen=True)
class _Grid:
    """The tidy rows of one kind, and their columns as tables by name and step, NaN where there is no row."""

    tidy: pa.Table
    names: list[str]
    at: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
    """The place of each tidy row: its name, and its step."""
    tables: dict[str, npt.NDArray[np.float64]]

    def columns(self, column: str, prefix: str = "") -> Columns:
        return {prefix + name: of for name, of in zip(self.names, self.tables[column], strict=True)}


def _grid(tidy: pa.Table, kind: str, row: npt.NDArray[np.intp], steps: int, *columns: str) -> _Grid:
    """The grid of one kind of a run's tidy rows, whose steps have the places `row`; without rounding where none is."""
    here = pc.equal(tidy["kind"], kind)
    mine, name = tidy.filter(here), tidy["name"].filter(here).combine_chunks()
    codes, column = np.unique(name.indices.to_numpy(), return_inverse=True)
    at, tables = (column, row[here.to_numpy()]), {}
    for one in columns:
        values = mine[one].to_numpy()
        if one != "rounding" or not np.isnan(values).all():
            tables[one] = np.full((len(codes), steps), np.nan)
            tables[one][at] = values
    return _Grid(mine, name.dictionary.take(pa.array(codes)).to_pylist(), at, tables)


def _left_out(run: Run, phases: _Grid, other: Columns) -> npt.NDArray[Any]:
    """Why each step cannot count, judged by its own row; "" where it may count."""
    seconds, own, value = phases.tables["value"], phases.tables["exclusive_s"], phases.tidy["value"].to_numpy()
    _, row = phases.at
    # The place of each row's parent; -1 without one.
    above, places = phases.tidy["parent"].combine_chunks(), {name: n for n, name in enumerate(phases.names)}
    known = np.array([*(places.get(one, -1) for one in above.dictionary.to_pylist()), -1], dtype=np.intp)
    parent = known[above.indices.fill_null(-1).to_numpy()]
    has_parent, inner = parent >= 0, np.unique(parent[parent >= 0])
    allowed = np.maximum(TOLERANCE_SHARE * np.abs(seconds), TOLERANCE_S)
    if "rounding" in phases.tables:
        # The largest error of a phase's own seconds: its own rounding and its children's.
        rounding = np.nan_to_num(phases.tables["rounding"])
        allowed += rounding
        np.add.at(allowed, (parent[has_parent], row[has_parent]), rounding[phases.at][has_parent])
    untimed = [name.endswith(f"/{EVALUATION}") and run.tree.is_occasional(name) for name in phases.names]
    root_s = seconds[phases.names.index(run.tree.root)]
    bad = np.zeros(len(root_s), dtype=np.bool_)
    bad[row[~np.isfinite(value) | (value < 0) | (value > ABSURD_S)]] = True
    reasons = {
        UNTIMED: (seconds[untimed] == 0).any(axis=0),
        INCOMPLETE: other.get("missing_completions", np.zeros(len(root_s))) > 0,
        OVERRUN: (own[inner] < -allowed[inner]).any(axis=0),
        JUMPED: root_s > JUMP * pd.Series(root_s).median(),
        BAD_TIME: bad | ~(root_s > 0),
    }
    left_out = np.full(len(root_s), "", dtype=object)
    for reason, applies in reasons.items():
        left_out[applies] = reason
    return left_out


def _truncated_share(scalars: Columns, limit: int | None) -> npt.NDArray[np.float64]:
    """The share of truncated responses, from the logged share of the batch's longest; NaN where it is not known.

    These were truncated only where the longest is as long as `limit`, the longest allowed length.
    """
    logged, most = scalars["truncated_share"], math.nan if limit is None else limit
    longest = scalars.get("max_response_length", np.full(len(logged), np.nan))
    shorter = (longest < most) & ~np.isnan(logged)
    return np.where(longest == most, logged, np.where(shorter, 0.0, np.nan))


def columns_in_order(names: Iterable[str]) -> list[str]:
    """The names of columns in the order of the table: `KEYS`, the timers, then the others by name."""
    rest = [name for name in names if name not in KEYS]
    timed = [name for prefix in TIMED for name in rest if name.startswith(prefix)]
    return KEYS + timed + sorted(set(rest) - set(timed))


def all_rows(runs: Sequence[Run]) -> tuple[pd.DataFrame, list[Verdict]]:
    """The rows of all runs that can be read, and a finding for each of the others."""
    verdicts: list[Verdict] = []

    def columns() -> Iterator[Columns]:
        for run in runs:
            try:
                yield wide_run(run)
            except UserError as error:
                verdicts.append(Verdict("error", "run-left-out", f"run {run.run_id} is left out: {error}", (run.arm,)))

    # In two stages: the small arrays of a thousand runs would leave holes of their size in the memory.
    read, stages = columns(), []
    while some := list(islice(read, _RUNS_AT_A_TIME)):
        keys, names, values = _stacked(some)
        stages.append(keys | dict(zip(names, values, strict=True)))
    if not stages:
        empty = pd.DataFrame({name: pd.Series(dtype=object) for name in KEYS})
        return empty.astype({"counted": bool, "resumed": bool}), verdicts
    keys, names, values = _stacked(stages)
    rows = pd.DataFrame(keys).astype({"left_out": object})
    return pd.concat([rows, pd.DataFrame(values.T, columns=names, copy=False)], axis=1), verdicts


def _stacked(parts: list[Columns]) -> tuple[Columns, list[str], npt.NDArray[np.float64]]:
    """The rows of all parts: the columns of `KEYS`, and the names and values of the others, NaN where a part has none.

    One block of memory is filled in place, and each part is taken out of the list as soon as it is in there.
    """
    keys = {name: np.concatenate([part[name] for part in parts]) for name in KEYS}
    names = columns_in_order(dict.fromkeys(name for part in parts for name in part))[len(KEYS) :]
    # Memory that is not written yet takes none.
    values, start = np.empty((len(names), len(keys["step"]))), 0
    while parts:
        part = parts.pop(0)
        end = start + len(part["step"])
        for name, row in zip(names, values, strict=True):
            row[start:end] = part.get(name, np.nan)
        start = end
    return keys, names, values


def counted_rows(wide: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The counted rows with those of the columns that there are: a copy of all columns takes too much memory."""
    return wide[[name for name in wide.columns if name in columns]][wide["counted"].astype(bool)]


def numbers_of(rows: pd.DataFrame, name: str) -> npt.NDArray[np.float64]:
    """A column's numbers; NaN where there is no such column."""
    return rows[name].to_numpy(np.float64, na_value=np.nan) if name in rows else np.full(len(rows), np.nan)


def first_of(wide: pd.DataFrame, names: Iterable[str]) -> pd.Series:
    """Row by row the first value of these columns: trainers name a reward differently."""
    values: pd.Series = wide[list(names)].apply(pd.to_numeric, errors="coerce").bfill(axis=1).iloc[:, 0]
    return values


def threw_away(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """The steps that threw completions away, so that their tokens and lengths are not of all that was generated."""
    thrown = np.zeros(len(rows), dtype=np.bool_)
    for name, most in discards().items():
        if name in rows:
            thrown |= rows[name].to_numpy(dtype=np.float64) > most
    return thrown
