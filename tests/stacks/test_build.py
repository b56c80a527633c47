"""A stack is built whole, verified, once, or not at all: real uv, real wheels, real signals."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from .. import patience
from .conftest import write_wheel


def test_a_built_stack_works_where_it_lies_and_is_not_built_again(tiny):
    first = tiny.build()
    assert first.returncode == 0, first.stderr
    # What it takes, that it is verified, and that it is ready: a quickstart builds three.
    assert len(first.stderr.splitlines()) == 3, first.stderr
    (folder,) = tiny.built()
    assert Path(first.stdout.strip()) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["env", "verify.json"]
    verdict = json.loads((folder / "verify.json").read_text())
    assert verdict["ok"] and verdict["stack"] == "tiny" and verdict["lock_id"] == folder.name
    assert verdict["packages"] == {"rbt-alpha": "1.0", "rbt-beta": "2.0"}
    assert {check["source"] for check in verdict["checks"]} == {
        "stack.yaml",
        "requirements.lock:3",
        "requirements.lock:6",
    }
    # Renamed after it was made: the interpreter, an import and a console script find the final place.
    python = tiny.run("python", "tiny", "--stacks-dir", str(tiny.stacks)).stdout.strip()
    assert subprocess.check_output([python, "-c", "import sys, rbt_beta; print(sys.prefix)"], text=True).strip() == str(
        folder / "env"
    )
    assert subprocess.check_output([folder / "env" / "bin" / "rbt-alpha"], text=True).strip() == "1.0"
    assert not any(b".building-" in path.read_bytes() for path in (folder / "env" / "bin").iterdir() if path.is_file())

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


def test_a_changed_verify_is_run_without_a_new_build(tiny):
    assert tiny.build().returncode == 0
    (folder,) = tiny.built()
    inode = (folder / "env").stat().st_ino
    verify = tiny.envs / "tiny" / "verify.py"
    verify.write_text(verify.read_text() + "# another text\n")
    again = tiny.build(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert again.returncode == 0 and "verifying the existing environment" in again.stderr
    assert (folder / "env").stat().st_ino == inode


@pytest.mark.full("stacks are built")
def test_a_damaged_environment_is_noticed_and_replaced(tiny):
    assert tiny.build().returncode == 0
    (folder,) = tiny.built()
    (damaged,) = (folder / "env").glob("lib/python*/site-packages/rbt_beta-2.0.dist-info")
    shutil.rmtree(damaged)
    (folder / "verify.json").unlink()
    again = tiny.build()
    assert again.returncode == 0, again.stderr
    assert "requirements.lock:6: rbt-beta: expected 2.0, got not installed" in again.stderr
    assert tiny.built() == [folder] and json.loads((folder / "verify.json").read_text())["ok"]


def test_a_failing_check_fails_the_build_and_names_the_locks_line(site, tiny):
    verify = tiny.envs / "tiny" / "verify.py"
    verify.write_text(verify.read_text().replace("'1.0'", "'1.1'"))
    failed = tiny.build()
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "tiny/requirements.lock:3: alpha answers: expected 1.1, got 1.0" in failed.stderr
    assert tiny.built() == []


@pytest.mark.full("stacks are built")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_build_leaves_nothing_half(tiny, index, number):
    index.gate.clear()
    index.asked.clear()
    builder = tiny.start("build", "tiny", "--stacks-dir", str(tiny.stacks))
    patience.until(index.asked.is_set, builder.pid)  # in the middle: uv waits for a wheel
    assert [path.name.startswith(".building-") for path in tiny.built()] == [True]
    builder.send_signal(number)
    _, said = patience.ended(builder, 60)
    assert builder.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    assert "Traceback" not in said
    leftovers = tiny.built()
    assert bool(leftovers) == (number == signal.SIGKILL)
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


def test_a_tampered_wheel_is_named(tiny, index, tmp_path):
    wheel = index.folder / "files" / "rbt_beta-2.0-py3-none-any.whl"
    shutil.copy(write_wheel(tmp_path / "other", "rbt-beta", "2.0", code="evil = True\n"), wheel)
    failed = tiny.build(UV_CACHE_DIR=str(tmp_path / "cold"))
    assert failed.returncode == 1
    assert "rbt-beta==2.0 is not the file that the lock names: its hash differs" in failed.stderr
    assert tiny.built() == []


def test_a_source_without_the_package_is_told(tiny, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    failed = tiny.build(
        PIP_INDEX_URL="", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(empty), UV_CACHE_DIR=str(tmp_path / "cold")
    )
    assert failed.returncode == 1
    assert "no configured source has it: rbt-alpha was not found" in failed.stderr
    assert f"Sources: no index, folder or page {empty}" in failed.stderr and "PIP_FIND_LINKS" in failed.stderr
    assert tiny.built() == []


def test_a_source_that_does_not_answer_is_told_without_its_password(tiny, tmp_path):
    failed = tiny.build(PIP_INDEX_URL="http://me:secret@127.0.0.1:9/simple", UV_CACHE_DIR=str(tmp_path / "cold"))
    assert failed.returncode == 1
    assert "a package source could not be read: http://127.0.0.1:9/" in failed.stderr.replace("***@", "")
    assert "PIP_INDEX_URL" in failed.stderr and "secret" not in failed.stderr and tiny.built() == []


@pytest.mark.full("stacks are built")
def test_a_disk_that_fills_up_is_told_and_cleaned(site, index, tmp_path, small_disk):
    index.add(write_wheel(tmp_path / "wheels", "rbt-large", "1.0", payload=4 * 2**20))
    site.write_stack("rbt-large\n")
    assert site.run("lock", "tiny").returncode == 0
    site.stacks = small_disk
    failed = site.build()
    assert failed.returncode == 1 and "the disk is full" in failed.stderr, failed.stderr
    assert "Traceback" not in failed.stderr and site.built() == []


@pytest.mark.full("stacks are built")
def test_a_killed_builder_of_another_host_is_left_alone_for_a_day(tiny):
    foreign = tiny.stacks / "tiny" / ".building-0123456789ab-1@elsewhere"
    foreign.mkdir(parents=True)
    assert tiny.build().returncode == 0
    assert foreign.is_dir()
    os.utime(foreign, (0, 0))
    (built,) = [path for path in tiny.built() if path != foreign]
    shutil.rmtree(built)
    assert tiny.build().returncode == 0
    assert not foreign.exists()
