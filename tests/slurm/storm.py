"""A seeded storm over many runs on a real Slurm: whatever can die, freeze or lie does, while heads are started again.

Used by tests/slurm/test_storm.py for two minutes and by `python -m bench storm` for as long as it is told. What must
hold and did not is in `Storm.wrong`; what `status` says is compared at every look with what is true. Heads, jobs,
status and cancel meet the same lies and refused files.
"""

import contextlib
import json
import os
import subprocess
import sys
import time

import psutil

from workflow.runs.pulse import SILENT_S

from ..job.run_bench import ROOT
from .runs import ALIVE, SlurmRun, SlurmScript
from .strikes import Strikes

STEPS = 150
TRAINS = {"STAND_IN_STEP_S": "0.4", "STAND_IN_SAVE": "4"}
OPTIONS = ("gres=gpu:h100:1", "restarts=50", "stop_grace_s=10")
# What a living trainer may be called; an answer may be seconds old, and a job that ends is still there.
LIVING = ("running", "waiting", "unknown")
# In calm weather somebody gets on within this: it outlasts a life's wait for the one before it (three minutes).
CALM_S = 240.0
LOOK = """
import json, sys
from pathlib import Path
from common.retry import READ_PATIENCE_S, retry_io
from workflow.runs.experiment import Experiment, ExpectedRun
from workflow.runs.run_state import run_states
folder, *runs = sys.argv[1:]
wanted = [ExpectedRun(run, "f" * 64, 150) for run in runs]
experiment = Experiment("experiment", Path(folder), wanted)
states, _ = retry_io(lambda: run_states(experiment), "the results", READ_PATIENCE_S, for_others=False)
print(json.dumps({state.run_id: state.state for state in states}))
"""
CANCEL = """
import sys
from pathlib import Path
from workflow.commands.cancel import cancel
from workflow.runs.experiment import Experiment, ExpectedRun
print(cancel(Experiment("experiment", Path(sys.argv[1]), [ExpectedRun(sys.argv[2], "f" * 64)]), [sys.argv[2]]))
"""


class Storm(Strikes):
    """So many runs at a time and their heads; with `renew` another run begins where one has ended."""

    def __init__(self, cluster, folder, faults, seed, runs=12, renew=False):
        super().__init__(cluster, folder, faults, seed)
        self.runs = {}
        """All runs so far."""
        self.at_once, self.renew = runs, renew
        self.cancelled = set()
        self.others = []
        """Further heads of runs that have one."""
        self.wrong = []
        """What must hold, and did not."""
        for _ in range(runs):
            self._begin_run()

    def strikes(self):
        """Those of users, too."""
        own = (self.cancel, self.cancel_and_start, self.start_another_head)
        return [*super().strikes(), *((strike.__name__, strike) for strike in own)]

    # Who keeps it going -------------------------------------------------------------------------------------------

    def rage(self, seconds):
        """The storm itself: so long, and on until it has struck more often than there are runs.

        On a busy machine a strike takes seconds, and a storm of so many seconds would be a breeze.
        """
        end, next_strike = time.monotonic() + seconds, time.monotonic() + 5
        while (time.monotonic() < end or not self.is_storm()) and (self.renew or self._open()):
            self._tend()
            if time.monotonic() >= next_strike:
                next_strike = time.monotonic() + self.random.uniform(0.1, 1.5)
                self.strike()
            if self.random.random() < 0.15:
                self._look()
            time.sleep(0.2)

    def is_storm(self):
        """Whether it has struck more often than there are runs."""
        return sum(self.struck().values()) > len(self.runs)

    def settle(self):
        """Calm weather until every run has ended; then what must hold is looked at."""
        self.log("calm")
        self.renew = False
        self.undo(all_of_it=True)
        reached, since = self._reached(), time.monotonic()
        while self.heads or self.others:
            if (now_reached := self._reached()) != reached:
                reached, since = now_reached, time.monotonic()
            if time.monotonic() > since + CALM_S:
                self.wrong.append(f"nothing went on for {CALM_S:.0f} s of calm: {self._open()}; {self.queue()}")
                break
            self._tend()
            self.unstick(self._is_empty)
            time.sleep(0.5)
        for name, run in self.runs.items():
            self._judge(name, run)
        while any(_has_just_written(self.runs[name]) for name in self.cancelled):
            time.sleep(0.5)
        self._look(at_rest=True)

    def end(self):
        """Whatever happened: nothing is left."""
        self.undo(all_of_it=True)
        self.cluster.run("scancel", "--user=root")
        for run in self.runs.values():
            run.end()

    def _begin_run(self):
        name = f"arm{len(self.runs)}-s0"
        # Every fourth is a user's script.
        kind = SlurmScript if len(self.runs) % 4 == 3 else SlurmRun
        env = {**TRAINS, "STAND_IN_BROKEN": str(self.folder)}
        self.runs[name] = kind(self.cluster, self.folder, OPTIONS, self.head_env, steps=STEPS, env=env, run_id=name)

    def _open(self):
        others = {name: run for name, run in self.runs.items() if name not in self.cancelled}
        return [name for name, run in others.items() if not (run.run / "done.json").is_file()]

    def _reached(self):
        """How many runs are over, and how many steps were trained in those that are not."""
        still = self._open()
        return len(still), sum(self.runs[name].steps_done() for name in still)

    def _tend(self):
        """As an engineer with patience: start heads again, let requeued jobs go, undo what is over."""
        self.undo()
        for name, head in list(self.heads.items()):
            if head.poll() is not None:
                if "Traceback" in (said := self.runs[name].forget(head)) and not _while_it_loaded(said):
                    self.wrong.append(f"{name}: {said}")
                del self.heads[name]
                self.log(f"head of {name} ended with {head.returncode}: {said.strip().splitlines()[-1:]}")
        self.others = [head for head in self.others if head.poll() is None]
        still = self._open()
        busy = set(still) | set(self.heads)
        if self.renew and len(busy) < self.at_once:
            self._begin_run()
            still = self._open()
        for name in still:
            if name not in self.heads:
                self.heads[name] = self.runs[name].start()
                self.counts["heads"] += 1
        if self.random.random() < 0.2:
            self.administer()

    def cancel(self):
        """One run in six at most."""
        if len(self.cancelled) >= len(self.runs) // 6:
            return None
        name, told = self._cancel_one(self._open())
        self.cancelled |= {name} if name else set()
        return told

    def cancel_and_start(self):
        """Whoever cancels and starts again means the run to go on: the new head waits for the old job's end."""
        name, told = self._cancel_one([name for name in self._open() if name in self.heads])
        self.others += [self.runs[name].start()] if name else []
        return told

    def _cancel_one(self, names):
        """Which of them was cancelled, and what was said; none where Slurm was not reached, or nothing was there."""
        if names:
            told = self._python(CANCEL, name := self.random.choice(names))
            if told.returncode == 0 and "nothing to cancel" not in told.stdout:
                return name, f"{name}: {told.stdout.strip()}"
        return None, None

    def start_another_head(self):
        """It waits for the first one, or attaches to the job of one that has died."""
        if not (names := [name for name in self._open() if name in self.heads]):
            return None
        self.others.append(self.runs[name := self.random.choice(names)].start())
        return name

    # What must hold, and what is said -----------------------------------------------------------------------------

    def _judge(self, name, run):
        """A run at rest: finished exactly once or cancelled for good, no step lost or trained twice, nothing left."""
        try:
            run.wait(lambda: self._has_left(run))
        except AssertionError as error:
            self.wrong.append(f"{name}: something is left: {str(error)[:2000]}")
        finished = len(list(run.run.glob("attempts/*/done.json")))
        self.counts["steps"] += len(run.journal())
        self.counts["steps again"] += len(run.journal()) - len({step for _, step in run.journal()})
        self.counts["attempts"] += len(run.attempts())
        self.counts["jobs"] += run.submitted()
        self.counts["steps beyond a checkpoint"] += (beyond := run.trained_twice())
        if beyond:
            self.wrong.append(f"{name}: {beyond} steps trained again that a checkpoint had: {run.journal()}")
        if name in self.cancelled:
            self.counts["cancelled runs"] += 1
            if finished > 1:
                self.wrong.append(f"{name}, cancelled, finished {finished} times")
            return
        self.counts["finished once"] += finished == 1
        if finished != 1:
            self.wrong.append(f"{name} finished {finished} times")
        elif missing := run.missing_steps():
            self.wrong.append(f"{name} finished without the steps {missing}")

    def _has_left(self, run):
        """Whether a run has no process and no job; one that is held in the queue is let go, and ends by itself."""
        jobs, processes = [job for job in run.jobs() if job["state"] in ALIVE], run.processes()
        if jobs:
            self.administer()
            # Also those of other runs: a node that they do not leave stays drained, and ours waits for it.
            self.unstick(self._is_empty)
        return not jobs and not processes

    def _is_empty(self, job):
        """Whether no process of a job's run is left."""
        run = self.runs.get(job["name"].rpartition(".")[0])  # none of those that preempt
        return run is None or not run.processes()

    def _python(self, code, *runs):
        """What a command says; what is over is undone meanwhile, since the command may wait for just that."""
        words = [sys.executable, "-c", code, str(self.folder / "results" / "experiment"), *runs]
        env = {**os.environ, **self.cluster.env, **self.head_env}
        with subprocess.Popen(
            words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    out, said = process.communicate(timeout=0.2)
                    return subprocess.CompletedProcess(words, process.returncode, out, said)
                self.undo()

    def _look(self, at_rest=False):
        """Compare what status says of the newest runs (at rest: of all) with what is so."""
        names = list(self.runs) if at_rest else list(dict.fromkeys([*self.heads, *list(self.runs)[-24:]]))
        before = self._truths(names)
        looked = self._python(LOOK, *names)
        self.counts["looks"] += 1
        if looked.returncode != 0:
            # After half a minute without a readable file it says so, which is true.
            if "trying again for" not in looked.stderr:
                self.wrong.append(f"status: {looked.stderr}")
            return
        said = json.loads(looked.stdout)
        after = self._truths(names)
        for name in names:
            if before[name] != after[name]:
                continue  # it changed meanwhile
            truth, is_cancelled = before[name][0], name in self.cancelled
            if (
                (truth == "done") != (said[name] == "finished")
                or (truth == "trains" and not is_cancelled and said[name] not in LIVING)
                or (at_rest and is_cancelled and truth != "done" and said[name] != "cancelled")
            ):
                self.counts["lies"] += 1
                self.wrong.append(f"{time.strftime('%H:%M:%S')} {name}: status said {said[name]!r}, it is {truth!r}")
                self.log(self.wrong[-1])

    def _truths(self, names):
        """What is so of runs, and by which processes.

        One that Slurm has suspended stands still: where squeue lies, nobody can know of it.
        """
        commands = {}
        for process in psutil.process_iter(["cmdline", "status"]):
            if "stand_in_trainer.py" in (words := " ".join(process.info["cmdline"] or ())):
                commands[process.pid] = words, process.info["status"] == psutil.STATUS_STOPPED
        truths = {}
        for name in names:
            folder = self.runs[name].run
            here = frozenset((pid, stands) for pid, (words, stands) in commands.items() if f"{folder}/" in words)
            trains = any(not stands for _, stands in here)
            done = any(folder.glob("attempts/*/done.json"))
            truths[name] = "done" if done else "trains" if trains else "stands still" if here else "rests", here
        return truths


def _has_just_written(run):
    """Whether a run may still look alive, as `status` has nothing but the times of its files."""
    beats = run.run.glob("attempts/*/heartbeat")
    return any(time.time() - beat.stat().st_mtime < 2 * SILENT_S for beat in beats)


def _while_it_loaded(said):
    """Whether a Ctrl-C has met a head before its program had begun, where Python has its own word for that."""
    return said.rstrip().endswith("KeyboardInterrupt") and ", in main\n" not in said
