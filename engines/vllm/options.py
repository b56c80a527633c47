"""Lists the options of the installed vLLM."""

from __future__ import annotations

import dataclasses

from engines.vllm import hooks
from node.hardware import importing


def known_options() -> list[str]:
    """The options that vLLM's `LLM` passes on to its engine."""
    with importing():
        return [field.name for field in dataclasses.fields(hooks.ARGUMENTS.get())]
