"""Finds the step that a run of verl goes on from, and removes the checkpoints that are not kept.

verl resumes from the step that `latest_checkpointed_iteration.txt` names. It writes that file last, but not at once,
and an empty one stops it; a step whose folder is missing starts training anew without a word, and a folder that is
half there is loaded until it fails. It forgets at its end which checkpoints it has saved, so that those of earlier
attempts are never removed. So before each launch the file is made to name the newest complete checkpoint, and older
ones than the newest two go. (`trainer.max_actor_ckpt_to_keep` counts an attempt's own; 0.4.1 removes the older one
before it writes the next, so that it must be at least 2.)

A complete one, of FSDP (workers/fsdp_workers.py and utils/checkpoint/fsdp_checkpoint_manager.py of 0.4.1 and 0.9.1):

    global_step_<n>/actor/{model,optim,extra_state}_world_size_<w>_rank_<r>.pt     for each rank r of w
    global_step_<n>/actor/fsdp_config.json and huggingface/config.json             rank 0, behind its shards
    global_step_<n>/data.pt                                                        last: where the data loader is

torch.save writes zip archives, whose directory is at the end: a file that was cut has none.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError

TRACKER = "latest_checkpointed_iteration.txt"
KEPT = 2
CONTENTS = ("model", "optim", "extra_state")
_STEP = re.compile(r"global_step_(\d+)")
_SHARD = re.compile(r"(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt")


@dataclass(frozen=True)
class Found:
    """One folder `global_step_<n>`: its step, whether all of it is there, and by how many ranks it was saved."""

    step: int
    complete: bool
    world_size: int | None


@dataclass(frozen=True)
class Decision:
    """What is to be done before a launch."""

    resume: int | None
    """The step to go on from; None: from the start."""
    remove: tuple[int, ...]
    """Steps whose folders go."""


def decide(found: Sequence[Found], world_size: int) -> Decision:
    """Which checkpoint to go on from with `world_size` ranks, and which folders to remove.

    `UserError` if the newest complete one was saved by another number of ranks: verl's shards fit that number alone,
    and to start anew in silence would throw the work away.
    """
    complete = sorted((one for one in found if one.complete), key=lambda one: one.step, reverse=True)
    if complete and complete[0].world_size != world_size:
        raise UserError(
            f"the newest checkpoint, of step {complete[0].step}, was saved by {complete[0].world_size} GPUs, and verl "
            f"can load it with that number only (now: {world_size}); set workload.nodes and workload.gpus_per_node "
            "back, or remove the run's checkpoints to start anew"
        )
    kept = [one.step for one in complete[:KEPT]]
    return Decision(
        resume=kept[0] if kept else None,
        remove=tuple(sorted(one.step for one in found if one.step not in kept)),
    )


def look(folder: Path, contents: Sequence[str] = CONTENTS) -> list[Found]:
    """All checkpoints in a run's folder, by step; `contents` are the parts that each rank saves."""
    found = []
    for path in folder.glob("global_step_*") if folder.is_dir() else ():
        match = _STEP.fullmatch(path.name)
        if match and path.is_dir():
            world_size = _world_size(path / "actor", contents)
            complete = world_size is not None and _is_archive(path / "data.pt")
            found.append(Found(int(match[1]), complete, world_size))
    return sorted(found, key=lambda one: one.step)


def prepare(folder: Path, world_size: int, contents: Sequence[str] = CONTENTS) -> int | None:
    """Make a run's folder fit for verl to resume from, and return the step that it will go on from, None for none.

    The tracker is written before anything is removed: killed at any moment, the next launch finds its way.
    """
    decision = decide(look(folder, contents), world_size)
    folder.mkdir(parents=True, exist_ok=True)
    tracker = folder / TRACKER
    if decision.resume is None:
        tracker.unlink(missing_ok=True)
    elif _read(tracker) != str(decision.resume):
        temporary = folder / f".{TRACKER}"
        temporary.write_text(str(decision.resume), encoding="ascii")
        temporary.replace(tracker)
    for step in decision.remove:
        # Under another name first: a folder that is half removed must not be taken for one that is half written.
        leaving = folder / f".removing-{step}"
        shutil.rmtree(leaving, ignore_errors=True)
        (folder / f"global_step_{step}").rename(leaving)
    for leaving in folder.glob(".removing-*"):
        shutil.rmtree(leaving, ignore_errors=True)
    return decision.resume


def _world_size(actor: Path, contents: Sequence[str]) -> int | None:
    """How many ranks saved a folder; None unless every shard of all of them is there, whole."""
    shards: dict[int, set[tuple[str, int]]] = {}
    for path in actor.glob("*.pt"):
        match = _SHARD.fullmatch(path.name)
        if match and _is_archive(path):
            shards.setdefault(int(match[2]), set()).add((match[1], int(match[3])))
    for world_size, present in shards.items():
        if {(content, rank) for content in contents for rank in range(world_size)} <= present:
            whole = _filled(actor / "fsdp_config.json") or _filled(actor / "huggingface" / "config.json")
            return world_size if whole else None
    return None


def _is_archive(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return zipfile.is_zipfile(path)
    return False


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
