"""Trims wheels, and packs them into archives that are cut into parts.

A wheel compresses each file by itself; unpacked and compressed together by xz, vLLM's takes half the uploads.
"""

from __future__ import annotations

import csv
import hashlib
import io
import lzma
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence, Set
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any, cast

from common.errors import UserError
from common.files import file_sha256

_DATE = (2000, 1, 1, 0, 0, 0)


def trim_wheel(wheel: Path, patterns: Sequence[str], out: Path) -> dict[str, dict[str, int]]:
    """Write the wheel to `out` without the files that match, uncompressed; files and bytes left out, by pattern.

    Without compression, because the archive around it is compressed. `UserError` for a pattern that matches nothing:
    the wheel is another one than the pattern was written for.
    """
    with zipfile.ZipFile(wheel) as read, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as write:
        files = [info for info in read.infolist() if not info.is_dir()]
        matched = {pattern: [one for one in files if fnmatch(one.filename, pattern)] for pattern in patterns}
        if unused := [pattern for pattern, found in matched.items() if not found]:
            raise UserError(f"{wheel.name} has no file {unused[0]!r}; correct its patterns in gpu_kit/stages.py")
        left_out = {one.filename for found in matched.values() for one in found}
        for file in files:
            if file.filename in left_out:
                continue
            info = zipfile.ZipInfo(file.filename, _DATE)
            info.external_attr = file.external_attr
            content = read.read(file)
            write.writestr(info, _record(content, left_out) if info.filename.endswith(".dist-info/RECORD") else content)
    return {
        pattern: {"files": len(found), "bytes": sum(one.file_size for one in found)}
        for pattern, found in matched.items()
    }


def _record(content: bytes, left_out: Set[str]) -> bytes:
    """RECORD without the files left out."""
    rows = [row for row in csv.reader(io.StringIO(content.decode())) if row and row[0] not in left_out]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def pack(files: Sequence[Path], out: Path, name: str, part_bytes: int) -> list[dict[str, Any]]:
    """Write the files as `<name>-001.part` …: one tar.xz, cut; equal files give equal parts."""
    for old in out.glob(f"{name}-*.part"):
        old.unlink()
    parts = _Parts(out, name, part_bytes)
    with (
        lzma.open(cast(IO[bytes], parts), "wb", preset=6) as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        for path in sorted(files):
            info = tarfile.TarInfo(path.name)
            info.size, info.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)
    return parts.end()


class _Parts(io.RawIOBase):
    """A file that is written as parts of equal size, the last one shorter."""

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self._folder, self._name, self._size = folder, name, size
        self._buffer, self._written = bytearray(), list[dict[str, Any]]()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._buffer += data
        while len(self._buffer) > self._size:
            self._flush(self._size)
        return len(data)

    def end(self) -> list[dict[str, Any]]:
        """Write the rest; name, bytes and sha256 of each part."""
        self._flush(len(self._buffer))
        return self._written

    def _flush(self, size: int) -> None:
        content, self._buffer = bytes(self._buffer[:size]), self._buffer[size:]
        name = f"{self._name}-{len(self._written) + 1:03}.part"
        (self._folder / name).write_bytes(content)
        self._written.append({"name": name, "bytes": size, "sha256": hashlib.sha256(content).hexdigest()})


def unpack(parts: Sequence[dict[str, Any]], kit: Path, out: Path) -> list[Path]:
    """Check the parts, join them and unpack the wheels into `out`; `UserError` for missing and damaged parts."""
    for part in parts:
        path = kit / part["name"]
        if not path.is_file():
            raise UserError(f"{path} is missing: carry it here")
        if (size := path.stat().st_size) != part["bytes"]:
            raise UserError(f"{path} has {size:,} bytes, not {part['bytes']:,}: it was cut short; carry it again")
        if file_sha256(path) != part["sha256"]:
            raise UserError(f"{path} is damaged (another sha256 than in kit.json): carry it again")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out) as joined:
        for part in parts:
            with (kit / part["name"]).open("rb") as file:
                shutil.copyfileobj(file, joined)
        joined.seek(0)
        with tarfile.open(fileobj=joined, mode="r:xz") as archive:
            archive.extractall(out, filter="data")
    return sorted(out.glob("*.whl"))
