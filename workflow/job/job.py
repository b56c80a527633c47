"""Runs one life of a job on its node, in the controller's Python: trains one attempt after another, records the end.

Only a job that holds the run's order trains: an order of its name, without an end. Under Slurm every attempt but the
last ends in a requeue, requested here: submitit's handler asks Slurm once, and gives up while slurmctld restarts. On
one machine the job continues with the next attempt by itself.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from common.files import write_json
from common.ownership import NotOwnError, own_tree
from common.retry import await_file, retry_io
from node.hardware import git_state
from trainers import Spread
from workflow.job.machine_locks import machine_to_itself
from workflow.job.place import Place
from workflow.job.processes import adopt_orphans
from workflow.job.rendezvous import NoServerError, RendezvousError, TaskSetup, WorkerTask, end_life
from workflow.job.server import started_nodes, worker_task
from workflow.job.stopping import StopRequests
from workflow.job.training import POLL_S, Training, stack_file, trainer_command, trainer_environment
from workflow.runs.ends import ENDED_BY_SLURM
from workflow.runs.history import (
    FILES,
    attempts_of_order,
    begins_anew,
    end_reason,
    finished_attempt,
    read_object,
    steps_of,
)
from workflow.runs.locks import try_lock
from workflow.runs.orders import end_of, write_end
from workflow.runs.paths import AttemptPaths, RunPaths
from workflow.runs.progress import reached_step, without_new_step
from workflow.runs.pulse import HeartbeatWatch
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError, may_pass

if TYPE_CHECKING:
    from common.contracts import AttemptFile, SlurmPlace

# How long a new life waits for the one before it, which ends when it reads of its successor; tests set it lower.
_TAKE_OVER_S = float(os.environ.get("ROLLOUTBENCH_TAKE_OVER_S", "180"))
_REQUEUE_PATIENCE_S = 900.0


def run_job(run_folder: str, number: int, name: str) -> None:
    """Run a submission of a run's order until it ends or is requeued; submitit calls it on each node."""
    run = RunPaths(Path(run_folder))
    stops = StopRequests(run, os.environ)
    stops.install_signals()  # before any read, which may take long
    job = JobOnNode(run, number, name, dict(os.environ), stops)
    if job.place.rank == 0:
        job.live()
    else:
        job.serve()


class JobOnNode:
    """One life of a job, from its start or its restart after a requeue."""

    def __init__(self, run: RunPaths, number: int, name: str, environ: dict[str, str], stops: StopRequests) -> None:
        self.run, self.name, self.stops = run, name, stops
        self._output = run.submission(number)
        self.request: dict[str, Any] = retry_io(self._order, "this run's order")
        self.request["cpus"] = self.request["cpus"] or Place.from_environment(environ).cpus  # 0: what Slurm has given
        self.slurm_id = environ.get("SLURM_JOB_ID") if self.request["cluster"] == "slurm" else None
        stops.slurm_id = self.slurm_id
        self.host = environ.get("SLURMD_NODENAME") or socket.gethostname()
        # Known to all ranks and new for every life; a killed slurmctld may repeat a restart count.
        numbers = (environ.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_SRUN_COMM_PORT"))
        self.life = "-".join([str(stops.restart), *numbers])
        if (stack := stack_file(self.request)) is not None:
            await_file(stack, give_up=lambda: stops.signal is not None or stops.asked() is not None)
        self._environment = retry_io(lambda: trainer_environment(self.request, environ), "the stack's files")
        self.place = Place.from_environment(self._environment, self.request["cpus"])
        self._token = secrets.token_hex(8)

    def _order(self) -> dict[str, Any]:
        self.run.make_own()
        order = read_object(self.run.order)
        if not order:
            raise UserError(f"{self.run.order} is missing: nobody wants this run trained")
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
        if (over := self._over()) is not None:
            return self._settle(over)
        if (lock := self._take_over()) is None:
            return self._settle(self._not_begun())
        with lock, machine_to_itself(self.request, self.run, self.stops) as stop:
            # While this life waited, the earlier one may have finished the run, or a user cancelled it.
            while (end := stop or self._over() or self._attempt()).get("again") and self.slurm_id is None:
                pass
            self._settle(end)

    def _settle(self, end: dict[str, Any]) -> None:
        """Requeue the job, or record that its order has ended; what Slurm ends itself is no end of the order."""
        if end.get("again"):
            self._requeue()
        elif end["kind"] not in ("superseded", "ended") and end.get("cause") != ENDED_BY_SLURM:
            self._end(end)

    def _over(self) -> dict[str, Any] | None:
        """Why this job has nothing left to do; None if it has work."""
        return retry_io(self._over_now, FILES)

    def _over_now(self) -> dict[str, Any] | None:
        request, order = self.request, read_object(self.run.order)
        steps = steps_of(request["spec"])
        done = finished_attempt(self.run, request["fingerprint"], steps, request["inputs_sha256"])
        if done is not None:
            return {"kind": "finished", "attempt": done.number}
        if order.get("name") != self.name:
            return {"kind": "superseded"}
        if end_of(self.run, order["start"]):
            return {"kind": "ended"}
        by = read_object(self.run.cancelled).get("by")
        return {"kind": "cancelled", "by": by} if by else None

    def _take_over(self) -> AbstractContextManager[object] | None:
        """The right to train, once the earlier life has ended or is silent; None if that life keeps training.

        On this machine the holder of the run's lock is alive. Under Slurm the earlier life may be on a node that Slurm
        gave up: it reads life.json with every heartbeat, and ends. A lock says nothing there: some file systems keep
        those of a dead node, or do not share them between nodes.
        """
        if self.slurm_id is None:
            return retry_io(lambda: try_lock(self.run.live_lock, patience_s=2.0), FILES)
        life = {"job": self.slurm_id, "token": self._token, "life": self.life, "host": self.host}
        retry_io(lambda: write_json(self.run.life, life), FILES)
        watch = HeartbeatWatch(retry_io(lambda: next(reversed(self.run.attempts()), None), FILES))
        give_up = time.monotonic() + _TAKE_OVER_S
        while not watch.quiet():
            if self.stops.signal is not None or time.monotonic() > give_up:
                return None
            time.sleep(POLL_S)
        return nullcontext()

    def _not_begun(self) -> dict[str, Any]:
        """The end of a life that cannot begin, since another one keeps training."""
        if self.slurm_id is None:
            return {"kind": "superseded"}
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
        worker = worker_task(self.request, self._task_setup(self.life))
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
        folder = self.run.nodes(life)
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
        earlier = retry_io(lambda: attempts_of_order(self.run, self.request), FILES)
        if (fruitless := retry_io(lambda: without_new_step(earlier), FILES)) > self.request["limits"]["restarts"]:
            last = retry_io(lambda: end_reason(earlier[-1]), FILES)
            detail = f"{fruitless} attempts in a row without a new step (last: {last})"
            return {"kind": "no progress", "detail": detail, "attempt": earlier[-1].number}
        attempt = retry_io(self._new_attempt, FILES)
        training = Training(
            self.request, attempt, self.stops, self.slurm_id is not None, self._is_superseded, self._hung_before
        )
        # A later life writes its token before it looks for attempts: one of the two sees the other.
        if self._is_superseded():
            end: dict[str, Any] = {"kind": "superseded"}
        elif Spread.from_spec(self.request) in (Spread.ALONE, Spread.OWN):
            end = training.run(None)
        else:
            end = self._train_on_nodes(attempt, training)
        end |= {"attempt": attempt.number, "time": time.time()}
        end["last_step"] = retry_io(lambda: reached_step(attempt), FILES)
        if end["kind"] in ("failed", "killed") and self._has_progressed(earlier, end["last_step"]):
            # The node, a GPU or the network may be the cause: the trainer goes on from its checkpoint.
            end["again"] = True
        retry_io(lambda: write_json(attempt.exit, end), FILES)
        return end

    def _has_progressed(self, earlier: list[AttemptPaths], step: int) -> bool:
        """Whether the attempt in Slurm got farther than those before it, and the next one goes on from there."""
        if self.slurm_id is None or begins_anew(self.request["spec"]):
            return False
        return step > retry_io(lambda: max(map(reached_step, earlier), default=0), FILES)

    def _new_attempt(self) -> AttemptPaths:
        attempt, request = self.run.new_attempt(), self.request
        placed: SlurmPlace | None = None
        if self.slurm_id is not None:
            placed = {"job_id": self.slurm_id, "restart": self.stops.restart, "nodes": self.stops.nodes}
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
            "slurm": placed,
            "host": socket.gethostname(),
            "output_bytes": sum(file.stat().st_size for file in self._output.glob("*.out")),
            "started": time.time(),
            "nodes": list(self.place.hosts),
            "git": git_state(),
        }
        write_json(attempt.request, attempt_request)
        return attempt

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
            return any(
                read_object(attempt.exit).get("kind") == "hung" for attempt in attempts_of_order(self.run, self.request)
            )
        return False

    def _is_superseded(self) -> bool:
        """Whether Slurm has started another life of this run: it gave this node up."""
        with suppress(OSError, NotOwnError):
            return self.slurm_id is not None and read_object(self.run.life).get("token", self._token) != self._token
        return False

    def _requeue(self) -> None:
        """Return to the queue; if that fails, a launcher submits the run again.

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
                    return self._settle(over)
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
                    return  # cancelled meanwhile, or a site that forbids requeues
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 30.0)

    def _end(self, end: dict[str, Any]) -> None:
        end = {"nodes": self.host, **end, "told_by": "job"}
        retry_io(lambda: write_end(self.run, self.request["start"], end), FILES)
