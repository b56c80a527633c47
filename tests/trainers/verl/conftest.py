"""Pythons with verl, built when a test first asks for one."""

import pytest

from .environments import build


@pytest.fixture(scope="session")
def verl_python():
    """The interpreter with verl of a version, "0.4.1" or "0.9.1", and no GPU; made once per lock, below `.stacks/`."""
    return build
