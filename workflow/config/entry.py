"""Starts Snakemake, after a look at the files of --configfile: the `snakemake` program of the controller's environment.

Snakemake reads these files before our Snakefile, and answers one that cannot be read with a traceback.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Snakemake's own program with its arguments; one message and exit code 1 where a configuration file is wrong."""
    for file in config_files(sys.argv[1:] if argv is None else argv):
        if file.is_fifo():
            continue  # it can be read once
        from common.messages import exiting_on_mistakes
        from workflow.config.reading import read_yaml

        with exiting_on_mistakes():
            read_yaml(file)
    from snakemake.cli import main as snakemake

    snakemake(argv)
    sys.exit(0)


def config_files(argv: Sequence[str]) -> list[Path]:
    """The files that a command line of Snakemake names as configuration; the last --configfile counts, as there."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", type=Path, default=[])
    try:
        given: list[Path] = parser.parse_known_args(list(argv))[0].configfile
    except (argparse.ArgumentError, SystemExit):
        return []  # Snakemake says what is wrong with its arguments
    return given
