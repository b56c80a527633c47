"""The workflow parses with anybody's Snakemake: alone in its environment, of the lowest and of the locked release."""

import re
import shutil
import subprocess
import sys

import pytest

from common.files import ROOT
from workflow.stacks.uv import configured_uv

LOWEST = re.search(r'min_version\("(.+)"\)', (ROOT / "workflow/Snakefile").read_text())[1] + ".0"
LOCKED = re.search(r"^snakemake==(\S+)", (ROOT / "envs/dev/requirements.lock").read_text(), re.MULTILINE)[1]


@pytest.mark.full("environments are made")
@pytest.mark.parametrize("release", [LOWEST, LOCKED])
def test_it_is_linted_and_planned(tmp_path, release):
    uv, env = configured_uv(), tmp_path / "env"
    for command in (
        ["venv", "-q", "--python", sys.executable, str(env)],
        ["pip", "install", "-q", "--python", str(env / "bin" / "python"), *uv.arguments, f"snakemake=={release}"],
    ):
        status, output = uv.run(command)
        assert status == 0, output
    shutil.copy(ROOT / "config.yaml", tmp_path)
    for words in (["--lint"], ["-n", "--cores", "2", "--directory", str(tmp_path)]):
        command = [env / "bin" / "snakemake", "-s", ROOT / "workflow/Snakefile", *words]
        folder = ROOT if words == ["--lint"] else tmp_path
        done = subprocess.run(
            command, cwd=folder, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
