"""Runs pytest in forks of a process that has the libraries imported: a request is a line of JSON, so is its reply.

Most of a small test run's time is imports. Nothing of the tree itself is imported here: each fork has another fault.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from typing import Any

LIBRARIES = (
    *("pytest", "hypothesis", "xdist.plugin", "numpy", "pandas", "pyarrow.parquet", "altair", "yaml", "pydantic"),
    *("jinja2", "jsonschema", "coverage", "snakemake.exceptions", "hypothesis.strategies", "vl_convert", "psutil"),
    *("arch.bootstrap", "scipy.special", "submitit"),
)
_POLL_S = 0.05


def main() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    pid = os.fork()
    if pid == 0:
        _test(request)
    deadline = time.monotonic() + request["timeout_s"]
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return {"status": os.waitstatus_to_exitcode(status)}
        time.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return {"status": None}


def _test(request: dict[str, Any]) -> None:
    """Runs the tests in a session of its own, so that a timeout ends what they started, too."""
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    empty = os.open(os.devnull, os.O_RDONLY)
    for here, there in ((empty, 0), (output, 1), (output, 2)):
        os.dup2(here, there)
    status = 70
    try:
        import pytest

        status = int(pytest.main(request["arguments"]))
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
