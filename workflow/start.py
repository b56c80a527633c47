"""Starts the controller's programs so that a Ctrl-C while their modules load prints no traceback.

Loading takes up to a second and starts no process that would need to be ended.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


def rolloutbench() -> NoReturn:
    """The `rolloutbench` program."""
    status = _main_of("workflow.cli")()
    # Without this the interpreter's last collection visits all objects of pandas and pyarrow: a fifth of a verdict's
    # CPU time. No library of the controller checks for leaks then, as those in stacks do.
    atexit.unregister(gc.unfreeze)
    gc.freeze()
    sys.exit(status)


def snakemake() -> NoReturn:
    """Snakemake's own program, for a `.venv` that was made when its `snakemake` was ours."""
    sys.exit(_main_of("snakemake.cli")())


@contextmanager
def loading() -> Iterator[None]:
    """A context for slow imports: Ctrl-C ends the process at once, and the garbage collector is off.

    An ignored Ctrl-C (nohup) stays ignored.
    """
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from node.hardware import importing  # its own imports belong to the slow part, too

    with importing():
        yield
    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _main_of(module: str) -> Callable[[], Any]:
    with loading():
        main: Callable[[], Any] = importlib.import_module(module).main
    return main
