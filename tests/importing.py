"""Snakemake for tests: a start with nothing to do costs two seconds, of which its imports are two thirds."""

import functools
import os
import sys
from pathlib import Path

from analysis.imports.import_run import write_import
from analysis.report.content import read_content
from common.files import write_json
from workflow.config.entry import require_sources
from workflow.config.plan import load_plan
from workflow.preflight import write_preflight

from .warm import WarmPython

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(Path(sys.executable).with_name("snakemake"))


@functools.cache
def warm_snakemake():
    """A Python that has imported Snakemake and what the Snakefile imports."""
    parts = ("config.to_train", "config.entry", "config.within_snakemake", "preflight.cases", "slurm.request")
    return WarmPython(sys.executable, os.environ, {}, ("snakemake.cli", *(f"workflow.{part}" for part in parts)))


def snakemake_in(folder, command, env):
    """Run this command of Snakemake to its end in a folder, with this environment."""
    return warm_snakemake().run(*command, cpu_s=900, cwd=folder, env=dict(env), alone=True)


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
    """Run it to its end in a folder, as its users start it who have neither a profile nor a GPU."""
    snakefile = str(ROOT / "workflow" / "Snakefile")
    return snakemake_of(folder, "-s", snakefile, "--configfile", str(config), *arguments)


def snakemake_of(folder, *arguments):
    """Run Snakemake with these words alone."""
    return snakemake_in(folder, [PROGRAM, "--cores", "1", *arguments], os.environ)
