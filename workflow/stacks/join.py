"""How do the parts of a wheelhouse become one folder again? Python 3.8 and its standard library are enough.

    python3 part-01/join.py part-* --out wheels

Every file is compared with the manifest's sha256; files that are there already and right are left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
PLAIN_FILES = ("requirements.txt", "requirements-source.txt", MANIFEST)
_BLOCK = 1 << 20


class JoinError(Exception):
    """What is wrong with the parts or the folder, for the person who joins them."""


def join(parts: list[Path], out: Path) -> dict[str, Any]:
    """Puts every file of the manifest into `out`; the manifest. JoinError when a part is missing or damaged.

    `parts` are folders as `wheelhouse` wrote them, in any order and from any place; their own names decide.
    """
    found = {part.resolve().name: part for part in parts}
    for part in parts:
        if not part.is_dir():
            raise JoinError(f"{part} is not a folder; give the folders part-01, part-02, ...")
    first = next((part for part in parts if (part / MANIFEST).is_file()), None)
    if first is None:
        raise JoinError(f"none of {', '.join(map(str, parts))} holds {MANIFEST}; it lies in part-01")
    try:
        manifest: dict[str, Any] = json.loads((first / MANIFEST).read_text(encoding="utf-8"))
        wanted = {piece["part"] for file in manifest["files"] for piece in file["pieces"]}
        for file in manifest["files"]:
            _plain(file["name"])
            for piece in file["pieces"]:
                _plain(piece["name"])
    except (ValueError, KeyError, TypeError) as error:
        raise JoinError(f"{first / MANIFEST} is damaged ({error}); bring it over again") from None
    if missing := sorted(wanted - set(found)):
        raise JoinError(f"{', '.join(missing)} of {len(wanted)} parts are missing; give them all")

    out.mkdir(parents=True, exist_ok=True)
    todo = [file for file in manifest["files"] if not _is(out / file["name"], file)]
    needed, free = sum(file["size"] for file in todo), shutil.disk_usage(out).free
    if needed > free:
        raise JoinError(f"{out} has {free / 1e6:.0f} MB free and {needed / 1e6:.0f} MB are to be put there")
    for file in todo:
        _join_one(file, found, out)
    for name in PLAIN_FILES:
        if (first / name).is_file():
            shutil.copyfile(first / name, out / name)
    return manifest


def _join_one(file: dict[str, Any], parts: dict[str, Path], out: Path) -> None:
    temporary = out / f".{file['name']}.joining"
    whole = hashlib.sha256()
    try:
        with temporary.open("wb") as target:
            for piece in file["pieces"]:
                path, digest, size = parts[piece["part"]] / piece["name"], hashlib.sha256(), 0
                if not path.is_file():
                    raise JoinError(f"{path} is missing; bring {piece['part']} over again")
                with path.open("rb") as source:
                    while block := source.read(_BLOCK):
                        digest.update(block)
                        whole.update(block)
                        size += len(block)
                        target.write(block)
                if digest.hexdigest() != piece["sha256"]:
                    raise JoinError(
                        f"{path} is not what was packed: {size} bytes of {piece['size']}, and its sha256 differs; "
                        f"bring {piece['part']} over again"
                    )
        if whole.hexdigest() != file["sha256"]:
            raise JoinError(f"{file['name']} is not what was packed: its sha256 differs; collect it anew")
        temporary.replace(out / file["name"])
    finally:
        if temporary.exists():
            temporary.unlink()


def _is(path: Path, file: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == file["size"] and sha256_of(path) == file["sha256"]


def sha256_of(path: Path) -> str:
    """sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _plain(name: str) -> None:
    # The manifest came from elsewhere: no name in it may lead out of the folder.
    if name in {"", ".", ".."} or "/" in name or os.sep in name:
        raise ValueError(f"{name!r} is not a file's name")


def what_next(manifest: dict[str, Any], out: Path) -> str:
    """What the person does with the joined folder."""
    lines = [f"{manifest['stack']}: {len(manifest['files'])} files, all as their sha256 says, in {out}"]
    if manifest["left_out"]:
        lines += [
            f"It lacks {len(manifest['left_out'])} packages that the target has; install into an environment "
            "that sees those (`python3 -m venv --system-site-packages ENV`):",
            f"  ENV/bin/python -m pip install --no-index --find-links {out} --no-deps --require-hashes "
            f"-r {out / 'requirements.txt'}",
        ]
        if (out / "requirements-source.txt").is_file():
            lines += [f"and then, from source: the same with --no-build-isolation and {out}/requirements-source.txt"]
    else:
        lines += [
            "Build the stack from it, in the repository:",
            f"  PIP_NO_INDEX=1 PIP_FIND_LINKS={out.resolve()} python -m workflow.stacks build {manifest['stack']}",
        ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """0 when all is there and right, 1 with one message otherwise."""
    parser = argparse.ArgumentParser(description="Joins the parts of a wheelhouse and checks every file.")
    parser.add_argument("parts", nargs="+", type=Path, help="the folders part-01, part-02, ...")
    parser.add_argument("--out", type=Path, required=True, help="where the wheels are put")
    given = parser.parse_args(arguments)
    try:
        print(what_next(join(given.parts, given.out), given.out))
    except (JoinError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
