"""Compares installed files with the hashes in their packages' RECORD: which were edited, cut short or removed?

Standard library alone. As a program it prints `package: file` for each file that has changed since a time (seconds
since 1970), given folders of packages: `python -I envs/_files.py 1764400000 .../site-packages`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_THREADS = 8


def edited_files(folder: Path, since: float = 0.0) -> dict[str, list[str]]:
    """By package: its files in that folder that are not as RECORD says.

    Files that did not change after `since` are not read: any write, also one that sets a file's date back, sets its
    change time, which nobody can choose.
    """
    listed = list(_listed(folder))
    with ThreadPoolExecutor(_THREADS) as pool:
        same = pool.map(lambda one: _is_same(folder / one[1], one[2], since), listed)
    found: dict[str, list[str]] = {}
    for (package, file, _), is_same in zip(listed, same, strict=True):
        if not is_same:
            found.setdefault(package, []).append(file)
    return found


def _listed(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Package, file and sha256 of each line of a RECORD that has a hash; bytecode has none."""
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        package = record.parent.name.partition("-")[0].replace("_", "-").lower()
        with record.open(encoding="utf-8", newline="") as lines:
            for line in csv.reader(lines):
                if len(line) == 3 and line[1].startswith("sha256="):
                    yield package, line[0], line[1].removeprefix("sha256=")


def _is_same(file: Path, sha256: str, since: float) -> bool:
    try:
        if file.stat().st_ctime < since:
            return True
        digest = hashlib.sha256()
        with file.open("rb") as content:
            while block := content.read(2**20):
                digest.update(block)
    except OSError:
        return False
    return base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=") == sha256


if __name__ == "__main__":
    for folder in sys.argv[2:]:
        for package, files in edited_files(Path(folder), float(sys.argv[1])).items():
            print(*(f"{package}: {file}" for file in files), sep="\n")
