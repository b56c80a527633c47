"""Stands in for micromamba in the tests: py-rattler installs an explicit list of files, as `micromamba create` does.

It understands the one command that the builder uses and nothing else. RBT_WAIT names a file: with it, the program
tells by `<file>.waiting` that it is there, and goes on once the file exists.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rattler import RepoDataRecord, install


def main() -> int:
    parser = argparse.ArgumentParser(prog="micromamba")
    parser.add_argument("command", choices=["create"])
    parser.add_argument("--yes", action="store_true", required=True)
    parser.add_argument("--quiet", action="store_true", required=True)
    parser.add_argument("--prefix", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    given = parser.parse_args()
    if given.prefix.exists():
        print("error    libmamba Non-conda folder exists at prefix")
        return 1
    lines = given.file.read_text().splitlines()
    paths = []
    for line in lines[lines.index("@EXPLICIT") + 1 :]:
        url, _, md5 = line.partition("#")
        path = Path(unquote(urlsplit(url).path))
        if md5 and hashlib.md5(path.read_bytes()).hexdigest() != md5:
            print(f"error    libmamba MD5 of {path.name} differs")
            return 1
        paths.append(path)
    if wait := os.environ.get("RBT_WAIT"):
        Path(f"{wait}.waiting").touch()
        while not Path(wait).exists():
            time.sleep(0.02)
    cache = Path(os.environ["CONDA_PKGS_DIRS"])
    asyncio.run(link(paths, given.prefix, cache))
    return 0


async def link(paths: list[Path], prefix: Path, cache: Path) -> None:
    records = [await RepoDataRecord.from_package_archive(path) for path in paths]
    await install(records, prefix, cache_dir=cache, show_progress=False)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # py-rattler's threads may bring the interpreter down while it ends
