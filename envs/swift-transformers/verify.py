"""Checks the built stack swift-transformers; run at its build, and with --gpu on a compute node."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _verify import main

ENVS = Path(__file__).resolve().parents[1]
# What the two stacks check that this one is made of (stack.yaml: verify_code).
TRL = runpy.run_path(str(ENVS / "trl-transformers" / "verify.py"))["PROBES"]
SWIFT = runpy.run_path(str(ENVS / "swift-transformers-cpu" / "verify.py"))["SWIFT"]

if __name__ == "__main__":
    sys.exit(main([*TRL, *SWIFT]))
