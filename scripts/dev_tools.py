"""Installs the developers' tools from their hashed lock with uv, in a tenth of pip's CPU time."""

from __future__ import annotations

import sys

from workflow.stacks.uv import configured_uv, uv_error


def main(lock: str) -> None:
    """Install into this Python's environment; an error states the remedy."""
    uv = configured_uv()
    command = ["pip", "install", "--require-hashes", "--no-deps", "--python", sys.executable]
    status, output = uv.run([*command, *uv.arguments, "-r", lock])
    if status != 0:
        sys.exit(f"error: {uv_error(output, f'installing {lock}', uv)}")


if __name__ == "__main__":
    main(sys.argv[1])
