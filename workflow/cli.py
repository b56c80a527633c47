"""Runs a command of the `rolloutbench` program.

Every result is a Snakemake target, and some commands only serve rules.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

from common.messages import report_errors
from workflow.commands import rule_commands, user_commands
from workflow.commands.parser import Command, parser
from workflow.start import loading


def main(argv: list[str] | None = None) -> int:
    """The command line; an exit code of `workflow.commands.parser.EXIT_CODES`."""
    try:
        program = parser(COMMANDS)
        args = program.parse_args(argv)
        if args.command is None:
            program.print_help(sys.stderr)
            return 2
        command = COMMANDS[args.command]
        with loading():
            for module in command.modules.split():
                importlib.import_module(module)
        status = report_errors(lambda: command.run(args))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader has ended, such as `| head`: discard the rest of the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


COMMANDS: dict[str, Command] = {**user_commands.COMMANDS, **rule_commands.COMMANDS}


if __name__ == "__main__":
    sys.exit(main())
