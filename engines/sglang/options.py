"""Lists the options of the installed SGLang."""

from __future__ import annotations

import inspect

from engines.sglang import hooks, standins
from node.hardware import importing


def known_options() -> list[str]:
    """The options of SGLang's server."""
    standins.install()
    with importing():
        return list(inspect.signature(hooks.ARGUMENTS.get()).parameters)


server_options = known_options
