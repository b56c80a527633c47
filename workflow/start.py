"""Starts the programs of the controller's environment, so that a Ctrl-C while their modules load leaves no traceback.

Loading takes up to a second, in which nothing is started that would have to be ended in its turn.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


def rolloutbench() -> NoReturn:
    """The `rolloutbench` program."""
    sys.exit(_main_of("workflow.cli")())


def snakemake() -> NoReturn:
    """The `snakemake` program."""
    sys.exit(_main_of("workflow.config.entry")())


@contextmanager
def loading() -> Iterator[None]:
    """Within this modules load: a Ctrl-C ends the process as it ends any program, and Python's garbage collector rests.

    Where Ctrl-C is ignored (nohup), it stays so.
    """
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from node.hardware import importing  # what it loads in its turn counts, too

    with importing():
        yield
    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _main_of(module: str) -> Callable[[], Any]:
    with loading():
        main: Callable[[], Any] = importlib.import_module(module).main
    return main
