"""Makes the parser of `rolloutbench` from its commands: purpose, arguments, examples and exit codes."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from common.files import ROOT
from common.messages import did_you_mean, unknown_name

_WIDTH = 79
EXIT_CODES = {
    0: "done",
    1: "failed: a message after `error:` states the problem and the remedy",
    2: "wrong command line: the usage is printed",
    130: "interrupted (Ctrl-C)",
    141: "the program that reads the output has ended, such as `head`",
}


class Command(NamedTuple):
    """One command; help does not list one without a meaning (an old name, or for rules)."""

    function: str
    """`module:function`, which gets the arguments; the module is loaded when the command runs."""
    meaning: str
    arguments: str
    text: str = ""
    """Its help text below the meaning."""
    examples: tuple[tuple[str, str], ...] = ()
    """Command lines without the program's name, and their purpose."""
    exit_codes: Mapping[int, str] = MappingProxyType({})
    """Meanings that differ from `EXIT_CODES`."""


# argparse's keywords for each argument; one with a command in front is that command's own.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "config": {
        "type": Path,
        "nargs": "?",
        "help": "the experiment's configuration (default: config.yaml, else the only one in this folder)",
    },
    "check config": {
        "type": Path,
        "nargs": "?",
        "help": "the experiment's configuration (default: none, this machine)",
    },
    "run config": {"type": Path, "help": "the experiment's configuration"},
    "options": {"nargs": argparse.REMAINDER, "metavar": "OPTION", "help": "options of Snakemake's"},
    "words": {
        "nargs": "*",
        "metavar": "CONFIG or RUN",
        "help": "the configuration (or --experiment), then names of runs (default: all runs)",
    },
    "request": {"type": json.loads, "help": "JSON"},
    "--profile": {
        "type": Path,
        "help": "the site's Snakemake profile (default: profiles/<experiment>, if it exists, else this machine)",
    },
    "--seconds-per-step": {
        "type": float,
        "metavar": "X",
        "help": "expected seconds of a step, for arms without a measured one",
    },
    "--json": {"action": "store_true", "help": "print the result as JSON"},
    "sources": {"nargs": "+", "metavar": "RUN", "help": "a log, a folder, wandb:entity/project/id, or NAME=log1,log2"},
    "--names": {"metavar": "A,B", "help": "names of the arms; a name that begins with an engine's sets its engine"},
    "--trainer": {"help": "the trainer (in compare: for logs that do not name it)"},
    "--release": {"help": "the trainer's release, for logs that do not name it"},
    "--step-seconds": {"metavar": "COLUMN", "help": "a table's column with the step's seconds, or a sum such as A+B"},
    "--unit": {"choices": ("s", "ms", "us", "min"), "help": "the unit of that column, if its name does not say it"},
    "--mode": {"help": "the trainer's loop, for logs that do not name it (docs/import.md)"},
    "--warmup": {"type": int, "metavar": "N", "help": "first steps to skip (default: 1; 0 if a log has only one)"},
    "--spread": {"metavar": "SHARE", "help": "how far repeated runs differ, for one run an arm (default: 16%%)"},
    "--report": {
        "type": Path,
        "default": Path("comparison"),
        "metavar": "FOLDER",
        "help": "the report's folder (default: comparison)",
    },
    "--published": {"action": "store_true", "help": "the files are tables of published means, a row an arm"},
    "--verdict-only": {"action": "store_true", "help": "write no report"},
    "--open": {"action": "store_true", "help": "open the report in a browser"},
    "--save": {"type": Path, "metavar": "FILE", "help": "write the configuration for snakemake"},
    "--markdown": {"action": "store_true", "help": "print the verdict as Markdown"},
    "file": {"type": Path, "nargs": "?", "help": "the file to write (default: my.yaml, or the script's name)"},
    "--from": {"dest": "from_", "type": Path, "metavar": "SCRIPT", "help": "a launch script of verl, TRL or ms-swift"},
    "--stack-python": {"metavar": "A,B", "help": "with --from: Pythons of environments to use as they are"},
    "--gpus": {"metavar": "N", "help": "GPUs of a node for each run (default: the script's, else 0: the CPU)"},
    "--nodes": {"metavar": "N", "help": "nodes of each run (default: the script's, else 1)"},
    "ab --gpus": {"metavar": "N", "help": "GPUs of a node for each run (default: as its #SBATCH lines request)"},
    "ab --nodes": {"metavar": "N", "help": "nodes of each run (default: as its #SBATCH lines request, else 1)"},
    "ab --save": {"type": Path, "metavar": "FILE", "help": "the configuration to write (default: SCRIPT-ab.yaml)"},
    "--engines": {"metavar": "A,B", "help": "the engines to compare, the baseline first (default: all of the trainer)"},
    "--model": {"metavar": "SOURCE", "help": "a folder, or a hub's id@commit"},
    "--data": {"metavar": "SOURCE", "help": "a .jsonl, .json or .parquet file, or a hub's id@commit"},
    "--columns": {"metavar": "PROMPT,ANSWER", "help": "the data's columns (default: by their names)"},
    "--rewards": {"metavar": "A,B", "help": "built-in rewards, or FILE.py:FUNCTION (docs/rewards.md)"},
    "--steps": {"metavar": "N", "help": "training steps of each run (default: 20)"},
    "--partition": {"metavar": "NAME", "help": "the Slurm partition; also writes a profile beside profiles/slurm"},
    "script": {"type": Path, "metavar": "SCRIPT", "help": "a bash script that trains; it is not changed"},
    "arguments": {"nargs": "*", "metavar": "ARGUMENT", "help": "an argument of the script; before all flags"},
    "--vary": {
        "action": "append",
        "metavar": "KEY=A,B",
        "help": "a setting and its value in each arm: a key, a flag without its dashes, a variable",
    },
    "--set": {
        "action": "append",
        "metavar": "KEY=VALUE",
        "help": "a setting of all arms; in its value {run}, {arm}, {seed}; {value} is the script's own",
    },
    "--python": {"metavar": "A,B", "help": "each arm's environment: its interpreter or its folder"},
    "--image": {"metavar": "A,B", "help": "each arm's container image, for srun --container-image (pyxis)"},
    "--seeds": {"type": int, "default": 2, "metavar": "N", "help": "runs of each arm (default: 2)"},
    "--read": {
        "action": "append",
        "metavar": "GLOB",
        "help": "where the script writes its steps: a log, wandb's folder or event files (default: what it prints)",
    },
    "--resume": {
        "choices": ("restart", "script"),
        "default": "restart",
        "help": "after a time limit or a preemption the script begins again, or continues (default: restart)",
    },
    "--cwd": {"type": Path, "metavar": "FOLDER", "help": "where the script starts (default: its own folder)"},
    "--start": {"action": "store_true", "help": "also start snakemake"},
    "--experiment": {"metavar": "NAME", "help": "read results/NAME/plan.json instead of a configuration"},
    "--every": {
        "type": float,
        "metavar": "SECONDS",
        "help": "print the table at this interval until all runs are finished",
    },
    "--watch": {
        "action": "store_true",
        "help": "a live table until all runs are finished; without a terminal, as --every",
    },
    "--now": {"action": "store_true", "help": "jobs on this machine stop at once, without finishing their step"},
    "--across-nodes": {"action": "store_true", "help": "submit a short job that tests a node"},
    "folders": {"type": Path, "nargs": "+", "metavar": "FOLDER", "help": "experiments' results, or folders of them"},
    "--arm": {"metavar": "NAME", "help": "only this arm"},
    "--fail-if-slower": {"metavar": "PERCENT", "help": "exit code 3 if the arm's steps have become slower by this"},
    "--to": {"type": Path, "default": Path("history"), "metavar": "FOLDER", "help": "default: history"},
    "--stack": {"type": Path, "required": True, "help": "the stack's verify.json"},
    "--settings": {"type": Path, "nargs": "*", "default": [], "help": "the resolved settings of all runs"},
    "--imported": {"type": Path, "nargs": "*", "default": [], "help": "imported.json of all imported runs"},
    "--setup": {"type": Path, "nargs": "?", "help": "the script that each training job sources"},
    "--before": {"type": Path, "nargs": "?", "help": "the same file from before the training"},
    "--clear": {"action": "store_true", "help": "let the runs train, if nothing is impossible"},
    "--plan": {"type": Path, "required": True, "help": "the experiment's plan.json"},
    "--pairs": {"type": int, "required": True, "help": "the number of pairs of runs"},
    "--out": {"type": Path, "required": True, "help": "the file to write"},
}


class _Version(argparse.Action):
    """Prints the version and the path of the checkout or installation."""

    def __call__(self, program: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # not at the top: it takes longer to load than the rest of this module

        print(f"rolloutbench {version('rolloutbench')} ({ROOT})")
        program.exit()


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are two lines: the usage of a command with many flags is longer."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n`{self.prog} --help` shows the arguments, with examples\n")

    @property
    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]


class _Program(_Parser):
    """Suggests the nearest listed command for an unknown one."""

    commands: Any
    """The result of `add_subparsers`; argparse has no public name for its type."""
    listed: Sequence[str] = ()

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but the error for an unknown argument names its command."""
        found, unknown = self.parse_known_args(_config_first(args), namespace)
        if unknown:
            of_command = self.commands.choices.get(found.command, self)
            flags = [flag for flag in unknown if flag.startswith("--")]
            meant = did_you_mean(flags[0].partition("=")[0], of_command.flags) if flags else ""
            of_command.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(None, unknown_name("command", value, self.listed))


def _config_first(words: Sequence[str]) -> Sequence[str]:
    """`run -n my.yaml` as `run my.yaml -n`: what stands behind the configuration is Snakemake's."""
    if words[:1] != ["run"] or not "".join(words[1:2]).startswith("-"):
        return words
    for at, word in enumerate(words):
        if word.endswith((".yaml", ".yml")) and not words[at - 1].startswith("--configfile"):
            return ["run", word, *words[1:at], *words[at + 1 :]]
    return words


def parser(known: Mapping[str, Command]) -> _Program:
    """The program's parser; the chosen command is `command`."""
    program = _Program(
        prog="rolloutbench",
        description="Compares GRPO rollout engines on equal work.",
        epilog=_example_lines([known[name].examples[0] for name in ("new", "check", "run", "compare")])
        + "\n\nrolloutbench COMMAND --help has a command's arguments, examples and exit codes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    program.add_argument("--version", action=_Version, nargs=0, help="print the version and where it is installed")
    commands = program.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    program.commands = commands
    program.listed = [name for name, command in known.items() if command.meaning]
    for name, command in known.items():
        listed: dict[str, Any] = {"help": command.meaning} if command.meaning else {}
        one = commands.add_parser(
            name,
            description="\n\n".join(filter(None, (command.meaning, textwrap.fill(command.text, _WIDTH)))),
            epilog="\n\n".join(filter(None, (_example_lines(command.examples), _exit_lines(command)))),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **listed,
        )
        for argument in command.arguments.split():
            one.add_argument(argument, **ARGUMENTS.get(f"{name} {argument}", ARGUMENTS[argument]))
    return program


def _example_lines(examples: Sequence[tuple[str, str]]) -> str:
    lines = [f"  rolloutbench {line}" + (f"\n      {what}" if what else "") for line, what in examples]
    return "\n".join(["examples:", *lines]) if lines else ""


def _exit_lines(command: Command) -> str:
    codes = {**EXIT_CODES, **command.exit_codes}
    return "\n".join(["exit codes:", *(f"  {code:<3}  {meaning.replace('`', '')}" for code, meaning in codes.items())])
