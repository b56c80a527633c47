"""Makes this Python's environment what a hashed lock says, with uv: a package that left the lock is removed."""

from __future__ import annotations

import sys

from workflow.stacks.uv import configured_uv, uv_error


def main(lock: str) -> None:
    """Sync the environment; an error states the remedy."""
    uv = configured_uv()
    command = ["pip", "sync", "--require-hashes", "--python", sys.executable, *uv.arguments, lock]
    status, output = uv.run(command)
    if status != 0:
        sys.exit(f"error: {uv_error(output, f'installing {lock}', uv)}")


if __name__ == "__main__":
    main(sys.argv[1])
