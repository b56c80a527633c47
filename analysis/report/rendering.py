"""Renders the report as one self-contained page, and as Markdown to paste into a pull request."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.report.arm_lines import arm_lines, machine_of, without_release
from analysis.report.content import Content
from analysis.report.sections import Part, sections
from analysis.report.tables import Table
from analysis.verdict.arm_verdict import ArmVerdict
from analysis.verdict.verdict_block import SECTIONS, SYMBOLS, Line, escaped, lines_of, unbroken, verdict_markdown
from common.verdicts import count_of

TEMPLATES = Path(__file__).parent / "templates"
IN_MARKDOWN: dict[str, tuple[str, ...]] = {"ledger": ("lines",), "samples": (), "provenance": ()}
"""What the Markdown has of these sections; of the others it has lines and tables."""
# What it has at most of each kind; the page and tables/ have all.
MAX_TABLES, MAX_ROWS, MAX_LINES = 4, 24, 12


def html_page(content: Content) -> str:
    """The page: no network, figures inline, all data escaped; the only script is its own."""
    css, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    every = sections(content)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        c=content,
        css=Markup(css),
        script=Markup(script),
        script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        answer=answer_of(content.arm_verdicts),
        arm_lines=arm_lines(content, without_release(content), machine_of),
        most=SHOWN,
        picture=next((figure for figure in content.figures if figure.name == "phases"), None),
        sections=every,
        titles={section.id: section.title for section in every},
        unbroken=unbroken,
        count_of=count_of,
    )


def markdown(content: Content) -> str:
    """The verdicts, then the sections' sentences and tables without what is folded on the page."""
    lines = [f"# {escaped(content.plan.experiment)}", ""]
    lines += [verdict_markdown(content.arm_verdicts, None) or f"**{escaped(content.no_comparison)}**", ""]
    for section in sections(content):
        kinds = IN_MARKDOWN.get(section.id, ("lines", "table"))
        shown = [part for part in section.parts if part.kind in kinds and not part.fold]
        if not shown:
            continue
        lines += [f"## {section.title}", ""]
        for part in shown[:MAX_TABLES]:
            lines += [*_markdown_part(part), ""]
    return "\n".join(lines)


def _markdown_part(part: Part) -> Iterable[str]:
    if part.kind == "table":
        yield f"{escaped(part.content.caption)}:\n"
        yield table_text(part.content, MAX_ROWS)
        if part.content.note:
            yield escaped(part.content.note)
    else:
        for lead, text in part.content[:MAX_LINES]:
            yield f"- **{escaped(lead)}**: {escaped(text)}" if lead else f"- {escaped(text)}"
        if len(part.content) > MAX_LINES:
            yield f"- {len(part.content) - MAX_LINES} more: on the page"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Iterable[int] = ()) -> str:
    """A pipe table; columns are aligned right, except the first and `text_columns`."""
    left = {0, *text_columns}
    rule = ["---" if i in left else "---:" for i in range(len(heads))]
    lines = [[escaped(h) for h in heads], rule, *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def table_text(table: Table, most: int) -> str:
    """One of the report's tables as a pipe table, of its first `most` rows."""
    heads = [table.corner, *(f"{c.group}: {c.head}" if c.group else c.head for c in table.columns)]
    # No-break spaces: Markdown drops ordinary ones at the start of a cell.
    rows = [["\u00a0\u00a0" * row.depth + row.label, *(c.text for c in row.cells)] for row in table.rows[:most]]
    left = len(table.rows) - most
    text = markdown_table(heads, rows, [1 + i for i, column in enumerate(table.columns) if column.is_text])
    return text + (f"\nAnd {count_of(left, 'more row')}; the page and tables/ have all.\n" if left > 0 else "")


SHOWN = 3
"""Caveats in view; the others are folded."""


@dataclass(frozen=True)
class Doubt:
    """A caveat with the arms that it applies to, where not all have it, and the section with its details."""

    symbol: str
    text: str
    arms: str
    section: str


FIRST_LINES = ("answer", "difference", "per-gpu", "mismatch", "rests-on")
"""The kinds of lines that stand first; the others are caveats and what resolves the verdict."""


@dataclass(frozen=True)
class PageAnswer:
    """Each arm's verdict with its first lines, then what several arms may share, once."""

    arms: tuple[tuple[ArmVerdict, tuple[str, ...]], ...]
    doubts: tuple[Doubt, ...]
    """The most harmful first."""
    settle: tuple[tuple[str, str], ...]
    """What would resolve it, and the arms, where not all have it."""


def answer_of(verdicts: Sequence[ArmVerdict]) -> PageAnswer:
    """The lines of the verdicts (`lines_of`), those that arms share once."""
    arms: list[tuple[ArmVerdict, tuple[str, ...]]] = []
    caveats: dict[Line, tuple[int, list[str]]] = {}
    settle: dict[str, list[str]] = {}
    for one in verdicts:
        lines = lines_of(one, None)
        arms.append((one, tuple(line.text for line in lines if line.kind in FIRST_LINES)))
        of_arm = [line for line in lines if line.kind in SYMBOLS]
        for rank, line in enumerate(of_arm):
            caveats.setdefault(line, (rank, []))[1].append(one.arm)
        for line in lines:
            if line.kind == "settle":
                settle.setdefault(line.text, []).append(one.arm)

    def of(names: Sequence[str]) -> str:
        return ", ".join(names) if len(names) < len(arms) else ""

    doubts = [
        Doubt(line.symbol, line.text, of(names), SECTIONS.get(line.kind, ""))
        for line, (_, names) in sorted(caveats.items(), key=lambda item: item[1][0])
    ]
    return PageAnswer(tuple(arms), tuple(doubts), tuple((text, of(names)) for text, names in settle.items()))
