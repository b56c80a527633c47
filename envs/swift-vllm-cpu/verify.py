"""Checks the built stack swift-vllm-cpu; run by `python -m workflow.stacks build`."""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import TRL_CPU
from _verify import Probe, main


def _swift_engine() -> Any:
    # ms-swift's plugin for embeddings imports torchvision, which this stack leaves out.
    os.environ["VLLM_PLUGINS"] = "none"
    from swift.infer_engine import GRPOVllmEngine
    from swift.rlhf_trainers import rollout_mixin
    from swift.rlhf_trainers.rollout_mixin import RolloutTrainerMixin

    # What engines/vllm/cpu.py and the driver replace: each is looked up by name when it is used.
    return [
        hasattr(GRPOVllmEngine, "_prepare_engine_kwargs"),
        hasattr(RolloutTrainerMixin, "_load_state_dict_to_vllm"),
        callable(rollout_mixin.finish_vllm_weight_reload),
    ]


ENVS = Path(__file__).resolve().parents[1]
# What the two stacks check that this one is made of (stack.yaml: verify_code).
VLLM = runpy.run_path(str(ENVS / "trl-vllm-cpu" / "verify.py"))["VLLM"]
SWIFT = runpy.run_path(str(ENVS / "swift-transformers-cpu" / "verify.py"))["SWIFT"]
ENGINE = [Probe("swift has its engine of vllm, and what the driver replaces", "ms-swift", [True] * 3, _swift_engine)]

if __name__ == "__main__":
    sys.exit(main(TRL_CPU + VLLM + SWIFT + ENGINE))
