"""Checks the built stack swift34-lmdeploy; run at its build, and with --gpu on a compute node."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import CUDA_PROBES, driver, version_of
from _verify import Probe, main, pin

# What the comparison of both engines says to swift, beside what every training of it says.
_ARGUMENTS = (
    *("use_vllm", "use_lmdeploy", "lmdeploy_device", "lmdeploy_session_len", "lmdeploy_cache_max_entry_count"),
    *("num_infer_workers", "gc_collect_after_offload", "offload_model", "offload_optimizer", "sleep_level"),
    *("move_model_batches", "multi_turn_func", "vllm_gpu_memory_utilization", "vllm_max_model_len", "top_k", "top_p"),
)


def _arguments() -> Any:
    from dataclasses import fields

    from swift.llm import RLHFArguments

    known = {field.name for field in fields(RLHFArguments)}
    return [name for name in _ARGUMENTS if name not in known]


def _version(package: str) -> Any:
    def run() -> Any:
        from importlib.metadata import version

        return version(package)

    return run


def _turbomind() -> Any:
    from lmdeploy import TurbomindEngineConfig

    return TurbomindEngineConfig(cache_max_entry_count=0.4).cache_max_entry_count


PROBES = [
    *CUDA_PROBES,
    Probe("torch's version", "torch", pin("torch", public=True), version_of("torch", public=True)),
    Probe("ms-swift's version", "ms-swift", pin("ms-swift"), _version("ms-swift")),
    Probe("lmdeploy's version", "lmdeploy", pin("lmdeploy"), _version("lmdeploy")),
    Probe("vllm's version", "vllm", pin("vllm"), _version("vllm")),
    Probe("swift knows the arguments of both engines", "ms-swift", [], _arguments),
    Probe("lmdeploy has its engine's settings", "lmdeploy", 0.4, _turbomind, gpu=True),
    Probe("torch reaches the GPUs", "torch", "works", driver(), gpu=True),
]

if __name__ == "__main__":
    sys.exit(main(PROBES))
