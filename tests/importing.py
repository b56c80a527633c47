"""Snakemake for tests that import runs: as its users start it who have neither a profile nor a GPU."""

import sys
from pathlib import Path

from .patience import run

ROOT = Path(__file__).resolve().parents[1]


def run_snakemake(folder, config, *arguments):
    """Run it to its end in a folder."""
    snakefile = str(ROOT / "workflow" / "Snakefile")
    return snakemake_of(folder, "-s", snakefile, "--configfile", str(config), *arguments)


def snakemake_of(folder, *arguments):
    """Run Snakemake with these words alone."""
    command = [str(Path(sys.executable).with_name("snakemake")), "--cores", "1", *arguments]
    return run(command, 300, cwd=folder)
