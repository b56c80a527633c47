"""What every test may use: the repository's root, and the real stacks, built when a test first asks for one."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from workflow import stacks

ROOT = Path(__file__).resolve().parents[1]
# What trains or brings up a cluster. The longest of the tests, and mostly waiting: they begin at once, one after the
# other, since side by side they would slow one another beyond their patience.
TRAINING = ("tests/slurm/", "tests/verl/", "tests/jobs/", "tests/test_end_to_end.py")


class OneTrains(LoadScopeScheduling):
    """For two processes (`-n 2`): all that trains in the one, all other files in whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return "training" if nodeid.startswith(TRAINING) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneTrains:
    return OneTrains(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What trains comes first."""
    items.sort(key=lambda item: not item.nodeid.startswith(TRAINING))


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
