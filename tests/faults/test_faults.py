"""Faults that a user would feel, put into a copy of the code one by one: the named test of each goes red."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FAULTS = tomllib.loads((HERE / "faults.toml").read_text(encoding="utf-8"))
DO = "tests/faults/README.md says what to do"
LEFT = (".git", ".venv", ".stacks", "results", "build", "__pycache__", ".*_cache", ".snakemake")


def pytest_of(folder, *words):
    """Run pytest in a checkout, whose own code it imports; without colours, whatever the terminal."""
    env = os.environ | {"PYTHONPATH": str(folder), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def with_fault(name, folder):
    """The file that a fault is in, and its text with the fault."""
    fault, file = FAULTS[name], folder / FAULTS[name]["file"]
    found = file.read_text(encoding="utf-8").count(fault["was"]) if file.is_file() else 0
    assert found == 1, f"{name} ({fault['about']}) no longer applies: {fault['file']} has its text {found} times; {DO}"
    return file, file.read_text(encoding="utf-8").replace(fault["was"], fault["is"])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_still_applies(name):
    file, text = with_fault(name, ROOT)
    assert text != file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        compile(text, str(file), "exec")


def test_the_tests_that_catch_them_are_in_make_test():
    tests = {fault["test"] for fault in FAULTS.values()}
    found = pytest_of(ROOT, "--collect-only", "-m", "not full", *{test.partition("::")[0] for test in tests})
    known = {line for line in found.stdout.splitlines() if "::" in line}
    known |= {line.partition("[")[0] for line in known}
    assert not tests - known, f"not in make test; {DO}\n{found.stderr}"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository with its environment and stacks."""
    folder = tmp_path_factory.mktemp("faults") / "copy"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*LEFT))
    for name in (".venv", ".stacks"):
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.full("each runs a test in a copy of the repository")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(copy, name):
    file, text = with_fault(name, copy)
    before = file.read_text(encoding="utf-8")
    try:
        file.write_text(text, encoding="utf-8")
        done = pytest_of(copy, "-x", "--tb=short", FAULTS[name]["test"])
    finally:
        file.write_text(before, encoding="utf-8")
    assert done.returncode == 1, (
        f"{name}: {FAULTS[name]['about']}: not caught; {DO}\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
    )
