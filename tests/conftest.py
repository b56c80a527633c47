"""What every test may use: the repository's root, and the real stacks, built when a test first asks for one."""

import contextlib
import functools
import gc
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from workflow import stacks
from workflow.checks import machine_checks, stack_checks
from workflow.cli import main

from . import planted
from .attempts import job_environment, made_inputs  # noqa: F401 (the latter a fixture)
from .trainers.verl.environments import build as build_verl
from .warm import WarmJob, WarmPython

ROOT = Path(__file__).resolve().parents[1]
# Until all tests are collected the garbage collector would find nothing; then it leaves out what they are made of.
gc.disable()
# An example may take as long as a busy machine lets it.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
# A shell's background job ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Where a container sets it, every process that a test starts would compile again what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Processes of tests share the machine's cores, and a thread that spins while it waits takes them from the others'.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.update(planted.ENVIRONMENT)
# Tests of several processes train at the same time; those of one process wait for each other, as a user's do.
_LOCKS = tempfile.TemporaryDirectory(prefix="rbl")
os.environ["ROLLOUTBENCH_LOCKS_DIR"] = _LOCKS.name
# Parts that belong together, with what they begin with: one process has each, as they share what takes long to make.
PARTS = {
    "verl": ("tests/trainers/verl/", "tests/launch_scripts/test_from_script.py::test_verl_composes"),
    "end to end": ("tests/test_end_to_end.py",),
    "training on slurm": ("tests/slurm/test_training.py",),
    "jobs": ("tests/node/", "tests/trainers/trl/", "tests/launch_scripts/test_from_script.py::test_the_trainers_own"),
    "slurm 0": ("tests/slurm/test_storm.py",),
    # By their names these would come last of all, when nothing is left to go beside them.
    "swift": ("tests/trainers/swift/test_swift_grpo.py", "tests/trainers/swift/test_swift_vllm.py"),
    "swift's server": ("tests/trainers/swift/test_swift_server.py",),
    "replay": ("tests/trainers/replay/",),
    "page": ("tests/analysis/test_page_",),
    "experiments": ("tests/trainers/test_experiments.py",),
    # They start Snakemake again and again, whose imports one process does once.
    "workflows": tuple(f"tests/test_{name}.py" for name in ("finished_runs", "preflight_first", "one_at_a_time")),
    "more workflows": ("tests/goldens/", "tests/test_results_folder.py", "tests/test_finished_before.py"),
}
# Tests on Slurm mostly wait: several clusters go side by side, each of the process that first takes such a group.
SLURM = tuple(f"slurm {number}" for number in range(8))
# What takes longest begins first; beside two that compute, the others wait.
FIRST = ("verl", "end to end", *SLURM[:2], "training on slurm", SLURM[2], "jobs")
FIRST += (SLURM[3], "swift", SLURM[4], "swift's server", SLURM[5], "replay", SLURM[6], "experiments", SLURM[7])
FIRST += ("workflows", "more workflows", "tests/test_compare.py", "tests/test_hostile_files.py")


# Fixtures of what is built in minutes or installed by root: a stack, verl's environments, a browser.
NEEDED = {"stack_python", "warm_verl", "page"}


def group_of(nodeid):
    """Which tests one process runs one after another: a part's, an eighth of those on Slurm, or a file's."""
    if part := next((part for part, begins in PARTS.items() if nodeid.startswith(begins)), None):
        return part
    if nodeid.startswith("tests/slurm/"):
        return SLURM[zlib.crc32(nodeid.encode()) % len(SLURM)]
    return nodeid.partition("::")[0]


class ByGroup(LoadScopeScheduling):
    """For several processes (`-n 6`), which take the groups in the order of the tests."""

    def _split_scope(self, nodeid):
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)  # without xdist (-p no:xdist) there is no such hook
def pytest_xdist_make_scheduler(config, log):
    return ByGroup(config, log)


def pytest_collection_modifyitems(items):
    """The groups that take longest first, then file by file; `needs` for what a newcomer lacks."""
    for item in items:
        if NEEDED & set(item.fixturenames):
            item.add_marker("needs")
    order = {group: place for place, group in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(group_of(item.nodeid), len(order)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    gc.freeze()
    gc.enable()


# What a program that a test starts prints is searched; of a test's own process, what the test reads of it.
subprocess.Popen.communicate = planted.searched(subprocess.Popen.communicate)
WarmJob.communicate = planted.searched(WarmJob.communicate)


@pytest.fixture
def capsys(capsys):
    capsys.readouterr = planted.searched(capsys.readouterr)
    return capsys


@pytest.fixture
def capfd(capfd):
    capfd.readouterr = planted.searched(capfd.readouterr)
    return capfd


class Said(NamedTuple):
    """What a command line has said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def words(self):
        """All of it in one line."""
        return " ".join((self.out + self.err).split())


@pytest.fixture
def rolloutbench(tmp_path, monkeypatch, capsys):
    """The program in this process and a folder of its own, where a process of its own would add nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rolloutbench"])
    # What pip's sources answer to `check` is in tests/test_check.py, what compilers and Pythons do in tests/stacks/:
    # both are programs that take a second.
    monkeypatch.setattr(machine_checks, "configured_uv", lambda: None)
    monkeypatch.setattr(machine_checks, "package_index", lambda uv: "not asked")
    monkeypatch.setattr(stack_checks, "missing_needs", lambda *_, **__: [])
    monkeypatch.setattr(stack_checks, "find_python", lambda _: sys.executable)

    def call(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:  # argparse
            code = ended.code
        return Said(code, *capsys.readouterr())

    return call


@pytest.fixture(autouse=True)
def no_planted_secret_is_told(request):
    """Nothing that a test prints, or writes for others, has one of the planted secrets (tests/planted.py)."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    planted.PRINTED.clear()
    yield
    assert not planted.PRINTED, f"a secret is printed: {planted.PRINTED[0]}"
    for path, around in planted.in_files(folder) if folder else ():
        pytest.fail(f"a secret is in {path}, which others may read: {around}")


@pytest.fixture(scope="module", autouse=True)
def no_planted_secret_is_left(tmp_path_factory):
    """Nor what tests of a module write to folders that they share."""
    before = set(tmp_path_factory.getbasetemp().iterdir())
    yield
    for folder in set(tmp_path_factory.getbasetemp().iterdir()) - before:
        for path, around in planted.in_files(folder) if not folder.name.startswith("test_") else ():
            pytest.fail(f"a secret is in {path}, which others may read: {around}")


@pytest.fixture(scope="session")
def stack_python():
    """The Python of a real stack by name; the stack is built first if need be (minutes, once per lock)."""

    @functools.cache
    def python(stack):
        # A Python of one's own, to try the jobs in an environment under construction.
        if told := os.environ.get(f"ROLLOUTBENCH_PYTHON_{stack.replace('-', '_').upper()}"):
            return Path(told)
        command = [sys.executable, "-m", "workflow.stacks", "build", stack, "--stacks-dir", ".stacks"]
        subprocess.run(command, cwd=ROOT, check=True)
        return stacks.stack_python(stack, ROOT / ".stacks")

    return python


@pytest.fixture(scope="session")
def warm_verl():
    """By version: verl's Python with its imports done."""
    environment = job_environment()
    with contextlib.ExitStack() as closing:

        @functools.cache
        def python(version):
            # Ray reads this one when it is imported.
            made = WarmPython(build_verl(version), environment, {"RAY_AUTH_MODE": "token"})
            closing.callback(made.close)
            return made

        yield python
