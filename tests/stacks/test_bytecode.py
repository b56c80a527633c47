"""Environments that have one source file share its bytecode: real uv, real hard links, real imports."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workflow.stacks.bytecode import FOLDER, cache_beside, keep, reuse

from .conftest import PYTHON, Index, Site, write_wheel

pytestmark = pytest.mark.full("stacks compiled twice")

PACKAGES = Path("lib", f"python{PYTHON}", "site-packages")
FAILING = "def answer():\n    return '1.0'\n\n\ndef main():\n    raise ValueError('on line six')\n"


def compiled(source: Path) -> Path:
    (found,) = source.parent.joinpath("__pycache__").glob(f"{source.stem}.*.pyc")
    return found


def run_main(source: Path) -> str:
    """What Python says of the module's `main`, which fails."""
    program = f"import sys; sys.path.insert(0, {str(source.parent)!r}); import rbt_alpha; rbt_alpha.main()"
    return subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False).stderr


def test_built_stacks_share_what_python_compiled_once_it_is_verified(
    site: Site, index: Index, tmp_path: Path, small_disk: Path
) -> None:
    index.add(write_wheel(tmp_path / "wheels", "rbt-alpha", "1.0", code=FAILING))
    probe = "Probe('alpha answers', 'rbt-alpha', '1.0', lambda: __import__('rbt_alpha').answer())"
    for name in ("tiny", "other"):
        site.write_stack("rbt-alpha==1.0\n", name=name, probes=f"[{probe}]")
        assert site.run("lock", name).returncode == 0
    verify = site.envs / "tiny" / "verify.py"
    text = verify.read_text()
    verify.write_text(text.replace("'1.0'", "'1.1'"))
    assert site.build().returncode == 1
    assert not list((tmp_path / FOLDER).iterdir())
    verify.write_text(text)

    def built(name: str, **environ: str) -> Path:
        done = site.build(name, **environ)
        assert done.returncode == 0, done.stderr
        (folder,) = site.built(name)
        return folder / "env" / PACKAGES / "rbt_alpha.py"

    first, second = built("tiny"), built("other")
    assert second.samefile(first) and compiled(second).samefile(compiled(first))
    for source in (first, second):
        assert f'File "{source}", line 6, in main' in run_main(source)
    kept = compiled(first).stat().st_ino
    shutil.rmtree(site.stacks)
    first = built("tiny")
    assert compiled(first).stat().st_ino == kept
    for environ in ({"UV_LINK_MODE": "copy"}, {"UV_CACHE_DIR": str(small_disk / "uv")}):
        assert not compiled(built("other", **environ)).samefile(compiled(first))
        shutil.rmtree(site.stacks / "other")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A source in uv's cache."""
    source = tmp_path / "uv" / "archive" / "rbt_alpha.py"
    source.parent.mkdir(parents=True)
    source.write_text(FAILING)
    return source


@pytest.fixture
def cache(tmp_path: Path, wheel: Path) -> Path:
    found = cache_beside(tmp_path / "uv", tmp_path)
    assert found is not None
    return found


def environment(folder: Path, wheel: Path) -> Path:
    """The source in an environment into which uv linked it."""
    packages = folder / PACKAGES
    packages.mkdir(parents=True)
    (packages / wheel.name).hardlink_to(wheel)
    return packages / wheel.name


def test_a_source_that_changed_is_compiled_anew_and_for_its_own_environment(
    tmp_path: Path, wheel: Path, cache: Path
) -> None:
    first, second = (environment(tmp_path / name, wheel) for name in "ab")
    py_compile.compile(str(first))
    keep(cache, tmp_path / "a")
    assert reuse(cache, tmp_path / "b") == 1
    second.unlink()  # as editors do: this environment's link alone
    second.write_text(FAILING.replace("on line six", "changed"))
    assert "ValueError: changed" in run_main(second) and not compiled(second).samefile(compiled(first))
    keep(cache, tmp_path / "b")
    third = environment(tmp_path / "c", wheel)
    assert reuse(cache, tmp_path / "c") == 1
    for source in (first, third):
        said = run_main(source)
        assert f'File "{source}", line 6, in main' in said and "ValueError: on line six" in said
    wheel.write_text(FAILING.replace("on line six", "in all of them"))  # what docs/stacks.md warns of
    assert "ValueError: in all of them" in run_main(third)


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, wheel: Path, cache: Path) -> None:
    for mode in (0o770, 0o707):
        cache.chmod(mode)
        assert cache_beside(tmp_path / "uv", tmp_path) is None
    cache.rename(tmp_path / "theirs")
    (tmp_path / "theirs").chmod(0o700)
    cache.symlink_to(tmp_path / "theirs")
    assert cache_beside(tmp_path / "uv", tmp_path) is None
    if os.geteuid() == 0:
        cache.unlink()
        cache.mkdir(0o700)
        os.chown(cache, 1234, -1)
        assert cache_beside(tmp_path / "uv", tmp_path) is None


def test_a_copy_of_the_folder_serves_nobody(tmp_path: Path, wheel: Path, cache: Path) -> None:
    """As from a backup: its names are the inodes of other files."""
    py_compile.compile(str(environment(tmp_path / "a", wheel)))
    keep(cache, tmp_path / "a")
    environment(tmp_path / "b", wheel)
    copy = tmp_path / "copy"
    shutil.copytree(cache, copy)
    assert reuse(copy, tmp_path / "b") == 0
    keep(copy, tmp_path / "a")
    assert reuse(copy, tmp_path / "b") == 1
