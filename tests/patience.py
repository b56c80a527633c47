"""How long tests wait for a process: by the CPU time that it uses, which does not grow when the machine is busy."""

import contextlib
import subprocess
import tempfile
import time

import psutil

IDLE_S = 120.0


class Patience:
    """With a process and what it has started: over when they use `cpu_s` more of CPU time, or none for two minutes."""

    def __init__(self, pid, cpu_s):
        self._process, self._cpu_s = psutil.Process(pid), cpu_s
        self._used = self._began = self._cpu_time()
        self._since = time.monotonic()
        self._look_at = 0.0

    def is_over(self):
        """Asked again and again while one waits; it looks once a second, as all of /proc is read for it."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + 1
        used = self._cpu_time()
        if abs(used - self._used) > 0.1:  # less where one has ended for which nobody waits
            self._used, self._since = used, now
        return used > self._began + self._cpu_s or now > self._since + IDLE_S

    def _cpu_time(self):
        used = 0.0
        with contextlib.suppress(psutil.Error):
            for process in (self._process, *self._process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used += sum(process.cpu_times()[:4])  # its children that have ended, too
        return used


def until(done, pid, cpu_s=300.0):
    """Wait until it is so; it fails when the patience with a process is over."""
    patience = Patience(pid, cpu_s)
    while not done():
        assert not patience.is_over(), "waited in vain"
        time.sleep(0.02)


def has_ended(process):
    """Whether it is gone, or dead and not waited for by its parent."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def run(command, cpu_s, **options):
    """`subprocess.run` with the output as text; it fails when the patience with the command is over.

    Or with `whom`: the process that has started it, and beside it whoever does its work.
    """
    given, whom = options.pop("input", None), options.pop("whom", None)
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+", encoding="utf-8") as typed:
        # A pipe would be left open by a `communicate` that ended before all was written.
        if given is not None:
            typed.write(given)
            typed.seek(0)
            options["stdin"] = typed
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **options)
        out, said = ended(process, cpu_s, whom)
    return subprocess.CompletedProcess(command, process.returncode, out, said)


def ended(process, cpu_s, whom=None):
    """A process's output, when it has ended; it is killed when the patience with it, or with `whom`, is over."""
    patience = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=0.5)
        # Not before: of one that was waited for psutil knows nothing.
        patience = patience or Patience(whom or process.pid, cpu_s)
        if patience.is_over():
            process.kill()
            raise AssertionError(f"did not end: {process.communicate()}")
