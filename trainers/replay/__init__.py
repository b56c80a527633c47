"""Replay: runs an engine alone on completions of given lengths, in a trainer's stack."""

from collections.abc import Mapping
from typing import Any

RELEASE = "1"
"""The release of a replay's step; steps of two releases are not comparable."""


def makes_weights(options: Mapping[str, Any]) -> bool:
    """Whether an engine with these options makes random weights itself; vLLM and SGLang use the same word."""
    return options.get("load_format") == "dummy"
