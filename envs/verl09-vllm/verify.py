"""Checks the built stack verl09-vllm; run by `python -m workflow.stacks build`, and with --gpu on a compute node."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import VERL, VERL_VLLM, has_names, version_of
from _verify import Probe, main, pin

PROBES = [
    *VERL,
    *VERL_VLLM,
    Probe("flashinfer's version", "flashinfer-python", pin("flashinfer-python"), version_of("flashinfer")),
    Probe(
        "verl's rollout on vllm",
        "vllm",
        ["ServerAdapter"],
        has_names("verl.workers.rollout.vllm_rollout", "ServerAdapter"),
    ),
    Probe(
        "verl's server of vllm",
        "vllm",
        ["vLLMHttpServer"],
        has_names("verl.workers.rollout.vllm_rollout.vllm_async_server", "vLLMHttpServer"),
    ),
    Probe(
        "verl's workers",
        "verl",
        ["ActorRolloutRefWorker"],
        has_names("verl.workers.engine_workers", "ActorRolloutRefWorker"),
    ),
    Probe("TransferQueue's version", "transferqueue", pin("transferqueue"), version_of("transfer_queue")),
]

if __name__ == "__main__":
    sys.exit(main(PROBES))
