"""The stacks for GPUs: CUDA's torch, probes that name pins of the lock, and releases that are trained with on a CPU.

Nothing here has run on a GPU.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workflow.stacks.definition import ENVS, load_stack

from .test_lockfile import versions

TRL = ("trl-vllm", "trl-sglang", "trl-transformers")
VERL = ("verl04-vllm", "verl04-sglang", "verl09-vllm", "verl09-sglang")
LISTED = """
import json, runpy, sys
sys.path.insert(0, sys.argv[2])
import _verify
_verify.main = lambda probes: print(json.dumps([[one.name, one.package, one.gpu] for one in probes]))
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("name", [*TRL, "swift-vllm"])
def test_it_holds_cudas_torch_of_the_release_that_it_declares(name):
    stack, locked = load_stack(name), versions(name)
    assert stack.accelerator == "cuda" and not [version for version in locked.values() if "+cpu" in version]
    assert locked["cuda-toolkit"].startswith(f"{stack.cuda}.") and "triton" in locked
    # Triton and Inductor compile while a run lasts.
    assert {"cc", "c++", "python-headers"} <= set(stack.run_needs)
    assert {"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"} <= set(stack.run_caches)


@pytest.mark.parametrize("name", [*TRL, *VERL, "swift-vllm"])
def test_each_probe_names_a_pin_of_the_lock(name):
    verify = Path(ENVS / name / "verify.py")
    done = subprocess.run([sys.executable, "-c", LISTED, verify, ENVS], capture_output=True, text=True, check=True)
    probes = {title: (package, gpu) for title, package, gpu in json.loads(done.stdout)}
    locked = versions(name)
    # nvcc is conda's, and answered for by conda-lock.yml.
    assert {package for package, _ in probes.values()} - set(locked) == {"nvcc"}
    on_gpus = {package for package, gpu in probes.values() if gpu}
    assert {"torch", "triton"} <= on_gpus and (load_stack(name).engine in on_gpus or name == "trl-transformers")
