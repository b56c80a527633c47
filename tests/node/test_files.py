"""A job's files, and the checkpoint from which it resumes."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from common.errors import UserError
from common.files import json_safe, tree_sha256, write_json
from common.retry import append_json_line
from node.attempt import Inputs
from node.exit_codes import STOP_SIGNALS, RequeueError, StopRequest, run
from node.hardware import pin_cpus, reported_environment, set_environment
from node.hf_training import newest_checkpoint

from ..attempts import ROOT


def test_json_is_valid_and_complete(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"nan": float("nan"), "inf": [float("inf")], "path": tmp_path, 1: (True, None, 2)})
    assert json.loads(path.read_text()) == {"nan": None, "inf": [None], "path": str(tmp_path), "1": [True, None, 2]}
    append_json_line(path.with_suffix(".jsonl"), {"a": float("-inf")})
    append_json_line(path.with_suffix(".jsonl"), {"a": 0.1})
    assert path.with_suffix(".jsonl").read_text() == '{"a": null}\n{"a": 0.1}\n'
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "a.jsonl"]
    assert json_safe(1e300) == 1e300


def test_tree_sha256_sees_names_and_bytes(tmp_path):
    (tmp_path / "a").write_text("1")
    first = tree_sha256(tmp_path)
    (tmp_path / ".cache").write_text("x")
    assert tree_sha256(tmp_path) == first
    (tmp_path / "a").write_text("2")
    second = tree_sha256(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    third = tree_sha256(tmp_path)
    # Weights that were trained on keep their size.
    (tmp_path / "b").write_bytes(b"0" * 80 * 2**20)
    zeros = tree_sha256(tmp_path)
    (tmp_path / "b").write_bytes((b"x" + b"0" * (2**18 - 1)) * 320)
    assert len({first, second, third, zeros, tree_sha256(tmp_path)}) == 5


def full_disk():
    try:
        with Path("/dev/full").open("w") as full:
            full.write("x")
    except OSError as error:
        raise RuntimeError("a library's own words") from error


def raises(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "code", "says"),
    [
        (lambda: None, 0, ""),
        (raises(UserError("one\n line")), 2, "error: one line\n"),
        (full_disk, 2, "error: no space left on the disk"),
        (raises(RequeueError("x")), 75, "stopped: x\n"),
        (raises(ValueError("unforeseen")), 1, "Traceback"),
    ],
)
def test_exit_codes(main, code, says, capfd):
    assert run(main) == code
    assert capfd.readouterr().err.startswith(says)


def test_a_library_that_catches_all_errors_does_not_hide_a_stop():
    """As transformers does around each of its imports, which are most of a job's first minute."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def main():
        StopRequest().install()
        try:
            signal.raise_signal(signal.SIGTERM)
        except Exception as error:
            raise RuntimeError("cannot be imported") from error

    try:
        assert run(main) == 75
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_checkpoint(folder, step, without="", state_step=None):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    files = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
    for name in files:
        if name != without:
            (path / name).write_text(json.dumps({"global_step": state_step or step}))


@pytest.mark.parametrize(
    "without", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
)
def test_incomplete_checkpoints_are_skipped(tmp_path, without):
    assert newest_checkpoint(tmp_path / "none") == 0
    make_checkpoint(tmp_path, 9)
    make_checkpoint(tmp_path, 10)
    make_checkpoint(tmp_path, 12, without=without)
    make_checkpoint(tmp_path, 13, state_step=12)
    (tmp_path / "checkpoint-14").mkdir()
    (tmp_path / "checkpoint-x").mkdir()
    assert newest_checkpoint(tmp_path) == 10
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text('{"global_step": 1')
    assert newest_checkpoint(tmp_path) == 9
    (tmp_path / "checkpoint-9" / "optimizer.pt").write_text("")
    assert newest_checkpoint(tmp_path) == 0


def test_environment():
    environment = {"WANDB_MODE": "online", "WANDB_API_KEY": "x", "OMP_NUM_THREADS": "64", "VLLM_API_KEY": "x"}
    environment["VLLM_PROXY_URL"] = "http://me:secret@proxy:3128"
    environment |= {"TORCHINDUCTOR_CACHE_DIR": "/home/me", "LD_PRELOAD": "/opt/lib/libgomp.so.1:/opt/lib/libc.so"}
    attempt = {"fingerprint": "0123456789abcdef" * 4, "attempt_dir": "/a"}
    set_environment(environment, [3, 5], attempt, "exp")
    assert environment["WANDB_MODE"] == "online"
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "3,5"
    # Else vLLM 0.31 samples on a GPU with kernels that nvcc compiles.
    assert environment["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert environment["WANDB_RUN_ID"] == "0123456789abcdef"
    # No other program is given it by the kernel until torch binds it, which is minutes later.
    given_away = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert 1024 < int(environment["MASTER_PORT"]) < int(given_away[0])
    reported = reported_environment(environment)
    assert "VLLM_API_KEY" not in reported and "VLLM_PROXY_URL" not in reported
    assert not any(value == "x" for value in reported.values())
    assert "TORCHINDUCTOR_CACHE_DIR" not in reported, "the place of a cache is of this one process"
    assert reported["LD_PRELOAD"] == "libgomp.so.1 libc.so"


def test_cpus_are_limited_to_the_allowed_ones():
    # In a process of its own, so that the suite keeps its CPUs. Each process of a node has its part.
    code = "import os; from node.hardware import pin_cpus; print(pin_cpus(2, 1, 2), sorted(os.sched_getaffinity(0)))"
    stdout = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    second = sorted(os.sched_getaffinity(0))[1]
    assert stdout == f"[{second}] [{second}]\n"
    with pytest.raises(UserError, match=r"asks for 100000 CPUs, but \d+ may be used"):
        pin_cpus(100000)
    with pytest.raises(UserError, match=r"at least 1 \(got 0\)"):
        pin_cpus(0)
    with pytest.raises(UserError, match="has 1 CPUs of this node for 2 processes"):
        pin_cpus(1, 1, 2)


def test_a_file_that_is_made_anew_is_awaited(tmp_path, capsys):
    inputs = tmp_path / "inputs.json"
    entry = {"path": "x", "sha256": "0" * 64}
    maker = threading.Timer(0.5, lambda: write_json(inputs, {"data": entry, "model": entry}))
    maker.start()
    assert Inputs({"inputs": str(inputs)}).data == tmp_path / "x"
    assert f"{inputs} is not there; waiting up to 900 s for it" in capsys.readouterr().err
