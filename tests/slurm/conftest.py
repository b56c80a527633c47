"""A real Slurm for the tests, or a word on why there is none."""

import contextlib
import tempfile
from pathlib import Path

import pytest

from .cluster import Cluster, why_not
from .runs import SlurmRun, build_faults

EVERY_TIME = (
    "test_small_runs_share_a_node_and_get_gpus_of_their_own",
    "test_cancel_ends_the_experiments_jobs_and_no_others",
)
"""What `make test` tries beside the scenarios that say so: a run's way to its end, and what a user does meanwhile."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        here = item.path.parent == Path(__file__).parent
        if here and item.name not in EVERY_TIME and item.originalname != "test_a_scenario":
            item.add_marker(pytest.mark.full("a scenario on a real Slurm"))


def _new(**settings):
    """In a folder with a short name: a socket's path holds 107 characters, and pytest's tmp_path may be longer."""
    if reason := why_not():
        pytest.skip(reason)
    return Cluster(Path(tempfile.mkdtemp(prefix="rbs")), **settings)


@pytest.fixture(scope="session")
def cluster():
    """The Slurm that the tests share; each finds it idle."""
    with _new() as one:
        yield one


@pytest.fixture
def make_cluster():
    """Start one with other settings (the fields of Cluster), for this test alone."""
    with contextlib.ExitStack() as made:
        yield lambda **settings: made.enter_context(_new(**settings))


@pytest.fixture(autouse=True)
def _leave_it_idle(request):
    """Whatever a test did to the shared cluster is undone, after the test's other fixtures have ended their heads."""
    shared = request.getfixturevalue("cluster") if "cluster" in request.fixturenames else None
    yield
    if shared is not None:
        shared.reset()


@pytest.fixture(scope="session")
def faults(tmp_path_factory):
    """The library that makes files and clocks lie."""
    return build_faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def run(cluster, make_cluster, tmp_path):
    made = []

    def make(**kwargs):
        kind = kwargs.pop("kind", SlurmRun)
        made.append(kind(kwargs.pop("on", cluster), kwargs.pop("folder", tmp_path), **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.cluster.run("scancel", "--user=root")
        one.end()
