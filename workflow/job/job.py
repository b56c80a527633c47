"""Runs one life of a job on its node, in the controller's Python: trains one attempt after another, records its end.

Under Slurm every attempt but the last ends in a requeue, which this module requests instead of submitit. submitit's
handler asks Slurm once, gives the job up while slurmctld restarts, and may not touch the process that the main thread
waits for. On one machine the job continues with the next attempt by itself.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from common.contracts import AttemptFile, SlurmPlace
from common.files import write_json, write_json_once
from common.ownership import NotOwnError, own_folder, own_tree, read_own_json
from common.retry import await_file, retry_io
from trainers import Spread
from workflow.job.machine_locks import machine_to_itself
from workflow.job.place import Place
from workflow.job.processes import adopt_orphans
from workflow.job.rendezvous import NoServerError, RendezvousError, TaskSetup, WorkerTask, end_life
from workflow.job.server import started_nodes, worker_task
from workflow.job.stopping import StopRequests
from workflow.job.training import POLL_S, Training, stack_file, trainer_command, trainer_environment
from workflow.runs.history import (
    ENDED_BY_SLURM,
    FILES,
    cancelled_by,
    end_reason,
    finished_attempt,
    matching_attempts,
    read_object,
    steps_of,
)
from workflow.runs.job_state import SILENT_S, Evidence, HeartbeatWatch, JobVerdict, job_state
from workflow.runs.jobs import submission
from workflow.runs.locks import try_lock
from workflow.runs.paths import AttemptPaths, JobPaths, RunPaths
from workflow.runs.progress import last_step, without_new_step
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError, may_pass

# How long a new life waits for the one before it, which ends when it reads of its successor; tests set it lower.
_TAKE_OVER_S = float(os.environ.get("ROLLOUTBENCH_TAKE_OVER_S", "180"))
_REQUEUE_PATIENCE_S = 900.0


def run_job(run_folder: str, number: int) -> None:
    """Run this job of a run until it ends or is requeued; submitit calls it on each node."""
    run = RunPaths(Path(run_folder))
    stops = StopRequests(run.job(number), os.environ)
    stops.install_signals()  # before any read, which may take long
    job = JobOnNode(run, run.job(number), dict(os.environ), stops)
    if job.place.rank == 0:
        job.live()
    else:
        job.serve()


class JobOnNode:
    """One life of a job, from its start or its restart after a requeue."""

    def __init__(self, run: RunPaths, job: JobPaths, environ: dict[str, str], stops: StopRequests) -> None:
        self.run, self.job, self.stops = run, job, stops
        self.request: dict[str, Any] = retry_io(self._order, "this job's request")
        self.slurm_id = environ.get("SLURM_JOB_ID") if self.request["cluster"] == "slurm" else None
        stops.slurm_id = self.slurm_id
        self.restart, self.nodes = stops.restart, stops.nodes
        # Known to all ranks and new for every life; a killed slurmctld may repeat a restart count.
        self.life = f"{self.restart}-{environ.get('SLURM_STEP_ID', '0')}-{environ.get('SLURM_SRUN_COMM_PORT', '0')}"
        if (stack := stack_file(self.request)) is not None:
            await_file(stack, give_up=lambda: stops.signal is not None or stops.asked() is not None)
        self._environment = retry_io(lambda: trainer_environment(self.request, environ), "the stack's files")
        self.place = Place.from_environment(self._environment, self.request["cpus"])
        self._token = secrets.token_hex(8)

    def _order(self) -> dict[str, Any]:
        self.run.make_own()
        own_folder(self.job.folder)
        order: dict[str, Any] = read_own_json(self.job.request)
        # Trainers load pickles from checkpoints, and code from a model.
        for folder in (Path(order["checkpoint_dir"]), *([Path(order["inputs"]).parent] if order["inputs"] else [])):
            own_tree(folder)
        return order

    def live(self) -> None:
        """Rank 0's part: train one attempt after another up to the last one, and write end.json."""
        try:
            self._live()
        finally:
            # The other ranks wait for this life to begin, or for its end: on every path they leave with it.
            if self.place.nodes > 1:
                end_life(self._task_setup(self.life))

    def _live(self) -> None:
        adopt_orphans()
        end = self._over()
        if end is None:
            end = self._not_begun() if (lock := self._take_over()) is None else self._train_on(lock)
        if end.get("again"):
            self._requeue()
        elif end["kind"] != "superseded" and end.get("cause") != ENDED_BY_SLURM:
            self._end(end)

    def _train_on(self, lock: AbstractContextManager[object]) -> dict[str, Any]:
        with lock, machine_to_itself(self.request, self.job, self.run, self.stops) as stop:
            # While this life waited, the earlier one may have finished the run, or a user cancelled it.
            while (end := stop or self._over() or self._attempt()).get("again") and self.slurm_id is None:
                pass
            return end

    def _over(self) -> dict[str, Any] | None:
        """The end of a job that has nothing left to do, from the files' verdict; None if it has work."""
        return retry_io(self._over_now, FILES)

    def _over_now(self) -> dict[str, Any] | None:
        request, job = self.request, submission(self.job)
        steps = steps_of(request["spec"])
        done = finished_attempt(self.run, request["fingerprint"], steps, request["inputs_sha256"])
        by = cancelled_by(self.job) or read_object(self.run.cancelled).get("by")
        current = read_object(self.run.current).get("job") == self.job.number
        verdict = job_state(Evidence(job, finished=done is not None, current=current, cancelled_by=by)).verdict
        if verdict is JobVerdict.ENDED:
            return {"kind": "superseded"}  # given up by a launcher, or requeued by hand: its end.json stands
        if verdict is JobVerdict.FINISHED:
            return {"kind": "finished", "detail": f"attempt {done.number if done else '?'} had finished the run"}
        if verdict is JobVerdict.SUPERSEDED:
            return {"kind": "duplicate"}
        return {"kind": "cancelled", "by": by} if verdict is JobVerdict.CANCELLED else None

    def _take_over(self) -> AbstractContextManager[object] | None:
        """The run's lock, once the earlier life has released it or is silent; None if that life keeps training.

        On this machine the holder of the lock is alive. Under Slurm the earlier life may be on a node that Slurm gave
        up: it reads life.json with every heartbeat, and ends. Some file systems keep the locks of a dead node, or do
        not share locks between nodes: there only the silent heartbeat counts.
        """
        note = str(self.job.number)
        if self.slurm_id is None:
            return retry_io(lambda: try_lock(self.run.live_lock, note=note, patience_s=2.0), FILES)
        life = {"job": self.job.number, "token": self._token, "life": self.life, "host": socket.gethostname()}
        retry_io(lambda: write_json(self.run.life, life), FILES)
        before = retry_io(lambda: next(reversed(self.run.attempts()), None), FILES)
        here = (
            before is None or retry_io(lambda: read_object(before.request), FILES).get("host") == socket.gethostname()
        )
        watch, lock = HeartbeatWatch(lambda: before), None
        began = time.monotonic()
        while not (pulse := watch.check()).quiet or lock is None:
            lock = lock or retry_io(lambda: try_lock(self.run.live_lock, note=note), FILES)
            if lock is not None and here:
                return lock
            waited_s = time.monotonic() - began
            if pulse.beats is False or (before is None and waited_s > SILENT_S):
                return lock or nullcontext()
            if self.stops.signal is not None or waited_s > _TAKE_OVER_S:
                return None
            time.sleep(POLL_S)
        return lock

    def _not_begun(self) -> dict[str, Any]:
        """The end of a life that cannot begin, since another one keeps training."""
        if self.slurm_id is None:
            return {"kind": "duplicate"}
        if (stop := self.stops.wanted()) is not None:
            return stop | self.stops.reason(stop)
        last = retry_io(self.run.attempts, FILES)[-1]
        where = retry_io(lambda: read_object(last.request), FILES).get("host", "?")
        return {
            "kind": "not alone",
            "detail": f"attempt {last.number} on {where}, a node that Slurm gave up, is still training and did not end "
            f"within {_TAKE_OVER_S:.0f} s",
        }

    def serve(self) -> None:
        """Another rank's part: join rank 0's Ray, or run processes or the server, until the life is over.

        All ranks get Slurm's signals; rank 0 decides what follows. A rank that fails reports it, waits for rank 0 to
        end the life, and exits with 0. With another exit code srun kills rank 0 after KillWait, perhaps before it has
        written the attempt's end or requested the requeue.
        """
        setup = self._task_setup(self.life)
        worker = worker_task(self.request, setup)
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
        except RendezvousError as error:
            print(error, file=sys.stderr, flush=True)
            self._await_rank_0(worker)
        if not worker.over:
            sys.exit(1)

    def _await_rank_0(self, worker: WorkerTask) -> None:
        leave_at = time.monotonic() + self.request["limits"]["stop_grace_s"]
        while not worker.over and time.monotonic() < leave_at:
            worker.poll()
            time.sleep(1.0)

    def _task_setup(self, life: str) -> TaskSetup:
        folder = self.job.nodes(life)
        spread = Spread.from_spec(self.request)
        starter = Spread.TORCHRUN if spread is Spread.SERVER else spread
        return TaskSetup(
            place=self.place,
            folder=folder,
            python=Path(self.request["python"]),
            environment=self._environment,
            cwd=Path(self.request["cwd"]),
            log=folder / f"{starter}-{self.place.rank}.log",
            give_up=lambda: "the job was asked to stop" if self.stops.signal or self.stops.asked() else None,
        )

    def _attempt(self) -> dict[str, Any]:
        """Run one attempt; how it ended, with `again` if the run continues in another one."""
        earlier = retry_io(self._earlier, FILES)
        if (fruitless := retry_io(lambda: without_new_step(earlier), FILES)) > self.request["limits"]["restarts"]:
            last = retry_io(lambda: end_reason(earlier[-1]), FILES)
            return {"kind": "no progress", "detail": f"{fruitless} attempts in a row without a new step (last: {last})"}
        attempt = retry_io(self._new_attempt, FILES)
        training = Training(
            self.request, attempt, self.stops, self.slurm_id is not None, self._is_superseded, self._hung_before
        )
        alone = Spread.from_spec(self.request) in (Spread.ALONE, Spread.OWN)
        end = training.run(None) if alone else self._train_on_nodes(attempt, training)
        reached = retry_io(lambda: last_step(attempt.metrics), FILES)
        end |= {"attempt": attempt.number, "time": time.time(), "last_step": reached}
        retry_io(lambda: write_json(attempt.exit, end), FILES)
        return end

    def _new_attempt(self) -> AttemptPaths:
        attempt, request = self.run.new_attempt(), self.request
        placed: SlurmPlace | None = None
        if self.slurm_id is not None:
            placed = {"job_id": self.slurm_id, "restart": self.restart, "nodes": self.nodes}
        write_json(attempt.spec, request["spec"])
        attempt_request: AttemptFile = {
            "attempt": attempt.number,
            "run_id": request["run_id"],
            "fingerprint": request["fingerprint"],
            "inputs": request["inputs"],
            "inputs_sha256": request["inputs_sha256"],
            "checkpoint_dir": request["checkpoint_dir"],
            "cpus": request["cpus"],
            "cwd": request["cwd"],
            "env": request["env"],
            "spec": str(attempt.spec),
            "attempt_dir": str(attempt.folder),
            "command": trainer_command(request, attempt),
            "job": self.job.number,
            "slurm": placed,
            "host": socket.gethostname(),
            "output_bytes": sum(file.stat().st_size for file in self.job.submitit.glob("*.out")),
            "started": time.time(),
            "nodes": list(self.place.hosts),
        }
        write_json(attempt.request, attempt_request)
        return attempt

    def _earlier(self) -> list[AttemptPaths]:
        request = self.request
        return matching_attempts(self.run, request["fingerprint"], request["inputs_sha256"], request["count_from"])

    def _train_on_nodes(self, attempt: AttemptPaths, training: Training) -> dict[str, Any]:
        """Train with all nodes of the job; with Ray always in a cluster of its own, also on one node."""
        # The other ranks know the life's number, not the attempt's; on this machine there are no other ranks.
        setup = self._task_setup(self.life if self.slurm_id is not None else str(attempt.number))
        try:
            # A server may take long to answer: without a heartbeat the next life would take over.
            with training.beating(), started_nodes(self.request, setup, attempt) as head:
                return {"kind": "superseded"} if self._is_superseded() else training.run(head)
        except RendezvousError as error:
            if (stop := self.stops.wanted()) is not None:
                return stop | self.stops.reason(stop)
            if isinstance(error, NoServerError):
                return {"kind": "no server", "detail": str(error), "again": error.again}
            return {"kind": "node lost", "detail": str(error), "again": self.slurm_id is not None}

    def _hung_before(self) -> bool:
        with suppress(OSError):
            return any(read_object(attempt.exit).get("kind") == "hung" for attempt in self._earlier())
        return False

    def _is_superseded(self) -> bool:
        """Whether Slurm has started another life of this run: it gave this node up."""
        with suppress(OSError, NotOwnError):
            return self.slurm_id is not None and read_object(self.run.life).get("token", self._token) != self._token
        return False

    def _requeue(self) -> None:
        """Return to the queue; if Slurm refuses, the launcher submits the run again.

        Slurm requeues a preempted job itself at the end of the grace time; requesting it releases the node sooner. A
        job that Slurm is already ending is not requeued: that would revive a cancelled job.
        """
        assert self.slurm_id is not None
        give_up = time.monotonic() + _REQUEUE_PATIENCE_S
        pause_s = 1.0
        while time.monotonic() < give_up:
            self.stops.signal = None
            try:
                details = slurm.job_details(self.slurm_id)
                if not self.stops.is_this_life(details):
                    return  # Slurm has requeued it, and started it elsewhere
                if (over := self._over()) is not None:
                    self._end(over)
                    return
                if details.get("JobState") == "RUNNING":
                    slurm.requeue(self.slurm_id)
                # Leaving before Slurm's TERM looks like a failure; leaving after it releases the node at once.
                leave_at = time.monotonic() + 60.0
                while self.stops.signal is None and time.monotonic() < leave_at:
                    time.sleep(POLL_S)
                return
            except SlurmError as error:
                print(f"requeue: {error}", file=sys.stderr, flush=True)
                if not may_pass(str(error)):
                    if not self.stops.is_running():
                        return  # cancelled meanwhile: Slurm reports how it ended
                    # A site that forbids requeues: release the node, and the launcher submits the run again.
                    self._end({"kind": "stopped", "detail": f"it could not be requeued: {error}"})
                    return
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 30.0)

    def _end(self, end: dict[str, Any]) -> None:
        record = {**end, "time": time.time(), "told_by": "job"}
        retry_io(lambda: write_json_once(self.job.end, record), FILES)
