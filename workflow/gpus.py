"""How much memory has a GPU? The known ones by the names that `workload.gpu` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's memory, GiB: about what its data sheet says, of which the driver keeps one or two in a hundred.

    Where error correction takes a sixteenth of GDDR memory (A10, L40S), it is left out here, as nvidia-smi does.
    """

    memory_gib: float
    source: str


_NVIDIA = "https://www.nvidia.com/en-us/data-center"

KNOWN_GPUS: Mapping[str, Gpu] = {
    "A10-24GB": Gpu(22.5, f"{_NVIDIA}/products/a10-gpu/"),
    "A100-40GB": Gpu(40, f"{_NVIDIA}/a100/"),
    "A100-80GB": Gpu(80, f"{_NVIDIA}/a100/"),
    "L40S-48GB": Gpu(45, f"{_NVIDIA}/l40s/"),
    "H100-80GB": Gpu(80, f"{_NVIDIA}/h100/"),
    "H200-141GB": Gpu(141, f"{_NVIDIA}/h200/"),
    "B200-180GB": Gpu(180, f"{_NVIDIA}/dgx-b200/"),
}


def gpu_of(name: str | None) -> Gpu | None:
    """The GPU of that name, however it is capitalised; None if there is none of it here."""
    return {known.lower(): gpu for known, gpu in KNOWN_GPUS.items()}.get((name or "").strip().lower())
