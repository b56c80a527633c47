"""Checks the built stack verl04-sglang; run by `python -m workflow.stacks build`, and with --gpu on a compute node."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import VERL, VERL_SGLANG, has_names, has_parameters, version_of
from _verify import Probe, main, pin

# What verl 0.4.1 hands to SGLang's engine (workers/rollout/sglang_rollout/sglang_rollout.py).
ARGUMENTS = [
    "model_path",
    "dtype",
    "mem_fraction_static",
    "enable_memory_saver",
    "base_gpu_id",
    "gpu_id_step",
    "tp_size",
    "node_rank",
    "load_format",
    "dist_init_addr",
    "nnodes",
    "trust_remote_code",
    "port",
    "mm_attention_backend",
]
# What it imports from sglang.srt.utils.
UTILS = [
    "MultiprocessingSerializer",
    "assert_pkg_version",
    "get_ip",
    "get_open_port",
    "is_cuda",
    "maybe_set_triton_cache_manager",
    "set_prometheus_multiproc_dir",
    "set_ulimit",
]

PROBES = [
    *VERL,
    *VERL_SGLANG,
    # Of server_args and not of entrypoints.engine, as the article has it: without a GPU the engine looks for vllm.
    Probe(
        "ServerArgs takes what verl gives",
        "sglang",
        ARGUMENTS,
        has_parameters("sglang.srt.server_args:ServerArgs", *ARGUMENTS),
    ),
    Probe("sglang.srt.utils has what verl imports", "sglang", UTILS, has_names("sglang.srt.utils", *UTILS)),
    Probe(
        "verl's FSDP workers",
        "verl",
        ["ActorRolloutRefWorker"],
        has_names("verl.workers.fsdp_workers", "ActorRolloutRefWorker"),
    ),
    Probe("sgl_kernel's version", "sgl-kernel", pin("sgl-kernel"), version_of("sgl_kernel"), gpu=True),
    Probe(
        "verl's rollout on sglang",
        "sglang",
        ["SGLangRollout"],
        has_names("verl.workers.rollout.sglang_rollout", "SGLangRollout"),
        gpu=True,  # it imports the engine
    ),
]

if __name__ == "__main__":
    sys.exit(main(PROBES))
