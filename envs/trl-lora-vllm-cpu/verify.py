"""Checks the built stack trl-lora-vllm-cpu; run by `python -m workflow.stacks build`."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import TRL_CPU
from _verify import main

ENVS = Path(__file__).resolve().parents[1]
# What the two stacks check that this one is made of (stack.yaml: verify_code).
VLLM = runpy.run_path(str(ENVS / "trl-vllm-cpu" / "verify.py"))["VLLM"]
LORA = runpy.run_path(str(ENVS / "trl-lora-transformers-cpu" / "verify.py"))["LORA"]

if __name__ == "__main__":
    sys.exit(main(TRL_CPU + VLLM + LORA))
