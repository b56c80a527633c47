"""Of two lives of a run that begin at once, one sees the other, whichever comes first."""

import os

import pytest

from common.files import write_json
from workflow.head.submission import LauncherStop, Submitter
from workflow.head.train_rule import command_line, request_of
from workflow.head.watch import SlurmWatch
from workflow.job.job import JobOnNode
from workflow.job.stopping import StopRequests
from workflow.runs.paths import RunPaths

from .run_bench import RunBench

pytestmark = pytest.mark.promise("invariant-2")

SLURM = ("submit_to=slurm", "slurm_partition=h100", "runtime=60")


@pytest.fixture
def job(tmp_path):
    """A job of a run's order, as it begins on its node."""
    bench = RunBench(tmp_path, options=SLURM)
    run = RunPaths(bench.run)
    run.folder.mkdir(parents=True)
    request = request_of(command_line(None).parse_args(bench.command()[3:]))
    order = Submitter(run, request, LauncherStop("arm-s0"), SlurmWatch(run)).new_order()
    environ = {**os.environ, "SLURM_JOB_ID": "7"}
    return JobOnNode(run, 1, order.name, environ, StopRequests(run, environ))


def test_a_life_whose_successor_has_begun_starts_no_trainer(job):
    """The later one has written its token, and has perhaps seen no attempt of the earlier one."""
    assert job._take_over() is not None
    write_json(job.run.life, {"job": "7", "token": "the later one's"})
    assert job._attempt()["kind"] == "superseded"
    (attempt,) = job.run.attempts()
    assert attempt.exit.exists() and not attempt.log.exists() and not attempt.heartbeat.exists()


def test_a_life_that_sees_an_attempt_waits_for_its_silence(job, monkeypatch):
    """The earlier one has made it, and has perhaps not read the later one's token yet."""
    monkeypatch.setattr("workflow.job.job._TAKE_OVER_S", 0.5)
    attempt = job._new_attempt()
    assert job._take_over() is None, "it may train"
    write_json(attempt.exit, {"kind": "superseded"})
    assert job._take_over() is not None
