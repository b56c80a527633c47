"""Reads what wandb knows of a run beside its rows: configuration, versions, hardware, and the code's revision."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from common.dotted import as_mapping, is_bounded
from common.files import json_safe
from common.redaction import without_secrets

# The packages whose versions matter for a comparison, by the name that they are installed under.
PACKAGES = (
    *("nemo-rl", "openrlhf", "skyrl", "slime", "areal", "roll", "prime-rl"),
    *("verl", "trl", "ms-swift", "vllm", "sglang", "sgl-kernel", "torch", "transformers", "accelerate", "peft"),
    *("deepspeed", "megatron-core", "ray", "tensordict", "flash-attn", "flashinfer-python", "xformers", "triton"),
    *("liger-kernel", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "numpy", "wandb"),
)
# ms-swift is `swift` everywhere else here.
SHORT_NAMES = {"ms-swift": "swift"}
_MOST_PARTS = 100_000  # CPUs or GPUs of a machine


def facts_of(config: Mapping[str, Any], requirements: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What an import keeps of a run's configuration, its requirements.txt and wandb's metadata."""
    versions, hardware = versions_in(requirements, metadata), hardware_in(metadata)
    return {"config": plain_config(config), "versions": versions, "hardware": hardware, "git": git_in(metadata)}


def plain_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration as its program set it, without wandb's own entries, `value` wrappers and secrets."""
    plain: dict[str, Any] = {}
    for key, value in raw.items() if is_bounded(raw) else ():
        if key not in ("_wandb", "wandb_version"):
            wrapped = isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}
            plain[str(key)] = without_secrets(value["value"] if wrapped else value, str(key))
    found: dict[str, Any] = json_safe(plain)
    return found


def versions_in(requirements: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, str]:
    """Versions by package from the lines of wandb's requirements.txt, and Python's from its metadata."""
    found = {}
    for line in requirements:
        name, equals, version = line.strip().partition("==")
        name = re.sub(r"[-_.]+", "-", name).lower()
        if equals and name in PACKAGES:
            found[SHORT_NAMES.get(name, name)] = version.strip()
    if python := re.search(r"\d+(\.\d+)+", str(metadata.get("python") or "")):
        found["python"] = python.group()
    return found


def hardware_in(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Host, CPUs, memory and GPUs of the node whose process logged, under done.json's names (docs/files.md)."""
    host, cpu = metadata.get("host"), as_mapping(metadata.get("cpu")).get("model")
    memory = _number(as_mapping(metadata.get("memory")).get("total")) or 0.0
    found = {
        "host": str(host) if host else None,
        "cpu": str(cpu) if cpu else None,
        "cpus": _count(metadata.get("cpu_count_logical") or metadata.get("cpu_count")),
        # Earlier releases of wandb gave GiB, later ones bytes.
        "memory_gib": round(memory / 2**30 if memory > 2**20 else memory, 1) if memory else None,
        "gpus": _gpus(metadata),
    }
    return {key: value for key, value in found.items() if value}


def _gpus(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    devices = next((found for key in ("gpu_nvidia", "gpu_amd", "gpu_devices") if (found := metadata.get(key))), None)
    if not isinstance(devices, list):
        name = metadata.get("gpu_type") or metadata.get("gpu")
        return [{"name": str(name)}] * _count(metadata.get("gpu_count")) if name else []
    gpus = []
    for device in map(as_mapping, devices):
        if name := device.get("name") or device.get("model_name"):
            total = _number(device.get("memory_total", device.get("memoryTotal")))
            gpus.append({"name": str(name), **({"memory_gib": round(total / 2**30, 1)} if total else {})})
    return gpus


def _number(value: Any) -> float | None:
    """A number, also from text, as earlier releases of wandb write it."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _count(value: Any) -> int:
    """A number of parts of one machine; 0 for what cannot be one."""
    number = _number(value) or 0.0
    return int(number) if 0 < number < _MOST_PARTS else 0


def git_in(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Remote and commit of the run's code, None where wandb saw no repository."""
    git = as_mapping(metadata.get("git"))
    remote = git.get("remote") or git.get("remote_url")
    found = {"remote": without_secrets(str(remote)) if remote else None, "commit": git.get("commit")}
    return {key: value for key, value in found.items() if value} or None


def seconds_since_1970(text: object) -> float | None:
    """A time as wandb writes it (`2026-11-21T19:14:48.147693Z`; UTC without a zone); None for anything else."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
