"""Lists the memory and bandwidth of GPUs, from NVIDIA's data sheets, by our names and the driver's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's data sheet: memory in GiB, memory bandwidth in TB/s.

    The driver reserves 1-2% of the memory. Error correction takes 1/16 of GDDR memory (A10, L40S), which is subtracted
    here, as in nvidia-smi.
    """

    memory_gib: float
    bandwidth_tb_s: float
    source: str
    reported: tuple[str, ...] = ()
    """Names in nvidia-smi and torch. A slice of a GPU (MIG) has a longer name and is not listed."""


_NVIDIA = "https://www.nvidia.com/en-us/data-center"

# A name without SXM or PCIe means the SXM module, which is faster, so that a floor is valid for both.
KNOWN_GPUS: Mapping[str, Gpu] = {
    "A10-24GB": Gpu(22.5, 0.6, f"{_NVIDIA}/products/a10-gpu/", ("A10",)),
    "A100-40GB": Gpu(40, 1.555, f"{_NVIDIA}/a100/", ("A100-SXM4-40GB", "A100-PCIE-40GB")),
    "A100-80GB": Gpu(80, 2.039, f"{_NVIDIA}/a100/", ("A100-SXM4-80GB",)),
    "A100-PCIe-80GB": Gpu(80, 1.935, f"{_NVIDIA}/a100/", ("A100 80GB PCIe",)),
    "L40S-48GB": Gpu(45, 0.864, f"{_NVIDIA}/l40s/", ("L40S",)),
    "H100-80GB": Gpu(80, 3.35, f"{_NVIDIA}/h100/", ("H100 80GB HBM3",)),
    "H100-PCIe-80GB": Gpu(80, 2.0, f"{_NVIDIA}/h100/", ("H100 PCIe",)),
    "H100-NVL-94GB": Gpu(94, 3.9, f"{_NVIDIA}/h100/", ("H100 NVL",)),
    "H200-141GB": Gpu(141, 4.8, f"{_NVIDIA}/h200/", ("H200",)),
    "H200-NVL-141GB": Gpu(141, 4.8, f"{_NVIDIA}/h200/", ("H200 NVL",)),
    "B200-180GB": Gpu(180, 8.0, f"{_NVIDIA}/dgx-b200/", ("B200",)),
}

_NAMES: Mapping[str, str] = {
    **{f"nvidia {name}".lower(): known for known, gpu in KNOWN_GPUS.items() for name in gpu.reported},
    # Older drivers omit "NVIDIA". A bare "H200" is not a driver's name: people use it for any H200.
    **{name.lower(): known for known, gpu in KNOWN_GPUS.items() for name in gpu.reported if set(name) & set(" -")},
    **{known.lower(): known for known in KNOWN_GPUS},
}


def known_name(name: str | None) -> str | None:
    """Our name of a GPU, from our name in any case or the driver's (`NVIDIA H100 80GB HBM3`); None if unknown."""
    return _NAMES.get(" ".join((name or "").split()).lower())


def gpu_of(name: str | None) -> Gpu | None:
    """The GPU with our or the driver's name; None if unknown."""
    known = known_name(name)
    return KNOWN_GPUS[known] if known else None
