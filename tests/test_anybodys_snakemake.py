"""The workflow works with anybody's Snakemake, alone in its environment, of the lowest and of the newest release."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from common.files import ROOT
from workflow.stacks.uv import configured_uv

from .programs import executable
from .test_module import DEPLOYED

LOWEST = re.search(r'min_version\("(.+)"\)', (ROOT / "workflow/Snakefile").read_text())[1] + ".0"
TEST = ROOT / ".test"
# What Snakemake asks of conda. An environment is a venv that sees this one's packages, in place of the pinned ones.
CONDA = """
case $1 in
    --version) echo conda 24.7.1 ;;
    info) echo '{{"conda_prefix": "{base}", "platform": "linux-64"}}' ;;
    config) echo '{{"get": {{"channel_priority": "strict"}}}}' ;;
    env)
        while [ $# -gt 1 ]; do
            case $1 in --file) file=$2 ;; --prefix) prefix=$2 ;; esac
            shift
        done
        mkdir -p {base}/alone && cp "$file" {base}/alone/environment.yaml
        {python} -m venv --without-pip "$prefix"
        echo {packages} >"$(echo "$prefix"/lib/python3*/site-packages)/here.pth" ;;
esac
"""
pytestmark = pytest.mark.full("environments are made")


@pytest.fixture(scope="module", params=[f"=={LOWEST}", ""], ids=["lowest", "newest"])
def snakemake(request, tmp_path_factory):
    """Runs the Snakemake of a new environment in a folder, and expects success; what it says."""
    uv, env = configured_uv(), tmp_path_factory.mktemp("env")
    for command in (
        ["venv", "-q", "--python", sys.executable, str(env), "--allow-existing"],
        ["pip", "install", "-q", "--python", str(env / "bin" / "python"), *uv.arguments, f"snakemake{request.param}"],
    ):
        status, output = uv.run(command)
        assert status == 0, output

    def run(folder, *words, path=""):
        done = subprocess.run(
            [env / "bin" / "snakemake", *words], cwd=folder, env={"PATH": f"{path}/usr/bin:/bin", "HOME": str(env)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_the_catalog_can_look_at_it(snakemake, tmp_path):
    snakemake(ROOT, "--lint")
    shutil.copy(ROOT / "config.yaml", tmp_path)
    there = ["-s", ROOT / "workflow" / "Snakefile"]
    assert "rule train:" in snakemake(tmp_path, *there, "-n", "--cores", "2")
    assert "train" in snakemake(tmp_path, *there, "--rulegraph")
    # As snakedeploy leaves it.
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow" / "Snakefile").write_text(DEPLOYED.format(snakefile=there[1]))
    (tmp_path / "config").mkdir()
    (tmp_path / "config.yaml").rename(tmp_path / "config" / "config.yaml")
    assert "rule train:" in snakemake(tmp_path, "-n", "--cores", "2")


def test_with_conda_it_needs_nothing_else(snakemake, tmp_path):
    shutil.copytree(TEST / "config", tmp_path / "a" / "b" / "config")
    (tmp_path / "a" / "tests").symlink_to(ROOT / "tests")
    python, packages = Path(sys.base_prefix) / "bin" / "python3", sysconfig.get_path("purelib")
    conda = executable(tmp_path / "bin" / "conda", CONDA.format(base=tmp_path, python=python, packages=packages))
    executable(conda.with_name("activate"), 'PATH="$1/bin:$PATH"')
    words = [
        "-s",
        ROOT / "workflow" / "Snakefile",
        "--cores",
        "1",
        "--sdm",
        "conda",
        "--conda-prefix",
        tmp_path / "envs",
    ]
    snakemake(tmp_path / "a" / "b", *words, path=f"{conda.parent}:")
    (arm,) = json.loads((tmp_path / "a" / "b" / "results" / "two-logs" / "verdict.json").read_text())["arms"]
    assert (arm["arm"], arm["baseline"]) == ("sglang", "vllm")
    # conda has this file alone, and would install these.
    (*_, pip) = yaml.safe_load((tmp_path / "alone" / "environment.yaml").read_text())["dependencies"]
    pins = dict(line.partition(" ;")[0].split("==") for line in pip["pip"] if "sys_platform" not in line)
    assert {name: metadata.version(name) for name in ("pandas", "pyarrow", "snakemake")}.items() <= pins.items()
