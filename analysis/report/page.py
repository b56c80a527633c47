"""Renders the report as one self-contained page."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.figures.drawing import HATCH, HATCHED, Figure
from analysis.installed import installed_settings, lock_differences
from analysis.report.addresses import Addresses
from analysis.report.answer import answers
from analysis.report.cells import significant
from analysis.report.comparison_tables import comparison_block, estimates_block
from analysis.report.content import Content
from analysis.report.ledger_text import ledger_bridge, ledger_tables
from analysis.report.provenance import analysed_by, inputs_lines, runs_block
from analysis.report.samples_block import STAGES, samples_block
from analysis.report.sections import ReportSection, sections
from analysis.report.timing_tables import phase_blocks, speedup_blocks, sums_blocks
from analysis.runs import rows_of
from analysis.verdict.verdict_block import SYMBOLS, ratio_sentences, unbroken, verdict_html
from common.verdicts import FOLD_AFTER, count_of, verdict_groups

# A figure of many panels is on demand.
TALL = 1000
# Of more settings than these, those that are equal are in the files alone: tables/settings and tables/environment.
MOST_SETTINGS = 1000
TEMPLATES = Path(__file__).parent / "templates"
# Japanese and Chinese share letters that look different.
_KANA = re.compile(r"[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
_HANGUL = re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
_LATIN = re.compile(r"[A-Za-z]")


def html_page(content: Content) -> str:
    """The page: no network, figures inline, everything from the data escaped; only its own script may run."""
    shown = sections(content)
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            c=content,
            east_asian=east_asian([content.plan.experiment, content.plan.description, *content.plan.arms]),
            css=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
            script=Markup(script),
            script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            number=itertools.count(1).__next__,
            parts=[],
            address_once=Addresses(content.tables).once,
            answers=answers(content),
            linked=linked_sections(content, shown),
            estimates=estimates_block(content),
            phase_blocks=phase_blocks(content),
            sums_blocks=sums_blocks(content),
            speedup_blocks=speedup_blocks(content),
            comparison=comparison_block(content),
            sections=shown,
            samples=samples_block(content),
            next_things=[
                (r.text, r.quantity, r.source, significant(r.value).at("suggestions", r.Index, "value"))
                for r in rows_of(content.tables["suggestions"])
            ],
            ledger_tables=ledger_tables(content.preflight),
            ledger_bridge=ledger_bridge(content.preflight) if content.preflight else "",
            runs_block=runs_block(content.tables["runs"]),
            verdict_groups=verdict_groups(v for v in content.verdicts if v.level != "note"),
            note_groups=verdict_groups(v for v in content.verdicts if v.level == "note"),
            figures=[(f, inline_svg(f), f.height > TALL) for f in content.figures],
            hatch=Markup(HATCH) if any(HATCHED in f.svg for f in content.figures) else "",
            sweeps=[f.name for f in content.figures if f.name.startswith("sweep")],
            inputs_lines=inputs_lines(content.runs),
            analysed_by=analysed_by(),
            installed=installed_settings(content.runs, content.plan),
            lock_differences=lock_differences(content.runs),
        )
    )


def linked_sections(content: Content, shown: Sequence[ReportSection]) -> list[str]:
    """The sections of the page that a caveat may link to."""
    always = ["answer", "first", "ledger"]
    return [*always, *(["steps"] if len(content.tables["comparison"]) else []), *(section.id for section in shown)]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"count_of": count_of, "fold_after": FOLD_AFTER, "most_settings": MOST_SETTINGS}
    environment.globals |= {"stages": STAGES, "symbols": SYMBOLS, "language_of": language_of, "unbroken": unbroken}
    environment.globals |= {"verdict_html": verdict_html, "ratio_sentences": ratio_sentences}
    return environment


def inline_svg(figure: Figure) -> Markup:
    """A figure's SVG for the page, named for screen readers and sized by the page.

    Every text in it is escaped where it is drawn, so that this may skip autoescaping.
    """
    return Markup(figure.svg.replace("<svg ", f'<svg role="img" aria-label="{Markup.escape(figure.alt)}" ', 1))


def east_asian(texts: Iterable[str]) -> str:
    """`ja`, `ko` or `zh` by the letters of all texts together; "" where there are none, or they do not tell.

    Kana is Japanese and hangul Korean. Han alone is told by what either country's own standard of letters lacks.
    """
    text = " ".join(texts)
    if _KANA.search(text):
        return "ja"
    if _HANGUL.search(text):
        return "ko"
    han = "".join(_HAN.findall(text))
    if not _encodes(han, "shift_jis"):
        return "zh"
    return "" if _encodes(han, "gb2312") else "ja"


def language_of(text: str) -> str:
    """The language that most of a text is in, "" for English; a Latin letter counts as a third of a Han one."""
    others = sum(len(letters.findall(text)) for letters in (_KANA, _HANGUL, _HAN))
    return east_asian([text]) if 3 * others > len(_LATIN.findall(text)) else ""


def _encodes(text: str, standard: str) -> bool:
    try:
        text.encode(standard)
    except UnicodeEncodeError:
        return False
    return True
