"""Adds the programs of another interpreter's packages to this environment's `bin`.

The environment's own Python runs this file, with `[package names, the other interpreter's bin]` as JSON on stdin. It
writes console scripts anew, so that they import this environment's packages, and links all other programs.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

# Finds Python in its own folder, so that the environment can be renamed.
_SCRIPT = """\
#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
import sys

from {module} import {first}

sys.exit({attribute}())
"""


def main() -> None:
    names, other_bin = json.load(sys.stdin)
    for name in names:
        _add_programs(distribution(name), Path(sys.prefix) / "bin", Path(other_bin))


def _add_programs(package: Distribution, own_bin: Path, other_bin: Path) -> None:
    scripts = {entry.name: entry for entry in package.entry_points if entry.group == "console_scripts"}
    for name, entry in scripts.items():
        if not (own_bin / name).exists():
            first = entry.attr.split(".")[0]
            text = _SCRIPT.format(module=entry.module, first=first, attribute=entry.attr)
            (own_bin / name).write_text(text, encoding="utf-8")
            (own_bin / name).chmod(0o755)
    for file in package.files or []:
        path = Path(os.path.normpath(str(package.locate_file(file))))
        if path.parent == other_bin and path.name not in scripts and not (own_bin / path.name).exists():
            (own_bin / path.name).symlink_to(path)


if __name__ == "__main__":
    main()
