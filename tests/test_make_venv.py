"""`make venv` makes the controller's environment with any Python from 3.11 on."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workflow.stacks.uv import configured_uv

from .programs import executable
from .stacks.conftest import interpreter, write_wheel

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.full("whole workflows")
def test_a_python_without_ensurepip_makes_the_environment(tmp_path):
    """As Debian's without python3-venv, and as an interpreter that is an environment itself."""
    bare = executable(
        tmp_path / "bare", f'case "$*" in *ensurepip*) exit 1;; esac\nexec {shlex.quote(sys.executable)} "$@"'
    )
    lock = (ROOT / "envs/controller/requirements.lock").read_text()
    (pin,) = re.findall(r"^setuptools==(?:.*\\\n)+.*\n", lock, re.MULTILINE)
    (tmp_path / "lock").write_text(pin.split("    #")[0])
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "rbt-nothing"\nversion = "1"\n[tool.setuptools]\npackages = []\n'
    )
    script = ROOT / "scripts" / "make-venv.sh"
    done = subprocess.run(
        ["bash", script, bare, "made", "lock"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = subprocess.check_output([tmp_path / "made/bin/python", "-m", "pip", "list"], text=True)
    assert {"pip", "setuptools", "rbt-nothing"} <= set(listed.split())
    assert not (tmp_path / "made/bin/snakemake").exists()  # it is Snakemake's alone


def test_a_copy_of_the_checkout_makes_an_environment_of_its_own(tmp_path):
    """The programs of the copied one would start the original's Python."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in ("envs/controller", "envs/dev", ".venv"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("envs/controller/requirements.lock", "pyproject.toml", ".venv/controller.stamp"):
        (tmp_path / file).touch()

    def made(where):
        (tmp_path / ".venv/pyvenv.cfg").write_text(f"command = /usr/bin/python3 -m venv --clear {where}/.venv\n")
        command = ["make", "-n", "venv", "PYTHON=python3"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert "make-venv.sh" not in made(tmp_path)
    assert "make-venv.sh" in made(f"{tmp_path}-original") and "make-venv.sh" in made(f"/elsewhere{tmp_path}")


@pytest.mark.full("an environment is made")
def test_a_package_that_left_the_lock_is_removed(tmp_path):
    """An old plugin of Snakemake would be found by it."""
    lock = (ROOT / "envs/controller/requirements.lock").read_text()
    names = "annotated-types|packaging|pydantic|pydantic-core|pyyaml|typing-extensions|typing-inspection|uv"
    pins = re.findall(rf"^(?:{names})==(?:.*\\\n)+.*\n", lock, re.MULTILINE)
    (tmp_path / "lock").write_text("".join(pin.split("    #")[0] for pin in pins))
    python = interpreter(tmp_path / "env", write_wheel(tmp_path, "rbt-alpha", "1.0"))
    uv = configured_uv()
    first = ["pip", "install", "-q", "--require-hashes", "--python", str(python), *uv.arguments]
    assert uv.run([*first, "-r", str(tmp_path / "lock")])[0] == 0
    sync = [python, ROOT / "scripts/sync.py", tmp_path / "lock"]
    done = subprocess.run(
        sync, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    left = {path.name.partition("-")[0] for path in (tmp_path / "env").glob("lib/python*/site-packages/*.dist-info")}
    assert "rbt_alpha" not in left and {"uv", "packaging"} <= left
