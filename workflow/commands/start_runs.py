"""Runs `rolloutbench run`: Snakemake with the right rules and profile, from any folder."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from common.errors import UserError
from common.files import ROOT, is_checkout
from common.shown import shown
from workflow.config.reading import parse_config, read_yaml
from workflow.slurm.site import site_for

NO_CHECKOUT = "to train, clone the repository, run `make venv` there, and use the programs of its .venv"
_RULES = Path("workflow", "Snakefile")


def run(args: argparse.Namespace) -> NoReturn:
    """Run `rolloutbench run`: print Snakemake's command line, and become it."""
    start(args.config, args.options)


def start(config: Path, options: Sequence[str]) -> NoReturn:
    """Become Snakemake for a configuration, with more options of its own."""
    if not is_checkout():
        raise UserError(f"without a checkout rolloutbench cannot train; {NO_CHECKOUT}")
    program = Path(sys.executable).with_name("snakemake")
    words = snakemake_words(config, options)
    print(shown(shlex.join([as_typed(program), *words])), flush=True)
    os.execv(program, [str(program), *words])


def snakemake_words(config: Path, options: Sequence[str]) -> list[str]:
    """Snakemake's arguments for a configuration: rules and profile, where the options name none."""
    named = {option.partition("=")[0] for option in options}
    words = []
    # In the checkout Snakemake finds the rules itself.
    if not named & {"-s", "--snakefile"} and not (_RULES.is_file() and _RULES.samefile(ROOT / _RULES)):
        words += ["-s", str(ROOT / _RULES)]
    if "--profile" not in named:
        profile = site_for(None, parse_config(read_yaml(config)).experiment).profile
        here = Path("profiles", "local")
        words += ["--profile", str(profile or (ROOT / here if words else here))]
    return [*words, "--configfile", str(config), *options]


def run_line(config: Path, profile: Path | None = None) -> str:
    """The command line that starts an experiment, to print; `profile` if a run would not find it itself."""
    return command_line("run", str(config), *(["--profile", str(profile)] if profile else []))


def command_line(*words: str) -> str:
    """A command line of this program, as it works in the shell that started it."""
    return shlex.join([as_typed(Path(sys.argv[0]), "rolloutbench"), *words])


def as_typed(program: Path, name: str = "") -> str:
    """A program's name if the shell finds it by that, else its path; `name`: of a program that has another one here."""
    if name and program.name != name:
        return name
    there = shutil.which(program.name)
    return program.name if there and program.exists() and program.samefile(there) else str(program)
