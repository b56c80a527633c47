"""The wheel of a fresh clone has every file that its packages read, and works in an environment without the clone."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from .importing import ROOT
from .patience import run

REQUIREMENTS = "envs/controller/requirements.in"
FORMATS = "tests/goldens/data/formats"
LOGS = ROOT / FORMATS
pytestmark = [
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git alone knows which files are ours"),
    pytest.mark.full("the installed package"),
]


def tracked():
    """The files of a fresh clone, with the changes that are not committed yet."""
    listing = ["git", "ls-files", "--", ".", ":!tests", ":!docs"]
    named = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {file for file in named if (ROOT / file).is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built as `pip wheel` does, from a clone that is gone afterwards."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for file in tracked():
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, source / file, follow_symlinks=False)
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    done([sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", folder, source], folder)
    shutil.rmtree(source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Of a user's environment with the wheel."""
    found = of_a_user(tmp_path_factory.mktemp("env"))
    install(wheel, found)
    return found


@pytest.fixture
def elsewhere(tmp_path):
    """A folder of a user's, with two logs."""
    for log in ("verl-console-vllm-0.log", "verl-console-sglang-0.log"):
        shutil.copyfile(LOGS / log, tmp_path / log)
    return tmp_path


def of_a_user(env):
    """The Python of a new environment with a snakemake and modules of the user's, and with what the wheel requires."""
    venv.create(env, symlinks=True)
    python = env / "bin" / "python"
    # Without this environment's .pth files, of which one leads to the checkout.
    (site_of(python) / "controller.pth").write_text(sysconfig.get_path("purelib"))
    python.with_name("snakemake").write_text("#!/bin/sh\necho of the user\n")
    python.with_name("snakemake").chmod(0o755)
    for room in ("common", "workflow"):
        (site_of(python) / f"{room}.py").write_text("raise RuntimeError('a module of the user')\n")
    return python


def install(wheel, python):
    offline = ["--no-deps", "--no-index", "--no-compile", "--quiet"]
    done([sys.executable, "-m", "pip", "--python", python, "install", *offline, wheel], python.parent)


def files_of(env):
    """Each file with what would show a change of it."""
    files = [file for file in env.rglob("*") if not file.is_dir() and "__pycache__" not in file.parts]
    return {str(file.relative_to(env)): (file.lstat().st_ino, file.lstat().st_mtime_ns) for file in files}


def site_of(python):
    return Path(done([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], python.parent).strip())


def named(requirements):
    """The packages of a requirements.in, or of a wheel's metadata."""
    return set(re.findall(r"^(?:Requires-Dist: )?([a-z][a-z0-9-]*)(?=[ ><=]|$)", requirements, re.MULTILINE))


def done(command, folder, **variables):
    ended = run([str(word) for word in command], 600, cwd=folder, env=os.environ | variables)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_it_has_every_file_of_the_packages(wheel):
    inside = {name.removeprefix("rolloutbench/") for name in zipfile.ZipFile(wheel).namelist()}
    packages = {name.split("/")[0] for name in inside if "/" in name and ".dist-info/" not in name}
    assert {"common", "node", "engines", "trainers", "analysis", "workflow", "rules", "envs", "profiles"} == packages
    of_packages = {file for file in tracked() if file.split("/")[0] in packages and "/" in file}
    assert len({file for file in of_packages if not file.endswith(".py")}) > 60
    assert sorted(of_packages - inside) == []


def test_it_adds_one_folder_and_one_program_and_takes_away_no_more(wheel, tmp_path):
    python = of_a_user(tmp_path)
    before, site = files_of(tmp_path), site_of(python)
    beside = {*site.iterdir(), *python.parent.iterdir()}
    install(wheel, python)
    after = files_of(tmp_path)
    assert {file: after.get(file) for file in before} == before
    about, *added = sorted({*site.iterdir(), *python.parent.iterdir()} - beside, key=lambda path: path.suffix == "")
    assert {*added} == {site / "rolloutbench", python.with_name("rolloutbench")} and about.suffix == ".dist-info"
    assert (about / "top_level.txt").read_text() == "rolloutbench\n"
    uninstall = [sys.executable, "-m", "pip", "--python", python, "uninstall", "--yes", "--quiet", "rolloutbench"]
    done(uninstall, tmp_path)
    assert files_of(tmp_path) == before
    assert done([python.with_name("snakemake")], tmp_path) == "of the user\n"


def test_it_names_what_it_requires(python):
    (metadata,) = site_of(python).glob("rolloutbench-*.dist-info/METADATA")
    asked = "\n".join(re.findall("^Requires-Dist: .*", metadata.read_text(encoding="utf-8"), re.MULTILINE))
    assert named(asked) == named((ROOT / REQUIREMENTS).read_text(encoding="utf-8")) >= {"pydantic", "wandb"}


def test_it_compares_two_logs_in_another_folder(python, elsewhere):
    program = python.with_name("rolloutbench")
    assert done([program, "--help"], elsewhere).startswith("usage: rolloutbench")
    assert re.fullmatch(
        rf"rolloutbench \d+\.\d+\.\d+ \({site_of(python)}/rolloutbench\)\n", done([program, "--version"], elsewhere)
    )
    arms = ["vllm=verl-console-vllm-0.log", "sglang=verl-console-sglang-0.log", "--release", "0.4.1"]
    said = done([program, "compare", *arms], elsewhere)
    assert "sglang vs vllm: not resolved, one run an arm: " in said
    assert said.splitlines()[-1] == "report: comparison/report.html"
    assert (elsewhere / "comparison" / "report.html").stat().st_size > 50_000


def test_it_prepares_an_experiment_in_another_folder(python, elsewhere):
    program = python.with_name("rolloutbench")
    makes_a_configuration(program, elsewhere)
    looks_at_the_machine(program, elsewhere)


def test_its_rules_run_without_a_clone(python, elsewhere):
    config = elsewhere / "config.yaml"
    config.write_text((ROOT / ".test" / "config" / "config.yaml").read_text().replace(f"../{FORMATS}/", ""))
    done([python.with_name("rolloutbench"), "run", "config.yaml", "--cores", "1"], elsewhere, HOME=str(elsewhere))
    (arm,) = json.loads((elsewhere / "results" / "two-logs" / "verdict.json").read_text())["arms"]
    assert (arm["arm"], arm["baseline"]) == ("sglang", "vllm")


def makes_a_configuration(program, folder):
    """`new` writes what plans there and in the checkout to the same runs."""
    said = done([program, "new", "--gpus", "8", "--partition", "h100"], folder)
    assert said.splitlines()[:2] == ["wrote my.yaml", "wrote profiles/my/config.yaml"]
    fingerprints = (
        "import json, sys; from workflow.config.plan import load_plan; from workflow.config.reading import read_yaml"
    )
    fingerprints += "; from pathlib import Path; plan = load_plan(read_yaml(Path(sys.argv[1])))"
    fingerprints += "; print(json.dumps({name: run.fingerprint for name, run in plan.runs.items()}))"
    rooms = site_of(program.with_name("python")) / "rolloutbench"
    there, here = (
        json.loads(done([python, "-c", fingerprints, folder / "my.yaml"], where))
        for python, where in ((program.with_name("python"), rooms), (Path(sys.executable), ROOT))
    )
    assert there == here and len(there) == 4
    profile = folder / "profiles" / "my" / "config.yaml"
    profile.write_text(
        re.sub("^( +)train:\n", r"\g<0>\1\1private_nodes: true\n", profile.read_text(), flags=re.MULTILINE)
    )
    checked = subprocess.run([program, "check", "my.yaml"], cwd=folder, capture_output=True, text=True, check=False)
    assert "impossible: nothing" in checked.stdout and all(run in checked.stdout for run in there), checked.stderr


def looks_at_the_machine(program, folder):
    """`check` checks the stacks without the checkout's files."""
    env = os.environ | {"PIP_NO_INDEX": "1"}
    for words in ([], ["my.yaml"]):
        ended = subprocess.run(
            [program, "check", *words, "--json"], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in ended.stderr and ended.returncode in (0, 1)
        assert "make venv" not in ended.stdout and "without a checkout" not in ended.stdout
