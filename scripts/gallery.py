"""Writes the gallery's verdicts and pictures from their configurations: `python scripts/gallery.py`.

Pages of published figures take seconds and are always written. Pages of trained runs change with each training: name
them to write them from the finished report in results/, `python scripts/gallery.py quickstart`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from analysis.planned import planned
from analysis.published_means import published
from analysis.report.content import Content, read_content
from analysis.verdict.verdict_block import escaped, verdict_markdown
from common.errors import UserError
from common.files import ROOT, write_text
from common.messages import report_errors, unknown_name
from workflow.commands.compared_runs import imported_content
from workflow.commands.finished_report import require_report
from workflow.config.plan import Plan, load_plan
from workflow.config.reading import read_yaml

FOLDER = ROOT / "docs" / "gallery"
PAPER = '><rect width="100%" height="100%" fill="white"/>'
# Page -> its configuration and its figure.
ENTRIES = {
    "article": ("experiments/camino-2025-published.yaml", "phases"),
    "verl-recipe-153": ("docs/gallery/verl-recipe-153.yaml", "phases"),
    "lm-eval-2703": ("docs/gallery/lm-eval-2703.yaml", "phases"),
    "quickstart": ("config.yaml", "phases"),
}
TRAINED = ("quickstart",)


def plan_of(name: str) -> Plan:
    """The plan of a page's experiment."""
    return load_plan(read_yaml(ROOT / ENTRIES[name][0]))


def made(name: str) -> tuple[str, str]:
    """A page's verdict as Markdown, and its picture as SVG."""
    content = _content(name, plan_of(name))
    pictures = {one.name: one.standalone_svg for one in content.figures}
    picture = pictures[ENTRIES[name][1]].replace(">", PAPER, 1) + "\n"
    return verdict_markdown(content.arm_verdicts) or escaped(content.no_comparison), picture


def _content(name: str, plan: Plan) -> Content:
    """The report of published figures, or of trained runs; `UserError` if those have no report of this plan."""
    if name in TRAINED:
        folder = require_report(plan, Path(ENTRIES[name][0]))
        return read_content(folder / "plan.json", folder, None, None)
    return imported_content(planned(plan.as_json()), {run_id: run.spec for run_id, run in plan.imports.items()})


def claims_page() -> str:
    """The page of public claims: a row for each of the tables beside it, with what its numbers hold."""
    head = (FOLDER / "claims.md").read_text(encoding="utf-8").partition("<!-- claims: ")[0].rstrip()
    rows = ["| what was said | what the numbers give |", "|---|---|"]
    for path in sorted((FOLDER / "claims").glob("*.csv")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        held: dict[str, list[str]] = {}
        for one in published(path):
            held.setdefault(one.verdict, []).append(one.number)
        found = "; ".join(f"{verdict}: {', '.join(numbers)}" for verdict, numbers in held.items())
        rows.append(f"| [{title}](claims/{path.name}) | {found} |")
    mark = "<!-- claims: written by `python scripts/gallery.py` from docs/gallery/claims/ -->"
    return f"{head}\n\n{mark}\n\n" + "\n".join(rows) + "\n"


def page_with(name: str, page: str, verdict: str) -> str:
    """A page with its verdict replaced."""
    marks = re.compile(r"(<!-- verdict: [^\n]*-->\n).*?(<!-- end of verdict -->)", re.DOTALL)
    found = marks.search(page)
    if found is None:
        raise UserError(f"docs/gallery/{name}.md lacks the marks around its verdict")
    return f"{page[: found.start()]}{found[1]}\n{verdict}\n\n{found[2]}{page[found.end() :]}"


def main() -> None:
    write_text(FOLDER / "claims.md", claims_page())
    for name in sys.argv[1:] or [name for name in ENTRIES if name not in TRAINED]:
        if name not in ENTRIES:
            raise UserError(unknown_name("page", name, ENTRIES))
        verdict, picture = made(name)
        page = FOLDER / f"{name}.md"
        write_text(page, page_with(name, page.read_text(encoding="utf-8"), verdict))
        write_text(FOLDER / f"{name}.svg", picture)


if __name__ == "__main__":
    sys.exit(report_errors(main))
