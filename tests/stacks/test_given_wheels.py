"""A wheel that was built elsewhere is installed in place of a source build, or refused with the reason."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import write_wheel

pytestmark = pytest.mark.full("stacks over given wheels")

NAME, VERSION = "antlr4-python3-runtime", "4.9.3"


@pytest.fixture(scope="session")
def antlr(tmp_path_factory):
    """A folder with antlr4's runtime as its authors published it, and in `built` the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("antlr")
    pip = [sys.executable, "-m", "pip", "-q"]
    source = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"{NAME}=={VERSION}"]
    subprocess.run([*pip, "download", "-d", folder, *source], check=True, capture_output=True, text=True)
    subprocess.run([*pip, "wheel", "-w", folder / "built", *source], check=True, capture_output=True, text=True)
    return folder


def wheel_of(folder):
    (wheel,) = (folder / "built").iterdir()
    return wheel


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def parser(site, index, antlr, tmp_path):
    """A locked stack that builds antlr4 from source, on a machine that lacks what the build needs (setuptools)."""
    index.add(write_wheel(tmp_path / "wheels", "rbt-alpha", "1.0"))
    index.add(next(antlr.glob("*.tar.gz")))
    folder = site.write_stack(f"rbt-alpha\n{NAME}=={VERSION}\n", extra=f"source_builds: [{NAME}]\n")
    (folder / "uv.toml").write_text(
        f'[[dependency-metadata]]\nname = "{NAME}"\nversion = "{VERSION}"\nrequires-dist = []\n'
    )
    locked = site.run("lock", "tiny")
    assert locked.returncode == 0, locked.stderr
    return site


def test_it_is_installed_instead_of_compiling(parser, antlr):
    compiling = parser.build()
    assert compiling.returncode == 1 and "could not be built" in compiling.stderr  # no setuptools: a build cannot work
    wheel = wheel_of(antlr)
    built = parser.run(
        "build", "tiny", "--stacks-dir", str(parser.stacks), "--wheel", str(wheel), "--sha256", sha256(wheel)
    )
    assert built.returncode == 0, built.stderr
    (folder,) = parser.built()
    code = "import antlr4; print(antlr4.InputStream('x').size)"
    assert subprocess.check_output([folder / "env/bin/python", "-I", "-c", code], text=True) == "1\n"
    verdict = json.loads((folder / "verify.json").read_text())
    assert verdict["ok"] and verdict["state"] == "built"
    record = {"package": NAME, "version": VERSION, "file": wheel.name, "sha256": sha256(wheel)}
    assert verdict["origin"] == {"wheels": [record]}
    again = parser.build()
    assert again.returncode == 0 and again.stderr == ""


OTHERS = {
    f"antlr4_python3_runtime-{VERSION}-py3-none-any.whl": "its hash differs",
    "antlr4_python3_runtime-4.9.2-py3-none-any.whl": f"is {NAME} 4.9.2; ",
    f"antlr4_python3_runtime-{VERSION}-cp27-cp27m-linux_x86_64.whl": "no wheels with a matching Python version",
    "rbt_alpha-1.0-py3-none-any.whl": f"tiny does not build rbt-alpha from source; allowed are {NAME}",
}


def test_what_is_not_the_wheel_is_refused(parser, antlr, tmp_path):
    for name, message in OTHERS.items():
        wheel = Path(shutil.copy(wheel_of(antlr), tmp_path / name))
        digest = sha256(wheel) if "hash" not in message else "0" * 64
        given = ["--wheel", str(wheel), "--sha256", digest]
        refused = parser.run("build", "tiny", "--stacks-dir", str(parser.stacks), *given)
        assert refused.returncode == 1 and message in refused.stderr, name
        assert parser.built() == []


def test_a_stack_that_is_built_without_it_is_not_said_to_have_it(parser, antlr, tmp_path):
    wheel = wheel_of(antlr)
    given = ["--wheel", str(wheel), "--sha256", sha256(wheel)]
    assert parser.run("build", "tiny", "--stacks-dir", str(parser.stacks), *given).returncode == 0
    other = tmp_path / "other" / wheel.name
    other.parent.mkdir()
    other.write_bytes(wheel.read_bytes() + b"\n")
    given = ["--wheel", str(other), "--sha256", sha256(other)]
    refused = parser.run("build", "tiny", "--stacks-dir", str(parser.stacks), *given)
    assert refused.returncode == 1 and "tiny is already built without that wheel" in refused.stderr
