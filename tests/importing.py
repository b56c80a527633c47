"""Snakemake for tests that import runs: as its users start it who have neither a profile nor a GPU."""

import sys
from pathlib import Path

from analysis.imports.import_run import write_import
from analysis.report.content import read_content
from common.files import write_json
from workflow.config.entry import require_sources
from workflow.config.plan import load_plan
from workflow.preflight import write_preflight

from .patience import run

ROOT = Path(__file__).resolve().parents[1]


def imported_report(raw):
    """The content of an experiment's report whose runs are all imported, from the files that the rules would write."""
    plan = load_plan(raw)
    results = Path(plan.folder)
    require_sources(plan)
    for run_id, one in plan.imports.items():
        (results / "runs" / run_id).mkdir(parents=True)
        write_import(one.spec, results / "runs" / run_id / "steps.parquet")
    imported = [results / "runs" / run_id / "imported.json" for run_id in plan.imports]
    write_preflight(plan, [], results / "preflight.json", imported_files=imported)
    write_json(results / "plan.json", plan.as_json())
    return read_content(results / "plan.json", results, None, None)


def run_snakemake(folder, config, *arguments):
    """Run it to its end in a folder."""
    snakefile = str(ROOT / "workflow" / "Snakefile")
    return snakemake_of(folder, "-s", snakefile, "--configfile", str(config), *arguments)


def snakemake_of(folder, *arguments):
    """Run Snakemake with these words alone."""
    command = [str(Path(sys.executable).with_name("snakemake")), "--cores", "1", *arguments]
    return run(command, 300, cwd=folder)
