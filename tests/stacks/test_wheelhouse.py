"""A wheelhouse has what the lock names, by its hashes, and is enough for a build: real pip, uv and wheels."""

import hashlib
from pathlib import Path

import pytest

from workflow.stacks.definition import load_stack, lock_id

from .conftest import PYTHON, write_wheel


def collect(site, *arguments, **environ):
    """The wheelhouse of `tiny` in the folder `house`."""
    return site.run("wheelhouse", "tiny", "--out", "house", *arguments, **environ)


def lock_by_hand(site, wheels, extra=""):
    """A stack whose lock pins those files by hand: `uv pip compile` takes only what fits this machine."""
    folder = site.write_stack("".join(f"{pin}\n" for pin in wheels), extra=extra)
    digests = {pin: hashlib.sha256(path.read_bytes()).hexdigest() for pin, path in wheels.items()}
    lines = [f"{pin} \\\n    --hash=sha256:{digest}\n" for pin, digest in digests.items()]
    (folder / "requirements.lock").write_text("".join(lines))


@pytest.fixture
def two(site, index, tmp_path):
    """A locked stack of two wheels, one of which would be compiled if it could."""
    pins = {"rbt-alpha==1.0": "rbt-alpha", "rbt-beta==2.0": "rbt-beta"}
    wheels = {pin: write_wheel(tmp_path / "made", name, pin.partition("==")[2]) for pin, name in pins.items()}
    for wheel in wheels.values():
        index.add(wheel)
    lock_by_hand(site, wheels)
    return site


@pytest.mark.full("stacks are built")
def test_a_wheelhouse_is_enough_to_build(two, index):
    done = collect(two)
    assert done.returncode == 0 and "2 packages, " in done.stderr, done.stderr
    assert "PIP_NO_INDEX=1 PIP_FIND_LINKS=house/wheels python -m workflow.stacks build tiny" in done.stderr
    found = two.root / "house" / "wheels"
    for wheel in (index.folder / "files").iterdir():
        assert (found / wheel.name).read_bytes() == wheel.read_bytes()
    index.asked.clear()
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_INDEX": "1"}
    built = two.build(PIP_FIND_LINKS="house/wheels", UV_CACHE_DIR=str(two.root / "cold"), **offline)
    assert built.returncode == 0, built.stderr
    assert Path(built.stdout.strip()).name == lock_id(load_stack("tiny", two.envs))
    assert not index.asked.is_set()


def test_another_file_or_another_platform_is_refused_with_pips_reason(site, index, tmp_path):
    wheel = write_wheel(tmp_path / "made", "rbt-alpha", "1.0")
    lock_by_hand(site, {"rbt-alpha==1.0": wheel})
    missing = collect(site)
    assert missing.returncode == 1 and "No matching distribution found for rbt-alpha==1.0" in missing.stderr
    assert f"for Python {PYTHON} on manylinux_2_28" in missing.stderr and "PIP_FIND_LINKS" in missing.stderr
    index.add(write_wheel(tmp_path / "other", "rbt-alpha", "1.0", payload=1000))
    changed = collect(site)
    assert changed.returncode == 1 and "THESE PACKAGES DO NOT MATCH THE HASHES" in changed.stderr
    wrong = collect(site, "--platform", "linux_x86_64")
    assert (
        wrong.returncode == 1 and "--platform must be manylinux_2_<glibc's minor version, at least 17>" in wrong.stderr
    )


def test_what_is_built_from_source_is_named(two):
    stack = two.envs / "tiny" / "stack.yaml"
    stack.write_text(stack.read_text() + "source_builds: [rbt-beta]\n")
    done = collect(two)
    assert done.returncode == 0, done.stderr
    assert "rbt-beta 2.0 has no wheel: carry an image of the stack instead" in done.stderr
    assert [path.name.partition("-")[0] for path in (two.root / "house" / "wheels").iterdir()] == ["rbt_alpha"]
