"""`rolloutbench compare` of an installation that is not this checkout: its wheel in an environment of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from .importing import ROOT

REQUIREMENTS = "envs/controller/requirements.in"
LOGS = ROOT / "tests" / "goldens" / "data" / "formats"


def named(requirements: str) -> set[str]:
    """The packages of a requirements.in, or of a wheel's metadata."""
    return set(re.findall(r"^(?:Requires-Dist: )?([a-z][a-z0-9-]*)(?=[ ><=]|$)", requirements, re.MULTILINE))


def done(command: list[str | Path], folder: Path) -> str:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_an_installed_wheel_compares_two_logs_in_another_folder(tmp_path: Path) -> None:
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    for package in ("common", "node", "engines", "trainers", "analysis", "workflow"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "envs" / "controller").mkdir(parents=True)
    for file in ("pyproject.toml", "README.md", "LICENSE", REQUIREMENTS):
        shutil.copyfile(ROOT / file, source / file)
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    # The packages of this environment without its .pth files, of which one leads to the checkout.
    site = Path(done([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path).strip())
    (site / "controller.pth").write_text(sysconfig.get_path("purelib"))
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--quiet"]
    done([sys.executable, "-m", "pip", "--python", python, "install", *offline, source], tmp_path)
    shutil.rmtree(source)
    elsewhere.mkdir()
    for log in ("verl-console-vllm-0.log", "verl-console-sglang-0.log"):
        shutil.copyfile(LOGS / log, elsewhere / log)
    where = done([python, "-c", "import workflow; print(workflow.__file__)"], elsewhere)
    assert Path(where).is_relative_to(site), where
    (metadata,) = site.glob("rolloutbench-*.dist-info/METADATA")
    asked = "\n".join(re.findall("^Requires-Dist: .*", metadata.read_text(encoding="utf-8"), re.MULTILINE))
    assert named(asked) == named((ROOT / REQUIREMENTS).read_text(encoding="utf-8")) >= {"pydantic", "wandb"}
    new = subprocess.run([python.with_name("rolloutbench"), "new"], cwd=elsewhere, capture_output=True, text=True)
    assert new.stderr.startswith("error: rolloutbench new needs the stacks") and len(new.stderr.splitlines()) == 1
    arms = ["vllm=verl-console-vllm-0.log", "sglang=verl-console-sglang-0.log", "--release", "0.4.1"]
    said = done([python.with_name("rolloutbench"), "compare", *arms], elsewhere)
    assert "sglang vs vllm: not resolved, one run pair only." in said
    assert said.splitlines()[-1] == f"report: {elsewhere / 'comparison' / 'report.html'}"
    assert (elsewhere / "comparison" / "report.html").stat().st_size > 100_000
