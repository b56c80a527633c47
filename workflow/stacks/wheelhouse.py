"""How does a stack travel to a machine without a network: which files, how large, in which parts?"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from common.errors import UserError
from workflow.stacks import fetch
from workflow.stacks import join as joining
from workflow.stacks.definition import ENVS, Stack, load_stack, lock_id
from workflow.stacks.distfiles import DistFile, Target, chosen, located
from workflow.stacks.interpreter import is_pinned
from workflow.stacks.join import MANIFEST, sha256_of
from workflow.stacks.lockfile import Pin, check_lock
from workflow.stacks.sources import redacted
from workflow.stacks.uv import configured_uv

_OWN = {"wheels", "parts", *joining.PLAIN_FILES}
_MB = 1_000_000
_HAVE = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*==\s*(?P<version>[^\s;#]+)")
_NAMED_ONLY = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*@\s")


@dataclass(frozen=True)
class Selection:
    """What of a lock goes into the wheelhouse, and what does not."""

    stack: Stack
    lock_id: str
    target: Target
    files: list[DistFile]
    left_out: list[dict[str, str]]
    """Packages that the target has: package, version (the lock's), there (the target's)."""
    different: list[dict[str, str]]
    """Packages that the target has in another version than the lock's; these are collected."""


@dataclass(frozen=True)
class Piece:
    """A whole file or a cut of it, bytes `start` to `start + size`, and the number of its part (from 1)."""

    file: str
    start: int
    size: int
    part: int


def select(name: str, target: Target, have: str | None = None, envs: Path = ENVS) -> Selection:
    """The files of the stack's lock for that target, located but not downloaded.

    `have`: a file as `pip freeze` writes it, or `name==version` with commas between: what the target has already.
    """
    stack = load_stack(name, envs)
    pins = check_lock(name, envs)
    left_out, different, wanted = _compared(pins, parse_have(have) if have else {})
    uv = configured_uv(main_index_first=True)
    _say(stack, f"looking for {len(wanted)} of {len(pins)} packages in {uv.sources}")
    files = located(wanted, uv, target.python, stack.torch_backend) if wanted else {}
    return Selection(
        stack, lock_id(name, envs), target, chosen(wanted, files, target, stack.source_builds), left_out, different
    )


def listed(selection: Selection) -> str:
    """The files and their sizes in MB as lines of text; servers are asked for sizes that the index does not tell."""
    silent = [file for file in selection.files if file.size is None]
    asked = dict(zip([file.name for file in silent], fetch.sizes([file.url for file in silent]), strict=True))
    rows = [(file.size if file.size is not None else asked[file.name], file.name) for file in selection.files]
    known = [size for size, _ in rows if size is not None]
    lines = [f"{'?' if size is None else f'{size / _MB:.2f}':>9} MB  {name}" for size, name in rows]
    unknown = f" and {len(rows) - len(known)} of unknown size" if len(known) < len(rows) else ""
    lines += [f"{sum(known) / _MB:9.2f} MB  in {len(known)} files{unknown}, {_for(selection.target)}"]
    return "\n".join([*lines, *_remarks(selection)])


def collect(selection: Selection, out: Path, part_mb: float | None = None) -> Path:
    """`out`: every file in `out/wheels`, checked, a manifest, and `out/parts` of at most `part_mb` MB (10^6 bytes).

    A file that is there with the right hash is not fetched again, and one that came in half is gone on with. Whole
    files in parts are hard links to those in `wheels` where the file system has them.
    """
    stack = selection.stack
    wheels = out / "wheels"
    if out.exists() and (strange := sorted(path.name for path in out.iterdir() if path.name not in _OWN)):
        # Old parts are removed below: only in a folder that is a wheelhouse's own.
        raise UserError(f"{out} holds {strange[0]}, which is no part of a wheelhouse; give a new folder with --out")
    try:
        wheels.mkdir(parents=True, exist_ok=True)
        digests = _fetch_missing(selection, wheels)
        manifest = _manifest(selection, wheels, digests)
        _write_plain_files(selection, out, digests, manifest)
        if (out / "parts").exists():
            shutil.rmtree(out / "parts")
        if part_mb is not None:
            manifest = _write_parts(out, manifest, round(part_mb * _MB))
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise UserError(f"{stack.name}: {redacted(str(error))}") from error
        raise UserError(
            f"{stack.name}: the disk of {out.resolve()} is full (or your quota is); what is there stays: make room "
            "and run again, or collect elsewhere with --out"
        ) from None
    total = sum(file["size"] for file in manifest["files"])
    parts = f" in {len(manifest['parts'])} parts" if manifest["parts"] else ""
    _say(stack, f"{len(manifest['files'])} files, {total / _MB:.1f} MB{parts}, {_for(selection.target)}: {out}")
    for remark in _remarks(selection):
        _say(stack, remark)
    return out


def parse_have(text: str) -> dict[str, str | None]:
    """Version by normalized name, None where the target does not tell one (`name @ file://…` of pip freeze)."""
    path = _file(text)
    if path is None and "==" not in text:
        raise UserError(f"--have: {text!r} is neither a file nor a list such as torch==2.11.0,numpy==2.2.6")
    items = path.read_text(encoding="utf-8").splitlines() if path else re.split(r"[,\s]+", text.strip())
    have: dict[str, str | None] = {}
    for number, item in enumerate((item.strip() for item in items), start=1):
        if not item or item.startswith(("#", "-")):
            continue  # pip freeze writes editable packages as `-e …`
        if given := _HAVE.match(item):
            have[canonicalize_name(given["name"])] = given["version"]
        elif given := _NAMED_ONLY.match(item):
            have[canonicalize_name(given["name"])] = None
        else:
            where = f"{path}:{number}" if path else "--have"
            raise UserError(f"{where}: {item!r} is not understood; wanted name==version, as `pip freeze` prints it")
    return have


def _file(text: str) -> Path | None:
    try:
        return Path(text) if Path(text).is_file() else None
    except OSError:  # a list may be too long for a file's name
        return None


def packed(sizes: dict[str, int], limit: int, reserved: int) -> list[Piece]:
    """Each file whole where a part of `limit` bytes has room for it, in pieces where it is larger than a part.

    `reserved` bytes of part 1 stay free. The largest go first, so that few parts are needed; equal input gives equal
    parts.
    """
    room = [limit - reserved]
    pieces: list[Piece] = []
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        start = 0
        while size - start > limit:
            room.append(0)
            pieces.append(Piece(name, start, limit, len(room)))
            start += limit
        rest = size - start
        part = next((number for number, free in enumerate(room) if free >= rest), None)
        if part is None:
            room.append(limit)
            part = len(room) - 1
        room[part] -= rest
        pieces.append(Piece(name, start, rest, part + 1))
    return pieces


def default_platform() -> str:
    """manylinux_2_28 of this machine's processor: what most clusters of today run."""
    return f"manylinux_2_28_{os.uname().machine}"


def _compared(
    pins: list[Pin], have: dict[str, str | None]
) -> tuple[list[dict[str, str]], list[dict[str, str]], list[Pin]]:
    left_out: list[dict[str, str]] = []
    different: list[dict[str, str]] = []
    wanted: list[Pin] = []
    for pin in pins:
        there = have.get(pin.name, "")
        row = {"package": pin.name, "version": pin.version, "there": there or "in a version that is not told"}
        if there and is_pinned(pin.version, there):
            left_out.append(row)
            continue
        wanted.append(pin)
        if there != "":
            different.append(row)
    return left_out, different, wanted


def _fetch_missing(selection: Selection, wheels: Path) -> dict[str, str]:
    """sha256 of every file by its name, once all are in the folder."""
    digests: dict[str, str] = {}
    missing: list[DistFile] = []
    for file in selection.files:
        path = wheels / file.name
        if path.is_file() and (digest := sha256_of(path)) in _allowed(file):
            digests[file.name] = digest
        else:
            missing.append(file)
    needed = sum(file.size or 0 for file in missing)
    if needed > (free := shutil.disk_usage(wheels).free):
        raise UserError(
            f"{selection.stack.name}: {needed / _MB:.0f} MB are to be fetched, and {wheels.resolve()} has "
            f"{free / _MB:.0f} MB free; make room, or collect elsewhere with --out"
        )
    # The hash in the name: half a file of another build of the same version is not gone on with.
    halves = [wheels / f".{file.name}.{(file.sha256 or 'unknown')[:12]}.part" for file in missing]
    addresses = [(file.url, half) for file, half in zip(missing, halves, strict=True)]
    if not addresses:
        return digests
    for count, number in enumerate(fetch.fetched(addresses), start=1):
        file, half = missing[number], halves[number]
        digest = sha256_of(half)
        if digest not in _allowed(file):
            half.unlink()
            raise UserError(
                f"{file.name} from {redacted(file.url)} is not the file that the lock names "
                f"({selection.stack.lock}:{file.pin.line}): its sha256 is {digest}. Either the source serves another "
                "build of that version, or the file was changed; it was removed."
            )
        half.replace(wheels / file.name)
        digests[file.name] = digest
        size = (wheels / file.name).stat().st_size
        _say(selection.stack, f"{count}/{len(missing)} {file.name} {size / _MB:.1f} MB")
    return digests


def _allowed(file: DistFile) -> set[str]:
    return {file.sha256} if file.sha256 else set(file.pin.hashes)


def _manifest(selection: Selection, wheels: Path, digests: dict[str, str]) -> dict[str, Any]:
    return {
        "stack": selection.stack.name,
        "lock_id": selection.lock_id,
        "python": selection.target.python,
        "platform": selection.target.platform,
        "files": [
            {
                "name": file.name,
                "package": file.pin.name,
                "version": file.pin.version,
                "kind": "wheel" if file.is_wheel else "sdist",
                "size": (wheels / file.name).stat().st_size,
                "sha256": digests[file.name],
                "pieces": [],
            }
            for file in selection.files
        ],
        "left_out": selection.left_out,
        "different": selection.different,
        "parts": [],
    }


def _write_plain_files(selection: Selection, out: Path, digests: dict[str, str], manifest: dict[str, Any]) -> None:
    """The manifest, and what pip on the target is given where `build` cannot be used; wheels and sdists apart."""
    for name, wheels in (("requirements.txt", True), ("requirements-source.txt", False)):
        lines = [
            f"{file.pin.name}=={file.pin.version} --hash=sha256:{digests[file.name]}\n"
            for file in selection.files
            if file.is_wheel == wheels
        ]
        if lines or wheels:
            (out / name).write_text("".join(lines), encoding="utf-8")
        else:
            (out / name).unlink(missing_ok=True)
    (out / MANIFEST).write_text(_text(manifest), encoding="utf-8")


def _write_parts(out: Path, manifest: dict[str, Any], limit: int) -> dict[str, Any]:
    sizes = {file["name"]: file["size"] for file in manifest["files"]}
    script = Path(joining.__file__).read_text(encoding="utf-8")
    beside = [path for name in joining.PLAIN_FILES if name != MANIFEST and (path := out / name).is_file()]
    reserved = len(script.encode()) + sum(path.stat().st_size for path in beside)
    # The manifest names the pieces and so grows with them: its size with one part too few, and room to spare.
    first = packed(sizes, limit, min(reserved, limit)) if limit > 0 else []
    reserved += len(_text(_with_pieces(manifest, first, out / "wheels", {}))) * 5 // 4 + 70 * len(first)
    if limit <= reserved:
        raise UserError(
            f"parts of {limit / _MB:g} MB are too small: the manifest and the joining script need "
            f"{reserved / _MB:.3f} MB of the first one"
        )
    pieces = packed(sizes, limit, reserved)
    width = max(2, len(str(max(piece.part for piece in pieces))) if pieces else 2)
    names = {piece.part: f"part-{piece.part:0{width}d}" for piece in pieces} | {1: f"part-{1:0{width}d}"}
    cut = sum(piece.size for piece in pieces if piece.size < sizes[piece.file])
    if cut > (free := shutil.disk_usage(out).free):
        raise UserError(f"{out.resolve()} has {free / _MB:.0f} MB free, and the parts need {cut / _MB:.0f} MB more")
    for name in names.values():
        (out / "parts" / name).mkdir(parents=True)
    manifest = _with_pieces(manifest, pieces, out / "wheels", names, out / "parts")
    first_part = out / "parts" / names[1]
    for path in beside:
        shutil.copyfile(path, first_part / path.name)
    (first_part / "join.py").write_text(script, encoding="utf-8")
    for path in (out / MANIFEST, first_part / MANIFEST):
        path.write_text(_text(manifest), encoding="utf-8")
    return manifest


def _with_pieces(
    manifest: dict[str, Any], pieces: list[Piece], wheels: Path, names: dict[int, str], write_to: Path | None = None
) -> dict[str, Any]:
    """The manifest with its pieces and parts; with `write_to` the pieces are written there and have their sha256."""
    files = []
    for file in manifest["files"]:
        own = [piece for piece in pieces if piece.file == file["name"]]
        rows = []
        for number, piece in enumerate(own, start=1):
            name = file["name"] if len(own) == 1 else f"{file['name']}.piece-{number:03d}-of-{len(own):03d}"
            part = names.get(piece.part, "part-00")
            digest = file["sha256"]
            if write_to is not None:
                path = write_to / part / name
                if len(own) == 1:
                    _link(wheels / file["name"], path)
                else:
                    _cut(wheels / file["name"], piece, path)
                    digest = sha256_of(path)
            rows.append({"part": part, "name": name, "size": piece.size, "sha256": digest})
        files.append({**file, "pieces": rows})
    parts = [
        {"name": name, "size": sum(piece.size for piece in pieces if piece.part == number)}
        for number, name in sorted(names.items())
    ]
    return {**manifest, "files": files, "parts": parts}


def _cut(source: Path, piece: Piece, target: Path) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        reader.seek(piece.start)
        left = piece.size
        while left and (block := reader.read(min(left, 1 << 20))):
            writer.write(block)
            left -= len(block)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _remarks(selection: Selection) -> list[str]:
    remarks = []
    if selection.left_out:
        names = ", ".join(f"{row['package']} {row['there']}" for row in selection.left_out)
        remarks.append(f"left out, since the target has them: {names}")
    for row in selection.different:
        remarks.append(
            f"{row['package']}: the target has {row['there']}, the lock wants {row['version']}, which is collected"
        )
    if sdists := [file.name for file in selection.files if not file.is_wheel]:
        remarks.append(f"built from source on the target (compiler, CUDA toolkit): {', '.join(sdists)}")
    if selection.target.python != selection.stack.python:
        remarks.append(
            f"the lock was resolved for Python {selection.stack.python}: `build` wants that one, and packages that "
            f"only Python {selection.target.python} needs are not in it"
        )
    return remarks


def _for(target: Target) -> str:
    return f"for Python {target.python} on {target.platform}"


def _text(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=1) + "\n"


def _say(stack: Stack, text: str) -> None:
    print(f"{stack.name}: {text}", file=sys.stderr, flush=True)
