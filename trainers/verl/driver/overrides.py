"""How is a setting written so that verl's Hydra reads the same value back, and which settings are the job's own?

Only the standard library: the controller writes a run's settings with it, and the job adds its own on the node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"

# Hydra takes these without quotes; everything else is quoted, which it always takes as text.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_TEXT = frozenset({"true", "false", "null", "none", "inf", "nan"})
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WHOLE_KEY = re.compile(rf"\+{{0,2}}{_KEY.pattern}(\.{_KEY.pattern})*")
_BEFORE_QUOTE = re.compile(r"(\\*)(?:'|$)")

BOOKKEEPING = (
    *("trainer.project_name", "trainer.experiment_name", "trainer.logger"),
    *("trainer.default_local_dir", "trainer.default_hdfs_dir", "trainer.del_local_ckpt_after_load"),
    *("trainer.resume_mode", "trainer.resume_from_path"),
)
"""Names, trackers, places, and what only a resumed run reads: no work of a step."""

_OWNED_ALIKE = (
    *("data.train_files", "data.val_files", "actor_rollout_ref.model.path"),
    *(*BOOKKEEPING, "trainer.val_only", "custom_reward_function"),
    *("data.prompt_key", "data.reward_fn_key", "data.custom_cls"),
)
JOB_KEYS: Mapping[str, tuple[str, ...]] = {
    "0.4.1": (*_OWNED_ALIKE, "ray_init.num_cpus"),
    "0.9.1": (
        *(*_OWNED_ALIKE, "reward.custom_reward_function", "ray_kwargs.ray_init.num_cpus"),
        "ray_kwargs.ray_init.runtime_env",
    ),
}
"""By verl's version: the keys, and what lies below them, that only the job on the node sets."""

REWARD_KEY: Mapping[str, str] = {"0.4.1": "custom_reward_function", "0.9.1": "reward.custom_reward_function"}
"""Where each version looks for a reward function of ours. 0.9.1 composes the old key, too, and may ignore it."""

_RAY_KEY: Mapping[str, str] = {"0.4.1": "ray_init.num_cpus", "0.9.1": "ray_kwargs.ray_init.num_cpus"}
# 0.4.1 has no logger that writes a file.
_LOGGERS: Mapping[str, tuple[str, ...]] = {"0.4.1": ("console", "wandb"), "0.9.1": ("console", "wandb", "file")}


def job_overrides(
    version: str,
    *,
    train_files: str,
    val_files: str,
    model: str,
    checkpoints: str,
    project: str,
    run_id: str,
    reward_file: str,
    reward_name: str = "compute_score",
    reward_kwargs: Mapping[str, Any] | None = None,
    num_cpus: int | None = None,
) -> list[str]:
    """The overrides that only the job on the node knows: paths, names, loggers, the reward's entry point, Ray.

    `version` is a key of JOB_KEYS. `num_cpus` is for a Ray that verl starts itself (on Slurm it would count the whole
    node's cores); None where it joins a cluster that runs. `ValueError` for what Hydra cannot be told.
    """
    reward = REWARD_KEY[version]
    settings: dict[str, Any] = {
        "data.train_files": train_files,
        "data.val_files": val_files,
        "actor_rollout_ref.model.path": model,
        f"{reward}.path": reward_file,
        f"{reward}.name": reward_name,
        "trainer.project_name": project,
        "trainer.experiment_name": run_id,
        "trainer.default_local_dir": checkpoints,
        "trainer.logger": list(_LOGGERS[version]),
        "trainer.resume_mode": "auto",
        _RAY_KEY[version]: num_cpus,
    }
    written = [override(key, value) for key, value in settings.items()]
    return [*written, *([override(f"+{reward}.reward_kwargs", reward_kwargs)] if reward_kwargs else [])]


def override(key: str, value: Any) -> str:
    """One override as on verl's command line; `ValueError` if Hydra has no way to write it."""
    if not _WHOLE_KEY.fullmatch(key):
        raise ValueError(
            f"{key!r} is no key that Hydra can read: parts of letters, digits, '_' and '-', joined by dots, "
            "with a leading + for a key that verl's configuration lacks"
        )
    return f"{key}={value_text(value, key)}"


def value_text(value: Any, where: str) -> str:
    """A value in the grammar of Hydra's overrides; None is null. `where` is for the `ValueError`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} must be a finite number (got {value})")
        return repr(value)
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
            return value
        # A backslash stands for itself, but before a quote and at the end it must be doubled.
        return "'" + _BEFORE_QUOTE.sub(_escaped, value) + "'"
    if isinstance(value, Mapping):
        for key in value:
            if not _KEY.fullmatch(str(key)) or str(key).lower() in _NOT_TEXT:
                raise ValueError(f"{where}: {key!r} cannot be the key of a mapping in a Hydra override; use letters")
        return "{" + ",".join(f"{key}:{value_text(inner, f'{where}.{key}')}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(value_text(inner, f"{where}[{i}]") for i, inner in enumerate(value)) + "]"
    raise ValueError(f"{where} must be text, a number, true, false, null, a list or a mapping (got {value!r})")


def _escaped(found: re.Match[str]) -> str:
    quote = found.group(0)[len(found.group(1)) :]
    return found.group(1) * 2 + (f"\\{quote}" if quote else "")


def leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted keys and their values; an empty mapping is a value."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
