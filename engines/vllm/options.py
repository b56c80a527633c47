"""Lists the options of the installed vLLM."""

from __future__ import annotations

import argparse
import dataclasses
from typing import cast

from engines.vllm import hooks
from node.hardware import importing


def known_options() -> list[str]:
    """The options that vLLM's `LLM` passes on to its engine."""
    with importing():
        return [field.name for field in dataclasses.fields(hooks.ARGUMENTS.get())]


def server_options() -> list[str]:
    """The options of vLLM's server: those of its command line and of its engine."""
    return [*known_options(), *(action.dest for action in server_parser()._actions)]


def server_parser() -> argparse.ArgumentParser:
    """The parser of the server's command line."""
    with importing():
        try:
            add_options = hooks.SERVER_OPTIONS.get()
        except ModuleNotFoundError:
            add_options = hooks.SERVER_OPTIONS_0_28.get()
        return cast("argparse.ArgumentParser", add_options(hooks.PARSER.get()()))
