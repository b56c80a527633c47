"""Makes the report's tables of how much faster each arm is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.report.cells import Cell, Table, TableRow, count, decimals, in_full, number, seconds, times
from analysis.report.content import Content
from analysis.runs import Run, factors_label, rows_of, short_names
from common.dotted import as_text

COMPARISON_HEADS = (
    "baseline, s/step",
    "arm, s/step",
    "raw speed-up",
    "per token",
    "baseline, tokens/s",
    "arm, tokens/s",
    "runs paired",
    "steps paired",
)


def comparison_block(content: Content) -> Table:
    """One row per factor combination and arm over the steps that both arms have."""
    factors = factor_names(content.runs)
    table = []
    for r in rows_of(content.tables["comparison"]):
        digits = decimals(min(r.baseline_step_s, r.arm_step_s))
        numbers = {
            "baseline_step_s": seconds(r.baseline_step_s, digits),
            "arm_step_s": seconds(r.arm_step_s, digits),
            "raw_speedup": times(r.raw_speedup),
            "per_token_speedup": times(r.per_token_speedup),
            "baseline_tokens_per_s": number(r.baseline_tokens_per_s, 1),
            "arm_tokens_per_s": number(r.arm_tokens_per_s, 1),
            "run_pairs": count(r.run_pairs),
            "paired_steps": count(r.paired_steps),
        }
        cells = [cell.at("comparison", r.Index, column) for column, cell in numbers.items()]
        label = f"{r.arm} vs {r.baseline}"
        table.append(TableRow(label, str(r.arm), (*factor_cells(r.factors, factors), *cells), factors_label(r.factors)))
    return Table(
        name="comparison",
        caption="Speed-ups over the paired steps" + (", one row per factor combination" if factors else ""),
        corner="arms",
        heads=(*factors.values(), *COMPARISON_HEADS),
        rows=tuple(table),
        words=frozenset(range(len(factors))),
        sorts=True,
    )


MOST_REASONS = 6
ESTIMATE_WORDS = {
    "raw": "raw step time",
    "per_token": "per response token",
    "roofline": "against the roofline",
    "standardised": "standardised to equal work",
}
VERDICT_WORDS = {"+": "+ faster", "-": "− slower", "~": "~ not resolved", "x": "× no value"}


def estimates_block(content: Content) -> Table:
    """One row per factor combination, arm and estimate, with its interval and what it is from."""
    frame = content.tables["estimates"]
    # One scope for all is told once: the table is wide enough.
    scopes = list(frame["scope"].unique())
    one_scope = scopes[0] if len(scopes) == 1 and len(frame) > 1 and isinstance(scopes[0], str) else ""
    columns = (
        Column("estimate", "estimate", lambda name: Cell(ESTIMATE_WORDS.get(name, str(name))), words=True),
        Column("value", "speed-up", times),
        Column("low", "95% from", times),
        Column("high", "to", times),
        Column("verdict", "verdict", lambda verdict: Cell(VERDICT_WORDS.get(verdict, str(verdict))), words=True),
        *(() if one_scope else (Column("scope", "scope", word, words=True),)),
        Column("run_pairs", "runs paired", count),
        Column("paired_steps", "steps paired", count),
        Column("minimum_detectable_ratio", "least detectable", times),
        Column("runs_to_resolve", "more runs to resolve", count),
    )
    return frame_table(
        content,
        "estimates",
        columns,
        caption="Four estimates of speed against the baseline"
        + (", with 95% intervals" if frame["low"].notna().any() else "")
        + (f" ({one_scope})" if one_scope else ""),
        label=lambda r: f"{r.arm} vs {r.baseline}",
        corner="arms",
        note=_reasons(frame),
    )


def _reasons(estimates: pd.DataFrame) -> str:
    """Why some rows are as they are, each reason once, with the factor combinations that it is of."""
    whys: dict[tuple[str, str], list[str]] = {}
    for r in rows_of(estimates):
        if isinstance(r.why, str) and r.why:
            whys.setdefault((ESTIMATE_WORDS.get(r.estimate, str(r.estimate)), r.why), []).append(r.factors)
    every = estimates["factors"].nunique()
    told = [f"{name}{_among(keys, every)}: {why}" for (name, why), keys in whys.items()]
    more = f"; and {len(told) - MOST_REASONS} more, in tables/estimates.csv" if len(told) > MOST_REASONS else ""
    said = [f"Why: {'; '.join(told[:MOST_REASONS])}{more}."] if told else []
    counted = estimates["runs_to_resolve"].notna()
    if counted.any() and (estimates["value"].notna() & ~counted).any():
        said.append(
            "More runs to resolve is reckoned from the interval: it is blank where there is none, where nothing "
            "varies, and beyond 1,000."
        )
    return " ".join(said)


def _among(keys: Sequence[str], every: int) -> str:
    """At which of `every` factor combinations; nothing where at all of them."""
    names = list(dict.fromkeys(keys))
    if len(names) == every:
        return ""
    more = f" and {len(names) - MOST_REASONS} more" if len(names) > MOST_REASONS else ""
    return f" at {', '.join(factors_label(key) for key in names[:MOST_REASONS])}{more}"


@dataclass(frozen=True)
class Column:
    """One column of a table: of which column of the file, under which head, and how it is shown."""

    name: str
    head: str
    show: Callable[[Any], Cell]
    words: bool = False


def word(value: Any) -> Cell:
    """A text; nothing where there is none."""
    return Cell(value if isinstance(value, str) else "")


def frame_table(
    content: Content,
    name: str,
    columns: Sequence[Column],
    caption: str,
    label: Callable[[Any], str] = lambda r: str(r.arm),
    corner: str = "arm",
    note: str = "",
) -> Table:
    """A table with a row for each row of tables/<name>.parquet, without the columns that say nothing in any."""
    frame, factors = content.tables[name], factor_names(content.runs)
    made = [
        [column.show(getattr(r, column.name)).at(name, r.Index, column.name) for column in columns]
        for r in rows_of(frame)
    ]
    told = [i for i in range(len(columns)) if any(cells[i].value or cells[i].text.strip("—") for cells in made)]
    rows = tuple(
        TableRow(label(r), str(r.arm), (*factor_cells(r.factors, factors), *(cells[i] for i in told)))
        for r, cells in zip(rows_of(frame), made, strict=True)
    )
    return Table(
        name=name,
        caption=caption,
        corner=corner,
        heads=(*factors.values(), *(columns[i].head for i in told)),
        rows=rows,
        words=frozenset((*range(len(factors)), *(len(factors) + n for n, i in enumerate(told) if columns[i].words))),
        sorts=True,
        note=note,
    )


def factor_names(runs: Sequence[Run]) -> dict[str, str]:
    """The swept options: dotted path -> the shortest name that tells it from the others."""
    return short_names(list(dict.fromkeys(path for run in runs for path in run.factors)))


def factor_cells(key: str, names: dict[str, str]) -> tuple[Cell, ...]:
    """A factor combination's values, one cell for each swept option, so that a table sorts by each."""
    have: dict[str, Any] = json.loads(key) if key else {}
    return tuple(_factor_cell(have[path]) if path in have else Cell("") for path in names)


def _factor_cell(value: Any) -> Cell:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(as_text(value))
    return Cell(str(value), in_full(value))
