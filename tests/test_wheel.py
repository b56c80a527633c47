"""A wheel of this repository has every file that its packages read at run time."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from .importing import ROOT


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git alone knows which files are ours")
def test_the_wheel_has_every_file_of_the_packages(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = [name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]]
    listing = ["git", "ls-files", "README.md", "pyproject.toml", *packages]
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    source = tmp_path / "source"
    for file in tracked:
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, source / file)
    # What `pip wheel --no-build-isolation` calls.
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    of_packages = {file for file in tracked if "/" in file}
    assert len({file for file in of_packages if not file.endswith(".py")}) > 15
    assert sorted(of_packages - inside) == []
