"""Finds the checkpoint from which a run resumes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from common.retry import exists, is_transient, retry_io

_NAME = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_OF_FSDP = ("pytorch_model_fsdp.bin", "optimizer.bin")
"""FSDP also saves the full model and its optimizer (accelerate 1.15 utils/fsdp_utils.py)."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of transformers' Trainer: its folder and its step."""

    path: Path
    step: int


def newest_checkpoint(folder: Path, processes: int = 1) -> Checkpoint | None:
    """The newest complete checkpoint; None if there is none. One that cannot be read now is read again."""
    return retry_io(lambda: _newest(folder, processes), "the run's checkpoints")


def _newest(folder: Path, processes: int) -> Checkpoint | None:
    found = []
    for path in folder.iterdir() if exists(folder) else ():
        match = _NAME.fullmatch(path.name)
        if match and is_complete(path, int(match.group(1)), processes):
            found.append(Checkpoint(path, int(match.group(1))))
    return max(found, key=lambda checkpoint: checkpoint.step, default=None)


def is_complete(path: Path, step: int, processes: int = 1) -> bool:
    """Whether all training processes finished writing a checkpoint.

    transformers 5.17 Trainer._save_checkpoint writes the model, the optimizer, the scheduler, the random states of each
    process, and trainer_state.json last. So a readable trainer_state.json of the right step completes it.
    """
    try:
        state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
    except ValueError:
        return False
    except OSError as error:
        if is_transient(error):
            raise
        return False
    return (
        isinstance(state, dict)
        and state.get("global_step") == step
        and any(_has_content(path / name) for name in _WEIGHTS)
        and (_has_content(path / "optimizer.pt") or all(_has_content(path / name) for name in _OF_FSDP))
        and _has_content(path / "scheduler.pt")
        and sum(_has_content(file) for file in path.glob("rng_state*.pth")) >= processes
    )


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
