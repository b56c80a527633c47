"""Puts the programs of packages that lie in another interpreter into this environment's `bin`.

Run as a file by the environment's own Python, with `[package names, the other interpreter's bin]` as JSON on stdin. A
console script becomes one of this environment, so that it sees the packages that are laid over the interpreter;
any other program is linked. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import Distribution, EntryPoint, distribution
from pathlib import Path

# Finds its Python beside itself, so that the environment can be renamed.
_SCRIPT = """\
#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
import sys

from {module} import {first}

sys.exit({attribute}())
"""


def main() -> None:
    names, there = json.load(sys.stdin)
    for name in names:
        _write(distribution(name), Path(sys.prefix) / "bin", Path(there))


def _write(package: Distribution, here: Path, there: Path) -> None:
    scripts = {entry.name: entry for entry in package.entry_points if entry.group == "console_scripts"}
    for name, entry in scripts.items():
        _add(here / name, entry)
    for file in package.files or []:
        path = Path(os.path.normpath(str(package.locate_file(file))))
        if path.parent == there and path.name not in scripts and not (here / path.name).exists():
            (here / path.name).symlink_to(path)


def _add(path: Path, entry: EntryPoint) -> None:
    if path.exists():
        return
    first = entry.attr.split(".")[0]
    path.write_text(_SCRIPT.format(module=entry.module, first=first, attribute=entry.attr), encoding="utf-8")
    path.chmod(0o755)


if __name__ == "__main__":
    main()
