"""A conda layer: each package is the lock's, the prefix is whole where it lies, and both backends have one pip layer.

py-rattler installs the packages, as it does for users; they come from a channel on loopback.
"""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from common.stack_environment import stack_environment
from workflow.stacks.conda import installer_library
from workflow.stacks.uv import configured_uv

from .. import patience
from ..programs import executable
from .channel import PLACEHOLDER, Channel, write_package, write_python, write_python_package
from .conftest import PYTHON, serving

pytestmark = pytest.mark.full("conda layers from a channel of the tests")


@pytest.fixture(scope="session")
def installer(tmp_path_factory):
    """The folder with py-rattler, installed once: a site's own index has none."""
    folder = tmp_path_factory.mktemp("conda-installer")
    installer_library(folder, configured_uv())
    return folder


@pytest.fixture
def channel(tmp_path):
    """A channel with a Python, a package that only conda has, one that the pip lock has too, and a compiler."""
    folder = tmp_path / "channel" / "linux-64"
    write_python(folder)
    write_python_package(folder, "rbt-conda", "1.5", payload=40_000)
    write_python_package(folder, "rbt-alpha", "0.9")
    nvcc = {
        "bin/nvcc": "#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n",
        "etc/conda/activate.d/nvcc.sh": 'export RBT_ACTIVATED="$CONDA_PREFIX/etc"\n',
        "etc/where": PLACEHOLDER + "/etc\n",
    }
    write_package(folder, "cuda-nvcc", "12.4.131", nvcc, depends=("python",))
    with serving(tmp_path / "channel") as (port, gate, asked):
        yield Channel(tmp_path / "channel", f"http://127.0.0.1:{port}", gate, asked)


WISHES = [f"python {PYTHON}.*", "cuda-nvcc 12.4.*", "rbt-conda"]


@pytest.fixture
def layered(tiny, channel, installer, tmp_path):
    """The tiny stack with a conda layer, on a site whose PATH has a program called micromamba."""
    channel.lock(WISHES, tiny.envs / "tiny")
    stack = tiny.envs / "tiny" / "stack.yaml"
    stack.write_text(stack.read_text().replace("accelerator: cpu", 'accelerator: cuda\ncuda: "12.4"'))
    use_program(tiny, write_program(tmp_path / "program"))
    tiny.stacks.mkdir()
    (tiny.stacks / ".conda-installer").symlink_to(installer)
    return tiny


def write_program(folder):
    """A folder for PATH with a micromamba: `auto` only looks whether it is there, and nobody runs it."""
    executable(folder / "micromamba", "exit 9")
    return folder


def use_program(site, folder):
    """PATH without any conda program but those of that folder."""
    parts = [part for part in os.environ["PATH"].split(os.pathsep) if not has_program(Path(part))]
    site.environ["PATH"] = os.pathsep.join(([str(folder)] if folder else []) + parts)
    for key in ("MAMBA_EXE", "CONDA_EXE", "CONDA_CHANNEL_ALIAS", "CUDA_HOME"):
        site.environ.pop(key, None)


def has_program(folder):
    return any((folder / name).exists() for name in ("micromamba", "mamba", "conda"))


def entries(folder):
    return sorted({path.name.partition("-")[0] for path in folder.iterdir()})


def test_a_conda_layer_is_installed_checked_and_recorded(layered, channel):
    built = layered.build()
    assert built.returncode == 0, built.stderr
    assert f"4 conda packages from {channel.url}" in built.stderr
    (folder,) = layered.built()
    assert entries(folder) == ["env", "verify", "verify.json"]
    verdict = json.loads((folder / "verify.json").read_text())
    assert verdict["ok"] and verdict["backend"] == "conda" and verdict["nvcc"] == "12.4" and verdict["cuda"] == "12.4"
    locked = {(package["name"], package["version"], package["build"]) for package in verdict["conda"]}
    assert locked == {(name, version, "0") for name, version in verdict_versions(channel)}
    assert all(len(package["sha256"]) == 64 for package in verdict["conda"])
    # conda's own package stays, and is no package that the pip lock lacks; one that both have is the pip lock's.
    assert verdict["packages"] == {"rbt-alpha": "1.0", "rbt-beta": "2.0", "rbt-conda": "1.5"}
    python = folder / "env" / "bin" / "python"
    code = "import rbt_alpha, rbt_conda; print(rbt_conda.origin, rbt_alpha.answer())"
    assert subprocess.check_output([python, "-I", "-c", code], text=True).strip() == "conda 1.0"
    assert subprocess.check_output([folder / "env" / "bin" / "rbt-alpha"], text=True).strip() == "1.0"
    # Copies, as uv's: an edit of a hard link would be in the cache, too.
    assert {file.stat().st_nlink for file in (folder / "env").rglob("rbt_*.py")} == {1}
    # The prefix that is written into files is the one where they lie, and so is what activation sets.
    real = (folder / "env").resolve()
    assert (folder / "env" / "etc" / "where").read_text() == f"{real}/etc\n"
    assert verdict["environment"]["RBT_ACTIVATED"] == f"{real}/etc"
    assert verdict["environment"]["CUDA_HOME"] == str(real)
    inside = stack_environment(folder / "verify.json", {"PATH": "/bin", "HOME": "/h"})
    assert inside["PATH"] == f"{folder}/env/bin:/bin" and inside["HOME"] == "/h"
    assert inside["RBT_ACTIVATED"] == f"{real}/etc"

    channel.asked.clear()
    again = layered.build()
    assert again.returncode == 0 and again.stderr == "" and not channel.asked.is_set()


def verdict_versions(channel):
    return {(path.name.rsplit("-", 2)[0], path.name.rsplit("-", 2)[1]) for path in channel.packages}


def test_another_backend_than_it_was_built_with_is_refused(layered):
    def build(backend):
        return layered.run("build", "tiny", "--stacks-dir", str(layered.stacks), "--backend", backend)

    plain = build("uv")
    assert plain.returncode == 0 and "without its conda layer (as configured)" in plain.stderr, plain.stderr
    folder = Path(plain.stdout.strip())
    assert build("auto").stdout == plain.stdout  # what is there
    refused = build("conda")
    assert refused.returncode == 1 and "envs.backend is conda, but tiny is built with uv: set that" in refused.stderr
    assert json.loads((folder / "verify.json").read_text())["backend"] == "uv"
    shutil.rmtree(folder)
    assert build("conda").returncode == 0
    assert json.loads((folder / "verify.json").read_text())["backend"] == "conda"


def test_a_tampered_package_is_refused(layered, channel, tmp_path):
    evil = write_python_package(tmp_path / "evil", "rbt-conda", "1.5")
    shutil.copy(evil, channel.folder / "linux-64" / evil.name)
    failed = layered.build()
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "rbt-conda-1.5-0.tar.bz2 is not the file that conda-lock.yml:" in failed.stderr
    assert "its sha256 is" in failed.stderr and layered.passed() == []
    assert not list((layered.stacks / ".conda-packages").glob("rbt-conda*/info"))


def test_without_conda_auto_says_what_is_left_out(layered, tmp_path):
    use_program(layered, None)
    fake_nvcc(tmp_path / "cuda" / "bin", "12.4")
    built = layered.build(CUDA_HOME=str(tmp_path / "cuda"))
    assert built.returncode == 0, built.stderr
    assert "(no micromamba or mamba or conda found; `envs.backend: conda` builds with it): Python and" in built.stderr
    verdict = json.loads((layered.built()[0] / "verify.json").read_text())
    assert (verdict["backend"], verdict["nvcc"], verdict["conda"]) == ("uv", "12.4", [])


def fake_nvcc(folder, release):
    executable(folder / "nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.131'")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_conda_build_leaves_nothing_that_counts(layered, channel, number):
    channel.gate.clear()
    channel.asked.clear()
    builder = layered.start("build", "tiny", "--stacks-dir", str(layered.stacks))
    patience.until(channel.asked.is_set, builder.pid)
    builder.send_signal(number)
    patience.until(lambda: builder.poll() is not None, builder.pid)
    assert builder.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143}[number]
    channel.gate.set()  # a program that outlived a killed builder ends, and lets go of the lock
    builder.communicate()
    assert layered.passed() == []
    again = layered.build()
    assert again.returncode == 0, again.stderr
    (folder,) = layered.built()
    assert entries(folder) == ["env", "verify", "verify.json"]
