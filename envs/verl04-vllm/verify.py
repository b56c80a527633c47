"""Checks the built stack verl04-vllm; run by `python -m workflow.stacks build`, and with --gpu on a compute node."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import VERL, VERL_VLLM, has_names, version_of
from _verify import Probe, main, pin

PROBES = [
    *VERL,
    *VERL_VLLM,
    Probe(
        "verl's rollout on vllm",
        "vllm",
        ["vLLMRollout", "vLLMAsyncRollout"],
        has_names("verl.workers.rollout.vllm_rollout", "vLLMRollout", "vLLMAsyncRollout"),
    ),
    Probe(
        "verl's FSDP workers",
        "verl",
        ["ActorRolloutRefWorker"],
        has_names("verl.workers.fsdp_workers", "ActorRolloutRefWorker"),
    ),
    Probe("xformers' version", "xformers", pin("xformers"), version_of("xformers")),
]

if __name__ == "__main__":
    sys.exit(main(PROBES))
