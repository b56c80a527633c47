"""What every test may use: the repository's root, and the real stacks, built when a test first asks for one."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workflow import stacks

ROOT = Path(__file__).resolve().parents[1]
# What trains or brings up a cluster. The longest of the tests, and mostly waiting: they begin at once, one after the
# other, since side by side they would slow one another beyond their patience.
TRAINING = ("tests/slurm", "tests/verl", "tests/jobs", "tests/test_end_to_end.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups for `--dist loadgroup` with two processes: one for all that trains, and one for each other file."""

    def place(item: pytest.Item) -> str:
        path = item.path.relative_to(ROOT).as_posix()
        return "training" if path.startswith(TRAINING) else path

    for item in items:
        item.add_marker(pytest.mark.xdist_group(place(item)))
    items.sort(key=lambda item: place(item) != "training")


@pytest.fixture(scope="session")
def stack_python() -> Callable[[str], Path]:
    """The Python of a real stack by name; the stack is built first if need be (minutes, once per lock)."""

    @functools.cache
    def python(stack: str) -> Path:
        # A Python of one's own, to try the jobs in an environment under construction.
        if told := os.environ.get(f"ROLLOUTBENCH_PYTHON_{stack.replace('-', '_').upper()}"):
            return Path(told)
        command = [sys.executable, "-m", "workflow.stacks", "build", stack, "--stacks-dir", ".stacks"]
        subprocess.run(command, cwd=ROOT, check=True)
        return stacks.stack_python(stack, ROOT / ".stacks")

    return python
