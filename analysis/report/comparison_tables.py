"""How much faster, as the report's tables."""

from __future__ import annotations

import json
from typing import Any

from analysis.report.cells import Cell, Row, Table, count, decimals, in_full, number, seconds, times
from analysis.report.content import Content
from analysis.rows import rows_of
from analysis.runs import factors_label

COMPARISON_HEADS = (
    "runs paired",
    "steps paired",
    "baseline, s/step",
    "arm, s/step",
    "baseline, tokens/s",
    "arm, tokens/s",
    "raw speed-up",
    "per token",
)


def comparison_block(content: Content) -> Table:
    """One row per factor combination and arm over the steps that both arms have."""
    factors = factor_names(content)
    table = []
    for r in rows_of(content.comparison):
        digits = decimals(min(r.baseline_step_s, r.arm_step_s))
        numbers = {
            "run_pairs": count(r.run_pairs),
            "paired_steps": count(r.paired_steps),
            "baseline_step_s": seconds(r.baseline_step_s, digits),
            "arm_step_s": seconds(r.arm_step_s, digits),
            "baseline_tokens_per_s": number(r.baseline_tokens_per_s, 1),
            "arm_tokens_per_s": number(r.arm_tokens_per_s, 1),
            "raw_speedup": times(r.raw_speedup),
            "per_token_speedup": times(r.per_token_speedup),
        }
        cells = [cell.at("comparison", r.Index, column) for column, cell in numbers.items()]
        label = f"{r.arm} vs {r.baseline}"
        table.append(Row(label, str(r.arm), (*factor_cells(r.factors, factors), *cells), factors_label(r.factors)))
    return Table(
        name="comparison",
        caption="Speed-ups over the paired steps" + (", one row per factor combination" if factors else ""),
        corner="arms",
        heads=(*factors.values(), *COMPARISON_HEADS),
        rows=tuple(table),
        words=len(factors),
        sorts=True,
    )


def factor_names(content: Content) -> dict[str, str]:
    """The swept options: dotted path -> the shortest name that tells it from the others."""
    paths = list(dict.fromkeys(path for run in content.runs for path in run.factors))
    short = {path: path.rsplit(".", 1)[-1] for path in paths}
    return short if len(set(short.values())) == len(short) else {path: path for path in paths}


def factor_cells(key: str, names: dict[str, str]) -> tuple[Cell, ...]:
    """A factor combination's values, one cell for each swept option, so that a table sorts by each."""
    have: dict[str, Any] = json.loads(key) if key else {}
    return tuple(_factor_cell(have[path]) if path in have else Cell("") for path in names)


def _factor_cell(value: Any) -> Cell:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return Cell(str(value), in_full(value))
