"""A seeded storm over many runs on a real Slurm: whatever can die, freeze or lie does, while heads are started again.

Used by tests/slurm/test_storm.py for two minutes and by `python -m bench storm` for as long as it is told. What must
hold is asserted in `Storm.settle`; what `status` says is compared at every look with what is true.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..cluster.run_bench import ROOT
from .cluster import GPU_NODES, Cluster
from .runs import ALIVE, SlurmRun, fake

STEPS = 150
TRAINS = {"STAND_IN_STEP_S": "0.4", "STAND_IN_SAVE": "4"}
PARTS = ("/stop", "/end.json", "/life.json", "/heartbeat", "/done.json", "/job.json", "/order.json", "/answer.json")
LIES = {
    "squeue": ("true", '"$real" "$@" | head -n 1', '"$real" "$@" | head -c 200', "echo CLUSTER: b", "exit 1"),
    "sacct": ("true", "exit 1", '"$real" "$@" | head -n 1'),
    "sbatch": ('sleep 6; exec "$real" "$@"', "echo sbatch: error: Socket timed out >&2; exit 1"),
    "scontrol": ('sleep 5; exec "$real" "$@"',),
}
# What a living trainer may be called; an answer may be seconds old, and a job that ends is still there.
LIVING = ("running", "ending", "starting", "waiting", "requeued", "suspended", "unknown")
LOOK = """
import json, sys
from pathlib import Path
from workflow.cluster.experiment import Experiment, Wanted
from workflow.cluster.state import run_states
folder, *runs = sys.argv[1:]
wanted = [Wanted(run, "f" * 64, 150) for run in runs]
states, _ = run_states(Experiment("experiment", Path(folder), wanted))
print(json.dumps({state.run_id: state.state for state in states}))
"""
CANCEL = """
import sys
from pathlib import Path
from workflow.cluster.cancel import cancel
from workflow.cluster.experiment import Experiment, Wanted
print(cancel(Experiment("experiment", Path(sys.argv[1]), [Wanted(sys.argv[2], "f" * 64)]), [sys.argv[2]]))
"""


class Storm:
    """Runs, their heads, and what befalls them."""

    def __init__(self, cluster: Cluster, folder: Path, faults: Path, seed: int, runs: int = 12) -> None:
        self.cluster, self.folder, self.random = cluster, folder, random.Random(seed)
        (folder / "lies").mkdir(parents=True)
        env = {"LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(folder / "faults")}
        for command in LIES:
            lie = folder / "lies" / command
            env |= fake(folder, command, f'if [ -e {lie} ]; then . {lie}; else exec "$real" "$@"; fi')
        options = ("--gres", "gpu:h100:1", "--restarts", "50", "--stop-grace-s", "10")
        names = [f"arm{number}-s0" for number in range(runs)]
        self.runs = {
            name: SlurmRun(cluster, folder, options, env, steps=STEPS, env=dict(TRAINS), run_id=name) for name in names
        }
        self.heads: dict[str, subprocess.Popen[str]] = {}
        self.cancelled: set[str] = set()
        self.restore: list[tuple[float, str, Callable[[], object]]] = []
        self.counts: Counter[str] = Counter()
        self.lies: list[str] = []
        """What status said that was not so."""

    # Who keeps it going -------------------------------------------------------------------------------------------

    def rage(self, seconds: float) -> None:
        """The storm itself."""
        end, next_fault = time.monotonic() + seconds, time.monotonic() + 5
        while time.monotonic() < end and self._open():
            self._tend()
            if time.monotonic() >= next_fault:
                next_fault = time.monotonic() + self.random.uniform(0.1, 1.5)
                self._strike()
            if self.random.random() < 0.15:
                self._look()
            time.sleep(0.2)

    def settle(self, timeout_s: float) -> None:
        """Calm weather until every run has ended; then what must hold is asserted."""
        for _, _, undo in self.restore:
            undo()
        self.restore.clear()
        end = time.monotonic() + timeout_s
        while self._open() or any(head.poll() is None for head in self.heads.values()):
            assert time.monotonic() < end, f"not settled in {timeout_s} s: {self._open()}; {self.cluster.jobs()}"
            self._tend()
            time.sleep(0.5)
        for name, run in self.runs.items():
            finished = list(run.run.glob("attempts/*/done.json"))
            if name in self.cancelled:
                assert len(finished) <= 1
                run.wait(lambda run=run: not [job for job in run.jobs() if job["state"] in ALIVE])
            else:
                assert len(finished) == 1, f"{name} finished {len(finished)} times"
                run.assert_trained_once()
            run.wait(lambda run=run: not run.processes())
        self._look(at_rest=True)
        assert not self.lies, "\n".join(self.lies)

    def end(self) -> None:
        """Whatever happened: nothing is left."""
        for _, _, undo in self.restore:
            undo()
        self.cluster.run("scancel", "--user=root")
        for run in self.runs.values():
            run.end()

    def _open(self) -> list[str]:
        return [
            name
            for name, run in self.runs.items()
            if not (run.run / "done.json").is_file() and name not in self.cancelled
        ]

    def _tend(self) -> None:
        """As an engineer with patience: start heads again, let requeued jobs go, undo what is over."""
        now = time.monotonic()
        for _, _, undo in [item for item in self.restore if item[0] <= now]:
            undo()
        self.restore = [item for item in self.restore if item[0] > now]
        for name in self._open():
            head = self.heads.get(name)
            if head is None or head.poll() is not None:
                self._read(name, head)
                self.heads[name] = self.runs[name].start()
                self.counts["heads"] += 1
        if self.random.random() < 0.2 and not self._under_way("slurmctld"):
            self._administer()

    def _administer(self) -> None:
        """As an administrator does: let waiting and forgotten jobs go, and take back nodes that Slurm has drained."""
        for job in self.cluster.jobs():
            if job["state"] == "SUSPENDED" and not self._under_way(f"suspended {job['id']}"):
                # The first `resume` may have met a controller that was down.
                self.cluster.run("scontrol", "resume", job["id"])
            if job["state"] == "PENDING" and job["reason"].startswith("JobHeld"):
                self.cluster.run("scontrol", "release", job["id"])
            elif job["state"] == "PENDING" and "Begin" in job["reason"]:
                self.cluster.run("scontrol", "update", f"jobid={job['id']}", "StartTime=now")
        if not self._under_way("slurmd"):
            for line in self.cluster.run("sinfo", "-h", "-N", "-o", "%N %t").stdout.splitlines():
                name, state = line.split()
                if state.startswith(("down", "drain", "fail")):
                    self.cluster.run("scontrol", "update", f"nodename={name}", "state=resume")

    def _read(self, name: str, head: subprocess.Popen[str] | None) -> None:
        if head is not None:
            assert "Traceback" not in (said := self.runs[name].said(head)), said

    # What befalls them --------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        strikes = (
            *(self._kill_head, self._kill_head, self._interrupt_head, self._requeue, self._preempt, self._suspend),
            *(self._lose_slurmd, self._freeze, self._restart_slurmctld, self._lie, self._lie, self._falter),
            *(self._falter, self._cancel),
        )
        strike = self.random.choice(strikes)
        if strike():
            self.counts[strike.__name__.strip("_")] += 1

    def _later(self, what: str, least: float, most: float, undo: Callable[[], object]) -> bool:
        self.restore.append((time.monotonic() + self.random.uniform(least, most), what, undo))
        return True

    def _under_way(self, what: str) -> bool:
        return any(what == other for _, other, _ in self.restore)

    def _signal_head(self, number: signal.Signals) -> bool:
        alive = [head for head in self.heads.values() if head.poll() is None]
        if alive:
            os.killpg(self.random.choice(alive).pid, number)
        return bool(alive)

    def _kill_head(self) -> bool:
        return self._signal_head(signal.SIGKILL)

    def _interrupt_head(self) -> bool:
        return self._signal_head(signal.SIGINT)

    def _running(self) -> list[dict[str, str]]:
        if self._under_way("slurmctld"):
            return []
        return [job for job in self.cluster.jobs() if job["state"] == "RUNNING" and job["name"].startswith("arm")]

    def _requeue(self) -> bool:
        if jobs := self._running():
            self.cluster.run("scontrol", "requeue", self.random.choice(jobs)["id"])
        return bool(jobs)

    def _preempt(self) -> bool:
        if self._under_way("slurmctld"):
            return False
        self.cluster.run("sbatch", "-p", "h100-urgent", "-N1", "--gres=gpu:h100:8", "--wrap=sleep 2")
        return True

    def _suspend(self) -> bool:
        if not (jobs := self._running()):
            return False
        job = self.random.choice(jobs)["id"]
        self.cluster.run("scontrol", "suspend", job)
        return self._later(f"suspended {job}", 2, 8, lambda: self.cluster.run("scontrol", "resume", job))

    def _lose_slurmd(self) -> bool:
        node = self.random.choice(GPU_NODES)
        if self._under_way("slurmd") or self._under_way("slurmctld"):
            return False
        self.cluster.kill_daemon(node)
        self.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=storm")

        def back() -> None:
            self.cluster.start_daemon(node)
            self.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")

        return self._later("slurmd", 5, 30, back)

    def _freeze(self) -> bool:
        if self._under_way("slurmctld"):
            return False
        daemon = self.cluster.daemons["slurmctld"]
        daemon.send_signal(signal.SIGSTOP)
        return self._later("slurmctld", 2, 10, lambda: daemon.send_signal(signal.SIGCONT))

    def _restart_slurmctld(self) -> bool:
        if self._under_way("slurmctld"):
            return False
        self.cluster.stop_daemon("slurmctld")
        return self._later("slurmctld", 1, 6, lambda: self.cluster.start_daemon("slurmctld"))

    def _lie(self) -> bool:
        command = self.random.choice(tuple(LIES))
        lie = self.folder / "lies" / command
        lie.write_text(self.random.choice(LIES[command]) + "\n")
        return self._later("lie", 2, 8, lambda: lie.unlink(missing_ok=True))

    def _falter(self) -> bool:
        parts = self.random.sample(PARTS, self.random.randint(1, 4))
        number = self.random.choice((116, 5, 13))
        (self.folder / "faults").write_text("".join(f"{number} {part}\n" for part in parts))
        return self._later("faults", 1, 6, lambda: (self.folder / "faults").unlink(missing_ok=True))

    def _cancel(self) -> bool:
        """One run in six at most; a cancel that could not reach Slurm says so, and is tried again until it has."""
        if len(self.cancelled) >= len(self.runs) // 6 or not (names := self._open()):
            return False
        name = self.random.choice(names)
        if self._python(CANCEL, name).returncode != 0:
            return False
        self.cancelled.add(name)
        return True

    # What is said of them -----------------------------------------------------------------------------------------

    def _python(self, code: str, *runs: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", code, str(self.folder / "results" / "experiment"), *runs]
        env = {**os.environ, **self.cluster.env}
        return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    def _look(self, at_rest: bool = False) -> None:
        before = {name: self._truth(run) for name, run in self.runs.items()}
        looked = self._python(LOOK, *self.runs)
        assert looked.returncode == 0, looked.stderr
        self.counts["looks"] += 1
        said: dict[str, Any] = json.loads(looked.stdout)
        for name, run in self.runs.items():
            truth = before[name]
            if truth != self._truth(run):
                continue  # it changed meanwhile
            wrong = (
                (truth == "done") != (said[name] == "finished")
                or (truth == "trains" and name not in self.cancelled and said[name] not in LIVING)
                or (at_rest and name in self.cancelled and truth != "done" and said[name] != "cancelled")
            )
            if wrong:
                self.lies.append(f"{name}: status said {said[name]!r}, the truth is {truth!r}")

    @staticmethod
    def _truth(run: SlurmRun) -> str:
        if any(run.run.glob("attempts/*/done.json")):
            return "done"
        trains = any("stand_in" in " ".join(process.info["cmdline"] or ()) for process in run.processes())
        return "trains" if trains else "rests"
