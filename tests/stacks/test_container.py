"""An Apptainer definition says nothing that the locks do not say, and its script is one that a shell takes."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workflow.stacks.definition import ENVS, load_stack, lock_id, stack_names
from workflow.stacks.lockfile import parse_lock
from workflow.stacks.portable import BUILDER, container_definition, wrapper

from ..programs import executable

SECTION = re.compile(r"^%(\w+)$", re.MULTILINE)


def sections(text):
    """The header under "" and each section's text by its name, as Apptainer cuts a definition."""
    header, *rest = SECTION.split(text)
    return {"": header} | dict(zip(rest[::2], rest[1::2], strict=True))


@pytest.mark.parametrize("name", stack_names())
def test_every_pinned_thing_comes_from_a_lock(name):
    text = container_definition(name)
    assert text == container_definition(name)
    parts = sections(text)
    assert list(parts) == ["", "files", "post", "environment", "runscript", "labels", "help"]
    stack = load_stack(name)
    present = lock_id(stack)
    build = f"-m workflow.stacks build {name} --backend uv --stacks-dir /opt/stacks --expect {present}\n"
    assert build in parts["post"]
    labels = dict(line.split() for line in parts["labels"].strip().splitlines())
    assert labels["rolloutbench.lock_id"] == present and labels["rolloutbench.python"] == stack.python
    if stack.cuda:
        assert re.search(rf"^From: \S+cuda:{re.escape(stack.cuda)}\.\d+-devel-", parts[""], re.MULTILINE)
    # Every package and hash of the script stands so in the controller's lock, and every one of the lock in the script.
    pins = {pin.name: pin for pin in parse_lock(ENVS / "controller" / "requirements.lock")}
    written = re.findall(r"^([a-z][\w-]*)==(\S+)", parts["post"], re.MULTILINE)
    assert set(written) == {(package, pins[package].version) for package in BUILDER}
    hashes = set(re.findall(r"sha256:([0-9a-f]+)", parts["post"]))
    assert hashes == {digest for package in BUILDER for digest in pins[package].hashes}
    # Apptainer reads a definition with a buffer of 64 KiB a section.
    assert all(len(part.encode()) < 60_000 for part in parts.values())
    installs = re.findall(r"^.* pip install .*$", parts["post"], re.MULTILINE)
    assert len(installs) == 2 and all("--require-hashes" in line for line in installs)


def test_the_builder_has_all_that_the_build_imports(tmp_path):
    # As in the image: the definition's folders, and of the site's packages only the builder's. The controller's
    # environment finds the repository itself, so each module's file is looked at.
    for line in sections(container_definition("trl-transformers-cpu"))["files"].split("\n"):
        if line.strip():
            name, there = line.split()
            assert there == f"/opt/rolloutbench/{name}"
            shutil.copytree(ENVS.parent / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    look = (
        "import sys\nbefore = set(sys.modules)\nimport workflow.stacks.__main__\n"
        "files = {name: getattr(module, '__file__', None) or '' for name, module in sys.modules.items()"
        " if name not in before}\n"
        "print(*{name.split('.')[0] for name, file in files.items() if 'site-packages' in file})\n"
        f"print(*[file for file in files.values() if file.startswith({f'{ENVS.parent}/'!r}) and '/.venv' not in file])"
    )
    done = subprocess.run([sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    packages, elsewhere = done.stdout.split("\n")[:2]
    allowed = {
        "packaging", "yaml", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection",
    }  # fmt: skip
    assert set(packages.split()) - {"_yaml"} <= allowed and elsewhere == ""


@pytest.fixture
def image(tiny):
    """An image that is none, of a stack built elsewhere, and on PATH an `apptainer` that runs its interpreter."""
    built = tiny.run("build", "tiny", "--stacks-dir", "elsewhere")
    assert built.returncode == 0, built.stderr
    image = tiny.root / "an image.sif"
    image.touch()
    program = tiny.root / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tiny.root}/asked\n'
        f'while [ "$1" != "{image}" ]; do shift; done\n[ "$2" = /opt/stack/bin/python ] || exit 9\nshift 2\n'
        f'exec {tiny.root / built.stdout.strip()}/env/bin/python "$@"\n'
    )
    program.chmod(0o755)
    tiny.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    return image


@pytest.mark.full("stacks are built")
def test_an_adopted_image_stands_in_for_a_build(tiny, image):
    adopted = tiny.run("adopt", "tiny", "--image", str(image), "--stacks-dir", str(tiny.stacks))
    assert adopted.returncode == 0, adopted.stderr
    (folder,) = tiny.built()
    assert Path(adopted.stdout.strip()) == folder and json.loads((folder / "verify.json").read_text())["ok"]
    ready = tiny.build(PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert ready.returncode == 0 and ready.stderr == "" and ready.stdout == adopted.stdout
    python = tiny.run("python", "tiny", "--stacks-dir", str(tiny.stacks)).stdout.strip()
    said = subprocess.check_output(
        [python, "-c", "import rbt_alpha, sys; print(rbt_alpha.answer(), sys.argv[1])", "a b"]
    )
    assert said == b"1.0 a b\n"
    assert f"exec --bind={tiny.root} --bind={tiny.stacks} {image} " in (tiny.root / "asked").read_text()


def test_an_image_of_another_lock_is_not_adopted(tiny, image):
    lock = tiny.envs / "tiny" / "requirements.lock"
    lock.write_text(lock.read_text().replace("rbt-beta==2.0", "rbt-beta==2.1"))
    refused = tiny.run("adopt", "tiny", "--image", str(image), "--stacks-dir", str(tiny.stacks))
    assert refused.returncode == 1 and "requirements.lock:6: rbt-beta: expected 2.1, got 2.0" in refused.stderr
    assert tiny.built() == []
    missing = tiny.run("adopt", "tiny", "--image", "none.sif", "--stacks-dir", str(tiny.stacks))
    assert missing.returncode == 1 and "none.sif does not exist" in missing.stderr


def test_gpus_are_let_in_for_cuda_only():
    text = wrapper("/usr/bin/apptainer", Path("/images/a b.sif"), [Path("/shared")], gpu=True)
    assert "exec /usr/bin/apptainer exec --nv --bind=/shared '/images/a b.sif' /opt/stack/bin/python \"$@\"\n" in text
    assert "--nv" not in wrapper("apptainer", Path("/a.sif"), [], gpu=False)


def test_an_image_keeps_its_own_library_path_where_this_machine_has_none(tmp_path):
    program, script = tmp_path / "apptainer", tmp_path / "python"
    executable(program, 'echo "${APPTAINERENV_LD_LIBRARY_PATH-unset}"')
    script.write_text(wrapper(str(program), Path("/a.sif"), [], gpu=False))
    for given, seen in ({}, "unset"), ({"LD_LIBRARY_PATH": ""}, "unset"), ({"LD_LIBRARY_PATH": "/lib"}, "/lib"):
        assert subprocess.check_output(["/bin/sh", script], env=given, text=True) == f"{seen}\n"
