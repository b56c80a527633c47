"""Starts real launchers on a real Slurm, as Snakemake starts them, and measures what they do and need."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.measure import ROOT
from tests.job.run_bench import RunBench
from tests.slurm.cluster import Cluster

COUNTED = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "srun", "sinfo")


class Head:
    """One launcher of one run, what it said, and when."""

    def __init__(self, run: RunBench) -> None:
        self.run = run
        self.started = time.time()
        self.ended: float | None = None
        self.said: list[tuple[float, str]] = []
        # As Snakemake's shell() does it.
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", f"set -euo pipefail; {shlex.join(run.command())}"],
            cwd=ROOT,
            env=run.head_env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append((time.time(), line.rstrip()))
        self.process.wait()
        self.ended = time.time()

    def said_at(self, words: str) -> float | None:
        """When it first said something with these words in it."""
        return next((at for at, line in list(self.said) if words in line), None)

    def wait_until(self, what: Callable[[], Any], why: str, timeout_s: float = 120.0) -> Any:
        """Until something is true; a head that ends before that ends the bench, too."""

        def happened_or_ended() -> Any:
            return what() or self.ended

        wait_for(happened_or_ended, f"{self.run.run_id} {why}", timeout_s)
        if not (value := what()):
            raise SystemExit(f"waited for {self.run.run_id} {why}; it ended:\n{self.words()}")
        return value

    def words(self) -> str:
        """All that it said."""
        return "\n".join(line for _, line in list(self.said))

    def job_id(self) -> str | None:
        """The Slurm job that it waits for, once that was submitted."""
        with contextlib.suppress(OSError, IndexError):
            return self.run.read("order.json")["job_ids"][-1]  # type: ignore[no-any-return]
        return None

    def pids(self) -> list[int]:
        """The launcher, and the shell that it was started in where that stays."""
        found = [self.process.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found

    def detach(self) -> None:
        """End it; its job stays."""
        if self.process.poll() is None:
            self.process.terminate()
        self._reader.join(30)
        if self.process.poll() is None:
            self.process.kill()


class Site:
    """A cluster whose commands are counted when a head calls them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._calls = folder / "calls"
        self._calls.touch()
        wrappers = folder / "bin"
        wrappers.mkdir()
        for name in COUNTED:
            real = shutil.which(name, path=cluster.env["PATH"])
            wrapper = wrappers / name
            wrapper.write_text(f'#!/bin/sh\necho "{name} $(date +%s.%N) $PPID" >> {self._calls}\nexec {real} "$@"\n')
            wrapper.chmod(0o755)
        self.env = cluster.env | {"PATH": f"{wrappers}:{cluster.env['PATH']}"}

    def run(self, results: str, run_id: str, steps: int, options: Iterable[str], **env: str) -> RunBench:
        """A run of the stand-in trainer; its first act on the node is to write down the time, as plain `date` would."""
        here = self.folder / results
        options = ("submit_to=slurm", "mem_mb=1000", "runtime=60", "stop_grace_s=60", *options)
        # In a folder of its own: RunBench writes files anew that another head may just be reading.
        run = RunBench(here / run_id, steps, env, options, self.env, run_id)
        run.run = here / "results" / "experiment" / "runs" / run_id
        # Asked as often as in production, whatever the caller's environment says.
        run.head_env.pop("ROLLOUTBENCH_SLURM_EVERY_S", None)
        python = run.folder / "stack" / "env" / "bin" / "python"
        shell, command = python.read_text().splitlines()
        python.write_text(f'{shell}\ndate +%s.%N > "$(dirname "$3")/began"\n{command}\n')
        return run

    def calls(self) -> Counter[str]:
        """How often each command was called so far."""
        return Counter(line.split()[0] for line in self._calls.read_text().splitlines())

    def told_calls(self, last: int) -> str:
        """The last calls, each with its time and who called."""
        return "\n".join(self._calls.read_text().splitlines()[-last:])

    def controllers_calls(self) -> int:
        """How often slurmctld was asked for jobs or partitions since the last call of this, by its own count."""
        text = self.cluster.run("sdiag").stdout
        self.cluster.run("sdiag", "--reset")
        counted = re.findall(r"^\s*REQUEST_(?:JOB|PARTITION)\w*INFO\w* .*count:(\d+)", text, re.MULTILINE)
        return sum(map(int, counted))

    def controllers_cpu_s(self) -> float:
        """CPU time that slurmctld has taken."""
        return cpu_s(self.cluster.daemons["slurmctld"].pid)


def pss_mb(pids: Iterable[int]) -> float:
    """The memory of processes, what they share among all counted once, in MB (1e6 bytes)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total * 1024 / 1e6


def cpu_s(pid: int) -> float:
    """CPU time of a process, its threads, and its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    # The process's own time in nanoseconds: hundreds of processes make a large sum of rounding errors.
    own = sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return own / 1e9 + (int(fields[13]) + int(fields[14])) / ticks


def wait_for(what: Callable[[], Any], why: str, timeout_s: float = 120.0) -> Any:
    """Until something is true; what did not happen ends the bench with a message."""
    end = time.monotonic() + timeout_s
    while not (value := what()):
        if time.monotonic() > end:
            raise SystemExit(f"waited {timeout_s:.0f} s for {why}, which did not happen")
        time.sleep(0.1)
    return value
