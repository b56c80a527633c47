"""The driver and git state that a job records, and its import context."""

import subprocess

from node.hardware import driver_version, git_state

# As the open and the closed kernel modules write it.
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n"
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version:  gcc 11\n"
)


def test_the_version_of_the_driver(tmp_path):
    file = tmp_path / "version"
    assert driver_version(file) is None
    for text, version in ((OPEN, "580.95.05"), (CLOSED, "535.129.03"), ("something else\n", None)):
        file.write_text(text)
        assert driver_version(file) == version


def git(folder, *words):
    named = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.invalid", *words]
    return subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()


def test_the_git_state_is_the_commit_and_a_dirty_flag(tmp_path):
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    code = tmp_path / "code.py"
    code.write_text("1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "results").write_text("not tracked\n")
    assert git_state(tmp_path) == {"commit": commit, "dirty": False}
    code.write_text("2\n")
    assert git_state(tmp_path) == {"commit": commit, "dirty": True}
    (tmp_path / "copied").mkdir()
    assert git_state(tmp_path / "copied") is None
