"""The GPU kit: wheels trimmed, cut and joined, and stages that stop in time, go on, and say where they failed."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from common.errors import UserError
from common.files import ROOT, write_json
from gpu_kit import stages, target
from gpu_kit.pack import planned_stage
from gpu_kit.results import stage_lines
from gpu_kit.stages import BUNDLES, STAGES, Bundle, Stage, StageTask
from gpu_kit.target import require_python, run_stage
from gpu_kit.trees import require_same_tree, tree_hashes
from gpu_kit.wheels import pack, trim_wheel, unpack
from workflow.stacks.lockfile import parse_lock

from ..programs import executable
from ..stacks.conftest import write_wheel

RUN = {"spec": {"inputs_id": "i", "run_id": "a-s0", "fingerprint": "f", "env": {}}, "module": "tests.gpu_kit.driver"}
WORKLOAD = {"model": {"source": "builtin:tiny-qwen2"}, "batch_size": 8, "max_response_length": 16}


@pytest.fixture
def wheel(tmp_path):
    """A wheel with a module and 100 kB of random bytes."""
    return write_wheel(tmp_path, "kittest", "1.0", files={"libs/big.so": os.urandom(100_000)})


def packed(wheel, out):
    out.mkdir(exist_ok=True)
    return pack([wheel], out, "tiny", 30_000)


def test_a_trimmed_wheel_installs_and_names_what_it_lacks(wheel, tmp_path):
    out = tmp_path / "trimmed" / wheel.name
    out.parent.mkdir()
    assert trim_wheel(wheel, ["libs/*"], out) == {"libs/*": {"files": 1, "bytes": 100_000}}
    with zipfile.ZipFile(out) as trimmed:
        record = trimmed.read("kittest-1.0.dist-info/RECORD").decode()
        assert "libs/big.so" not in [*trimmed.namelist(), record] and "kittest.py" in record
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site), str(out)]
    subprocess.run(command, check=True)
    assert (site / "kittest.py").is_file() and not (site / "libs").exists()
    with pytest.raises(UserError, match=r"has no file 'other/\*'"):
        trim_wheel(wheel, ["other/*"], out)


def test_parts_are_equal_and_join_to_the_same_wheel(wheel, tmp_path):
    parts = packed(wheel, tmp_path / "kit")
    assert len(parts) > 2 and all(part["bytes"] <= 30_000 for part in parts)
    assert packed(wheel, tmp_path / "again") == parts
    (joined,) = unpack(parts, tmp_path / "kit", tmp_path / "joined")
    assert joined.read_bytes() == wheel.read_bytes()


def test_a_bad_part_is_named(wheel, tmp_path):
    kit, out = tmp_path / "kit", tmp_path / "joined"
    parts = packed(wheel, kit)
    part = kit / parts[1]["name"]
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    with pytest.raises(UserError, match=r"tiny-002.part has 29,999 bytes, not 30,000: it was cut short"):
        unpack(parts, kit, out)
    part.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(UserError, match=r"tiny-002.part is damaged"):
        unpack(parts, kit, out)
    part.unlink()
    with pytest.raises(UserError, match=r"tiny-002.part is missing: carry it here"):
        unpack(parts, kit, out)
    assert not out.exists()


def test_a_kit_of_another_tree_is_named_with_its_commit():
    here = tree_hashes(ROOT)
    require_same_tree(ROOT, here, "abc")
    other = {**here, "node/attempt.py": "0" * 16, "node/gone.py": "0" * 16}
    with pytest.raises(UserError, match=r"another tree \(abc\): node/attempt.py and 1 more differs here"):
        require_same_tree(ROOT, other, "abc")


def test_another_python_or_torch_is_named(tmp_path, monkeypatch):
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(UserError, match=rf"for Python 3.99, and {sys.executable} is {here}"):
        require_python({"python": "3.99", "torch": "2.11.0"})
    with_torch(tmp_path, monkeypatch)
    require_python({"python": here, "torch": "2.11.0"})
    with pytest.raises(UserError, match=r"for torch 2.12.0, and torch of .* is 2.11.0; start it with PYTHON="):
        require_python({"python": here, "torch": "2.12.0"})


def with_torch(folder, monkeypatch):
    """A Python whose metadata names torch 2.11.0+cu130."""
    info = folder / "site" / "torch-2.11.0+cu130.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cu130\n")
    monkeypatch.syspath_prepend(str(info.parent))


@pytest.fixture
def run(wheel, tmp_path, monkeypatch):
    """Runs a stage whose bundle is one tiny wheel and whose run is a stand-in."""
    with_torch(tmp_path, monkeypatch)
    kit_folder, work = tmp_path / "kit", tmp_path / "work"
    entry = {"parts": packed(wheel, kit_folder), "left_out": {}}
    spec = {**RUN["spec"], "workload": WORKLOAD}
    planned = {"runs": {"a-s0": {**RUN, "spec": spec}}, "inputs": {"i": {}}}
    kit = {
        "commit": "abc", "tree": tree_hashes(ROOT), "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "torch": "2.11.0", "bundles": {"tiny": entry}, "stages": {"tiny": {**planned, "cpu": planned}},
    }  # fmt: skip
    write_json(kit_folder / "kit.json", kit)
    write_json(work / "tiny" / "inputs-i" / "inputs.json", {"data": {"sha256": "d"}, "model": {"sha256": "m"}})
    monkeypatch.setitem(BUNDLES, "tiny", Bundle("tiny", ()))

    def once(limit_s=60, stop_after=3, *, on_cpu=True):
        tasks = (StageTask("a-s0", stop_after), StageTask("a-s0", synchronized=False))
        monkeypatch.setitem(stages.STAGES, "tiny", Stage("a test", "x", ("tiny",), tasks, limit_s))
        return run_stage("tiny", kit_folder, work, tmp_path / "out", on_cpu=on_cpu)

    yield once


def test_a_stage_stops_resumes_and_is_read(run, tmp_path, capfd):
    assert run() == 0
    said = capfd.readouterr().out.splitlines()
    assert len(said) <= 10 and said[0].startswith("tiny on no GPU (a rehearsal)")
    result = json.loads((tmp_path / "out" / "tiny.json").read_text())
    first = result["tasks"][0]
    assert first["exit_codes"] == [75, 0] and [step["step"] for step in first["steps"]] == [1, 2, 3, 4, 5, 6]
    assert "a-s0: 6 steps, each once" in said[2] and "phases sum to 100.0% to 100.0% of the step" in said[3]
    assert list((tmp_path / "work" / "env-tiny" / "lib").glob("python*/site-packages/kittest.py"))
    # A second visit installs and trains nothing again.
    before = sorted(path for path in (tmp_path / "work").rglob("attempt-*"))
    assert run() == 0 and sorted(path for path in (tmp_path / "work").rglob("attempt-*")) == before
    assert "nothing was installed" not in capfd.readouterr().err


def test_a_stage_that_outlives_its_limit_keeps_what_it_has(run, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SLOW_S", "1")
    assert run(limit_s=3, stop_after=0) == 1
    said = capfd.readouterr().out
    assert "a-s0 FAILED: not finished: the stage's 3 s are over" in said
    result = json.loads((tmp_path / "out" / "tiny.json").read_text())
    assert 1 <= len(result["tasks"][0]["steps"]) < 6 and not result["tasks"][0]["ok"]
    # The next visit goes on from the checkpoint: each step once.
    monkeypatch.setenv("SLOW_S", "0.01")
    assert run(stop_after=0) == 0
    result = json.loads((tmp_path / "out" / "tiny.json").read_text())
    assert [step["step"] for step in result["tasks"][0]["steps"]] == [1, 2, 3, 4, 5, 6]


def test_a_task_that_fails_is_named_with_its_error(run, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("FAIL", "1")
    assert run() == 1
    assert "a-s0 FAILED: ValueError: the driver fails here" in capfd.readouterr().out
    assert "the driver fails here" in (tmp_path / "out" / "tiny.log").read_text()


def test_a_gpu_in_use_is_said_before_anything_is_installed(run, tmp_path, monkeypatch):
    executable(tmp_path / "bin" / "nvidia-smi", 'echo "NVIDIA H100 80GB HBM3, 580.1, 81559, 5000, 1980, 700"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(UserError, match=r"another process uses 4\.9 GiB of the NVIDIA H100"):
        run(on_cpu=False)
    assert not (tmp_path / "work" / "env").exists()


def test_the_target_needs_the_standard_library_only():
    code = "import sys, gpu_kit.target as t; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
        capture_output=True, text=True, check=True)  # fmt: skip
    assert not {"pydantic", "yaml", "torch", "numpy", "pandas", "packaging"} & set(eval(done.stdout))
    assert Path(target.__file__).is_file()


@pytest.mark.parametrize("name", list(STAGES))
def test_every_stage_is_planned_and_its_wheels_are_in_a_lock(name):
    stage = STAGES[name]
    planned = planned_stage(stage)
    assert {task.run_id for task in stage.tasks} == planned["runs"].keys()
    assert stage.rehearsed == ("cpu" in planned)
    for bundle in stage.bundles:
        pins = {pin.name for pin in parse_lock(ROOT / "envs" / BUNDLES[bundle].stack / "requirements.lock")}
        assert not set(BUNDLES[bundle].packages) - pins and BUNDLES[bundle].without.keys() <= pins


def test_the_first_step_after_each_start_is_not_compared():
    def trained(name, seconds, resumed):
        steps = [
            {"step": at, "resumed": at == resumed, "phases": {"step": one, "step/training_step": one}}
            for at, one in enumerate(seconds, start=1)
        ]
        return {"task": name, "ok": True, "steps": steps, "seconds": 60.0, "peak_gpu_gib": None}

    # Seconds of an H200: its first step after a start loads kernels.
    tasks = [
        trained("transformers-s0", [28.879, 3.577, 3.497, 5.221, 16.214, 3.593], resumed=5),
        trained("transformers-s0-unsynchronized", [15.882, 3.179, 3.659, 3.290, 3.328, 2.673], resumed=0),
    ]
    lines = stage_lines({"stage": "trl", "device": None, "versions": {}, "seconds": {}, "tasks": tasks})
    assert any("resumed at step 5; 3.58 s per step after a start's first, of 28.9 s" in line for line in lines)
    assert any(line.startswith("without waiting for the GPU: step 3.585 -> 3.290 s") for line in lines)


@pytest.mark.parametrize("engine", ["", "sglang-"])
def test_the_shares_of_the_published_ratio_follow_from_the_seconds(engine):
    def replay(name, seconds):
        return {
            "task": f"{name}-s0",
            "ok": True,
            "done": {"resolved": {"engine": {"start_s": 30.0}}},
            "steps": [{"step": 1, "phases": {"step": seconds, "step/generate": seconds}}],
            "workload": {"model": {"source": "builtin:phi4-shape"}, "max_response_length": 1984},
            "seconds": 60.0,
        }

    arms = {"eager-blocking": 86.0, "eager": 80.0, "graphs": 40.0, "graphs-blocking": 41.0}
    device = {"name": "NVIDIA H100 80GB HBM3", "driver": "580.1"}
    tasks = [replay(engine + name, seconds) for name, seconds in arms.items()]
    result = {"stage": "graphs", "device": device, "versions": {}, "seconds": {}, "tasks": tasks}
    lines = stage_lines(result)
    assert "both: 2.15x, 100% of 2.15x (on a logarithmic scale)" in lines and len(lines) <= 10
    assert any(f"{engine}graphs-s0: generate 40.00 s, 20.16 ms per iteration, 2.3" in line for line in lines)
