"""Compares two answers as mathematics: by math_verify, in a process of its own that may be ended.

An answer such as 9^{9^{9}} keeps it busy for hours. Its own time limits are signals, which only a main thread may have
and trainers call rewards from any; so each comparison is made by a child whose alarm ends it, and a new one goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress

LIMIT_S = 10.0
"""Of CPU time: on a busy node an answer is worth what it is worth elsewhere."""
_lock = threading.Lock()
_child: subprocess.Popen[str] | None = None


def equal(truth: str, answer: str) -> bool:
    """Whether an answer equals the truth; False if either cannot be parsed, or within LIMIT_S cannot be compared."""
    global _child
    with _lock:
        if _child is None or _child.poll() is not None:
            # By its path: no settings of Python's, and nothing but math_verify, are needed there.
            command = [sys.executable, "-W", "ignore", __file__, str(LIMIT_S)]
            _child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child = _child
        assert child.stdin is not None and child.stdout is not None  # for mypy
        try:
            child.stdin.write(json.dumps([truth, answer]) + "\n")
            child.stdin.flush()
            said = child.stdout.readline()
        except BrokenPipeError:
            said = ""
        if said:
            return said.strip() == "equal"
        _child, code = None, child.wait()
        child.stdout.close()
        with suppress(BrokenPipeError):
            child.stdin.close()
        if code >= 0:  # not by a signal: its alarm, or the kernel's for memory
            raise RuntimeError(f"math_verify cannot be used in {sys.executable} (exit {code}; the log says why)")
        return False


def _serve(limit_s: float) -> None:
    """The child: pairs come by stdin as lines of JSON, verdicts go to stdout; the end of stdin is its own."""
    import logging
    import resource
    import signal

    logging.disable(logging.CRITICAL)  # it warns that its time limits are off, which is meant here
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Whoever stops a job may signal all its processes; this one ends with its parent.
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    from math_verify import parse, verify

    verdicts, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        truth, answer = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        try:
            known = parse(truth, parsing_timeout=0)
            same = bool(known) and verify(known, parse(answer, parsing_timeout=0), timeout_seconds=None)
        except Exception:  # an answer may be any text, and sympy fails on some in ways of its own
            same = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print("equal" if same else "different", file=verdicts, flush=True)


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
