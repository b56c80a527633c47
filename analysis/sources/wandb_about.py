"""Reads what wandb stores about a run besides its history: configuration, versions, hardware and git."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from common.dotted import as_mapping
from common.published import CREDENTIAL

# The packages whose versions matter for a comparison, by the name that they are installed under.
PACKAGES = (
    *("nemo-rl", "openrlhf", "skyrl", "slime", "areal", "roll", "prime-rl"),
    *("verl", "trl", "ms-swift", "vllm", "sglang", "sgl-kernel", "torch", "transformers", "accelerate", "peft"),
    *("deepspeed", "megatron-core", "ray", "tensordict", "flash-attn", "flashinfer-python", "xformers", "triton"),
    *("liger-kernel", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "numpy", "wandb"),
)
# ms-swift is `swift` everywhere else here.
SHORT_NAMES = {"ms-swift": "swift"}

_SECRET = re.compile(
    r"(^|[_.\-])(api_?key|passw(or)?d|secret(_?key)?|access_?key|credentials?|(hub|hf|auth|access|github|wandb)_?token)$"
    r"|^token$",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?<=://)[^\s/@]+@")
HIDDEN = "(not shown)"


def facts_of(config: Mapping[str, Any], requirements: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What an import keeps of a run's configuration, its requirements.txt and wandb's metadata."""
    versions, hardware = versions_in(requirements, metadata), hardware_in(metadata)
    return {"config": plain_config(config), "versions": versions, "hardware": hardware, "git": git_in(metadata)}


def plain_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration as its program set it, without wandb's own entries, `value` wrappers and secrets."""
    plain = {}
    for key, value in raw.items():
        if key not in ("_wandb", "wandb_version"):
            wrapped = isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}
            plain[str(key)] = without_secrets(value["value"] if wrapped else value, str(key))
    return plain


def without_secrets(value: Any, name: str = "") -> Any:
    """The value without keys, tokens and passwords (by name or by look), and without user names in addresses."""
    if isinstance(value, Mapping):
        return {str(key): without_secrets(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    if isinstance(value, str):
        return HIDDEN if value and _SECRET.search(name) else CREDENTIAL.sub(HIDDEN, _USERINFO.sub("", value))
    return value


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
        "cpus": int(_number(metadata.get("cpu_count_logical") or metadata.get("cpu_count")) or 0),
        # Earlier releases of wandb gave GiB, later ones bytes.
        "memory_gib": round(memory / 2**30 if memory > 2**20 else memory, 1) if memory else None,
        "gpus": _gpus(metadata),
    }
    return {key: value for key, value in found.items() if value}


def _gpus(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    devices = next((found for key in ("gpu_nvidia", "gpu_amd", "gpu_devices") if (found := metadata.get(key))), None)
    if not isinstance(devices, list):
        name = metadata.get("gpu_type") or metadata.get("gpu")
        return [{"name": str(name)}] * int(_number(metadata.get("gpu_count")) or 0) if name else []
    gpus = []
    for device in map(as_mapping, devices):
        if name := device.get("name") or device.get("model_name"):
            total = _number(device.get("memory_total", device.get("memoryTotal")))
            gpus.append({"name": str(name), **({"memory_gib": round(total / 2**30, 1)} if total else {})})
    return gpus


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def git_in(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Remote and commit of the run's code, None where wandb saw no repository."""
    git = as_mapping(metadata.get("git"))
    remote = git.get("remote") or git.get("remote_url")
    found = {"remote": _USERINFO.sub("", str(remote)) if remote else None, "commit": git.get("commit")}
    return {key: value for key, value in found.items() if value} or None


def seconds_since_1970(text: object) -> float | None:
    """A time as wandb writes it (`2026-11-21T19:14:48.147693Z`; UTC without a zone); None for anything else."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
