"""Runs `rolloutbench run`: Snakemake with the right rules and profile, from any folder."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from common.errors import UserError
from common.files import ROOT
from common.messages import print_message
from common.ownership import NotOwnError, require_own
from common.shown import shown
from workflow.config.reading import parse_config, read_yaml
from workflow.slurm.site import read_site, site_for, unknown_profile
from workflow.start import loading

_RULES = Path("workflow", "Snakefile")
_OWN_PROFILE = ROOT / "workflow" / "profiles" / "default"
_WORKFLOW_PROFILES = [Path("default"), Path("profiles", "default")]


def run(args: argparse.Namespace) -> NoReturn:
    """Run `rolloutbench run`: print Snakemake's command line, and be Snakemake."""
    start(args.config, args.options)


def start(config: Path, options: Sequence[str]) -> NoReturn:
    """Run Snakemake for a configuration in this process, with more options of its own; it ends the process."""
    read_yaml(config)  # Snakemake would show a traceback for a file that it cannot read
    words = snakemake_words(config, options)
    print(shown(shlex.join([as_typed(Path(sys.executable).with_name("snakemake")), *words])), flush=True)
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--profile" and (profile := value if equals else "".join(words[at + 1 : at + 2])):
            _require_readable(profile, words)
    snakemake([*_no_profile_of_others(), *words])


def snakemake(words: Sequence[str]) -> NoReturn:
    """Be Snakemake, with the logger `calm`."""
    with loading():
        from snakemake.cli import main
        from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry

        from workflow.config import calm
    LoggerPluginRegistry().register_plugin(calm.NAME, calm)
    main(list(words))
    sys.exit(0)


def _require_readable(profile: str, words: Sequence[str]) -> None:
    """UserError if there is no such profile, or its request cannot be read; Snakemake would say less."""
    with loading():
        from snakemake.cli import get_profile_dir
    if profile == "none":
        return
    if (found := get_profile_dir(profile)) is None:
        raise UserError(unknown_profile(profile))
    # A --set-resources on the command line replaces all of the profile's.
    if any(word.startswith("--set-resources") for word in words):
        return
    if errors := replace(read_site(Path(found[1])), on_slurm=False).request().errors:
        raise UserError("\n".join(f"{found[1]}: {error}" for error in errors))


def _no_profile_of_others() -> list[str]:
    """Keeps Snakemake from the workflow profile of the folder where the user stands, if others could have written it.

    Snakemake reads it unasked, and evaluates its resources as Python. A --workflow-profile of the user's comes later,
    and wins.
    """
    found = next((path for path in _WORKFLOW_PROFILES if path.exists()), None)
    try:
        if found is not None:
            require_own(found.parent if found.parent.name else found, found, *found.glob("*.yaml"))
    except NotOwnError as error:
        print_message(f"warning: {error} (--workflow-profile {found} uses it)")
        return ["--workflow-profile", str(_OWN_PROFILE)]
    return []


def snakemake_words(config: Path, options: Sequence[str]) -> list[str]:
    """Snakemake's arguments for a configuration: rules and profile, where the options name none."""
    named = {option.partition("=")[0] for option in options}
    words = []
    # In the checkout Snakemake finds the rules itself.
    in_checkout = _RULES.is_file() and _RULES.samefile(ROOT / _RULES)
    if not in_checkout and not named & {"-s", "--snakefile"}:
        words += ["-s", str(ROOT / _RULES)]
    if "--profile" not in named:
        profile = site_for(None, parse_config(read_yaml(config)).experiment).profile
        here = Path("profiles", "local")
        words += ["--profile", str(profile or (here if in_checkout else ROOT / here))]
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
