"""Why an attempt ended, where Slurm's signal reaches the trainer before the process that watches it."""

import signal
import subprocess
from types import SimpleNamespace

import pytest

from workflow.job.stopping import StopRequests
from workflow.job.training import Training
from workflow.runs.paths import JobPaths, RunPaths
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError

RUNNING = {"JobState": "RUNNING", "Restarts": "0", "NodeList": "n1"}
LIMITS = {"hang_factor": 0, "hang_min_s": 1, "first_step_s": 1, "stop_grace_s": 1}


def end(tmp_path, code, slurm_id, head=None):
    stops = StopRequests(JobPaths(tmp_path / "job"), {"SLURM_JOB_NODELIST": "n1"})
    stops.slurm_id = slurm_id
    attempt = RunPaths(tmp_path).attempt(1)
    training = Training({"limits": LIMITS}, attempt, stops, slurm_id is not None, lambda: False, lambda: False)
    if head is not None:
        training._stop = {"kind": "node lost", "again": True}
    return training._ended(code, 0, head)


@pytest.mark.parametrize("code", [75, -signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGUSR2])
@pytest.mark.parametrize(
    ("details", "cause", "again"),
    [
        ({**RUNNING, "PreemptTime": "2026-01-01T00:00:00"}, "preempted", True),
        ({**RUNNING, "JobState": "CANCELLED"}, "ended by Slurm", False),
        ({**RUNNING, "Restarts": "1"}, "ended by Slurm", False),
        (RUNNING, None, True),
    ],
)
def test_slurm_is_asked_why_a_trainer_stopped_however_late_its_watcher_is_signalled(
    code, details, cause, again, tmp_path, monkeypatch
):
    monkeypatch.setattr(slurm, "job_details", lambda job: details)
    own = {75: "the trainer's own", -signal.SIGUSR2: "time limit"}.get(code, "signal SIGTERM")
    assert end(tmp_path, code, "7") == {"kind": "stopped", "cause": cause or own, "again": again, "code": code}


def test_a_slurm_that_does_not_answer_is_no_failure_of_the_trainer(tmp_path, monkeypatch):
    def down(job):
        raise SlurmError("slurmctld is down")

    monkeypatch.setattr(slurm, "job_details", down)
    found = end(tmp_path, -signal.SIGTERM, "7")
    assert (found["kind"], found["again"]) == ("stopped", True)


@pytest.mark.parametrize(("code", "kind"), [(75, "stopped"), (-signal.SIGTERM, "killed"), (1, "failed")])
def test_without_slurm_nobody_else_signals_a_trainer(code, kind, tmp_path):
    found = end(tmp_path, code, None)
    assert found["kind"] == kind
    assert not found.get("again")


@pytest.mark.parametrize(("state", "again"), [("RUNNING", True), ("CANCELLED", False)])
def test_a_rank_of_another_node_that_slurm_signals_first_is_no_failure(state, again, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "job_details", lambda job: {**RUNNING, "JobState": state})
    head = SimpleNamespace(culprit=lambda code: ("rank 1 of 2 on n2 was killed by SIGTERM", -signal.SIGTERM))
    found = end(tmp_path, 1, "7", head)
    assert (found["kind"], found["again"]) == ("stopped", again)


def test_a_trainer_that_is_asked_to_stop_at_any_moment_is_not_called_killed(tmp_path, monkeypatch):
    stops = StopRequests(JobPaths(tmp_path / "job"), {"SLURM_JOB_NODELIST": "n1"})
    training = Training({"limits": LIMITS}, RunPaths(tmp_path).attempt(1), stops, False, lambda: False, lambda: False)
    read = iter([None])  # the request comes between two looks
    monkeypatch.setattr(stops, "asked", lambda: next(read, "now"))
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        end = training._watch(process, None)
    assert (end["kind"], end["cause"]) == ("stopped", "asked")
