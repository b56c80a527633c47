"""Lives one life of a job on its node, in the controller's Python: attempt after attempt, and says how it ended.

A job lives through one attempt after another. Under Slurm every attempt but the last ends in a requeue, ordered here
and not by submitit: its handler asks Slurm once, gives the job up if slurmctld is just restarting, and may not touch
the process whose end the main thread waits for. On one machine the job goes on by itself.
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
from common.files import read_json, write_json
from common.retry import exists, retry_io
from trainers import Spread
from workflow.cluster import slurm, spread
from workflow.cluster.ends import ENDED_BY_SLURM, cancelled_by
from workflow.cluster.history import (
    FILES,
    finished_attempt,
    how_it_ended,
    matching_attempts,
    read_object,
    without_new_step,
)
from workflow.cluster.jobstate import SILENT_S, Evidence, JobVerdict, Watch, job_state
from workflow.cluster.locks import try_lock
from workflow.cluster.paths import AttemptPaths, JobPaths, RunPaths
from workflow.cluster.place import Place
from workflow.cluster.processes import adopt_orphans
from workflow.cluster.progress import last_step
from workflow.cluster.rendezvous import NoServerError, RendezvousError
from workflow.cluster.slurm import SlurmError, may_pass
from workflow.cluster.stopping import StopRequests
from workflow.cluster.submissions import submission
from workflow.cluster.training import POLL_S, Training, trainer_command, trainer_environment

# How long a life that begins waits for the one before it, which ends when it reads of its successor; a test wants less.
_TAKE_OVER_S = float(os.environ.get("ROLLOUTBENCH_TAKE_OVER_S", "180"))
_REQUEUE_PATIENCE_S = 900.0


def run_job(run_folder: str, number: int) -> None:
    """What submitit calls on the node: live this job of a run to its end, or until it is requeued."""
    run = RunPaths(Path(run_folder))
    stops = StopRequests(run.job(number), os.environ)
    stops.install_signals()  # before anything is read, which may take long
    job = JobOnNode(run, run.job(number), dict(os.environ), stops)
    if job.place.rank == 0:
        job.live()
    else:
        job.serve()


class JobOnNode:
    """One life of a job, from its start (or its start after a requeue) on."""

    def __init__(self, run: RunPaths, job: JobPaths, environ: dict[str, str], stops: StopRequests) -> None:
        self.run, self.job, self.stops = run, job, stops
        self.order: dict[str, Any] = retry_io(lambda: read_json(job.order), "this job's order")
        self.slurm_id = environ.get("SLURM_JOB_ID") if self.order["cluster"] == "slurm" else None
        stops.slurm_id = self.slurm_id
        self.restart, self.nodes = stops.restart, stops.nodes
        # Known to all ranks and new for every life; the count of restarts alone is not, where slurmctld was killed.
        self.life = f"{self.restart}-{environ.get('SLURM_STEP_ID', '0')}-{environ.get('SLURM_SRUN_COMM_PORT', '0')}"
        self._environment = retry_io(lambda: trainer_environment(self.order, environ), "the stack's files")
        self.place = Place.from_environment(self._environment, self.order["cpus"])
        self._token = secrets.token_hex(8)

    def live(self) -> None:
        """One attempt after another, until one is the last; end.json says how it all ended."""
        if retry_io(lambda: exists(self.job.end), FILES):
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
        return retry_io(self._over_now, FILES)

    def _over_now(self) -> dict[str, Any] | None:
        order, job = self.order, submission(self.job)
        steps = int(order["spec"]["workload"]["steps"])
        done = finished_attempt(self.run, order["fingerprint"], steps, order["inputs_sha256"])
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

    def _take_over(self) -> AbstractContextManager[object] | None:
        """The run, once the life before this one has let go of it or fallen silent; None if it goes on training.

        On this machine whoever has the lock lives. Slurm's word that this life has begun is an order to the one before,
        on a node that Slurm gave up: it reads life.json with every heartbeat, and ends. Where a file system keeps the
        locks of a node that died, or keeps them to one node, only the heartbeat's silence tells.
        """
        if self.slurm_id is None:
            return try_lock(self.run.live_lock, note=str(self.job.number), patience_s=2.0)
        told = {"job": self.job.number, "token": self._token, "life": self.life, "host": socket.gethostname()}
        retry_io(lambda: write_json(self.run.life, told), FILES)
        before = retry_io(self._newest, FILES)
        here = before is None or retry_io(lambda: read_object(before.order), FILES).get("host") == socket.gethostname()
        watch, lock = Watch(lambda: before), None
        began = time.monotonic()
        while not (pulse := watch.look()).quiet or lock is None:
            lock = lock or retry_io(lambda: try_lock(self.run.live_lock, note=str(self.job.number)), FILES)
            if lock is not None and here:
                return lock
            waited_s = time.monotonic() - began
            if pulse.beats is False or (before is None and waited_s > SILENT_S):
                return lock or nullcontext()
            if self.stops.signal is not None or waited_s > _TAKE_OVER_S:
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
        if (stop := self.stops.wanted()) is not None:
            return stop | self.stops.reason(stop)
        last = self.run.attempts()[-1]
        where = read_object(last.order).get("host", "?")
        return {
            "kind": "not alone",
            "detail": f"attempt {last.number} on {where}, which Slurm gave up, goes on training and did not end within "
            f"{_TAKE_OVER_S:.0f} s",
        }

    def serve(self) -> None:
        """What the other nodes of a job do: join rank 0's Ray, or start their processes or the
        server, until the life is over.

        All ranks get Slurm's signals; rank 0 decides what follows. A rank that fails says so, waits for rank 0 to end
        the life, and ends well: at another exit code srun kills rank 0 after KillWait, which may come before it has
        written how the attempt ended, or has asked for the requeue.
        """
        worker = spread.worker(self.order, self._meeting(self.life))
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

    def _await_rank_0(self, worker: spread.Worker) -> None:
        leave_at = time.monotonic() + self.order["limits"]["stop_grace_s"]
        while not worker.over and time.monotonic() < leave_at:
            worker.poll()
            time.sleep(1.0)

    def _meeting(self, life: str) -> dict[str, Any]:
        """What a `TaskSetup` of this node is made of."""
        folder = self.job.nodes(life)
        return {
            "place": self.place,
            "folder": folder,
            "python": Path(self.order["python"]),
            "environment": self._environment,
            "cwd": Path(self.order["cwd"]),
            "log": folder / f"{spread.starter(self.order)}-{self.place.rank}.log",
            "give_up": lambda: "it was told to stop" if self.stops.signal or self.stops.asked() else None,
        }

    def _attempt(self) -> dict[str, Any]:
        """One attempt; how it ended, with `again` if the run shall go on in another one."""
        earlier = retry_io(self._earlier, FILES)
        if (fruitless := retry_io(lambda: without_new_step(earlier), FILES)) > self.order["limits"]["restarts"]:
            last = retry_io(lambda: how_it_ended(earlier[-1]), FILES)
            return {"kind": "no progress", "detail": f"{fruitless} attempts in a row without a new step (last: {last})"}
        attempt = retry_io(self._new_attempt, FILES)
        training = Training(
            self.order, attempt, self.stops, self.slurm_id is not None, self._is_superseded, self._hung_before
        )
        alone = Spread.from_spec(self.order) is Spread.ALONE
        end = training.run(None) if alone else self._train_on_nodes(attempt, training)
        reached = retry_io(lambda: last_step(attempt.metrics), FILES)
        end |= {"attempt": attempt.number, "time": time.time(), "last_step": reached}
        retry_io(lambda: write_json(attempt.exit, end), FILES)
        return end

    def _new_attempt(self) -> AttemptPaths:
        attempt = self.run.new_attempt()
        write_json(attempt.spec, self.order["spec"])
        write_json(attempt.order, self._attempt_order(attempt))
        return attempt

    def _earlier(self) -> list[AttemptPaths]:
        """The attempts that are counted against the limits."""
        return matching_attempts(
            self.run, self.order["fingerprint"], self.order["inputs_sha256"], self.order["count_from"]
        )

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
            "command": trainer_command(self.order, attempt),
            "job": self.job.number,
            "slurm": placed,
            "host": socket.gethostname(),
            "output_bytes": sum(file.stat().st_size for file in self.job.submitit.glob("*.out")),
            "started": time.time(),
        }

    def _train_on_nodes(self, attempt: AttemptPaths, training: Training) -> dict[str, Any]:
        """Train with all nodes of the job: as one Ray cluster of its own, on one node, too, never in another's; or with
        a process for each GPU, and a server beside them."""
        # The other ranks know the number of the life, not of the attempt; on this machine there are none.
        meeting = self._meeting(self.life if self.slurm_id is not None else str(attempt.number))
        try:
            # A server may take long to answer: who takes over must not find this life silent, nor be trained beside.
            with training.beating(), spread.started(self.order, meeting, attempt) as head:
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
        """Whether Slurm has begun another life of this run: this node was given up, and does not know it."""
        with suppress(OSError):
            return self.slurm_id is not None and read_object(self.run.life).get("token", self._token) != self._token
        return False

    def _requeue(self) -> None:
        """Go back into the queue; if Slurm will not have it, a head submits the run again.

        Slurm requeues a preempted job by itself when the grace is over; a job that asks for it gives its node back
        sooner. What Slurm is ending already is let alone: requeueing would bring a cancelled job back.
        """
        assert self.slurm_id is not None
        give_up = time.monotonic() + _REQUEUE_PATIENCE_S
        pause_s = 1.0
        while time.monotonic() < give_up:
            self.stops.signal = None
            try:
                details = slurm.job_details(self.slurm_id)
                if not self.stops.is_this_life(details):
                    return  # Slurm has requeued it by itself, and begun it elsewhere
                if (over := self._over()) is not None:
                    self._end(over)
                    return
                if details.get("JobState") == "RUNNING":
                    slurm.requeue(self.slurm_id)
                # To leave before Slurm's TERM would look like a failure; to leave after it gives the node back at once.
                leave_at = time.monotonic() + 60.0
                while self.stops.signal is None and time.monotonic() < leave_at:
                    time.sleep(POLL_S)
                return
            except SlurmError as error:
                print(f"requeue: {error}", file=sys.stderr, flush=True)
                if not may_pass(str(error)):
                    if not self.stops.is_running():
                        return  # cancelled meanwhile: what became of it is Slurm's to say
                    # A site that forbids it: the node is given back, and a head submits the run again.
                    self._end({"kind": "stopped", "detail": f"it could not be requeued: {error}"})
                    return
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 30.0)

    def _end(self, end: dict[str, Any]) -> None:
        told = {**end, "time": time.time(), "told_by": "job"}
        retry_io(lambda: write_json(self.job.end, told), FILES)
