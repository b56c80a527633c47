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
# Two processes of tests share the machine's cores, and a thread that spins while it waits takes them from the other's.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# The longest of the tests, which mostly wait for a cluster, and those that train: each kind begins at once, in a
# process of its own, and goes one after another: trainings side by side slow one another beyond their patience.
KINDS = {
    "slurm": ("tests/slurm/",),
    "training": ("tests/jobs/", "tests/verl/", "tests/test_end_to_end.py"),
}


def kind_of(nodeid: str) -> str:
    """Which tests go together: those of a kind, or of a file."""
    return next((kind for kind, places in KINDS.items() if nodeid.startswith(places)), nodeid.partition("::")[0])


class ByKind(LoadScopeScheduling):
    """For two processes (`-n 2`), with the tests in the order below."""

    def _split_scope(self, nodeid: str) -> str:
        return kind_of(nodeid)


@pytest.hookimpl(optionalhook=True)  # without xdist (-p no:xdist) there is no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByKind:
    return ByKind(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The kinds first, then file by file."""
    order = {kind: place for place, kind in enumerate(KINDS)}
    items.sort(key=lambda item: order.get(kind_of(item.nodeid), len(order)))


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
