"""The report as one self-contained page."""

from __future__ import annotations

import base64
import hashlib
import itertools
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.figures.drawing import HATCH, HATCHED, Figure
from analysis.installed import origin_of
from analysis.report.answer import answers, banner_title
from analysis.report.cells import significant
from analysis.report.comparison_tables import comparison_block, estimates_block
from analysis.report.content import Content
from analysis.report.language import east_asian, language_of
from analysis.report.ledger_words import ledger_bridge
from analysis.report.provenance import analysed_by, runs_block
from analysis.report.sections import sections
from analysis.report.timing_tables import phase_blocks, speedup_blocks, sums_blocks
from analysis.runs import rows_of
from common.findings import EQUALITIES, LedgerRow
from common.verdicts import FOLD_AFTER, count_of, verdict_groups

BANNER = "raw-and-equal-work-disagree"
# A figure of many panels is on demand.
TALL = 1000
# Of more settings than these, those that are equal are in the files alone: tables/settings and tables/environment.
MOST_SETTINGS = 1000
TEMPLATES = Path(__file__).parent / "templates"


def html_page(content: Content) -> str:
    """The page: no network, figures inline, everything from the data escaped; only its own script may run."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            c=content,
            east_asian=east_asian([content.plan.experiment, content.plan.description, *content.plan.arms]),
            language_of=language_of,
            css=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
            script=Markup(script),
            script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            number=itertools.count(1).__next__,
            answers=answers(content),
            banner=banner_title(content),
            banners=[v.text for v in content.verdicts if v.code == BANNER],
            estimates=estimates_block(content),
            phase_blocks=phase_blocks(content),
            sums_blocks=sums_blocks(content),
            speedup_blocks=speedup_blocks(content),
            comparison=comparison_block(content),
            sections=sections(content),
            next_things=[
                (r.text, r.quantity, r.source, significant(r.value).at("suggestions", r.Index, "value"))
                for r in rows_of(content.suggestions)
            ],
            ledger_tables=ledger_tables(content),
            ledger_bridge=ledger_bridge(content.preflight) if content.preflight else "",
            runs_block=runs_block(content.provenance),
            verdict_groups=verdict_groups(v for v in content.verdicts if v.level != "note" and v.code != BANNER),
            note_groups=verdict_groups(v for v in content.verdicts if v.level == "note"),
            figures=[(f, inline_svg(f), f.height > TALL) for f in content.figures],
            hatch=Markup(HATCH) if any(HATCHED in f.svg for f in content.figures) else "",
            sweeps=[f.name for f in content.figures if f.name.startswith("sweep")],
            everything=MOST_SETTINGS,
            inputs_lines=inputs_lines(content),
            analysed_by=analysed_by(),
            count_of=count_of,
            fold_after=FOLD_AFTER,
        )
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


VERDICT_WORDS = {
    "different": "differ",
    "unverifiable": "cannot be verified",
    "equivalent": "come to the same",
    "equal": "are equal",
}


def ledger_tables(content: Content) -> list[tuple[str, str, list[LedgerRow]]]:
    """(verdict, caption, rows) of the fairness ledger's parts, differences first."""
    if content.preflight is None:
        return []
    tables = [(verdict, content.preflight.rows(verdict)) for verdict in EQUALITIES]
    return [
        (verdict, f"{len(rows)} setting{'s' if len(rows) > 1 else ''} that {_words(verdict, len(rows))}", rows)
        for verdict, rows in tables
        if rows
    ]


def _words(verdict: str, count: int) -> str:
    one = {"differ": "differs", "come to the same": "comes to the same", "are equal": "is equal"}
    words = VERDICT_WORDS[verdict]
    return one.get(words, words) if count == 1 else words


def inline_svg(figure: Figure) -> Markup:
    """A figure's SVG for the page, named for screen readers and sized by the page.

    Every text in it is escaped where it is drawn, so that this may skip autoescaping.
    """
    return Markup(figure.svg.replace("<svg ", f'<svg role="img" aria-label="{Markup.escape(figure.alt)}" ', 1))


def inputs_lines(content: Content) -> list[str]:
    """Data and model in words, one sentence for each prepared set of inputs; then what the stacks' checks found."""
    lines = {}
    for run in content.runs:
        if run.inputs is not None:
            data, model = run.inputs.get("data", {}), run.inputs.get("model", {})
            lines[str(run.spec.get("inputs_id"))] = (
                f"Data: {data.get('source')}, {count_of(data.get('rows'), 'row')} (sha256 "
                f"{str(data.get('sha256'))[:12]}); "
                f"model: {model.get('source')}, {model.get('parameters')} parameters."
            )
        if run.verify is not None:
            checks = run.verify.get("checks", [])
            passed = sum(bool(c.get("ok")) for c in checks)
            stack = f"{run.spec.get('stack')} ({run.spec.get('lock_id')})"
            state = f"{origin_of(run)['state']}; " if "state" in origin_of(run) else ""
            lines["stack " + stack] = f"Stack {stack}: {state}{passed} of {len(checks)} checks passed."
    return list(lines.values())
