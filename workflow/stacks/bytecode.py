"""Shares bytecode between environments whose source files are hard links of one file, as uv makes them.

Without it every new environment compiles its imports: 12 s of CPU for torch and transformers. Python accepts bytecode
by the source's time and size and updates the path when it loads it, so one file serves all these environments.

The cache is a flat folder. `<inode>.py` is another hard link of a source and reserves that inode.
`<inode>.cpython-311.pyc` is a hard link of its bytecode, which Python replaces and never changes in place.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER = "rolloutbench-bytecode"


def cache_beside(uv_cache: Path | None, env: Path) -> Path | None:
    """Creates and returns the bytecode folder beside uv's cache.

    None if it is on another file system than the environment, or if others can write to it: Python runs this code.
    """
    try:
        if uv_cache is None or uv_cache.parent.stat().st_dev != env.stat().st_dev:
            return None
        folder = uv_cache.parent / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if own else None


def reuse(cache: Path | None, env: Path) -> int:
    """Links cached bytecode into the environment; returns the number of files."""
    if cache is None or not (known := _names(cache)):
        return 0
    linked = 0
    for folder, tag, sources in _modules(env):
        compiled = folder / "__pycache__"
        for module, inode in sources.items():
            if f"{inode}.{tag}.pyc" not in known:
                continue
            # Existing bytecode stays; Python compiles what another builder has just removed from the cache.
            with contextlib.suppress(OSError):
                # On overlay file systems a folder may list other inodes than its files have.
                if (cache / f"{inode}.py").samefile(folder / f"{module}.py"):
                    compiled.mkdir(exist_ok=True)
                    os.link(cache / f"{inode}.{tag}.pyc", compiled / f"{module}.{tag}.pyc")
                    linked += 1
    return linked


def keep(cache: Path | None, env: Path) -> None:
    """Adds the environment's bytecode to the cache, and removes bytecode of sources that no environment has.

    The environment must be on the disk already, so that a crash leaves no link to a partial file.
    """
    if cache is None:
        return
    with contextlib.suppress(OSError):  # full disk or no hard links: the next environment compiles again
        _drop_unused(cache)
        known = _names(cache)
        for folder, tag, sources in _modules(env):
            suffix = f".{tag}.pyc"
            compiled = {name.removesuffix(suffix) for name in _names(folder / "__pycache__") if name.endswith(suffix)}
            for module in sources.keys() & compiled:
                source = folder / f"{module}.py"
                found = source.stat()
                # A single link means that no other environment has this file.
                if found.st_nlink > 1 and f"{found.st_ino}{suffix}" not in known:
                    _link(source, cache / f"{found.st_ino}.py")
                    _link(folder / "__pycache__" / f"{module}{suffix}", cache / f"{found.st_ino}{suffix}")


def _modules(env: Path) -> Iterator[tuple[Path, str, dict[str, int]]]:
    """Each package folder with its bytecode tag and the inodes of its sources by module."""
    for packages in env.glob("lib/python*/site-packages"):
        tag = packages.parent.name.replace("python", "cpython-").replace(".", "")
        for folder, folders, _ in os.walk(packages):
            folders[:] = [name for name in folders if name != "__pycache__"]
            with os.scandir(folder) as entries:
                sources = {entry.name[:-3]: entry.inode() for entry in entries if entry.name.endswith(".py")}
            yield Path(folder), tag, sources


def _drop_unused(cache: Path) -> None:
    """Removes entries whose source has a single link or, in a copied cache, another inode."""
    names = _names(cache)
    used = set()
    for inode in {name.partition(".")[0] for name in names}:
        with contextlib.suppress(FileNotFoundError):
            found = (cache / f"{inode}.py").stat()
            if found.st_nlink > 1 and str(found.st_ino) == inode:
                used.add(inode)
    for name in sorted(names):  # removes bytecode before the source that identifies it
        if name.partition(".")[0] not in used:
            (cache / name).unlink(missing_ok=True)


def _names(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()}
    except OSError:
        return set()


def _link(path: Path, link: Path) -> None:
    with contextlib.suppress(FileExistsError):
        os.link(path, link)
