"""A program that is a fork ends, prints and takes signals as if Python had started it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.hardware import free_port

from . import patience
from .warm import ROOT, WarmPython

PROGRAMS = {
    "prints": "import sys; print(sys.argv[1:]); print('beside', file=sys.stderr)",
    "says why": "import sys; sys.exit('no such thing')",
    "fails": "raise ValueError('wrong')",
    "exit code": "import sys; sys.exit(75)",
    "dies": "import os, signal; print('said', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "at its end": "import atexit; atexit.register(print, 'last')",
    "signals": "import signal; print([signal.getsignal(one) for one in (2, 10, 12, 15)])",
    "environment": "import os; print(os.environ['OWN'], os.environ.get('RANK'))",
}


@pytest.fixture(scope="module")
def warm_python() -> Iterator[WarmPython]:
    """The controller's own Python."""
    python = WarmPython(Path(sys.executable), {**os.environ, "OWN": "not this"}, {})
    yield python
    python.close()


@pytest.mark.parametrize("ranks", [0, 1], ids=["itself", "a rank"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_ends_and_prints_as_python_would(program: str, ranks: int, warm_python: WarmPython, tmp_path: Path) -> None:
    place = ("--nodes=1", "--node=0", "--each=1", f"--at=127.0.0.1:{free_port()}", f"--report={tmp_path / 'died'}")
    command = [*(("-m", "node.ranks", *place) if ranks else ()), "-c", PROGRAMS[program], "a b", "c"]
    environment = {**os.environ, "OWN": "this", "PYTHONPATH": str(ROOT)}
    own = patience.run([sys.executable, *command], 60, cwd=ROOT, env=environment)
    fork = warm_python.run(*command, env={"OWN": "this"}, forks=bool(ranks))
    assert (fork.returncode, fork.stdout) == (own.returncode, own.stdout)
    assert fork.stderr.splitlines()[-1:] == own.stderr.splitlines()[-1:]


def test_one_that_runs_is_signalled_and_awaited(warm_python: WarmPython) -> None:
    job = warm_python.start("-c", "import time; print('here', flush=True); time.sleep(600)", joined=True)
    assert job.poll() is None
    os.kill(job.pid, signal.SIGTERM)
    assert patience.ended(job, 60)[1] == "" and job.poll() == job.returncode == -signal.SIGTERM
