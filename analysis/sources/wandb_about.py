"""Reads what wandb knows about a run besides its history."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from common.published import CREDENTIAL

# The packages whose versions bear on what is compared, by the name that they are installed under; ms-swift is `swift`
# everywhere else here.
PACKAGES = (
    *("nemo-rl", "openrlhf", "skyrl", "slime", "areal", "roll", "prime-rl"),
    *("verl", "trl", "ms-swift", "vllm", "sglang", "sgl-kernel", "torch", "transformers", "accelerate", "peft"),
    *("deepspeed", "megatron-core", "ray", "tensordict", "flash-attn", "flashinfer-python", "xformers", "triton"),
    *("liger-kernel", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "numpy", "wandb"),
)
CALLED = {"ms-swift": "swift"}

_SECRET = re.compile(
    r"(^|[_.\-])(api_?key|passw(or)?d|secret(_?key)?|access_?key|credentials?|(hub|hf|auth|access|github|wandb)_?token)$"
    r"|^token$",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?<=://)[^\s/@]+@")
HIDDEN = "(not shown)"


def facts_of(config: Mapping[str, Any], requirements: Iterable[str], about: Mapping[str, Any]) -> dict[str, Any]:
    """What an import keeps of a run's configuration, its requirements.txt and wandb's metadata."""
    versions, hardware = versions_in(requirements, about), hardware_in(about)
    return {"config": plain_config(config), "versions": versions, "hardware": hardware, "git": git_in(about)}


def plain_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration as its program set it: wandb's own entries and `value` wrappers are gone, and secrets."""
    plain = {}
    for key, value in raw.items():
        if key == "_wandb" or key == "wandb_version":
            continue
        wrapped = isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}
        plain[str(key)] = value["value"] if wrapped else value
    shown = without_secrets(plain)
    assert isinstance(shown, dict)
    return shown


def without_secrets(value: Any, name: str = "") -> Any:
    """The value without what is named or looks like a key, token or password, and the user information of addresses."""
    if isinstance(value, Mapping):
        return {str(key): without_secrets(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(one, name) for one in value]
    if isinstance(value, str):
        return HIDDEN if value and _SECRET.search(name) else CREDENTIAL.sub(HIDDEN, _USERINFO.sub("", value))
    return value


def versions_in(requirements: Iterable[str], about: Mapping[str, Any]) -> dict[str, str]:
    """Versions by package from the lines of wandb's requirements.txt, and Python's from its metadata."""
    found = {}
    for line in requirements:
        name, equals, version = line.strip().partition("==")
        name = re.sub(r"[-_.]+", "-", name).lower()
        if equals and name in PACKAGES:
            found[CALLED.get(name, name)] = version.strip()
    python = re.search(r"\d+(\.\d+)+", str(about.get("python") or ""))
    if python:
        found["python"] = python.group()
    return found


def hardware_in(about: Mapping[str, Any]) -> dict[str, Any]:
    """Host, CPUs, memory and GPUs of the node whose process logged, under done.json's names (docs/files.md)."""
    found: dict[str, Any] = {}
    if about.get("host"):
        found["host"] = str(about["host"])
    cpu = about.get("cpu")
    if isinstance(cpu, Mapping) and cpu.get("model"):
        found["cpu"] = str(cpu["model"])
    cpus = _count(about.get("cpu_count_logical") or about.get("cpu_count"))
    if cpus:
        found["cpus"] = cpus
    memory = about.get("memory")
    total = _number(memory.get("total")) if isinstance(memory, Mapping) else None
    if total:
        # Earlier releases of wandb gave GiB, later ones bytes.
        found["memory_gib"] = round(total / 2**30 if total > 2**20 else total, 1)
    gpus = _gpus(about)
    if gpus:
        found["gpus"] = gpus
    return found


def _gpus(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    each = next((v for v in (about.get("gpu_nvidia"), about.get("gpu_amd"), about.get("gpu_devices")) if v), None)
    if isinstance(each, list):
        gpus = []
        for one in each:
            name = one.get("name") or one.get("model_name") if isinstance(one, Mapping) else None
            if name:
                total = _number(one.get("memory_total", one.get("memoryTotal")))
                gpus.append({"name": str(name), **({"memory_gib": round(total / 2**30, 1)} if total else {})})
        return gpus
    name, count = about.get("gpu_type") or about.get("gpu"), _count(about.get("gpu_count"))
    return [{"name": str(name)}] * (count or 0) if name else []


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def git_in(about: Mapping[str, Any]) -> dict[str, Any] | None:
    """Remote and commit of the run's code, None where wandb saw no repository."""
    git = about.get("git")
    if not isinstance(git, Mapping):
        return None
    remote = git.get("remote") or git.get("remote_url")
    found = {"remote": _USERINFO.sub("", str(remote)) if remote else None, "commit": git.get("commit")}
    return {key: value for key, value in found.items() if value} or None


def seconds_since_1970(text: object) -> float | None:
    """A time as wandb writes it (`2026-11-21T19:14:48.147693Z`; without a zone it is UTC); None when it is none."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
