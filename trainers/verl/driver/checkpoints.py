"""Selects the checkpoint that a verl run resumes from, and removes old checkpoints.

Left to itself verl resumes from the step in `latest_checkpointed_iteration.txt`, which it does not write atomically: an
empty file stops it, a missing folder silently restarts training, and an incomplete folder fails while loading. verl
does not remove checkpoints of earlier attempts. So each launch names the newest complete checkpoint
(`trainer.resume_from_path`), and all but the newest two are removed before. (`trainer.max_actor_ckpt_to_keep` counts
only an attempt's own; 0.4.1 removes the older one before it writes the next, so it must be at least 2.)

A complete FSDP checkpoint (workers/fsdp_workers.py and utils/checkpoint/fsdp_checkpoint_manager.py, 0.4.1 and 0.9.1):

    global_step_<n>/actor/{model,optim,extra_state}_world_size_<w>_rank_<r>.pt     for each rank r of w
    global_step_<n>/actor/fsdp_config.json and huggingface/config.json             rank 0, after its shards
    global_step_<n>/data.pt                                                        state of the data loader
    global_step_<n>/transfer_queue/                                                0.9.1's asynchronous loops: last

Without the queue's folder verl resumes in silence without the prompts that were being answered. torch.save writes zip
archives, whose directory is at the end: a truncated file has none.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.retry import exists, is_transient, retry_io

TRACKER = "latest_checkpointed_iteration.txt"
KEPT = 2
_DIRECTORY_BYTES = 2**16
_STEP = re.compile(r"global_step_(\d+)")
_SHARD = re.compile(r"(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt")


def prepare(folder: Path, world_size: int, contents: Sequence[str], has_queue: bool) -> int | None:
    """The step from which `world_size` ranks resume, None from the start; other checkpoints but one are removed.

    Each rank has saved its `contents`, and with `has_queue` the loop its transfer queue. `UserError` if another number
    of ranks saved the newest complete one: verl's shards fit only that number, and a silent restart would discard the
    work. A checkpoint that cannot be read now is read again: as an incomplete one it would be removed.
    """
    return retry_io(lambda: _prepare(folder, world_size, contents, has_queue), "the run's checkpoints")


def _prepare(folder: Path, world_size: int, contents: Sequence[str], has_queue: bool) -> int | None:
    named = ((_STEP.fullmatch(path.name), path) for path in (folder.iterdir() if exists(folder) else ()))
    saved = {int(match[1]): _ranks(path, contents, has_queue) for match, path in named if match and path.is_dir()}
    complete = sorted((step for step, ranks in saved.items() if ranks is not None), reverse=True)
    if complete and saved[complete[0]] != world_size:
        raise UserError(
            f"{saved[complete[0]]} GPUs saved the newest checkpoint, of step {complete[0]}, and verl can load "
            f"it only with that number (now: {world_size}); set workload.nodes and workload.gpus_per_node "
            "back, or remove the run's checkpoints to start again"
        )
    # verl 0.4.1 reads it even if a checkpoint is named, and an empty one stops it.
    (folder / TRACKER).unlink(missing_ok=True)
    for step in saved.keys() - {*complete[:KEPT]}:
        shutil.rmtree(folder / f"global_step_{step}", ignore_errors=True)
    return complete[0] if complete else None


def _ranks(checkpoint: Path, contents: Sequence[str], has_queue: bool) -> int | None:
    """The number of ranks that saved a checkpoint; None unless every shard of every rank is complete."""
    if not _is_archive(checkpoint / "data.pt") or (has_queue and not exists(checkpoint / "transfer_queue")):
        return None
    actor, shards = checkpoint / "actor", dict[int, set[tuple[str, int]]]()
    for path in actor.iterdir() if exists(actor) else ():
        match = _SHARD.fullmatch(path.name)
        if match and _is_archive(path):
            shards.setdefault(int(match[2]), set()).add((match[1], int(match[3])))
    for ranks, present in shards.items():
        if {(content, rank) for content in contents for rank in range(ranks)} <= present:
            configs = (actor / "fsdp_config.json", actor / "huggingface" / "config.json")
            return ranks if any(path.is_file() and path.stat().st_size for path in configs) else None
    return None


def _is_archive(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            # is_zipfile answers False for a file that cannot be read.
            file.seek(max(0, file.seek(0, os.SEEK_END) - _DIRECTORY_BYTES))
            file.read()
    except OSError as error:
        if is_transient(error):
            raise
        return False
    return zipfile.is_zipfile(path)


def load_in_data_order(original: Callable[..., Any], trainer: Any, *args: Any, **named: Any) -> Any:
    """Load a checkpoint, and draw the passes over the data that were complete before its last step.

    verl 0.4.1 shuffles with torch's `RandomSampler` (main_ppo.py, create_rl_sampler), whose generator no checkpoint
    has. data.pt has only the place within a pass, so a resumed run would repeat the first pass's order. The generator
    starts from the same seed in each attempt: drawing the passes sets it as in the uninterrupted run. torchdata's own
    sampler (0.9.1) saves its generator.
    """
    from torch.utils.data import RandomSampler

    result = original(trainer, *args, **named)
    loader = trainer.train_dataloader
    if type(loader.sampler) is RandomSampler and trainer.global_steps > 0:
        # A pass that has given its last batch is not over yet: the loader first asks for one more.
        for _ in range((trainer.global_steps - 1) // len(loader)):
            deque(loader.sampler, maxlen=0)
    return result
