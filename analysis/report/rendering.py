"""Renders the report as one self-contained page, and as Markdown to paste into a pull request."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.fairness import installed_settings
from analysis.figures.drawing import HATCH, HATCHED
from analysis.report.cells import Table
from analysis.report.content import Content
from analysis.report.provenance import analysed_by, inputs_lines, runs_block
from analysis.report.sample_completions import STAGES, shown_samples
from analysis.report.sections import sections
from analysis.report.timing_tables import comparison_block, estimates_block, phase_blocks, speedup_blocks, sums_blocks
from analysis.roofline.floors import efficiency_lines
from analysis.verdict.verdict_block import (
    SYMBOLS,
    escaped,
    unbroken,
    verdict_html,
    verdict_markdown,
)
from common.findings import EQUALITIES, LEVELS, Finding, LedgerRow, Preflight
from common.verdicts import FOLD_AFTER, count_of, verdict_groups

TEMPLATES = Path(__file__).parent / "templates"
# A figure of more pixels is folded.
TALL = 1000
# With more settings, only the files list the equal ones: tables/settings and tables/environment.
MOST_SETTINGS = 1000
# What the Markdown has at most of each kind; the page and tables/ have all.
MAX_BLOCKS, MAX_ROWS = 4, 24

# What the preflight writes of a setting that every arm has (workflow/preflight/comparison.py).
SHARED = " in all arms"
# The labels of one setting, and of several.
EQUALITY_LABELS = {
    "mixed": ("differs between runs of one arm", "differ between runs of one arm"),
    "different": ("differs", "differ"),
    "unverifiable": ("cannot be verified", "cannot be verified"),
    "equivalent": ("has the same effect", "have the same effect"),
    "equal": ("is equal", "are equal"),
}


def html_page(content: Content) -> str:
    """The page: no network, figures inline, all data escaped; the only script is its own."""
    css, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    figures = content.figures
    sample_prompts, samples_note = shown_samples(content.tables["samples"], content.plan.arms)
    return _rendered(
        "report.html.j2",
        content,
        css=Markup(css),
        script=Markup(script),
        script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        number=itertools.count(1).__next__,
        parts=[],
        sample_prompts=sample_prompts,
        samples_note=samples_note,
        comparison=comparison_block(content),
        ledger_tables=ledger_tables(content.preflight),
        runs_block=runs_block(content.tables["runs"]),
        note_groups=verdict_groups(v for v in content.verdicts if v.level == "note"),
        figures=[(f, f.inline_svg, f.height > TALL) for f in figures],
        hatch=Markup(HATCH) if any(HATCHED in f.svg for f in figures) else "",
        inputs_lines=inputs_lines(content.runs),
        analysed_by=analysed_by(),
        installed=installed_settings(content.runs, content.plan),
        most_settings=MOST_SETTINGS,
        stages=STAGES,
        symbols=SYMBOLS,
        unbroken=unbroken,
        verdict_html=verdict_html,
    )


def markdown(content: Content) -> str:
    """The verdicts, what to read first, the four estimates, where the step goes, the gate, and the findings."""
    return _rendered(
        "report.md.j2",
        content,
        notes=sum(v.level == "note" for v in content.verdicts),
        most_blocks=MAX_BLOCKS,
        most_rows=MAX_ROWS,
        verdict_markdown=verdict_markdown,
        block_table=block_table,
    )


def _rendered(template: str, content: Content, **more: Any) -> str:
    """A template with the blocks that both forms of the report show; only HTML is escaped automatically."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["md"] = escaped
    return environment.get_template(template).render(
        c=content,
        verdict_groups=verdict_groups(v for v in content.verdicts if v.level != "note"),
        estimates=estimates_block(content),
        phase_blocks=phase_blocks(content),
        sums_blocks=sums_blocks(content),
        speedup_blocks=speedup_blocks(content),
        floors=efficiency_lines(content.tables["steps"]),
        sections=sections(content),
        ledger_summary=ledger_summary(content.preflight) if content.preflight else "",
        count_of=count_of,
        fold_after=FOLD_AFTER,
        **more,
    )


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Iterable[int] = ()) -> str:
    """A pipe table; columns are aligned right, except the first and `text_columns`."""
    left = {0, *text_columns}
    rule = ["---" if i in left else "---:" for i in range(len(heads))]
    lines = [[escaped(h) for h in heads], rule, *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def block_table(block: Table, most: int | None = None) -> str:
    """One of the report's tables as a pipe table, of its first `most` rows."""
    groups = [f"{group}: " for group, span in block.groups for _ in range(span)] or [""] * len(block.heads)
    heads = [block.corner, *(group + head for group, head in zip(groups, block.heads, strict=True))]
    # No-break spaces: Markdown drops ordinary ones at the start of a cell.
    rows = [["\u00a0\u00a0" * row.depth + row.label, *(c.text for c in row.cells)] for row in block.rows]
    left = len(rows) - (most or len(rows))
    text = markdown_table(heads, rows[:most], [1 + i for i in block.text_columns])
    return text + (f"\nAnd {count_of(left, 'more row')}; the page and tables/ have all.\n" if left > 0 else "")


def ledger_summary(preflight: Preflight) -> str:
    """The number of findings of each level, and how many of the settings that differ have one."""
    levels = {level: [f for f in preflight.findings if f.level == level] for level in LEVELS}
    counts = {level: f"{len(found)} {level}" for level, found in levels.items() if found}
    if shared := sum(SHARED in finding.what for finding in levels["unequal"]):
        apart = len(levels["unequal"]) - shared
        between = f"{apart} between arms, " if apart else ""
        counts["unequal"] += f" ({between}{shared} shared by all arms, which may slow some arms more)"
    sentences = [f"Findings: {', '.join(counts.values())}."] if counts else []
    if rows := preflight.rows("different"):
        of_level = {level: sum(_has_finding(row, found) for row in rows) for level, found in levels.items()}
        parts = [f"{count} {level}" for level, count in of_level.items() if count]
        if without := len(rows) - sum(of_level.values()):
            parts.append(f"{without} without a finding")
        sentences.append(f"Settings: {len(rows)} of {len(preflight.ledger)} differ ({', '.join(parts)}).")
    return " ".join(sentences)


def _has_finding(row: LedgerRow, findings: Sequence[Finding]) -> bool:
    """Whether one of the findings is about that setting: both begin with its name."""
    name = row.setting.split(" (", 1)[0]
    return any(f.what.split(":", 1)[0].split(" (", 1)[0] == name for f in findings)


def ledger_tables(preflight: Preflight | None) -> list[tuple[str, str, list[LedgerRow]]]:
    """(verdict, caption, rows) of the fairness ledger's parts, differences first."""
    found = [(verdict, preflight.rows(verdict)) for verdict in EQUALITIES] if preflight else []
    return [
        (verdict, f"{count_of(len(rows), 'setting')} that {EQUALITY_LABELS[verdict][len(rows) > 1]}", rows)
        for verdict, rows in found
        if rows
    ]
