"""Checks the built stack swift-vllm; run at its build, and with --gpu on a compute node."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import has_names
from _verify import Probe, main

ENVS = Path(__file__).resolve().parents[1]
# What the two stacks check that this one is made of (stack.yaml: verify_code).
TRL_VLLM = runpy.run_path(str(ENVS / "trl-vllm" / "verify.py"))["PROBES"]
SWIFT = runpy.run_path(str(ENVS / "swift-transformers-cpu" / "verify.py"))["SWIFT"]
PROBES = [
    *(probe for probe in TRL_VLLM if probe.name != "trl accepts this vllm"),
    *SWIFT,
    Probe(
        "swift accepts this vllm",
        "vllm",
        ["GRPOVllmEngine"],
        has_names("swift.infer_engine.grpo_vllm_engine", "GRPOVllmEngine"),
        gpu=True,
    ),
]

if __name__ == "__main__":
    sys.exit(main(PROBES))
