"""Are the four verl stacks what their files and docs say: the article's pins, all that has no wheel?"""

import re

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from workflow.stacks.build import build_from_source
from workflow.stacks.conda import parse_conda_lock
from workflow.stacks.definition import ENVS, SITE_PACKAGES, load_stack
from workflow.stacks.lockfile import check_lock
from workflow.stacks.uv import Uv

from ..programs import executable
from .test_lockfile import versions

STACKS = ["verl04-vllm", "verl04-sglang", "verl09-vllm", "verl09-sglang"]

ARTICLE = {
    "torch": "2.6.0",
    "torchvision": "0.21.0",
    "torchaudio": "2.6.0",
    "sglang": "0.4.6.post5",
    "sgl-kernel": "0.1.4",
    "flashinfer-python": "0.2.5",
    "flash-attn": "2.6.3",
}
"""What the article pins, from its steps 4 to 6; the rest of its list has bounds or no version."""


def wanted(name):
    lines = (ENVS / name / "requirements.in").read_text(encoding="utf-8").splitlines()
    found = [Requirement(text) for line in lines if (text := line.partition("#")[0].strip())]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


@pytest.mark.parametrize("name", STACKS)
def test_everything_without_a_wheel_is_named_with_the_metadata_of_its_pin(name):
    locked = versions(name)
    told = re.findall(r'name = "(.+)"\nversion = "(.+)"', (ENVS / name / "uv.toml").read_text(encoding="utf-8"))
    stack = load_stack(name)
    assert {package for package, _ in told} == set(stack.source_builds)
    assert all(locked[package] == version for package, version in told)
    # Without isolation a build sees what is installed, so that the lock decides it.
    assert {"setuptools", "wheel", "ninja", "packaging", "psutil", "einops", "torch"} <= set(locked)
    assert stack.source_environment["FLASH_ATTENTION_FORCE_BUILD"] == "TRUE"
    assert stack.source_environment["TORCH_CUDA_ARCH_LIST"] == "9.0"


@pytest.mark.parametrize("package", sorted(ARTICLE))
def test_the_articles_pins_are_asked_for_as_they_are(package):
    for name in STACKS[:2]:
        if package in {"sglang", "sgl-kernel", "flashinfer-python"} and name.endswith("vllm"):
            continue
        assert str(wanted(name)[package].specifier) == f"=={ARTICLE[package]}"
        assert versions(name)[package] == ARTICLE[package]


@pytest.mark.parametrize("name", STACKS)
def test_the_conda_layer_has_the_stacks_python_and_cuda(name):
    stack = load_stack(name)
    packages = {package.name: package for package in parse_conda_lock(ENVS / name / "conda-lock.yml")}
    assert packages["python"].version.startswith(f"{stack.python}.")
    assert packages["cuda-nvcc"].version.startswith(f"{stack.cuda}.")
    virtual = yaml.safe_load((ENVS / name / "virtual-packages.yml").read_text(encoding="utf-8"))
    assert virtual["subdirs"]["linux-64"]["packages"]["__cuda"] == stack.cuda


def test_the_folder_of_packages_is_put_into_a_builds_variables(tmp_path):
    name = "verl09-vllm"
    pretended = tmp_path / "uv"
    executable(pretended, f"stat -c %a uv.toml >> {tmp_path}/mode; cat uv.toml >> {tmp_path}/seen")
    (tmp_path / "own.toml").write_text('index-url = "https://me:pw@host/simple"\n')
    work = tmp_path / "work"
    work.mkdir()
    flash_attn = [pin for pin in check_lock(name) if pin.name == "flash-attn"]
    python, own = tmp_path / "env" / "bin" / "python", tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    own.mkdir(parents=True)
    environ = {"UV_CONFIG_FILE": str(tmp_path / "own.toml")}
    build_from_source(load_stack(name), flash_attn, python, Uv(str(pretended), environ, ()), work)
    seen = (tmp_path / "seen").read_text(encoding="utf-8")
    assert f'"CPATH" = "{own}/nvidia/cu13/include"' in seen
    assert SITE_PACKAGES not in seen
    assert "me:pw@host" in seen and {*(tmp_path / "mode").read_text().split()} == {"600"}
    assert not (work / "uv.toml").exists(), "the user's passwords stay no longer than the build"
