"""Renders the report as Markdown, to paste into a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.fairness import Setting
from analysis.report.cells import Table
from analysis.report.comparison_tables import estimates_block
from analysis.report.content import Content
from analysis.report.samples_block import STAGES, SamplesBlock, samples_block, samples_rows
from analysis.report.sections import ledger_summary, sections
from analysis.report.timing_tables import phase_blocks, speedup_blocks, sums_blocks
from analysis.verdict.verdict_block import escaped, verdict_markdown
from common.findings import LedgerRow
from common.verdicts import FOLD_AFTER, count_of, verdict_groups

TEMPLATES = Path(__file__).parent / "templates"
MAX_BLOCKS = 4
MAX_SETTINGS = 20
MAX_ROWS = 24
MAX_SUGGESTIONS = 5


def markdown(content: Content) -> str:
    """The verdicts, what to read first, the four estimates, where the step goes, the gate, and what differs."""
    preflight = content.preflight
    text = rendered(
        "report.md.j2",
        content,
        notes=sum(v.level == "note" for v in content.verdicts),
        differing=[s for settings in content.settings.values() for s in settings if s.differs],
        grave=[f for f in preflight.findings if f.level != "odd"] if preflight else [],
        suggestions=list(content.tables["suggestions"]["text"].head(MAX_SUGGESTIONS)),
        most_blocks=MAX_BLOCKS,
        most_rows=MAX_ROWS,
        most_settings=MAX_SETTINGS,
        verdict_markdown=verdict_markdown,
        block_table=block_table,
        settings_table=settings_table,
        samples_table=samples_table,
    )
    return text.rstrip("\n") + "\n"


def rendered(template: str, content: Content, **more: Any) -> str:
    """A template with the blocks that both forms of the report show; only HTML is escaped automatically."""
    return (
        _environment(template.endswith(".html.j2"))
        .get_template(template)
        .render(
            c=content,
            verdict_groups=verdict_groups(v for v in content.verdicts if v.level != "note"),
            estimates=estimates_block(content),
            phase_blocks=phase_blocks(content),
            sums_blocks=sums_blocks(content),
            speedup_blocks=speedup_blocks(content),
            sections=sections(content),
            samples=samples_block(content),
            ledger_summary=ledger_summary(content.preflight) if content.preflight else "",
            count_of=count_of,
            fold_after=FOLD_AFTER,
            **more,
        )
    )


@cache
def _environment(autoescape: bool) -> Environment:
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=autoescape, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["md"] = escaped
    return environment


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Iterable[int] = ()) -> str:
    """A pipe table; columns are aligned right, except the first and `text_columns`."""
    left = {0, *text_columns}
    rule = ["---" if i in left else "---:" for i in range(len(heads))]
    lines = [[escaped(h) for h in heads], rule, *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def settings_table(corner: str, settings: Sequence[Setting | LedgerRow]) -> str:
    """Settings by arm; "not set" where an arm does not have it, "unknown" where the preflight does not know it."""
    arms = list(settings[0].values)
    rows = [
        [s.key, *(s.values.get(arm) or "not set" for arm in arms)]
        if isinstance(s, Setting)
        else [s.setting, *(s.values.get(arm, "unknown") for arm in arms)]
        for s in settings
    ]
    return table([corner, *arms], rows, range(len(arms) + 1))


def samples_table(block: SamplesBlock) -> str:
    """The first prompt's completions by arm."""
    return table(["arm", *STAGES], samples_rows(block), range(1, 1 + len(STAGES)))


def block_table(block: Table, most: int | None = None) -> str:
    """One of the report's tables as a pipe table, of its first `most` rows."""
    groups = [f"{group}: " for group, span in block.groups for _ in range(span)] or [""] * len(block.heads)
    heads = [block.corner, *(group + head for group, head in zip(groups, block.heads, strict=True))]
    # No-break spaces: Markdown drops ordinary ones at the start of a cell.
    rows = [["\u00a0\u00a0" * row.depth + row.label, *(c.text for c in row.cells)] for row in block.rows]
    left = len(rows) - (most or len(rows))
    text = table(heads, rows[:most], [1 + i for i in block.text_columns])
    return text + (f"\nAnd {count_of(left, 'more row')}; the page and tables/ have all.\n" if left > 0 else "")
