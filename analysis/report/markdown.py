"""Renders the report as Markdown, to paste into a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from analysis.report.cells import Table
from analysis.report.comparison_tables import estimates_block
from analysis.report.content import Content
from analysis.report.ledger_text import ledger_bridge
from analysis.report.sections import sections
from analysis.report.timing_tables import phase_blocks, speedup_blocks, sums_blocks
from analysis.verdict.verdict_block import escaped, verdict_markdown
from common.verdicts import FOLD_AFTER, count_of, verdict_groups

MAX_BLOCKS = 4
MAX_SETTINGS = 20
MAX_ROWS = 24
MAX_SUGGESTIONS = 5


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Iterable[int] = ()) -> str:
    """A pipe table whose columns are aligned right, but for the first and those of `words`."""
    left = {0, *words}
    rule = ["---" if i in left else "---:" for i in range(len(heads))]
    lines = [[escaped(h) for h in heads], rule, *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def markdown(content: Content) -> str:
    """The verdicts, what to read first, the four estimates, where the step goes, the gate, and what differs."""
    parts = [f"# {escaped(content.plan.experiment)}\n"]
    parts += [f"{verdict_markdown([one])}\n" for one in content.headlines]
    if content.no_comparison:
        parts.append(f"**{escaped(content.no_comparison)}**\n")
    if content.verdicts:
        parts.append("\n".join(_findings(content)) + "\n")
    estimates = estimates_block(content)
    if estimates.rows:
        parts += ["## How much faster\n", block_table(estimates, MAX_ROWS)]
    for block in _first(phase_blocks(content), parts):
        heads = [block.corner, *block.heads]
        at = 1
        for arm, span in block.groups:
            heads[at] = f"{arm}: {heads[at]}"
            at += span
        parts += [f"## Where the step goes{_at(block)}\n", table(heads, _rows(block))]
    for block in _first(sums_blocks(content), []):
        parts += [f"### How the sums close{_at(block)}\n", block_table(block), f"{escaped(block.note)}\n"]
    for block in _first(speedup_blocks(content), parts):
        parts += [f"### {escaped(block.versus)}{_at(block)}\n", block_table(block)]
    for section in sections(content):
        if section.table.rows:
            parts += [f"## {section.title}\n", block_table(section.table, MAX_ROWS)]
            parts += ["\n".join(f"- {escaped(line)}" for line in section.lines) + "\n"] if section.lines else []
    parts += _ledger(content)
    if content.preflight is None:
        parts += _settings(content)
    if len(content.suggestions):
        told = [f"- {escaped(text)}" for text in content.suggestions["text"].head(MAX_SUGGESTIONS)]
        parts += ["## What to try next\n", "\n".join(told) + "\n"]
    return "\n".join(parts)


def _settings(content: Content) -> list[str]:
    """What differs between the arms, where no ledger tells what of it matters."""
    differing = [s for s in (*content.config, *content.hardware, *content.versions) if s.differs]
    if not differing:
        return []
    arms = list(differing[0].values)
    body = [[s.key, *(s.values.get(a) or "not set" for a in arms)] for s in differing[:MAX_SETTINGS]]
    parts = ["## In what the arms differ\n", table(["setting", *arms], body, words=range(len(arms) + 1))]
    if len(differing) > MAX_SETTINGS:
        parts.append(f"And {count_of(len(differing) - MAX_SETTINGS, 'more setting')}; the page has all.\n")
    return parts


def _ledger(content: Content) -> list[str]:
    """The fairness ledger in short: its counts, what makes the arms unequal, and the settings that differ."""
    parts = ["## Fairness ledger\n"]
    if content.preflight is None:
        return [*parts, "No preflight was made: whether the arms met on equal terms was not checked.\n"]
    parts.append(f"{content.preflight.counts}.\n")
    if bridge := ledger_bridge(content.preflight):
        parts.append(f"{escaped(bridge)}\n")
    grave = [f for f in content.preflight.findings if f.level != "odd"]
    if grave:
        parts.append("\n".join(f"- {f.level} `{f.code}`: {escaped(f.what)}" for f in grave) + "\n")
    if odd := len(content.preflight.findings) - len(grave):
        parts.append(f"And {odd} that {'is' if odd == 1 else 'are'} merely odd; the page has them, and every why.\n")
    for verdict in ("different", "unverifiable"):
        rows = content.preflight.rows(verdict)
        if rows:
            arms = list(rows[0].values)
            shown = [[r.setting, *(r.values.get(a, "not told") for a in arms)] for r in rows[:MAX_SETTINGS]]
            parts.append(table([verdict, *arms], shown, words=range(len(arms) + 1)))
        if len(rows) > MAX_SETTINGS:
            parts.append(f"And {len(rows) - MAX_SETTINGS} more that are {verdict}; the page has all.\n")
    return parts


def _findings(content: Content) -> list[str]:
    """Errors and warnings; of the notes only how many there are."""
    lines = []
    for level, code, group in verdict_groups(v for v in content.verdicts if v.level != "note"):
        lines += [f"- {level} `{code}`: {escaped(v.text)}" for v in group[:FOLD_AFTER]]
        if len(group) > FOLD_AFTER:
            lines.append(f"- {level} `{code}`: and {len(group) - FOLD_AFTER} more; the page has all")
    if notes := sum(v.level == "note" for v in content.verdicts):
        lines.append(f"- {count_of(notes, 'note')}: on the page")
    return lines


def block_table(block: Table, most: int | None = None) -> str:
    """One of the report's tables as a pipe table, of its first `most` rows."""
    rows = _rows(block)
    text = table([block.corner, *block.heads], rows[:most], words=[1 + i for i in block.words])
    left = len(rows) - (most or len(rows))
    return text + (f"\nAnd {count_of(left, 'more row')}; the page and tables/ have all.\n" if left > 0 else "")


def _rows(block: Table) -> list[list[str]]:
    # No-break spaces: Markdown drops ordinary ones at the start of a cell.
    return [["\u00a0\u00a0" * row.depth + row.label, *(c.text for c in row.cells)] for row in block.rows]


def _at(block: Table) -> str:
    return f" ({escaped(block.factors)})" if block.factors else ""


def _first(blocks: list[Table], parts: list[str]) -> list[Table]:
    if len(blocks) > MAX_BLOCKS:
        parts.append(f"The first {MAX_BLOCKS} of {len(blocks)} factor combinations; the page and tables/ have all.\n")
    return blocks[:MAX_BLOCKS]
