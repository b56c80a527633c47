"""`make venv` makes the controller's environment with any Python from 3.11 on."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .programs import executable

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
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow" / "start.py").write_text("import sys\ndef snakemake(): print('ours', sys.argv[1:])\n")
    script = ROOT / "scripts" / "make-venv.sh"
    done = subprocess.run(
        ["bash", script, bare, "made", "lock"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = subprocess.check_output([tmp_path / "made/bin/python", "-m", "pip", "list"], text=True)
    assert {"pip", "setuptools", "rbt-nothing"} <= set(listed.split())
    snakemake = subprocess.check_output([tmp_path / "made/bin/snakemake", "-n", "a b"], cwd="/", text=True)
    assert snakemake == "ours ['-n', 'a b']\n"
