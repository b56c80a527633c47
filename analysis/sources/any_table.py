"""Reads a table with any columns: JSON lines or a document, or a CSV or parquet file with a row for each step.

Which column counts the steps is found by name (table_texts.py) and then tested: a counter rises. So are those with
their seconds (table_times.py). What was taken for what is said. A table with a row for each phase is long_table.py's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path

from analysis.imports.tree_by_data import trainers_by_data
from analysis.sources.long_table import is_long, read_long, runs_in_column
from analysis.sources.table_columns import SELECTING, Row, TableColumns, columns_of
from analysis.sources.table_rows import HEAD_LINES, rows_of
from analysis.sources.table_texts import counter_rank, is_counter, is_time, whole_rank, words_of
from analysis.sources.table_times import (
    FLAG,
    TOLERANCE_SHARE,
    Columns,
    in_seconds,
    not_read,
    take_rates,
    taken,
    times_of,
    windows_of,
)
from analysis.sources.wandb_rows import WANDB_STEP, steps_of
from common.errors import UserError
from common.messages import join_first
from common.verdicts import Verdict, count_of
from trainers.logs.hf_rows import STEP_TIME
from trainers.logs.record import STEPS_LOGGED, TIMERS, Imported, SourceRead, StepRecord, TablePhase
from trainers.logs.restarts import steps_in_sequence
from trainers.registry import trainer_named, trainers

FORMAT = "table"
COLUMNS_TAKEN = "columns-taken"
"""The code of the verdict that says which column was taken for what."""
# A counter falls in so few rows, or once: at a restart.
FALLS = 0.05
# Only a benchmark measures these, of each request.
_OF_REQUESTS = {"ttft", "tpot", "itl"}


def read_table(
    path: Path, step_seconds: str | None = None, names: Collection[str] = (), trainer: str | None = None
) -> Imported:
    """The steps of a file with a row for each step; see `table_of`.

    `names` select one run in a table of several. A table with the names that a known trainer gives wandb, such as
    wandb's history in a CSV, is of that trainer, unless `trainer` is another or `step_seconds` a column.
    """
    rows = rows_of(path)
    head = list(islice(rows, HEAD_LINES))
    rows = chain(head, rows)
    if is_long(head):
        return read_long(rows, path, FORMAT, names)
    table = columns_of(rows, path)
    run = _select_run(table, path, names)
    selected = ({"run": run} if run else {}) | _select_rows(table, path, names)
    _continue_epochs(table.values)
    counter = _counter(table.values)
    if counter:
        _order_rows(table, counter, path)
    read = _of_known_trainer(table, counter, path) if counter and step_seconds is None else None
    if read is not None and trainer in (None, read.written_by):
        read.verdicts += table.verdicts
        return Imported(read, FORMAT, selected=selected)
    return replace(_of_columns(table, path, step_seconds, counter), selected=selected)


def _of_known_trainer(table: TableColumns, counter: str, path: Path) -> SourceRead | None:
    """The steps by the names of a known trainer's rows; None if they are not those of one."""
    # Nested JSON has its sections before a point.
    nested = any(name.startswith(TIMERS.replace("/", ".")) for name in table.values)
    columns = {name.replace(".", "/", 1) if nested else name: column for name, column in table.values.items()}
    known_rows = [trainer.logs.rows for trainer in trainers() if trainer.logs.rows is not None]
    marks = {names.mark for names in known_rows}
    if not any(name.startswith(TIMERS) or name in marks or name == STEP_TIME for name in columns):
        return None
    totals = {TIMERS + names.total for names in known_rows if names.first == 1}
    timed = [columns[total] for total in totals & columns.keys()]
    steps = table.values[counter]
    first = any(_counts_from_0(steps, some) for some in timed)
    rows = (
        (
            file,
            line,
            {n: column[at] for n, column in columns.items() if not math.isnan(column[at])} | {WANDB_STEP: step + first},
        )
        for at, ((file, line), step) in enumerate(zip(table.places, steps, strict=True))
    )
    read = steps_of(rows, path.name)
    known = [read.written_by] if read.written_by else trainers_by_data(read)
    names = trainer_named(known[0]).logs.rows if len(known) == 1 else None
    # A table may lack the column that times these steps.
    untimed = names is not None and not any(TIMERS + names.total in one.scalars for one in read.records.values())
    if len(known) != 1 or untimed:
        return None
    read.written_by = known[0]
    return read


def table_of(
    rows: Iterable[Row], path: Path, step_seconds: str | None = None, counter: str = "", clock: str = ""
) -> Imported:
    """The steps of rows, with the whole step and its phases as the timers of a tree of their own.

    Each file is a life of the run. `step_seconds` names the column with the step's seconds. Where they are known,
    `counter` is the column that counts the steps, and `clock` the one that says when a row was written. `UserError`
    where no column or more than one may have the step's seconds.
    """
    table = columns_of(rows, path)
    if counter := counter or _counter(table.values):
        _order_rows(table, counter, path)
    return _of_columns(table, path, step_seconds, counter, clock)


def _of_columns(table: TableColumns, path: Path, step_seconds: str | None, counter: str, clock: str = "") -> Imported:
    """The steps of a table in order."""
    if step_seconds is not None and _in_few_rows(table).get(step_seconds):
        # Only these rows time a step.
        table.keep([row for row, value in enumerate(table.values[step_seconds]) if math.isfinite(value)])
    places, in_few = table.places, _in_few_rows(table)
    columns = {name: some for name, some in table.values.items() if name not in in_few}
    steps = [int(value) for value in columns[counter]] if counter else list(range(1, len(places) + 1))
    seconds = in_seconds({name: some for name, some in columns.items() if name != counter}, table)
    take_rates(seconds, table, step_seconds)
    times = times_of(path, seconds, table, steps, step_seconds, clock)
    root, parts = times.root, times.parts
    if 0.0 in (spans := times.spans.get(root, ())):
        # Steps within one second of a coarse clock: a row counts for all since the last that shows another.
        table.values[counter or "rows"] = [float(step) for step in steps]
        table.keep([row for row, span in enumerate(spans) if span != 0.0])
        return _of_columns(table, path, step_seconds, counter or "rows", clock)
    timed = {name: times.spans.get(name, seconds[name]) for name in (root, *parts)}
    timed |= {name: [value / 1000.0 for value in timed[name]] for name in times.milliseconds}
    windows = [1] * len(places)
    if root in times.spans:
        windows = windows_of(steps)
    elif _counts_from_0(steps, timed[root]):
        steps = [step + 1 for step in steps]
    last = None
    if root not in times.spans:
        timed[root] = [value if value > 0 else math.nan for value in timed[root]]
        last = _sum_below(timed[root], table, path)
    clocked = columns[clock] if clock else None
    columns = {name: some for name, some in columns.items() if name not in timed and name != counter}
    records = []
    for at, ((file, line), step, window) in enumerate(zip(places, steps, windows, strict=True)):
        # The first time on a clock is not the length of a step.
        if step < 1 or at == last or (root in times.spans and at == 0):
            continue
        scalars = {name: values[at] for name, values in columns.items()}
        scalars |= {TIMERS + name: values[at] for name, values in timed.items()}
        scalars = {name: value for name, value in scalars.items() if not math.isnan(value)}
        if window > 1:
            scalars[STEPS_LOGGED] = float(window)
        records.append(StepRecord(step, {}, scalars, {}, None, file, line, time=clocked[at] if clocked else None))
    if root in times.spans and not records:
        raise UserError(
            f"{path} has no step seconds but the time at which rows were written ({root}), and 1 row: a step's seconds "
            "are the difference of two"
        )
    read = steps_in_sequence(records, path, {b.step for a, b in pairwise(records) if a.file != b.file})
    text = f"{path}: {taken(counter, times, table, step_seconds)}{_doubted(root, counter, in_few, table)}"
    read.verdicts = [Verdict("note", COLUMNS_TAKEN, text), *table.verdicts, *read.verdicts]
    tree = {root: TablePhase("", "", 1, path)} | {name: TablePhase(root, "", 1, path) for name in parts}
    return Imported(read, FORMAT, tree=tree)


def _in_few_rows(table: TableColumns) -> dict[str, int]:
    """The columns with a number in fewer than half of the rows, and in how many."""
    filled = {name: sum(map(math.isfinite, some)) for name, some in table.values.items()}
    return {name: count for name, count in filled.items() if 2 * count < len(table.places)}


def _doubted(root: str, counter: str, in_few: Mapping[str, int], table: TableColumns) -> str:
    """What speaks against what was taken: a whole step's time in fewer rows, rows of requests or of parts of a step."""
    said = not_read(table, max(1, whole_rank(root)))
    wholes = [name for name in in_few if is_time(name) and whole_rank(name) > max(1, whole_rank(root))]
    if wholes:
        name = max(wholes, key=in_few.__getitem__)
        said += f"; only {in_few[name]} of {len(table.places)} rows have {name}: if it is the step's, {FLAG} {name}"
    if marks := [name for name in table.values if _OF_REQUESTS & {*words_of(name)}]:
        said += f"; its rows look like single requests ({marks[0]}): their latency is no throughput"
    for name in filter(is_counter, table.values.keys() - {counter}):
        values = [value for value in table.values[name] if not math.isnan(value)]
        each = len(values) // max(1, len({*values}))
        if 1 < each < len(values) and _rises(values):
            said += f"; each {name} has {each} rows: if these are parts of one step, sum them"
    return said


def _counts_from_0(steps: Sequence[float], seconds: Sequence[float]) -> bool:
    """Whether a row of step 0 has a step's seconds: then it is a training step."""
    return any(step == 0 and not math.isnan(value) for step, value in zip(steps, seconds, strict=True))


def _select_run(table: TableColumns, path: Path, names: Collection[str]) -> str:
    """Leave out the columns of other runs: wandb's export names them `run - metric`. Returns the run of several."""
    of_runs: dict[str, list[str]] = {}
    metrics = []
    for name in table.values:
        run, dash, metric = name.rpartition(" - ")
        if dash:
            of_runs.setdefault(run, []).append(name)
            metrics.append(metric)
    if len(set(metrics)) == len(metrics):
        return ""
    chosen = of_runs.keys() & set(names)
    if len(chosen) != 1:
        shown, first = join_first(list(of_runs), 6), next(iter(of_runs))
        raise UserError(
            f"{path} holds several runs: {shown}. Name the arm as its run (compare {first}={path}), or export each run "
            "by itself"
        )
    (run,) = chosen
    for other in of_runs.keys() - chosen:
        for name in of_runs[other]:
            del table.values[name]
    return run


def _select_rows(table: TableColumns, path: Path, names: Collection[str]) -> dict[str, str]:
    """Leave out the rows of other runs, where a column names several; returns the chosen one by column."""
    selected = {}
    for column in filter(lambda name: name.lower() in SELECTING, list(table.kinds)):
        texts = table.kinds[column]
        found = list(dict.fromkeys(filter(None, texts)))
        if len(found) > 1:
            chosen = [one for one in found if one in names]
            if len(chosen) != 1:
                raise runs_in_column(path, column, found, names)
            table.keep([row for row, text in enumerate(texts) if text == chosen[0]])
            selected[column.lower()] = chosen[0]
    return selected


def _counter(columns: Columns) -> str:
    """The column that counts the steps, `""` without one: whole numbers that rise, or each of which comes once."""
    fitting = []
    for name, some in columns.items():
        values = [value for value in some if not math.isnan(value)]
        if not is_counter(name) or 2 * len(values) < len(some) or not all(v >= 0 and v.is_integer() for v in values):
            continue
        distinct = len(set(values))
        if distinct == len(values) or (distinct > 1 and _rises(values)):
            fitting.append(name)
    return min(fitting, key=counter_rank, default="")


def _continue_epochs(columns: dict[str, list[float]]) -> None:
    """Let a counter that begins anew in each epoch go on."""
    epochs = next((some for name, some in columns.items() if words_of(name)[-1:] == ["epoch"]), [])
    for name in filter(is_counter, columns):
        values, before = columns[name], 0.0
        falls = [at for at, (a, b) in enumerate(pairwise(values), start=1) if b < a]
        if falls and epochs and all(epochs[at] > epochs[at - 1] and values[at] <= values[0] for at in falls):
            ends = {at: values[at - 1] - values[at] + 1 for at in falls}
            columns[name] = [value + (before := before + ends.get(at, 0.0)) for at, value in enumerate(values)]


def _sum_below(seconds: Sequence[float], table: TableColumns, path: Path) -> int | None:
    """The last row, if its seconds are the sum of those above, which is said."""
    known = [(at, value) for at, value in enumerate(seconds) if math.isfinite(value)]
    *above, (last, total) = known or [(0, 0.0)]
    summed = sum(value for _, value in above)
    if len(above) < 3 or not math.isclose(total, summed, rel_tol=TOLERANCE_SHARE):
        return None
    text = f"{path}: line {table.places[last][1]} is the sum of those above; it is no step and was skipped"
    table.verdicts.append(Verdict("note", "no-step-line", text))
    return last


def _rises(values: Sequence[float]) -> bool:
    """Whether values never fall, but for one restart or few."""
    return sum(b < a for a, b in pairwise(values)) <= max(1.0, FALLS * len(values))


def _order_rows(table: TableColumns, counter: str, path: Path) -> None:
    """Brings each step to one row, and the rows in their order where each step comes once."""
    steps = table.values[counter]
    if without := [row for row, step in enumerate(steps) if math.isnan(step)]:
        table.keep([row for row, step in enumerate(steps) if not math.isnan(step)])
        text = f"{path}: {count_of(len(without), 'row')} without a number in {counter} "
        text += f"{'is no step and was' if len(without) == 1 else 'are no steps and were'} skipped"
        table.verdicts.append(Verdict("note", "no-step-line", text))
    table.join_rows(counter)
    if (kind := table.only_kind(counter)) is not None:
        text = f"{path}: rows of a step whose {kind[0]} is not {kind[1]} were skipped"
        table.verdicts.append(Verdict("note", "no-step-line", text))
    steps = table.values[counter]
    if 2 * sum(a == b for a, b in pairwise(steps)) >= len(steps) > 2:
        raise UserError(
            f"{path} has several rows a step ({counter}) with the same columns. Of several processes (ranks, "
            "micro-batches): sum them, or take the slowest; of several runs: give each a file of its own; of several "
            "metrics: a column for each"
        )
    if len(set(steps)) == len(steps) and any(b < a for a, b in pairwise(steps)):
        table.keep(sorted(range(len(steps)), key=steps.__getitem__))
