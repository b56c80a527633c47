"""A stack is built once, verified, and counts only then: real uv, real wheels, real signals."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workflow.stacks.definition import ENVS
from workflow.stacks.uv import find_uv

from .. import patience
from .conftest import write_wheel

pytestmark = pytest.mark.promise("an-interrupted-build-leaves")


def test_a_built_stack_works_where_it_lies_and_is_not_built_again(tiny):
    first = tiny.build()
    assert first.returncode == 0, first.stderr
    # What it takes, that it is verified, and that it is ready: a quickstart builds three.
    assert len(first.stderr.splitlines()) == 3, first.stderr
    (folder,) = tiny.built()
    assert Path(first.stdout.strip()) == folder
    passed, *others = sorted(path.name for path in folder.iterdir())[1:]
    assert re.fullmatch(r"verify-[0-9a-f]{12}\.json", passed) and others == ["verify.json"]
    verdict = json.loads((folder / "verify.json").read_text())
    assert verdict["ok"] and verdict["stack"] == "tiny" and verdict["lock_id"] == folder.name
    assert verdict["packages"] == {"rbt-alpha": "1.0", "rbt-beta": "2.0"}
    assert {check["source"] for check in verdict["checks"]} == {
        "stack.yaml",
        "requirements.lock",
        "requirements.lock:3",
        "requirements.lock:6",
    }
    python = folder / "env" / "bin" / "python"
    assert subprocess.check_output([python, "-c", "import sys, rbt_beta; print(sys.prefix)"], text=True).strip() == str(
        folder / "env"
    )
    assert subprocess.check_output([folder / "env" / "bin" / "rbt-alpha"], text=True).strip() == "1.0"
    # Copies: an edit of a file that uv's cache shares would be in each environment that is built after it.
    assert {file.stat().st_nlink for file in (folder / "env").rglob("rbt_*.py")} == {1}

    before = (folder / "verify.json").stat()
    before_s = sum(os.times()[2:4])
    again = tiny.build(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert again.returncode == 0 and again.stderr == ""
    assert sum(os.times()[2:4]) - before_s < 5  # of CPU time; 0.1 s as a rule
    assert (folder / "verify.json").stat() == before


@pytest.mark.full("stacks are built")
def test_a_new_lock_makes_a_new_environment_beside_the_old(tiny, index, tmp_path):
    assert tiny.build().returncode == 0
    (old,) = tiny.built()
    index.add(write_wheel(tmp_path / "wheels", "rbt-beta", "2.1"))
    assert tiny.run("lock", "tiny", "--upgrade").returncode == 0
    refused = tiny.run("build", "tiny", "--stacks-dir", str(tiny.stacks), "--expect", old.name)
    assert refused.returncode == 1 and "changed after the plan was made" in refused.stderr
    assert tiny.build().returncode == 0
    new = [folder for folder in tiny.built() if folder != old]
    assert len(new) == 1 and json.loads((new[0] / "verify.json").read_text())["packages"]["rbt-beta"] == "2.1"


@pytest.mark.full("stacks are built")
def test_a_damaged_environment_is_noticed_and_replaced(tiny):
    assert tiny.build().returncode == 0
    (folder,) = tiny.built()
    (damaged,) = (folder / "env").glob("lib/python*/site-packages/rbt_beta-2.0.dist-info")
    shutil.rmtree(damaged)
    forget_checks(folder)
    before = sorted((folder / "env").rglob("*"))
    again = tiny.build()
    assert again.returncode == 1 and f"rm -r {folder}" in again.stderr
    assert "requirements.lock:6: rbt-beta: expected 2.0, got not installed" in again.stderr
    assert sorted((folder / "env").rglob("*")) == before, "runs may use it"
    shutil.rmtree(folder)
    assert tiny.build().returncode == 0 and json.loads((folder / "verify.json").read_text())["ok"]


def forget_checks(folder):
    for verdict in folder.glob("verify-*.json"):
        verdict.unlink()


def test_an_edited_file_is_noticed_and_is_in_no_other_environment(tiny):
    assert tiny.build().returncode == 0
    (folder,) = tiny.built()
    (edited,) = (folder / "env").glob("lib/python*/site-packages/rbt_beta.py")
    then = edited.stat()
    edited.write_text(edited.read_text().replace("2.0", "2.7"))
    os.utime(edited, ns=(then.st_atime_ns, then.st_mtime_ns))  # of the same size and date
    done = subprocess.run(
        [sys.executable, "-I", ENVS / "_files.py", str((folder / "verify.json").stat().st_mtime), edited.parent],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "rbt-beta: rbt_beta.py\n"
    again = tiny.run("verify", "tiny", "--stacks-dir", str(tiny.stacks), "--out", "again.json")
    assert again.returncode == 1
    assert "requirements.lock:6: files of rbt-beta: expected as installed, got changed: rbt_beta.py" in again.stderr
    elsewhere = tiny.run("build", "tiny", "--stacks-dir", "elsewhere")
    (fresh,) = (Path(tiny.root, elsewhere.stdout.strip()) / "env").glob("lib/python*/site-packages/rbt_beta.py")
    assert "2.0" in fresh.read_text()


def test_changed_checks_are_run_and_tried_again_and_replace_nothing(tiny):
    assert tiny.build().returncode == 0
    (folder,) = tiny.built()
    before = (folder / "env").stat().st_ino, (folder / "verify.json").read_text()
    verify = tiny.envs / "tiny" / "verify.py"
    once = "__import__('os').path.exists({0!r}) or not open({0!r}, 'w')".format(str(tiny.root / "once"))
    verify.write_text(
        verify.read_text().replace("main([", f"main([Probe('flaky', 'rbt-alpha', True, lambda: {once}), ")
    )
    again = tiny.build(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert "verifying the existing environment" in again.stderr
    assert again.returncode == 0 and "flaky: expected True, got False" in again.stderr, again.stderr
    assert "tiny: verifying once more" in again.stderr
    assert (folder / "env").stat().st_ino == before[0] and (folder / "verify.json").read_text() != before[1]
    # The checks of before are in force again, without being run.
    verify.write_text(verify.read_text().replace(f"Probe('flaky', 'rbt-alpha', True, lambda: {once}), ", ""))
    assert tiny.build().stderr == "" and (folder / "verify.json").read_text() == before[1]


def test_what_an_earlier_build_left_becomes_what_the_lock_says(tiny, tmp_path):
    """A package too many, one too few, and an interpreter that does not start."""
    assert tiny.build().returncode == 0
    (folder,) = tiny.built()
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    gamma = write_wheel(tmp_path / "wheels", "rbt-gamma", "3.0")
    add = [find_uv(), "pip", "install", "-q", "--no-index", "--no-deps", "--python", folder / "env/bin/python", gamma]
    subprocess.run(add, check=True)
    shutil.rmtree(packages / "rbt_beta-2.0.dist-info")
    (folder / "env" / "origin.json").unlink()
    (folder / "env" / "bin" / "python").unlink()
    (folder / ".work").mkdir()
    (folder / ".work" / "uv.toml").write_text("a killed builder's password")
    again = tiny.build()
    assert again.returncode == 0, again.stderr
    assert json.loads((folder / "verify.json").read_text())["packages"] == {"rbt-alpha": "1.0", "rbt-beta": "2.0"}
    assert not (folder / ".work").exists()


def test_a_failing_check_fails_the_build_and_names_the_locks_line(site, tiny):
    verify = tiny.envs / "tiny" / "verify.py"
    verify.write_text(verify.read_text().replace("'1.0'", "'1.1'"))
    failed = tiny.build()
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "tiny/requirements.lock:3: alpha answers: expected 1.1, got 1.0" in failed.stderr
    (folder,) = tiny.built()
    assert [path.name for path in folder.iterdir()] == ["env"], "which Snakemake and jobs do not take"
    verify.write_text(verify.read_text().replace("'1.1'", "'1.0'"))
    assert tiny.build().returncode == 0


@pytest.mark.full("stacks are built")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_build_is_finished_by_the_next(tiny, index, number):
    index.gate.clear()
    index.asked.clear()
    builder = tiny.start("build", "tiny", "--stacks-dir", str(tiny.stacks))
    patience.until(index.asked.is_set, builder.pid)  # in the middle: uv waits for a wheel
    builder.send_signal(number)
    _, said = patience.ended(builder, 60)
    assert builder.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    assert "Traceback" not in said
    assert tiny.passed() == []
    index.gate.set()
    again = tiny.build()
    assert again.returncode == 0, again.stderr
    (folder,) = tiny.built()
    assert folder.name == json.loads((folder / "verify.json").read_text())["lock_id"]


def test_two_builders_build_once(tiny, index):
    index.gate.clear()
    index.asked.clear()
    first = tiny.start("build", "tiny", "--stacks-dir", str(tiny.stacks))
    patience.until(index.asked.is_set, first.pid)
    second = tiny.start("build", "tiny", "--stacks-dir", str(tiny.stacks))
    assert second.stderr is not None
    waiting = second.stderr.readline()
    assert "waiting for another builder" in waiting
    index.gate.set()
    told, said = patience.ended(first, 60)
    told_too, said_too = patience.ended(second, 60)
    assert (first.returncode, second.returncode) == (0, 0), said + said_too
    assert told == told_too and "ready in" in said and said_too == ""
    assert len(tiny.built()) == 1


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({}, ["rbt-beta==2.0 is not the file that the lock names: its hash differs"]),
        (
            {"PIP_INDEX_URL": "", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "."},
            [
                "no configured source has it: rbt-alpha was not found",
                "Sources: no index, folder or page /",
                "PIP_FIND_L",
            ],
        ),
        (
            {"PIP_INDEX_URL": "http://me:secret@127.0.0.1:9/simple"},
            ["a package source could not be read: http://", "@127.0.0.1:9/", "PIP_INDEX_URL"],
        ),
    ],
)
def test_what_the_sources_do_not_have_is_told_without_a_password(tiny, index, tmp_path, sources, said):
    """Another wheel of that name; no wheel; no answer."""
    evil = write_wheel(tmp_path / "other", "rbt-beta", "2.0", code="evil = True\n")
    shutil.copy(evil, index.folder / "files" / evil.name)
    failed = tiny.build(UV_CACHE_DIR=str(tmp_path / "cold"), **sources)
    assert failed.returncode == 1 and tiny.passed() == []
    assert [text for text in said if text not in failed.stderr] == [] and "secret" not in failed.stderr, failed.stderr


@pytest.mark.full("stacks are built")
def test_a_disk_that_fills_up_is_told(site, index, tmp_path, small_disk):
    site.write_locked(index, write_wheel(tmp_path / "wheels", "rbt-large", "1.0", payload=4 * 2**20))
    site.stacks = small_disk
    failed = site.build()
    assert failed.returncode == 1 and "the disk is full" in failed.stderr, failed.stderr
    assert "Traceback" not in failed.stderr and site.passed() == []
