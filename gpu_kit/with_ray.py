"""Runs a driver beside a Ray of its own on this machine: `-m gpu_kit.with_ray MODULE ATTEMPT`.

A job of the cluster starts Ray by `workflow/job/ray.py`, which needs the controller's packages. Here Ray ends with this
process. Its ports are open to the network, so it asks for a token.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Start Ray, run the driver with its address, pass a stop on to it; its exit code."""
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:  # Ray's sockets need a short path
        token = Path(folder, "token")
        token.write_text(secrets.token_hex(32), encoding="utf-8")
        token.chmod(0o600)
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        import ray  # reads the variables

        started = ray.init(include_dashboard=False, log_to_driver=False, _temp_dir=f"{folder}/r")
        driver = subprocess.Popen(
            [sys.executable, "-m", *arguments], env={**os.environ, "RAY_ADDRESS": started.address_info["gcs_address"]}
        )
        # After ray.init, which installs a handler of its own.
        signal.signal(signal.SIGTERM, lambda number, frame: driver.send_signal(number))
        code = driver.wait()
        ray.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
