"""Probes of the shipped stacks: small pieces of real work, each with the result that it must have.

Runs in the stack's own Python; a probe imports what it needs. Those that take arguments return what a Probe runs.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
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
from _verify import CUDA, Probe, pin


def torch_cuda() -> Any:
    """CUDA's release that torch is built with, such as "12.4"; None for a CPU build."""
    import torch

    return torch.version.cuda


def version_of(module: str, *, public: bool = False) -> Callable[[], Any]:
    """What the imported module says its version is; `public`: without the local part."""

    def run() -> Any:
        version = str(importlib.import_module(module).__version__)
        return version.partition("+")[0] if public else version

    return run


def has_parameters(function: str, *names: str) -> Callable[[], Any]:
    """Those of the names that `module:function`, or a class there, takes as parameters."""

    def run() -> Any:
        import inspect

        module, _, path = function.partition(":")
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        known = inspect.signature(found).parameters
        return [name for name in names if name in known]

    return run


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


CUDA_PROBES = [
    Probe("nvcc's release", "nvcc", CUDA, nvcc_release, backend="conda"),
    Probe("torch is built with the stack's CUDA", "torch", CUDA, torch_cuda),
]
"""For every stack with `accelerator: cuda`; where uv built it, a compiler is a site's own affair and only recorded."""


# Probes of what every TRL stack holds.


def _torch_product() -> Any:
    import torch

    left = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return (left @ left).tolist()


def _torch_device() -> Any:
    import torch

    return "cuda" if torch.version.cuda else "cpu"


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
    import tempfile

    import datasets

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "rows.parquet")
        datasets.Dataset.from_dict({"prompt": ["a", "b"]}).to_parquet(path)
        return datasets.Dataset.from_parquet(path, cache_dir=folder)["prompt"][:]


TRL_CPU = [
    Probe("torch multiplies matrices", "torch", [[7.0, 10.0], [15.0, 22.0]], _torch_product),
    Probe("torch is a CPU build", "torch", "cpu", _torch_device),
    Probe("transformers generates", "transformers", [1, 7], _transformers_generates),
    Probe("datasets writes and reads parquet", "datasets", ["a", "b"], _datasets_parquet),
    Probe("trl has its GRPO trainer", "trl", ["GRPOTrainer", 4], _trl_trainer),
    Probe("wandb works offline", "wandb", ["offline", True], _wandb_module),
    Probe("math_verify compares answers", "math-verify", [True, False], _math_verdicts),
]


# Probes of what every verl stack holds. On a login node everything but the kernels is imported and used.


def has_names(module: str, *names: str) -> Callable[[], Any]:
    """Those of the names that the imported module holds."""

    def run() -> Any:
        found = importlib.import_module(module)
        return [name for name in names if hasattr(found, name)]

    return run


def _latex_parsed() -> Any:
    from sympy.parsing.latex import parse_latex

    # The other grammar, ANTLR's, wants a version that OmegaConf does not allow.
    return str(parse_latex(r"\frac{1}{2} + x", backend="lark"))


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
    *CUDA_PROBES,
    Probe("torch's version", "torch", pin("torch", public=True), version_of("torch", public=True)),
    Probe("torch multiplies matrices", "torch", [[7.0, 10.0], [15.0, 22.0]], _torch_product),
    Probe("torch reaches the GPUs", "torch", "works", driver("9.0"), gpu=True),
    Probe("transformers generates", "transformers", [1, 7], _transformers_generates),
    Probe("datasets writes and reads parquet", "datasets", ["a", "b"], _datasets_parquet),
    Probe("wandb works offline", "wandb", ["offline", True], _wandb_module),
    Probe("math_verify compares answers", "math-verify", [True, False], _math_verdicts),
    Probe("sympy parses LaTeX with lark", "lark", "x + 1/2", _latex_parsed),
    Probe("ray's version", "ray", pin("ray"), version_of("ray")),
    Probe("tensordict's version", "tensordict", pin("tensordict"), version_of("tensordict")),
    Probe("verl's version", "verl", pin("verl"), version_of("verl")),
    Probe("verl's entry point", "verl", ["main", "run_ppo"], has_names("verl.trainer.main_ppo", "main", "run_ppo")),
    Probe("flash_attn's version", "flash-attn", pin("flash-attn"), version_of("flash_attn")),
    Probe(
        "flash_attn has what verl takes from it",
        "flash-attn",
        ["index_first_axis", "pad_input", "unpad_input"],
        has_names("flash_attn.bert_padding", "index_first_axis", "pad_input", "unpad_input"),
    ),
    Probe("flash_attn's kernel agrees with torch", "flash-attn", True, _flash_attn_agrees, gpu=True),
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


def _rms_norm_of_vllm() -> Any:
    import torch
    import vllm._custom_ops as ops

    out = torch.empty(1, 64, device="cuda")
    ops.rms_norm(out, torch.full((1, 64), 2.0, device="cuda"), torch.full((64,), 3.0, device="cuda"), 0.0)
    return [round(out.min().item(), 4), round(out.max().item(), 4)]


VERL_VLLM = [
    Probe("vllm's version", "vllm", pin("vllm"), version_of("vllm")),
    Probe(
        "verl accepts this vllm",
        "vllm",
        ["LLM", "parallel_state"],
        has_names("verl.third_party.vllm", "LLM", "parallel_state"),
    ),
    Probe("vllm's compiled kernels run", "vllm", [3.0, 3.0], _rms_norm_of_vllm, gpu=True),
]


FLASHINFER_PREFILL = Probe(
    # Not rmsnorm: that kernel of 0.6 is made without nvcc, and passes where the engine's attention does not compile.
    "flashinfer's attention agrees with torch",
    "flashinfer-python",
    True,
    prefill_of_flashinfer,
    gpu=True,
    limit_s=1200.0,
)

SGLANG_ACTIVATION = Probe(
    "sglang's activation agrees with torch", "sglang", True, silu_and_mul_of_sglang, gpu=True, limit_s=600.0
)

VERL_SGLANG = [
    Probe("sglang's version", "sglang", pin("sglang"), version_of("sglang")),
    Probe("flashinfer's version", "flashinfer-python", pin("flashinfer-python"), version_of("flashinfer")),
    FLASHINFER_PREFILL,
    Probe(
        "torch_memory_saver's class",
        "torch-memory-saver",
        ["TorchMemorySaver"],
        has_names("torch_memory_saver", "TorchMemorySaver"),
    ),
    Probe("torch_memory_saver works when preloaded", "torch-memory-saver", "works", memory_saver, gpu=True),
    # SGLang's engine loads sgl_kernel, which is linked to the driver's libcuda.so.1; a login node has none.
    Probe(
        "sglang's engine",
        "sglang",
        ["Engine", "ServerArgs"],
        has_names("sglang.srt.entrypoints.engine", "Engine", "ServerArgs"),
        gpu=True,
    ),
]
