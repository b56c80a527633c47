"""`rolloutbench status --watch`: a live table on a terminal, and elsewhere tables, one after the other."""

import json
import os
import pty
import select
import subprocess
import sys
from contextlib import contextmanager

import pytest

from workflow.runs.locks import try_lock

from ..late_signals import late_signals
from ..patience import Patience, ended
from ..runs.make_runs import MadeRun, write

F = "f" * 64
WATCH = [sys.executable, "-m", "workflow.cli", "status", "--experiment", "mine", "--watch", "--every"]


@pytest.fixture
def alive(tmp_path):
    """A run of ten steps that is trained on this machine, and has done four."""
    folder = tmp_path / "results" / "mine"
    made = MadeRun(folder, "vllm-s0").job(cluster="local").attempt(steps=4)
    write(folder / "plan.json", {"runs": ["vllm-s0"], "fingerprints": {"vllm-s0": F}, "arms": {}})
    lock = try_lock(made.paths.live_lock)
    assert lock is not None
    with lock:
        yield made


def steps_done(run, first, last):
    with run.paths.attempt(1).metrics.open("a") as metrics:
        for step in range(first, last + 1):
            metrics.write(json.dumps({"step": step, "phases": {"step": 2.0}, "scalars": {}}) + "\n")


class Terminal:
    """A watch on a terminal of 24 lines; what it has printed since it was last waited for."""

    def __init__(self, master, program):
        self._master, self.program, self.text = master, program, ""

    def until(self, text):
        """Reads until it prints a text, once more if it has already."""
        self.text, patience = "", Patience(self.program.pid, 60)
        while text not in self.text:
            assert not patience.is_over(), f"no {text!r} in {self.text!r}"
            if select.select([self._master], [], [], 1)[0]:
                self.text += os.read(self._master, 65536).decode(errors="replace")

    def press(self, keys):
        os.write(self._master, keys)


@contextmanager
def terminal(folder, every_s=0.1, **environ):
    master, slave = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key not in ("CI", "NO_COLOR")}
    env |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "24", **environ}
    command = ["setsid", "--ctty", *WATCH, str(every_s)]
    program = subprocess.Popen(command, cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        yield Terminal(master, program)
    finally:
        program.kill()
        program.wait()
        os.close(master)


def test_on_a_terminal_the_table_is_what_the_files_say_at_each_look(alive, tmp_path):
    with terminal(tmp_path) as screen:
        screen.until("4/10")
        steps_done(alive, 5, 6)
        screen.until("6/10")
        # A head that starts with other arms writes another plan.
        plan = {"runs": ["vllm-s0", "other-s0"], "fingerprints": {"vllm-s0": F, "other-s0": F}, "arms": {}}
        write(alive.paths.folder.parents[1] / "plan.json", plan)
        screen.until("other-s0")


def test_ctrl_c_ends_it_at_once_and_not_at_the_next_look(alive, tmp_path):
    """Also one that comes just before the wait for it."""
    with terminal(tmp_path, every_s=600, **late_signals(tmp_path / "late")) as screen:
        screen.until("Ctrl-C ends the watch")
        screen.press(b"\x03")
        ended(screen.program, 60)
        assert screen.program.returncode == 0 and "Traceback" not in screen.text


def test_in_ci_it_is_printed_again_until_the_runs_are_finished(alive, tmp_path):
    with terminal(tmp_path, CI="true") as screen:
        screen.until("4/10")
        finish(alive)
        screen.until("1 finished of 1 run of mine")
        ended(screen.program, 60)
        assert screen.program.returncode == 0 and "\x1b" not in screen.text


def finish(run):
    steps_done(run, 10, 10)
    run.done().end("finished")
