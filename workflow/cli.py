"""Runs a command of the `rolloutbench` program.

Every result is a Snakemake target, and some commands only serve rules.
"""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import sys

from common.messages import print_message, report_errors
from workflow.commands.parser import COMMANDS, NOW, parser
from workflow.start import loading


def main(argv: list[str] | None = None) -> int:
    """The command line; an exit code of `workflow.commands.parser.EXIT_CODES`."""
    words = sys.argv[1:] if argv is None else argv
    if words and (now := NOW.get(words[0])):
        again = f": {now} {shlex.join(words[1:])}" if now.startswith("rolloutbench ") and words[1:] else ""
        print_message(f"error: `rolloutbench {words[0]}` is now {now}{again}")
        return 2
    try:
        program = parser(COMMANDS)
        try:
            args = program.parse_args(words)
        finally:
            sys.stdout.flush()  # of the help, while its errors are handled
        if args.command is None:
            program.print_help(sys.stderr)
            return 2
        module, _, name = COMMANDS[args.command].function.partition(":")
        with loading():
            run = getattr(importlib.import_module(module), name)
        status = report_errors(lambda: run(args))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader has ended, such as `| head`: discard the rest of the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


if __name__ == "__main__":
    sys.exit(main())
