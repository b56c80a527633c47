"""Installs the developers' tools from their hashed lock, with uv: it takes a tenth of the CPU time that pip takes."""

from __future__ import annotations

import sys

from workflow.stacks.uv import configured_uv, uv_error


def main(lock: str) -> None:
    """Into the environment of this Python; the error of a failure says what to do."""
    uv = configured_uv()
    command = ["pip", "install", "--require-hashes", "--no-deps", "--python", sys.executable]
    status, said = uv.run([*command, *uv.arguments, "-r", lock])
    if status != 0:
        sys.exit(f"error: {uv_error(said, f'installing {lock}', uv)}")


if __name__ == "__main__":
    main(sys.argv[1])
