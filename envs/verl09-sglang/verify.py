"""Checks the built stack verl09-sglang; run by `python -m workflow.stacks build`, and with --gpu on a compute node."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import SGLANG_ACTIVATION, VERL, VERL_SGLANG, has_names, has_parameters, version_of
from _verify import Probe, main, pin

# What verl 0.9.1 hands to SGLang's server (workers/rollout/sglang_rollout/async_sglang_server.py).
ARGUMENTS = [
    "model_path",
    "dtype",
    "mem_fraction_static",
    "disable_cuda_graph",
    "enable_memory_saver",
    "base_gpu_id",
    "gpu_id_step",
    "tp_size",
    "dp_size",
    "ep_size",
    "node_rank",
    "load_format",
    "nnodes",
    "trust_remote_code",
    "max_running_requests",
    "log_level",
    "mm_attention_backend",
    "attention_backend",
    "skip_tokenizer_init",
    "skip_server_warmup",
    "quantization",
    "json_model_override_args",
    "custom_weight_loader",
]
# What it imports from sglang.srt.utils; the article's maybe_set_triton_cache_manager is gone from sglang 0.5.12.
UTILS = [
    "MultiprocessingSerializer",
    "assert_pkg_version",
    "is_cuda",
    "set_prometheus_multiproc_dir",
    "set_ulimit",
]

PROBES = [
    *VERL,
    *VERL_SGLANG,
    SGLANG_ACTIVATION,
    Probe(
        "ServerArgs takes what verl gives",
        "sglang",
        ARGUMENTS,
        has_parameters("sglang.srt.server_args:ServerArgs", *ARGUMENTS),
    ),
    Probe("sglang.srt.utils has what verl imports", "sglang", UTILS, has_names("sglang.srt.utils", *UTILS)),
    # With a newer `kernels` transformers 5.9.0 fails here, and with it all that follows.
    Probe(
        "verl's workers",
        "verl",
        ["ActorRolloutRefWorker"],
        has_names("verl.workers.engine_workers", "ActorRolloutRefWorker"),
    ),
    Probe("TransferQueue's version", "transferqueue", pin("transferqueue"), version_of("transfer_queue")),
    Probe("sgl_kernel's version", "sglang-kernel", pin("sglang-kernel"), version_of("sgl_kernel"), gpu=True),
    Probe(
        "verl's rollout on sglang",
        "sglang",
        ["ServerAdapter"],
        has_names("verl.workers.rollout.sglang_rollout.sglang_rollout", "ServerAdapter"),
        gpu=True,  # it imports the engine
    ),
]

if __name__ == "__main__":
    sys.exit(main(PROBES))
