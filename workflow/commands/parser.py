"""Makes the parser of `rolloutbench` from its commands (commands.toml): purpose, arguments, examples, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from common.files import ROOT
from common.messages import did_you_mean, unknown_name

_WIDTH = 79


class Command(NamedTuple):
    """One command; help does not list one without a meaning (an old name, or for rules)."""

    function: str
    """`module:function`, which gets the arguments; the module is loaded when the command runs."""
    arguments: str
    meaning: str = ""
    text: str = ""
    """Its help text below the meaning."""
    examples: Sequence[tuple[str, str]] = ()
    """Command lines without the program's name, and their purpose."""
    exit_codes: Mapping[int, str] = MappingProxyType({})
    """Meanings that differ from `EXIT_CODES`."""


_TABLE = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class _Bounded:
    """An argument's type: a number between two others."""

    kind: Callable[[str], float]
    above: float
    below: float
    wanted: str

    def __call__(self, text: str) -> float:
        with contextlib.suppress(ValueError):
            if self.above < (value := self.kind(text)) < self.below:
                return value
        raise argparse.ArgumentTypeError(f"must be {self.wanted} (got {text})")


def share(text: str) -> float:
    """`8%`, or `8`, as a share."""
    return float(text.removesuffix("%")) / 100


_TYPES = {
    **{"path": Path, "whole": int, "json": json.loads},
    "count": _Bounded(int, -1, math.inf, "0 or more"),
    "positive": _Bounded(int, 0, math.inf, "1 or more"),
    "seconds": _Bounded(float, 0, math.inf, "more than 0"),
    "share": _Bounded(share, 0, 1, "a share such as 8%"),
}
COMMANDS = {
    name: Command(**one | {"exit_codes": {int(code): what for code, what in one.get("exit_codes", {}).items()}})
    for name, one in _TABLE["commands"].items()
}
EXIT_CODES = {int(code): what for code, what in _TABLE["exit_codes"].items()}
NOW = {old: new.format(root=ROOT) for old, new in _TABLE["now"].items()}
"""What commands of earlier releases are now; those of check and report took the same arguments."""


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
            keywords = _TABLE["arguments"].get(f"{name} {argument}") or _TABLE["arguments"][argument]
            kind = {"type": _TYPES[keywords["type"]]} if "type" in keywords else {}
            one.add_argument(argument, **keywords | kind)
    return program


def _example_lines(examples: Sequence[tuple[str, str]]) -> str:
    lines = [f"  rolloutbench {line}" + (f"\n      {what}" if what else "") for line, what in examples]
    return "\n".join(["examples:", *lines]) if lines else ""


def _exit_lines(command: Command) -> str:
    codes = {**EXIT_CODES, **command.exit_codes}
    return "\n".join(["exit codes:", *(f"  {code:<3}  {meaning.replace('`', '')}" for code, meaning in codes.items())])
