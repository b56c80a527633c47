"""Pythons with verl, built when a test first asks for one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .environments import build


@pytest.fixture(scope="session")
def verl_python() -> Callable[[str], Path]:
    """The interpreter with verl of a version, "0.4.1" or "0.9.1", and no GPU; made once per lock, below `.stacks/`."""
    return build
