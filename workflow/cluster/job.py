"""Runs on the node, in the controller's Python: starts the trainer in its stack, watches it, says how it ended.

A job lives through one attempt after another. Under Slurm every attempt but the last ends in a requeue, ordered here
and not by submitit: its handler asks Slurm once, gives the job up if slurmctld is just restarting, and may not touch
the process whose end the main thread waits for. On one machine the job goes on by itself.

The trainer is a child in a session of its own, so that a terminal's Ctrl-C does not reach it; it dies with this
process (PR_SET_PDEATHSIG), so that no trainer is ever left behind unwatched.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from common.contracts import AttemptFile, SlurmPlace
from common.files import read_json, write_json
from common.patience import is_there, patiently
from node.hardware import THREAD_VARIABLES
from trainers import driver_module
from workflow.cluster import slurm
from workflow.cluster.ends import ENDED_BY_SLURM, cancelled_by, exit_of, oom_kills
from workflow.cluster.history import finished_attempt, how_it_ended, read_object, same_attempts, without_new_step
from workflow.cluster.inquiry import submission
from workflow.cluster.jobstate import HEARTBEAT_S, SILENT_S, Evidence, JobVerdict, Watch, job_state
from workflow.cluster.locks import try_lock
from workflow.cluster.paths import AttemptPaths, JobPaths, RunPaths
from workflow.cluster.place import Place
from workflow.cluster.processes import (
    LIFE_VARIABLE,
    adopt_orphans,
    children,
    dying_with_us,
    end_processes_of,
    reap_orphans,
)
from workflow.cluster.progress import last_step
from workflow.cluster.ray import RayError, RayHead, RaySetup, RayWorker
from workflow.cluster.slurm import SlurmError, may_pass
from workflow.cluster.watchdog import Watchdog, dump_stacks
from workflow.stacks import stack_environment

POLL_S = 0.2
_FILES = "the run's files"
REQUEUE_EXIT_CODE = 75  # what a trainer's job says when it was stopped and left a checkpoint (EX_TEMPFAIL)
# Of the time between the warning and the limit the trainer gets most; the rest is for killing it and for requeueing.
_TRAINERS_SHARE = 0.8
_HUNG_GRACE_S = 10.0
# How long a life that begins waits for the one before it, which ends when it reads of its successor; a test wants less.
_TAKE_OVER_S = float(os.environ.get("ROLLOUTBENCH_TAKE_OVER_S", "180"))
_UNKILLABLE_S = 120.0
_REQUEUE_PATIENCE_S = 900.0
# How a trainer ends that a stop signal met before it could hear one, or after it had ceased to.
_ENDED_BY_STOP = frozenset({REQUEUE_EXIT_CODE, -signal.SIGTERM, -signal.SIGUSR2, 128 + signal.SIGTERM})
# The controller's Python must not leak into the stack's.
_CONTROLLER_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONWARNINGS")


def run_job(run_folder: str, number: int) -> None:
    """What submitit calls on the node: live this job of a run to its end, or until it is requeued."""
    run = RunPaths(Path(run_folder))
    job = JobOnNode(run, run.job(number), dict(os.environ))
    job.install_signals()
    if job.place.rank == 0:
        job.live()
    else:
        job.serve()


class JobOnNode:
    """One life of a job, from its start (or its start after a requeue) on."""

    def __init__(self, run: RunPaths, job: JobPaths, environ: dict[str, str]) -> None:
        self.run, self.job = run, job
        self.order: dict[str, Any] = patiently(lambda: read_json(job.order), "this job's order")
        self.slurm_id = environ.get("SLURM_JOB_ID") if self.order["cluster"] == "slurm" else None
        self.restart = int(environ.get("SLURM_RESTART_COUNT", "0"))
        self.nodes = environ.get("SLURM_JOB_NODELIST") or socket.gethostname()
        # Known to all ranks and new for every life; the count of restarts alone is not, where slurmctld was killed.
        self.life = f"{self.restart}-{environ.get('SLURM_STEP_ID', '0')}-{environ.get('SLURM_SRUN_COMM_PORT', '0')}"
        self.place = Place.from_environment(trainer_environment(self.order, environ), self.order["cpus"])
        self._token = secrets.token_hex(8)
        self._signal: signal.Signals | None = None
        self._cause: Future[str] | None = None

    def install_signals(self) -> None:
        """Take over from submitit: USR2 comes ahead of the time limit, TERM with preemption and cancelling.

        What a person sends to look at the trainer (`scancel --signal=USR1`) or a terminal sends at its end is not for
        the job that watches it, which would die of it without a word.
        """
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        for number in (signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: None)  # SIG_IGN would be the trainer's, too

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or signal.Signals(number)

    def live(self) -> None:
        """One attempt after another, until one is the last; end.json says how it all ended."""
        if patiently(lambda: is_there(self.job.end), _FILES):
            return  # requeued by hand after it had ended
        adopt_orphans()
        end = self._over()
        if end is None:
            lock = self._take_over()
            end = self._not_begun() if lock is None else self._train_on(lock)
        if end.get("again"):
            self._requeue()
        elif end["kind"] != "superseded" and end.get("cause") != ENDED_BY_SLURM:
            self._end(end)

    def _train_on(self, lock: AbstractContextManager[object]) -> dict[str, Any]:
        with lock:
            # The life before may have finished the run, or somebody cancelled it, while this one waited.
            while (end := self._over() or self._attempt()).get("again") and self.slurm_id is None:
                pass
            return end

    def _over(self) -> dict[str, Any] | None:
        """How this job has ended before it began, by the files' verdict; None if it has work to do."""
        return patiently(self._over_now, _FILES)

    def _over_now(self) -> dict[str, Any] | None:
        order, job = self.order, submission(self.job)
        done = finished_attempt(self.run, order["fingerprint"], self._steps, order["inputs_sha256"])
        by = cancelled_by(self.job) or read_object(self.run.cancelled).get("by")
        current = read_object(self.run.current).get("job") == self.job.number
        verdict = job_state(Evidence(job, finished=done is not None, current=current, cancelled_by=by)).verdict
        if verdict is JobVerdict.ENDED:
            return {"kind": "superseded"}  # a head has given this life up, and its word stands
        if verdict is JobVerdict.FINISHED:
            return {"kind": "finished", "detail": f"attempt {done.number if done else '?'} had finished the run"}
        if verdict is JobVerdict.SUPERSEDED:
            return {"kind": "duplicate"}
        return {"kind": "cancelled", "by": by} if verdict is JobVerdict.CANCELLED else None

    @property
    def _steps(self) -> int:
        return int(self.order["spec"]["workload"]["steps"])

    def _take_over(self) -> AbstractContextManager[object] | None:
        """The run, once the life before this one has let go of it or fallen silent; None if it goes on training.

        On this machine whoever has the lock lives. Slurm's word that this life has begun is an order to the one before,
        on a node that Slurm gave up: it reads life.json with every heartbeat, and ends. Where a file system keeps the
        locks of a node that died, or keeps them to one node, only the heartbeat's silence tells.
        """
        if self.slurm_id is None:
            return try_lock(self.run.live_lock, note=str(self.job.number), patience_s=2.0)
        told = {"job": self.job.number, "token": self._token, "life": self.life, "host": socket.gethostname()}
        patiently(lambda: write_json(self.run.life, told), _FILES)
        before = patiently(self._newest, _FILES)
        here = (
            before is None or patiently(lambda: read_object(before.order), _FILES).get("host") == socket.gethostname()
        )
        watch, lock = Watch(lambda: before), None
        began = time.monotonic()
        while not (pulse := watch.look()).quiet or lock is None:
            lock = lock or patiently(lambda: try_lock(self.run.live_lock, note=str(self.job.number)), _FILES)
            if lock is not None and here:
                return lock
            waited_s = time.monotonic() - began
            if pulse.beats is False or (before is None and waited_s > SILENT_S):
                return lock or nullcontext()
            if self._signal is not None or waited_s > _TAKE_OVER_S:
                return None
            time.sleep(POLL_S)
        return lock

    def _newest(self) -> AttemptPaths | None:
        attempts = self.run.attempts()
        return attempts[-1] if attempts else None

    def _not_begun(self) -> dict[str, Any]:
        """How a life ends that cannot begin, since another one goes on training."""
        if self.slurm_id is None:
            return {"kind": "duplicate"}
        if (stop := self._wanted_stop()) is not None:
            return stop | self._reason(stop)
        last = self.run.attempts()[-1]
        where = read_object(last.order).get("host", "?")
        return {
            "kind": "not alone",
            "detail": f"attempt {last.number} on {where}, which Slurm gave up, goes on training and did not end within "
            f"{_TAKE_OVER_S:.0f} s",
        }

    def serve(self) -> None:
        """What the other nodes of a job do: lend themselves to rank 0's Ray, until the life is over.

        All ranks get Slurm's signals; rank 0 decides what follows. A rank that fails says so, waits for rank 0 to end
        the life, and ends well: at another exit code srun kills rank 0 after KillWait, which may come before it has
        written how the attempt ended, or has asked for the requeue.
        """
        worker = RayWorker(self._ray_setup(self.life))
        try:
            with worker:
                worker.join()
                died = None
                while not worker.over and died is None:
                    died = worker.poll()
                    time.sleep(1.0)
                if died is not None:
                    print(f"{died}; waiting for rank 0 to end the life", file=sys.stderr, flush=True)
                    self._await_rank_0(worker)
        except RayError as error:
            print(error, file=sys.stderr, flush=True)
            self._await_rank_0(worker)
        if not worker.over:
            sys.exit(1)

    def _await_rank_0(self, worker: RayWorker) -> None:
        leave_at = time.monotonic() + self.order["limits"]["stop_grace_s"]
        while not worker.over and time.monotonic() < leave_at:
            worker.poll()
            time.sleep(1.0)

    def _ray_setup(self, life: str) -> RaySetup:
        folder = self.job.nodes(life)
        return RaySetup(
            place=self.place,
            folder=folder,
            python=Path(self.order["python"]),
            environment=trainer_environment(self.order, os.environ),
            cwd=Path(self.order["cwd"]),
            log=folder / f"ray-{self.place.rank}.log",
            give_up=lambda: "it was told to stop" if self._signal or self._asked_to_stop() else None,
        )

    def _attempt(self) -> dict[str, Any]:
        """One attempt; how it ended, with `again` if the run shall go on in another one."""
        earlier = patiently(self._earlier, _FILES)
        if (fruitless := patiently(lambda: without_new_step(earlier), _FILES)) > self.order["limits"]["restarts"]:
            last = patiently(lambda: how_it_ended(earlier[-1]), _FILES)
            return {"kind": "no progress", "detail": f"{fruitless} attempts in a row without a new step (last: {last})"}
        attempt = patiently(self._new_attempt, _FILES)
        end = self._train_with_ray(attempt) if self.order["ray"] else self._train(attempt, None)
        reached = patiently(lambda: last_step(attempt.metrics), _FILES)
        end |= {"attempt": attempt.number, "time": time.time(), "last_step": reached}
        patiently(lambda: write_json(attempt.exit, end), _FILES)
        return end

    def _new_attempt(self) -> AttemptPaths:
        attempt = self.run.new_attempt()
        write_json(attempt.spec, self.order["spec"])
        write_json(attempt.order, self._attempt_order(attempt))
        return attempt

    def _earlier(self) -> list[AttemptPaths]:
        """The attempts that are counted against the limits."""
        return same_attempts(self.run, self.order["fingerprint"], self.order["inputs_sha256"], self.order["count_from"])

    def _attempt_order(self, attempt: AttemptPaths) -> AttemptFile:
        order = self.order
        placed: SlurmPlace | None = None
        if self.slurm_id is not None:
            placed = {"job_id": self.slurm_id, "restart": self.restart, "nodes": self.nodes}
        return {
            "attempt": attempt.number,
            "run_id": order["run_id"],
            "fingerprint": order["fingerprint"],
            "inputs": order["inputs"],
            "inputs_sha256": order["inputs_sha256"],
            "checkpoint_dir": order["checkpoint_dir"],
            "cpus": order["cpus"],
            "cwd": order["cwd"],
            "env": order["env"],
            "spec": str(attempt.spec),
            "attempt_dir": str(attempt.folder),
            "command": self._command(attempt),
            "job": self.job.number,
            "slurm": placed,
            "host": socket.gethostname(),
            "output_bytes": sum(file.stat().st_size for file in self.job.submitit.glob("*.out")),
            "started": time.time(),
        }

    def _command(self, attempt: AttemptPaths) -> list[str]:
        return [self.order["python"], "-m", driver_module(self.order["module"]), str(attempt.order)]

    def _train_with_ray(self, attempt: AttemptPaths) -> dict[str, Any]:
        """Train with all nodes of the job as one Ray cluster of its own; on one node, too: never in another's Ray."""
        # The other ranks know the number of the life, not of the attempt; on this machine there are none.
        setup = self._ray_setup(self.life if self.slurm_id is not None else str(attempt.number))
        try:
            with RayHead(setup) as head:
                head.start()
                head.wait_for_nodes()
                return self._train(attempt, head)
        except RayError as error:
            if (stop := self._wanted_stop()) is not None:
                return stop | self._reason(stop)
            return {"kind": "node lost", "detail": str(error), "again": self.slurm_id is not None}

    def _train(self, attempt: AttemptPaths, head: RayHead | None) -> dict[str, Any]:
        token, before = secrets.token_hex(8), children()
        try:
            process = self._start(attempt, {LIFE_VARIABLE: token} | (head.environment() if head else {}))
        except (OSError, ValueError) as error:
            return {"kind": "not started", "detail": str(error)}
        try:
            with self._beating(attempt):
                return self._watch(process, attempt, head)
        finally:
            # Whatever the trainer started and left: data loaders, wandb's service, an engine's own processes, and
            # daemons that shed both their environment and their parents.
            end_processes_of(token, grace_s=0, sessions=[process.pid], orphans=children() - before)

    def _start(self, attempt: AttemptPaths, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with patiently(lambda: attempt.log.open("ab"), _FILES) as output:
            return subprocess.Popen(
                self._command(attempt),
                cwd=self.order["cwd"],
                env=trainer_environment(self.order, os.environ) | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=dying_with_us(),
            )

    def _watch(self, process: subprocess.Popen[bytes], attempt: AttemptPaths, head: RayHead | None) -> dict[str, Any]:
        """Wait for the trainer; end it when it must end, however it takes that."""
        limits = self.order["limits"]
        watchdog = Watchdog(attempt.metrics, limits["hang_factor"], limits["hang_min_s"], limits["first_step_s"])
        kills_before = oom_kills()
        stop: dict[str, Any] | None = None
        kill_at = float("inf")
        ticked = looked = time.monotonic()
        while (code := process.poll()) is None:
            now = time.monotonic()
            if now - looked > HEARTBEAT_S:
                looked = now
                reap_orphans()
                if self._is_superseded():
                    stop, kill_at = {"kind": "superseded"}, min(kill_at, now)
            if stop is None and (stop := self._wanted_stop()) is not None:
                kill_at = now + _TRAINERS_SHARE * limits["stop_grace_s"]
                _ask_to_stop(process)
            if stop is None and (silence := watchdog.tick(now - ticked)) is not None:
                stop = self._hung(silence)
                dump_stacks(process.pid, attempt.log)
                kill_at = now + _HUNG_GRACE_S
                _ask_to_stop(process)
            if stop is None and head is not None and (lost := head.poll()) is not None:
                stop, kill_at = {"kind": "node lost", "detail": lost, "again": self.slurm_id is not None}, now + 10.0
                _ask_to_stop(process)
            if self._asked_to_stop() == "now":
                kill_at = min(kill_at, now)
            if now >= kill_at:
                _kill_session(process)
            if now >= kill_at + _UNKILLABLE_S:
                # In the kernel for good (a GPU, a file system): Slurm must see to the node, the run goes on elsewhere.
                stop = stop or {}
                detail = f"it could not be killed; {stop.get('detail') or 'it was to stop'}"
                return {"kind": "hung", "again": bool(self.slurm_id), **stop, **self._reason(stop), "detail": detail}
            ticked = now
            time.sleep(POLL_S)
        # A trainer that had done its work before it heard of the stop has finished.
        if patiently(lambda: is_there(attempt.done), _FILES):
            return {"kind": "finished", "code": code}
        # Slurm signals the trainer, too, which may be gone before this loop, or this process, has heard of it.
        if stop is None and self._signal is None and code in _ENDED_BY_STOP:
            time.sleep(1.0)
        if stop is None and (self._signal is not None or code == REQUEUE_EXIT_CODE):
            stop = self._wanted_stop() or {
                "kind": "stopped",
                "cause": "the trainer's own",
                "again": bool(self.slurm_id),
            }
        if stop is not None:
            return {**stop, **self._reason(stop), "code": code}
        return exit_of(code, attempt, killed_for_memory=oom_kills() > kills_before)

    def _wanted_stop(self) -> dict[str, Any] | None:
        """Why the trainer must stop, if it must; what Slurm means by a signal is asked meanwhile (`_reason`)."""
        if self._asked_to_stop() is not None:
            return {"kind": "stopped", "cause": "asked"}
        if self._signal is None:
            return None
        if self.slurm_id is None:
            return {"kind": "stopped", "cause": f"signal {self._signal.name}"}
        if self._cause is None:
            # scontrol may take a minute, in which the trainer is to stop and the heartbeat to go on.
            self._cause = ThreadPoolExecutor(1).submit(self._cause_of, self._signal)
        return {"kind": "stopped"}

    def _reason(self, stop: dict[str, Any]) -> dict[str, Any]:
        """What is known of a stop once the trainer has stopped: its cause, and whether the run shall go on."""
        if self._cause is None or stop.get("kind") != "stopped" or "cause" in stop:
            return {}
        cause = self._cause.result()
        # What Slurm is ending is not ours to requeue: it may have been cancelled.
        return {"cause": cause, "again": cause != ENDED_BY_SLURM}

    def _asked_to_stop(self) -> str | None:
        """`soon` or `now`; None if nobody asked, or if the file system does not say at this moment."""
        try:
            return self.job.stop.read_text(encoding="utf-8").strip()
        except OSError:
            return None

    def _cause_of(self, number: signal.Signals) -> str:
        """What Slurm wants with its signal; it sends the same ones for many things."""
        assert self.slurm_id is not None
        for tries_left in (2, 1, 0):  # a signal to the whole job meets our scontrol, too
            try:
                details = slurm.job_details(self.slurm_id)
                break
            except SlurmError as error:
                if not tries_left:
                    return f"signal {number.name} (Slurm does not say why: {error})"
                time.sleep(0.5)
        # With a grace time a preempted job is still running, and its end was moved to the end of the grace.
        if details.get("PreemptTime", "None") not in ("None", "N/A"):
            return "preempted"
        # Cancelled, requeued, preempted without grace: Slurm shows all of them as COMPLETING while it ends them.
        if details.get("JobState") != "RUNNING" or not self._is_this_life(details):
            return ENDED_BY_SLURM
        return "time limit" if number is signal.SIGUSR2 else f"signal {number.name}"

    def _is_this_life(self, details: Mapping[str, str]) -> bool:
        """Whether Slurm speaks of this life of the job, not of one that it has begun elsewhere meanwhile."""
        told = details.get("Restarts", str(self.restart)), details.get("NodeList", self.nodes)
        return told == (str(self.restart), self.nodes)

    def _hung(self, silence: str) -> dict[str, Any]:
        """A first hang is given another chance, a second one is not."""
        hung_before = False
        with suppress(OSError):
            hung_before = any(read_object(attempt.exit).get("kind") == "hung" for attempt in self._earlier())
        return {"kind": "hung", "detail": silence, "again": not hung_before}

    def _is_superseded(self) -> bool:
        """Whether Slurm has begun another life of this run: this node was given up, and does not know it."""
        with suppress(OSError):
            return self.slurm_id is not None and read_object(self.run.life).get("token", self._token) != self._token
        return False

    @contextmanager
    def _beating(self, attempt: AttemptPaths) -> Iterator[None]:
        """Shows a sign of life every few seconds, however long the loop that watches takes for a look."""
        over = threading.Event()

        def beat() -> None:
            while True:
                # A file system that falters for a moment must not end a training.
                with suppress(OSError):
                    attempt.heartbeat.touch()
                if over.wait(HEARTBEAT_S):
                    return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()

    def _requeue(self) -> None:
        """Go back into the queue; if Slurm will not have it, a head submits the run again.

        Slurm requeues a preempted job by itself when the grace is over; a job that asks for it gives its node back
        sooner. What Slurm is ending already is let alone: requeueing would bring a cancelled job back.
        """
        assert self.slurm_id is not None
        give_up = time.monotonic() + _REQUEUE_PATIENCE_S
        pause_s = 1.0
        while time.monotonic() < give_up:
            self._signal = None
            try:
                details = slurm.job_details(self.slurm_id)
                if not self._is_this_life(details):
                    return  # Slurm has requeued it by itself, and begun it elsewhere
                if (over := self._over()) is not None:
                    self._end(over)
                    return
                if details.get("JobState") == "RUNNING":
                    slurm.requeue(self.slurm_id)
                # To leave before Slurm's TERM would look like a failure; to leave after it gives the node back at once.
                leave_at = time.monotonic() + 60.0
                while self._signal is None and time.monotonic() < leave_at:
                    time.sleep(POLL_S)
                return
            except SlurmError as error:
                print(f"requeue: {error}", file=sys.stderr, flush=True)
                if not may_pass(str(error)):
                    if not self._is_running():
                        return  # cancelled meanwhile: what became of it is Slurm's to say
                    # A site that forbids it: the node is given back, and a head submits the run again.
                    self._end({"kind": "stopped", "detail": f"it could not be requeued: {error}"})
                    return
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 30.0)

    def _is_running(self) -> bool:
        """Whether Slurm has this life running."""
        assert self.slurm_id is not None
        with suppress(SlurmError):
            details = slurm.job_details(self.slurm_id)
            return details.get("JobState") == "RUNNING" and self._is_this_life(details)
        return False

    def _end(self, end: dict[str, Any]) -> None:
        told = {**end, "time": time.time(), "told_by": "job"}
        patiently(lambda: write_json(self.job.end, told), _FILES)


def trainer_environment(order: dict[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a trainer and its Ray: ours, less the controller's Python, plus the stack's, threads and the
    arm's own."""
    env = {name: value for name, value in environ.items() if name not in _CONTROLLER_VARIABLES}
    env = stack_environment(Path(order["python"]).parents[2] / "verify.json", env)
    env["PYTHONPATH"] = order["cwd"]
    env["PYTHONUNBUFFERED"] = "1"
    env |= dict.fromkeys(THREAD_VARIABLES, str(order["cpus"]))
    env |= order["env"]
    if gpus := int(order["spec"]["workload"].get("gpus_per_node", 0)):
        env["CUDA_VISIBLE_DEVICES"] = ",".join(_gpus_in_sight(order, env, gpus))
    return env


def _gpus_in_sight(order: dict[str, Any], env: Mapping[str, str], wanted: int) -> list[str]:
    """As many GPUs as the experiment wants, of those that may be used.

    With more in sight Ray might put two nodes' parts onto one node, and torch would spread where it is not asked to.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if order["cluster"] == "local":
        # submitit's local executor hides all of them.
        visible = order["env"].get("CUDA_VISIBLE_DEVICES", order["visible_gpus"])
    return (list(map(str, range(wanted))) if visible is None else visible.split(","))[:wanted]


def _ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    """Only the trainer itself: it needs its children (data loaders, the tracker, an engine) for its last step."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
