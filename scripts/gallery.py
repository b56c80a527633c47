"""Writes the gallery's verdicts and pictures from their configurations: `make gallery`.

Experiments that only read published figures are read anew, in seconds. Of those that train it takes the report in
results/, which must be of the same configuration.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from analysis.estimates.ranking import ranking_lines
from analysis.imports.import_run import CACHE, write_import
from analysis.report.content import Content, read_content
from analysis.report.markdown import block_table
from analysis.report.sections import ranking_block
from analysis.verdict.verdict_block import escaped, verdict_markdown
from common.files import ROOT, read_json, write_json, write_text
from workflow.config.plan import Plan, load_plan
from workflow.config.reading import read_yaml
from workflow.preflight import write_preflight
from workflow.preflight.checks import Surroundings, variables_of

FOLDER = ROOT / "docs" / "gallery"
PAPER = '><rect width="100%" height="100%" fill="white"/>'
# The page of each experiment, its configuration and its figure.
ENTRIES = {
    "article": ("experiments/camino-2025-published.yaml", "phases"),
    "verl-recipe-153": ("docs/gallery/verl-recipe-153.yaml", "phases"),
    "lm-eval-2703": ("docs/gallery/lm-eval-2703.yaml", "estimates"),
}


def planned(name: str) -> Plan:
    """The plan of a page's experiment."""
    return load_plan(read_yaml(ROOT / ENTRIES[name][0]))


def is_read(plan: Plan) -> bool:
    """Whether all runs of an experiment are imported, so that its report is made anew in seconds."""
    return not plan.runs


def made(name: str) -> tuple[str, str]:
    """A page's verdict as Markdown, and its picture as SVG."""
    plan = planned(name)
    if not is_read(plan):
        folder = ROOT / plan.folder
        if not (folder / "plan.json").is_file() or read_json(folder / "plan.json")["fingerprint"] != plan.fingerprint:
            raise SystemExit(f"error: {folder} has no report of {ENTRIES[name][0]}; make it with `make gallery`")
        return _shown(read_content(folder / "plan.json", folder, None, ROOT / ".stacks"), ENTRIES[name][1])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_json(folder / "plan.json", plan.as_json())
        imported = []
        for run in plan.imports.values():
            write_import(run.spec, folder / "runs" / run.run_id / "steps.parquet", CACHE)
            imported.append(folder / "runs" / run.run_id / "imported.json")
        write_preflight(plan, [], folder / "preflight.json", Surroundings(variables=variables_of(None)), imported)
        return _shown(read_content(folder / "plan.json", folder, None, None), ENTRIES[name][1])


def _shown(content: Content, figure: str) -> tuple[str, str]:
    pictures = {one.name: one.standalone_svg for one in content.figures}
    text = verdict_markdown(content.arm_verdicts) or escaped(content.no_comparison)
    if len(content.ranking):
        text = "\n\n".join(
            [*map(escaped, ranking_lines(content.ranking)), block_table(ranking_block(content)).rstrip()]
        )
    return text, pictures[figure].replace(">", PAPER, 1) + "\n"


def page_with(name: str, page: str, verdict: str) -> str:
    """A page with its verdict written anew."""
    marks = re.compile(r"(<!-- verdict: [^\n]*-->\n).*?(<!-- end of verdict -->)", re.DOTALL)
    found = marks.search(page)
    if found is None:
        raise SystemExit(f"error: docs/gallery/{name}.md has no marks for its verdict")
    return f"{page[: found.start()]}{found[1]}\n{verdict}\n\n{found[2]}{page[found.end() :]}"


def main() -> None:
    for name in sys.argv[1:] or ENTRIES:
        verdict, picture = made(name)
        page = FOLDER / f"{name}.md"
        write_text(page, page_with(name, page.read_text(encoding="utf-8"), verdict))
        write_text(FOLDER / f"{name}.svg", picture)


if __name__ == "__main__":
    main()
