"""Runs on this machine, a library that makes files lie, and a group's folder in which a second user works."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from ..job.run_bench import RunBench
from ..slurm.runs import build_faults
from .other_user import GROUP


@pytest.fixture
def bench(tmp_path):
    """Makes runs; whatever they have started is ended."""
    made = []

    def make(folder=tmp_path, **more):
        made.append(RunBench(folder, **more))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture(scope="session")
def faults(tmp_path_factory):
    """The library that makes files and clocks lie."""
    return build_faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def shared():
    """A group's folder, as groups make them: whatever is made in it is the group's, who may write there."""
    folder = Path(tempfile.mkdtemp(prefix="rbu"))
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    before = os.umask(0o002)
    yield folder
    os.umask(before)
    shutil.rmtree(folder)
