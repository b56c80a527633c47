"""Compares two answers with math_verify in a child process with a time limit.

An answer such as 9^{9^{9}} takes hours. math_verify's own limits need signals in the main thread, but trainers call
rewards from any thread. So an alarm ends the child, and the next comparison starts a new one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress

LIMIT_S = 10.0
"""CPU time, so that a busy node does not change rewards."""
_lock = threading.Lock()
_child: subprocess.Popen[str] | None = None


def equal(truth: str, answer: str) -> bool:
    """Whether an answer equals the truth; False if parsing fails or the comparison takes longer than LIMIT_S."""
    global _child
    with _lock:
        if _child is None or _child.poll() is not None:
            # Started by path: the child needs only math_verify.
            command = [sys.executable, "-W", "ignore", __file__, str(LIMIT_S)]
            _child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child = _child
        assert child.stdin is not None and child.stdout is not None  # for mypy
        try:
            child.stdin.write(json.dumps([truth, answer]) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return line.strip() == "equal"
        _child, code = None, child.wait()
        child.stdout.close()
        with suppress(BrokenPipeError):
            child.stdin.close()
        if code >= 0:  # not killed by its alarm or for lack of memory
            raise RuntimeError(f"math_verify cannot be used in {sys.executable} (exit {code}; the log says why)")
        return False


def _serve(limit_s: float) -> None:
    """The child: reads pairs from stdin as JSON lines, writes verdicts to stdout, ends with stdin."""
    import logging
    import resource
    import signal

    logging.disable(logging.CRITICAL)  # it warns that its time limits are off, as intended
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # A stop signal may go to all processes of a job; this one ends with its parent.
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
        except Exception:  # an answer may be any text, and sympy raises many kinds of errors
            same = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print("equal" if same else "different", file=verdicts, flush=True)


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
