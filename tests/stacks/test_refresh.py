"""`make lock`: a lock is made anew, keeps what still fits, and holds nothing of the site that made it."""

import os
from pathlib import Path

import pytest

from ..programs import executable
from .conftest import write_wheel
from .test_conda import has_program

pytestmark = pytest.mark.full("locks resolved anew")


def test_a_refresh_keeps_pins_that_fit_and_an_upgrade_does_not(tiny, index, tmp_path):
    lock = tiny.envs / "tiny" / "requirements.lock"
    before = lock.read_text()
    index.add(write_wheel(tmp_path / "wheels", "rbt-beta", "2.1"))
    index.add(write_wheel(tmp_path / "wheels", "rbt-gamma", "1"))
    assert tiny.run("lock", "tiny").returncode == 0
    assert lock.read_text() == before
    requirements = tiny.envs / "tiny" / "requirements.in"
    requirements.write_text(requirements.read_text() + "rbt-gamma\n")
    assert "has changed since" in tiny.run("check", "tiny").stderr
    assert tiny.run("lock", "tiny").returncode == 0
    assert "rbt-beta==2.0" in lock.read_text() and "rbt-gamma==1" in lock.read_text()
    assert tiny.run("check").stdout == "tiny: 3 pins, in order\n"
    assert tiny.run("lock", "tiny", "--upgrade").returncode == 0
    assert "rbt-beta==2.1" in lock.read_text()
    assert str(tmp_path) not in lock.read_text() and "127.0.0.1" not in lock.read_text()


def test_a_refresh_that_fails_leaves_the_lock_as_it_was(tiny):
    folder = tiny.envs / "tiny"
    before = (folder / "requirements.lock").read_text()
    (folder / "requirements.in").write_text("rbt-alpha==7\n")
    failed = tiny.run("lock", "tiny")
    assert failed.returncode == 1 and "no configured source has it" in failed.stderr
    assert (folder / "requirements.lock").read_text() == before
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_hashes_come_from_the_main_index_where_a_mirror_holds_only_some(tiny, index, tmp_path):
    # The main index has two files of one release, the mirror in front of it one of them.
    wheel = write_wheel(tmp_path / "wheels", "rbt-delta", "1.0")
    second = wheel.with_name("rbt_delta-1.0-1-py3-none-any.whl")
    second.write_bytes(write_wheel(tmp_path / "again", "rbt-delta", "1.0", code="again = True\n").read_bytes())
    index.add(wheel)
    index.add(second)
    mirror = tmp_path / "mirror" / "rbt-delta"
    mirror.mkdir(parents=True)
    (mirror / wheel.name).write_bytes(wheel.read_bytes())
    (mirror / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>\n')
    tiny.write_stack("rbt-delta\n", name="two")
    locked = tiny.run("lock", "two", PIP_EXTRA_INDEX_URL=mirror.parent.as_uri())
    assert locked.returncode == 0, locked.stderr
    assert (tiny.envs / "two" / "requirements.lock").read_text().count("--hash=") == 2


def test_a_conda_layer_is_locked_by_conda_lock_or_what_it_lacks_is_said(tiny, tmp_path):
    """No channel is reached here: what conda-lock makes of one is conda-lock's."""
    folder = tiny.envs / "tiny"
    (folder / "environment.yml").write_text("channels: [nodefaults]\nplatforms: [linux-64]\ndependencies: []\n")
    lock = folder / "requirements.lock"
    before = lock.read_text()
    lock.unlink()
    without = ":".join(part for part in os.environ["PATH"].split(":") if not has_program(Path(part)))
    refused = tiny.run("lock", "tiny", PATH=without, MAMBA_EXE="", CONDA_EXE="")
    assert refused.returncode == 1 and lock.read_text() == before
    assert "conda-lock.yml is as it was: its refresh needs " in refused.stderr, refused.stderr
    program = executable(tmp_path / "bin" / "micromamba", "echo no channel is reached >&2; exit 1")
    failed = tiny.run("lock", "tiny", PATH=f"{program.parent}:{without}", MAMBA_EXE="", CONDA_EXE="")
    assert failed.returncode == 1 and "conda-lock.yml is as it was: " in failed.stderr, failed.stderr
    assert not (folder / "conda-lock.yml").exists() and not list(folder.glob(".conda-lock*"))
