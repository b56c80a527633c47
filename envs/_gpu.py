"""Probes of what a rollout engine does first on a GPU: preload, compile kernels while it runs, talk to other GPUs.

Each compares values with a reference that was computed another way. As a program it is the child that two of the
probes start: `python -I envs/_gpu.py <function> <file for its outcome> [argument ...]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HELD_MIB = 256


def memory_saver() -> Any:
    """ "works" when a process with torch_memory_saver preloaded, as SGLang's schedulers are, runs a shell and a pause.

    The loader ends such a process with status 127 where a library that the preloaded one needs is not found.
    """
    import torch_memory_saver

    with torch_memory_saver.configure_subprocess(), tempfile.TemporaryDirectory() as folder:
        outcome = Path(folder, "outcome")
        for command in (["/bin/sh", "-c", "true"], _child("saver_region", outcome)):
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode != 0:
                return f"{command[0]} under the preload ended with status {done.returncode}: {_last(done.stderr)}"
        return outcome.read_text(encoding="utf-8")


def saver_region() -> str:
    """What memory_saver's child says: values in a region survive, and a pause gives the memory back."""
    import torch
    from torch_memory_saver import torch_memory_saver as saver

    shell = subprocess.run(["/bin/sh", "-c", "true"], capture_output=True, text=True, check=False)
    if shell.returncode != 0:
        return f"a shell ended with status {shell.returncode}: {_last(shell.stderr)}"
    with saver.region(tag="check"):
        held = torch.full((_HELD_MIB, 2**18), 2.0, device="cuda")
    values = held.min().item(), held.max().item()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    saver.pause(tag="check")
    freed = (torch.cuda.mem_get_info()[0] - before) / 2**20
    saver.resume(tag="check")
    held.fill_(3.0)
    values += held.min().item(), held.max().item()
    if values != (2.0, 2.0, 3.0, 3.0):
        return f"a tensor of twos, then of threes, holds {values}"
    # Preloaded in vain, the saver does nothing and says so in its log alone.
    return "works" if freed > _HELD_MIB / 2 else f"a pause frees {freed:.0f} MiB of {_HELD_MIB}"


def silu_and_mul_of_sglang(device: str = "cuda") -> Any:
    """Whether SGLang's activation, compiled by tvm-ffi with nvcc when it is first called, agrees with torch's."""
    import torch
    from sglang.jit_kernel.activation import silu_and_mul

    torch.manual_seed(0)
    x = torch.randn(4, 256, device=device, dtype=torch.bfloat16)
    gate, up = x.float().cpu().chunk(2, dim=-1)
    return _agree(silu_and_mul(x), torch.nn.functional.silu(gate) * up)


def prefill_of_flashinfer(device: str = "cuda") -> Any:
    """Whether FlashInfer's attention, compiled with nvcc where no cache has it, agrees with torch's own."""
    import flashinfer
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(64, 4, 128, device=device, dtype=torch.bfloat16) for _ in range(3))
    reference = torch.nn.functional.scaled_dot_product_attention(
        *(x.float().cpu().transpose(0, 1) for x in (q, k, v)), is_causal=True
    ).transpose(0, 1)
    return _agree(flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True), reference)


def compiled_function(device: str = "cuda") -> Callable[[], Any]:
    """Whether torch.compile makes a function that agrees with the eager one; nothing is taken from a cache.

    On a GPU Triton compiles it, with a C compiler and Python.h; on a CPU Inductor, with a C++ compiler.
    """

    def run() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            os.environ |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
            import torch
            from torch._dynamo.utils import counters
            from torch._inductor import config

            def function(x: Any) -> Any:
                return (torch.nn.functional.gelu(x * 2 + 1)).sum(dim=-1)

            torch.manual_seed(0)
            x = torch.randn(64, 256)
            # The header that many kernels of a CPU share takes 7 s of CPU and 150 MB in /tmp.
            with config.patch(cpp_cache_precompile_headers=False):
                got = torch.compile(function)(x.to(device))
            if not counters["stats"]["unique_graphs"]:
                return "torch.compile compiled nothing"
            return _agree(got, function(x), 1e-4)

    return run


def too_few_gpus(seen: int) -> str | None:
    """What is wrong where torch sees fewer GPUs than CUDA_VISIBLE_DEVICES names; None where nothing is."""
    named = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    # Of several MIG instances CUDA shows a process one.
    if seen >= len(named) or any(each.strip().startswith("MIG") for each in named):
        return None
    return f"torch sees {seen} of the {len(named)} GPUs in CUDA_VISIBLE_DEVICES ({','.join(named)})"


def all_reduce(backend: str = "nccl", ranks: int | None = None) -> Callable[[], Any]:
    """ "works" when the sum over all ranks, one for each visible GPU, is right on every rank."""

    def run() -> Any:
        import torch

        count = torch.cuda.device_count() if ranks is None else ranks
        if count < 1:
            return "no GPU is visible"
        if ranks is None and (trouble := too_few_gpus(count)):
            return trouble
        with tempfile.TemporaryDirectory() as folder:
            said = [Path(folder, f"rank-{rank}") for rank in range(count)]
            processes = []
            for rank, path in enumerate(said):
                # What a rank prints is no outcome: C's output (NCCL_DEBUG) is written last, when the process ends.
                outcome = path.with_suffix(".outcome")
                command = _child("sum_of_ranks", outcome, backend, str(rank), str(count), f"{folder}/meeting")
                with path.open("wb") as output:
                    processes.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))
            codes = [process.wait() for process in processes]
            outcomes = [_outcome_of_rank(path, code) for path, code in zip(said, codes, strict=True)]
        wrong = [f"rank {n}: {text}" for n, text in enumerate(outcomes) if text != "works"]
        return "; ".join(wrong) or "works"

    return run


def _outcome_of_rank(said: Path, code: int) -> str:
    outcome = said.with_suffix(".outcome")
    text = outcome.read_text(encoding="utf-8") if outcome.is_file() else ""
    if text and (code == 0 or text != "works"):
        return text
    return f"ended with status {code}: {_last(said.read_text(encoding='utf-8', errors='replace'))}"


def sum_of_ranks(backend: str, rank: str, ranks: str, meeting: str) -> str:
    """What one rank of all_reduce says."""
    import datetime

    import torch

    number, count = int(rank), int(ranks)
    device = torch.device("cuda", number) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        backend,
        init_method=f"file://{meeting}",
        rank=number,
        world_size=count,
        timeout=datetime.timedelta(seconds=120),
    )
    given = torch.full((2**20,), float(number + 1), device=device)
    torch.distributed.all_reduce(given)
    got = given.min().item(), given.max().item()
    torch.distributed.destroy_process_group()
    wanted = count * (count + 1) / 2
    return "works" if got == (wanted, wanted) else f"the sum is {got}, not {wanted}"


def _agree(got: Any, reference: Any, tolerance: float = 2e-2) -> Any:
    """True, or how far the values are off; bfloat16 has 8 bits."""
    if got.shape != reference.shape:
        return f"shape {tuple(got.shape)}, not {tuple(reference.shape)}"
    difference = (got.float().cpu() - reference.float()).abs()
    return (
        True
        if bool((difference <= tolerance * (1 + reference.float().abs())).all())
        else f"off by up to {difference.max().item():.3g}"
    )


def _child(function: str, outcome: Path, *arguments: str) -> list[str]:
    from _child import isolated_python  # not at the top: the child finds no module beside this file

    return [*isolated_python(), str(Path(__file__).resolve()), function, str(outcome), *arguments]


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1].strip()[:300]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from _child import die_with_parent

    die_with_parent()
    _said = {"saver_region": saver_region, "sum_of_ranks": sum_of_ranks}[sys.argv[1]](*sys.argv[3:])
    Path(sys.argv[2]).write_text(_said, encoding="utf-8")
