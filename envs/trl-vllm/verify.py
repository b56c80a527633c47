"""Checks the built stack trl-vllm; run at its build, and with --gpu on a compute node."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _gpu import all_reduce, compiled_function
from _probes import CUDA_PROBES, TRL_CPU, VERL_VLLM, driver, has_names, version_of
from _verify import Probe, main, pin

PROBES = [
    *CUDA_PROBES,
    *(probe for probe in TRL_CPU if probe.name != "torch is a CPU build"),
    *(probe for probe in VERL_VLLM if not probe.name.startswith("verl ")),
    Probe("torch's version", "torch", pin("torch", public=True), version_of("torch", public=True)),
    Probe("peft's version", "peft", pin("peft"), version_of("peft")),
    Probe("torch reaches the GPUs", "torch", "works", driver(), gpu=True),
    # TRL imports vLLM's classes only where it knows the version.
    Probe(
        "trl accepts this vllm",
        "vllm",
        ["VLLMGeneration", "LLM"],
        has_names("trl.generation.vllm_generation", "VLLMGeneration", "LLM"),
        gpu=True,
    ),
    Probe(
        "torch.compile agrees with torch",
        "triton",
        True,
        compiled_function(),
        gpu=True,
        off_by=("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"),
    ),
    Probe("all visible GPUs sum up", "torch", "works", all_reduce(), gpu=True),
]

if __name__ == "__main__":
    sys.exit(main(PROBES))
