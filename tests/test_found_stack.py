"""The article's situation: an environment for each engine, made by plain pip, trained in and compared as they are."""

import json
import sys

import pytest

from workflow.stacks.definition import ENVS
from workflow.stacks.lockfile import parse_lock
from workflow.stacks.uv import configured_uv, torch_arguments

from .patience import run
from .site_folder import ROOT, Site
from .stacks.conftest import PYTHON, write_wheel

pytestmark = pytest.mark.full("two environments are installed and trained in")
FOUND = "as found, not built from a lock"


def plain(folder, stack, without=(), **instead):
    """What `pip install` of a shipped stack's packages gives: some left out, some in another version, no hashes."""
    uv = configured_uv()
    pins = {pin.name: pin.version for pin in parse_lock(ENVS / stack / "requirements.lock")} | instead
    asked = [f"{name}=={version}" for name, version in pins.items() if name not in without]
    index = torch_arguments(uv, f"torch=={pins['torch']}", "cpu", PYTHON)
    install = ["pip", "install", "-q", "--no-deps", "--python", str(folder / "bin" / "python")]
    for command in (["venv", "-q", "--python", sys.executable, str(folder)], [*install, *uv.arguments, *index, *asked]):
        status, output = uv.run(command)
        assert status == 0, output
    return folder


def contents(*folders):
    return {str(path): path.lstat().st_mtime for folder in folders for path in folder.rglob("*")}


def found(site, *arguments):
    command = [sys.executable, "-m", "workflow.stacks", "found", *map(str, arguments)]
    return run(command, 600, cwd=site.folder, env={**site.env, "PYTHONPATH": str(ROOT)})


def test_two_environments_made_by_pip_are_compared_as_they_are(tmp_path):
    # A release whose timers are not declared, without a tracker, and on a path with a blank.
    first = plain(tmp_path / "my envs" / "trl", "trl-transformers-cpu", ("wandb",), trl="1.12.0")
    second = plain(tmp_path / "vllm", "trl-vllm-cpu")
    before = contents(first, second)
    folder = tmp_path / "site"
    folder.mkdir()
    site = Site(folder)
    (folder / ".stacks").unlink()
    recorded = [found(site, name, "--python", env) for name, env in (("grpo", first), ("grpo-vllm", second))]
    assert [done.returncode for done in recorded] == [0, 0], recorded
    assert "grpo: trl 1.12.0 with transformers, Python 3.11, for a CPU" in recorded[0].stderr
    assert "grpo: wandb is not installed" in recorded[0].stderr and "not installed" not in recorded[1].stderr
    arms = site.config["arms"]
    arms["transformers"]["stack"], arms["vllm"]["stack"] = "grpo", "grpo-vllm"
    trained = site.snakemake()
    assert trained.returncode == 0, trained.stdout + trained.stderr
    for name, env in (("transformers", first), ("vllm", second)):
        done = json.loads((site.results / "runs" / f"{name}-s0" / "done.json").read_text())
        assert done["last_step"] == 4
        assert (done["stack_origin"]["state"], done["stack_origin"]["python"]) == (FOUND, f"{env}/bin/python")
        # Verified again where it trains.
        checked = json.loads((site.results / "runs" / f"{name}-s0" / "attempts" / "1" / "verify.json").read_text())
        assert checked["ok"] and checked["state"] == FOUND
        assert all(checked["packages"][package] == done["versions"][package] for package in ("torch", "trl"))
    report = (site.results / "report.md").read_text()
    assert f"is {FOUND}: " in report and "(and 1 more like it)" in report
    assert "the timers of trl 1.12.0 are not declared" in report
    assert contents(first, second) == before, "nothing is written into them"
    # A changed environment is another stack. Finished runs need none.
    wheel = write_wheel(tmp_path, "rbt-alpha", "1.0")
    assert configured_uv().run(["pip", "install", "-q", "--python", str(first / "bin" / "python"), str(wheel)])[0] == 0
    assert site.snakemake().returncode == 0
    site.config["seeds"] = [0, 1]
    refused = site.snakemake()
    assert refused.returncode != 0
    assert "error: the environment has changed since it was recorded: grpo has rbt-alpha 1.0" in refused.stderr
    assert not (site.results / "runs" / "vllm-s1").exists()
