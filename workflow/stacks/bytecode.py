"""Shares compiled Python between environments that have one source file, by hard links as uv makes them.

Each new environment compiles what it imports first: for torch and transformers 12 s of CPU. Bytecode fits a source of
the time and size that it names, and Python writes the source's present path into the code that it loads: one serves
all environments whose source is one file, however its path begins.

The cache is a flat folder. `<inode>.py` is one more link of a source: while it lies there, no other file gets that
inode. `<inode>.cpython-311.pyc` is one more link of its bytecode, which Python replaces and never writes in place.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER = "rolloutbench-bytecode"


def cache_beside(uv_cache: Path | None, env: Path) -> Path | None:
    """The folder of bytecode beside uv's cache, made if it is not there.

    None where it is on another disk than the environment, which no hard link reaches, or where others can write to it:
    code is run from there.
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
    """Gives the environment the bytecode that is known for its sources; the number of files."""
    if cache is None or not (known := _names(cache)):
        return 0
    given = 0
    for folder, tag, sources in _modules(env):
        compiled = folder / "__pycache__"
        for module, inode in sources.items():
            if f"{inode}.{tag}.pyc" not in known:
                continue
            # What is there already stays, and what another builder dropped meanwhile is compiled.
            with contextlib.suppress(OSError):
                # On a layered disk a folder may list other inodes than its files have.
                if (cache / f"{inode}.py").samefile(folder / f"{module}.py"):
                    compiled.mkdir(exist_ok=True)
                    os.link(cache / f"{inode}.{tag}.pyc", compiled / f"{module}.{tag}.pyc")
                    given += 1
    return given


def keep(cache: Path | None, env: Path) -> None:
    """Adds the environment's bytecode, and drops that of sources which nobody else has any more.

    The environment has to be on the disk already: no crash then leaves a link of half a file.
    """
    if cache is None:
        return
    with contextlib.suppress(OSError):  # a full disk, or one without hard links: the next environment compiles
        _drop_unused(cache)
        known = _names(cache)
        for folder, tag, sources in _modules(env):
            for module in sources.keys() & _compiled(folder / "__pycache__", tag):
                source = folder / f"{module}.py"
                found = source.stat()
                # A source of one link was copied or made here: no other environment has this file.
                if found.st_nlink > 1 and f"{found.st_ino}.{tag}.pyc" not in known:
                    _link(source, cache / f"{found.st_ino}.py")
                    _link(folder / "__pycache__" / f"{module}.{tag}.pyc", cache / f"{found.st_ino}.{tag}.pyc")


def _modules(env: Path) -> Iterator[tuple[Path, str, dict[str, int]]]:
    """Each folder of packages, its Python's tag of bytecode, and its sources' inodes by module."""
    for packages in env.glob("lib/python*/site-packages"):
        tag = packages.parent.name.replace("python", "cpython-").replace(".", "")
        for folder, folders, _ in os.walk(packages):
            folders[:] = [name for name in folders if name != "__pycache__"]
            with os.scandir(folder) as entries:
                sources = {entry.name[:-3]: entry.inode() for entry in entries if entry.name.endswith(".py")}
            yield Path(folder), tag, sources


def _compiled(folder: Path, tag: str) -> set[str]:
    """The modules whose bytecode lies there."""
    return {name.removesuffix(f".{tag}.pyc") for name in _names(folder) if name.endswith(f".{tag}.pyc")}


def _drop_unused(cache: Path) -> None:
    """Removes what belongs to sources of one link, and what lies here by the name of another file: a copied cache."""
    names = _names(cache)
    used = set()
    for inode in {name.partition(".")[0] for name in names}:
        with contextlib.suppress(FileNotFoundError):
            found = (cache / f"{inode}.py").stat()
            if found.st_nlink > 1 and str(found.st_ino) == inode:
                used.add(inode)
    for name in sorted(names):  # bytecode first: its source is what says whose it is
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
