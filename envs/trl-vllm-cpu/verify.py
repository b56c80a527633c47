"""Checks the built stack trl-vllm-cpu; run by `python -m workflow.stacks build`."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import TRL_CPU
from _verify import Probe, main


def vllm_platform() -> Any:
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    # Both names are lazy: using them loads the engine and its compiled parts.
    return [current_platform.device_type, LLM.__name__, SamplingParams(max_tokens=3).max_tokens]


def vllm_kernel() -> Any:
    """vLLM's own compiled RMS norm on the CPU: the extension fits this torch and this processor."""
    import torch
    import vllm._custom_ops as ops

    width = 64  # a multiple of the kernels' vector length
    out = torch.empty(1, width)
    ops.rms_norm(out, torch.full((1, width), 2.0), torch.full((width,), 3.0), 0.0)
    return [round(out.min().item(), 4), round(out.max().item(), 4)]


def torch_compiles() -> Any:
    """A function compiled by inductor: vLLM does that when it starts, with the machine's own C++ compiler."""
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        # Without a cache of earlier compilations, which would need no compiler.
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        import torch
        from torch._inductor import config

        # The header that many kernels share takes 7 s of CPU and 150 MB in /tmp, by the path of an unfinished build.
        with config.patch(cpp_cache_precompile_headers=False):
            return torch.compile(lambda x: (x * 2 + 1).sum())(torch.ones(8)).item()


VLLM = [
    Probe("vllm runs on the CPU", "vllm-cpu", ["cpu", "LLM", 3], vllm_platform),
    Probe("torch compiles with the machine's C++ compiler", "torch", 24.0, torch_compiles),
    Probe("vllm's compiled kernels run", "vllm-cpu", [3.0, 3.0], vllm_kernel),
]

if __name__ == "__main__":
    sys.exit(main(TRL_CPU + VLLM))
