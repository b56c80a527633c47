"""The checks of a GPU node, on a CPU: their own code runs, and each fails where what it looks for is missing."""

import json
import os
import subprocess
import sys

import psutil
import pytest

from workflow.stacks.definition import ENVS

from .. import patience
from ..attempts import COMPILER
from ..programs import executable
from .conftest import write_wheel

pytestmark = pytest.mark.full("checks that compile")

# Runs probes by expression in a stack with torch, and prints what they gave, as verify.py would.
RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
sys.path[:0] = sys.argv[3:]
from _verify import Probe, _outcome
import _gpu
print(json.dumps([_outcome(Probe("", "", None, eval(text))) for text in json.loads(sys.argv[2])]))
"""


@pytest.fixture(scope="module")
def outcomes(stack_python):
    python = stack_python("trl-vllm-cpu")

    def run(*probes, modules=None, **environ):
        command = [python, "-I", "-c", RUN, ENVS, json.dumps(probes), *([modules] if modules else [])]
        done = patience.run([str(word) for word in command], 600, env={**os.environ, **COMPILER, **environ})
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


def test_compiling_and_summing_run_on_a_cpu(outcomes):
    assert outcomes("_gpu.compiled_function('cpu')", "_gpu.all_reduce('gloo', 2)") == [True, "works"]


def test_a_compiler_that_is_missing_or_not_used_fails(outcomes):
    (missing,) = outcomes("_gpu.compiled_function('cpu')", CXX="no-such-compiler")
    assert missing is not True and "no-such-compiler" in missing
    (eager,) = outcomes("_gpu.compiled_function('cpu')", TORCHDYNAMO_DISABLE="1")
    assert eager == "torch.compile compiled nothing"


def test_a_node_with_too_few_gpus_fails(outcomes, tmp_path):
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    is_available = staticmethod(lambda: True)\n    device_count = staticmethod(lambda: 1)\n"
    )
    wanted = "torch sees 1 of the 2 GPUs in CUDA_VISIBLE_DEVICES (0,1)"
    given = ("_gpu.all_reduce()", "__import__('_probes').driver()")
    assert outcomes(*given, modules=tmp_path, CUDA_VISIBLE_DEVICES="0,1") == [wanted, wanted]
    few = [f"lambda: _gpu.too_few_gpus({seen})" for seen in (1, 2)]
    assert outcomes(*few, CUDA_VISIBLE_DEVICES="GPU-aa,GPU-bb")[1] is None
    assert outcomes(*few, CUDA_VISIBLE_DEVICES="MIG-aa,MIG-bb") == [None, None]
    assert outcomes(*few, CUDA_VISIBLE_DEVICES="") == [None, None]


@pytest.mark.parametrize(("factor", "expected"), [("1", True), ("1.1", "off by up to ")])
def test_values_are_compared_with_torchs(outcomes, tmp_path, factor, expected):
    """Stand-ins for the kernels, right and wrong by a tenth: a kernel that only runs would pass nothing."""
    kernels = tmp_path / "sglang" / "jit_kernel"
    kernels.mkdir(parents=True)
    (kernels / "activation.py").write_text(
        "import torch\n\ndef silu_and_mul(x):\n    a, b = x.chunk(2, dim=-1)\n"
        f"    return torch.nn.functional.silu(a) * b * {factor}\n"
    )
    (tmp_path / "flashinfer.py").write_text(
        "import torch\n\ndef single_prefill_with_kv_cache(q, k, v, causal):\n"
        "    parts = (x.transpose(0, 1) for x in (q, k, v))\n"
        "    out = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=causal)\n"
        f"    return out.transpose(0, 1) * {factor}\n"
    )
    found = outcomes(
        "lambda: _gpu.silu_and_mul_of_sglang('cpu')", "lambda: _gpu.prefill_of_flashinfer('cpu')", modules=tmp_path
    )
    assert found == [True, True] if expected is True else all(each.startswith(expected) for each in found)


HANGING = """
import subprocess, sys, time

def hang():
    subprocess.Popen(["sleep", "MANY"])
    print("compiling a kernel", flush=True)
    time.sleep(600)

def crash():
    import os, signal
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_a_check_that_hangs_or_crashes_is_ended_and_named_and_the_rest_is_not_begun(site, index, tmp_path):
    many = f"4711.{os.getpid()}"  # seconds, which no other run of this test sleeps
    wheel = write_wheel(tmp_path / "wheels", "rbt-alpha", "1.0", code=HANGING.replace("MANY", many))
    probe = "Probe({!r}, 'rbt-alpha', 'works', lambda: __import__('rbt_alpha').{}(), gpu=True, limit_s={})"
    probes = ", ".join(
        [probe.format("crashes", "crash", 60), probe.format("hangs", "hang", 8), probe.format("later", "hang", 60)]
    )
    site.write_locked(index, wheel, probes=f"[{probes}]")
    assert site.build().returncode == 0, "none of them is for a login node"
    failed = site.run("verify", "tiny", "--gpu", "--out", str(tmp_path / "out.json"), "--stacks-dir", str(site.stacks))
    assert failed.returncode == 1
    got = {each["name"]: each["got"] for each in json.loads((tmp_path / "out.json").read_text())["checks"]}
    assert got["crashes"] == "killed by SIGSEGV"
    assert got["hangs"] == "no answer within 8 s; it said last: compiling a kernel; its processes were killed"
    assert got["later"] == "not run, since the check 'hangs' hung"
    left = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", many]]
    patience.until(lambda: all(map(patience.has_ended, left)), os.getpid(), 20)


def needs(*arguments, **environ):
    """The lines of what lacks, by need."""
    command = [sys.executable, "-I", str(ENVS / "_needs.py"), *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return {lack["need"]: lack["line"] for lack in json.loads(done.stdout)}


def test_nvcc_is_to_be_of_the_right_major_and_compilers_are_to_compile(tmp_path):
    for name, text in {
        "nvcc": "echo 'Cuda compilation tools, release 12.8, V12.8.1'",
        "gcc": "echo 'stdio.h: No such file or directory' >&2; exit 1",
        "c++": "exit 0",
        "g++": "exit 0",
    }.items():
        executable(tmp_path / name, f"{text}")
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert needs("--cuda", "12.4", "nvcc", "c++", **path) == {}, "another minor release compiles while a job runs"
    found = needs("--cuda", "13.0", "nvcc", "cc", **path)
    assert f"{tmp_path}/nvcc is of CUDA 12.8, and CUDA 13 is needed" in found["nvcc"]
    assert "C compiler gcc does not compile (stdio.h: No such file or directory)" in found["cc"]
    assert "is of CUDA 12.8, and CUDA 12.4 is needed" in needs("--cuda", "12.4", "--exact", "nvcc", **path)["nvcc"]


def test_a_cpu_stack_is_not_begun_where_it_could_not_run(site, index, tmp_path):
    site.write_locked(index, write_wheel(tmp_path / "wheels", "rbt-alpha", "1.0"), extra="run_needs: [c++]\n")
    failed = site.build(CXX="no-such-c++")
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "tiny cannot run on this machine:\n  there is no C++ compiler (no-such-c++): install g++" in failed.stderr
    assert not index.asked.is_set() and site.passed() == []
