"""Finds the checkpoint that a run goes on from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_OF_FSDP = ("pytorch_model_fsdp.bin", "optimizer.bin")
"""What FSDP goes on from beside these: the whole model and its optimizer (accelerate 1.15 utils/fsdp_utils.py)."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of transformers' Trainer: its folder, and how many steps are in it."""

    path: Path
    step: int


def newest_checkpoint(folder: Path, processes: int = 1) -> Checkpoint | None:
    """The complete checkpoint with the most steps; null if there is none. Half-written ones are passed over."""
    found = []
    for path in folder.glob("checkpoint-*") if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and is_complete(path, int(match.group(1)), processes):
            found.append(Checkpoint(path, int(match.group(1))))
    return max(found, key=lambda checkpoint: checkpoint.step, default=None)


def is_complete(path: Path, step: int, processes: int = 1) -> bool:
    """Whether a checkpoint was written to its end, by each of the processes that train.

    transformers 5.17 Trainer._save_checkpoint writes the model, then optimizer and scheduler, then random states, and
    trainer_state.json last: a readable one of the right step, beside the others, means that all of it is there. Each
    process writes its own random state.
    """
    try:
        state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(state, dict)
        and state.get("global_step") == step
        and any(_filled(path / name) for name in _WEIGHTS)
        and (_filled(path / "optimizer.pt") or all(_filled(path / name) for name in _OF_FSDP))
        and _filled(path / "scheduler.pt")
        and sum(_filled(file) for file in path.glob("rng_state*.pth")) >= processes
    )


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
