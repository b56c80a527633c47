"""Lets one training at a time use this machine, or each of its GPUs, outside Slurm: others wait."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import user_name, write_text
from workflow.job.place import NO_GPU, nvidia_gpus
from workflow.job.stopping import StopRequests
from workflow.job.training import job_gpus
from workflow.runs.locks import holder_note, try_lock
from workflow.runs.paths import RunPaths

FOLDER_VARIABLE = "ROLLOUTBENCH_LOCKS_DIR"
"""Another folder of locks, for trainings that may share this machine, such as tests."""
MACHINE = "this machine"
_POLL_S = 0.5
_UUID = re.compile(r"\(UUID: ([^)]+)\)")


@contextmanager
def machine_to_itself(
    request: Mapping[str, Any], run: RunPaths, stops: StopRequests
) -> Iterator[dict[str, Any] | None]:
    """The locks of what a training uses, until the block ends; yields the order's end if it cannot have them.

    The kernel releases them however this process ends. Slurm itself gives each job its own GPUs.
    """
    with ExitStack() as locks:
        yield None if request["cluster"] == "slurm" else _stop_or_locks(request, run, stops, locks)


def _stop_or_locks(
    request: Mapping[str, Any], run: RunPaths, stops: StopRequests, locks: ExitStack
) -> dict[str, Any] | None:
    try:
        return _wait(lock_names(request, os.environ), locks_folder(os.environ), run, stops.wanted, locks)
    except (OSError, UserError) as error:
        return {"kind": "not started", "detail": str(error)}


def locks_folder(environ: Mapping[str, str]) -> Path:
    """This user's folder of locks on this machine; not in TMPDIR, which may differ between two trainings."""
    folder = Path(environ.get(FOLDER_VARIABLE) or f"/tmp/rolloutbench-locks-{os.getuid()}")
    with suppress(FileExistsError):  # a file or a link to nowhere: refused below
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserError(
            f"{folder} must be a folder of yours that nobody else may enter (mode 700): it has the locks that keep "
            f"trainings from sharing this machine. It is {user_name(found.st_uid)}'s: remove it if it is yours, or "
            f"name another one by {FOLDER_VARIABLE}"
        )
    return folder


def lock_names(request: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """What a training uses: its GPUs by their UUIDs, without any the machine."""
    if (gpus := job_gpus(request, environ)) == []:
        return [MACHINE]
    uuids = [_uuid(line) for line in nvidia_gpus()[0]]
    wanted = uuids if gpus is None else [gpu.strip() for gpu in gpus]
    return sorted({_named(one, uuids) for one in wanted if one not in NO_GPU}) or [MACHINE]


def _uuid(line: str) -> str:
    found = _UUID.search(line)
    return found[1] if found else line.partition(" (")[0].replace("/", "-")


def _named(gpu: str, uuids: Sequence[str]) -> str:
    """A GPU of CUDA_VISIBLE_DEVICES, an index or the start of a UUID, by its UUID."""
    if gpu.isdigit():
        return uuids[int(gpu)] if int(gpu) < len(uuids) else f"GPU {gpu}"
    return next((uuid for uuid in uuids if uuid.startswith(gpu)), gpu.replace("/", "-"))


def _wait(
    names: Sequence[str],
    folder: Path,
    run: RunPaths,
    stopped: Callable[[], dict[str, Any] | None],
    locks: ExitStack,
) -> dict[str, Any] | None:
    """Return when the locks are taken, or why the job is to stop; `run.waits` has for whom it waits."""
    note = f"process {os.getpid()} trains {run.folder}"
    try:
        while (held := _take(names, folder, note, locks)) is not None:
            if (stop := stopped()) is not None:
                return stop
            if (holder := holder_note(held)) and not run.waits.exists():
                write_text(run.waits, f"waits for {held.stem}: {holder}")
            time.sleep(_POLL_S)
        return None
    finally:
        run.waits.unlink(missing_ok=True)


def _take(names: Sequence[str], folder: Path, note: str, locks: ExitStack) -> Path | None:
    """Take all of these locks, or none of them and return one that another process holds."""
    with ExitStack() as taken:
        for name in names:
            file = folder / f"{name}.lock"
            if (lock := try_lock(file, note=note)) is None:
                return file
            taken.enter_context(lock)
        locks.enter_context(taken.pop_all())
    return None
