"""Why an attempt ended, where Slurm's signal reaches the trainer before the process that watches it."""

import json
import signal
import subprocess
from types import SimpleNamespace

import pytest

from common.files import write_text
from workflow.job.stopping import StopRequests
from workflow.job.training import Training
from workflow.runs.ends import explain
from workflow.runs.paths import RunPaths
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError

pytestmark = pytest.mark.promise("a-signal-before-a", "a-stop-that-kills")

RUNNING = {"JobState": "RUNNING", "Restarts": "0", "NodeList": "n1"}
LIMITS = {"hang_factor": 0, "hang_min_s": 1, "first_step_s": 1, "stop_grace_s": 120}
REQUEST = {"limits": LIMITS, "spec": {"spread": "alone"}}


def end(tmp_path, code, slurm_id, head=None):
    stops = StopRequests(RunPaths(tmp_path), {"SLURM_JOB_NODELIST": "n1"})
    stops.slurm_id = slurm_id
    attempt = RunPaths(tmp_path).attempt(1)
    training = Training(REQUEST, attempt, stops, slurm_id is not None, lambda: False, lambda: False)
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


@pytest.mark.parametrize(("code", "kind"), [(-signal.SIGKILL, "out of memory"), (-signal.SIGTERM, "killed")])
def test_only_a_sigkill_is_the_kernels(code, kind, tmp_path, monkeypatch):
    """Its count is of a whole machine where nothing has a cgroup of its own: another program may have lacked memory."""
    monkeypatch.setattr("workflow.job.training.oom_kills", lambda: 1)
    assert end(tmp_path, code, None)["kind"] == kind


@pytest.mark.parametrize(("state", "again"), [("RUNNING", True), ("CANCELLED", False)])
def test_a_rank_of_another_node_that_slurm_signals_first_is_no_failure(state, again, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "job_details", lambda job: {**RUNNING, "JobState": state})
    head = SimpleNamespace(culprit=lambda code: ("rank 1 of 2 on n2 was killed by SIGTERM", -signal.SIGTERM))
    found = end(tmp_path, 1, "7", head)
    assert (found["kind"], found["again"]) == ("stopped", again)


def test_a_trainer_that_is_asked_to_stop_at_any_moment_is_not_called_killed(tmp_path, monkeypatch):
    stops = StopRequests(RunPaths(tmp_path), {"SLURM_JOB_NODELIST": "n1"})
    training = Training(REQUEST, RunPaths(tmp_path).attempt(1), stops, False, lambda: False, lambda: False)
    read = iter([None])  # the request comes between two looks
    monkeypatch.setattr(stops, "asked", lambda: next(read, "now"))
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        end = training._watch(process, None)
    assert (end["kind"], end["cause"]) == ("stopped", "asked")


def test_a_kill_before_the_checkpoint_is_said_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "job_details", lambda job: RUNNING)
    stops = StopRequests(RunPaths(tmp_path), {"SLURM_JOB_NODELIST": "n1"})
    stops.slurm_id, stops.signal = "7", signal.SIGUSR2
    attempt = RunPaths(tmp_path).attempt(1)
    rows = [{"step": step, "phases": {"step": 390.0 + 10 * step}, "scalars": {}} for step in (1, 2, 3)]
    write_text(attempt.metrics, "".join(json.dumps(row) + "\n" for row in rows))
    training = Training(REQUEST, attempt, stops, True, lambda: False, lambda: False)
    assert training._watchdog.tick(1.0) is None
    found = training._ended(-signal.SIGKILL, 0, None)
    assert (found["kind"], found["cause"], found["again"]) == ("stopped", "time limit", True)
    assert found["detail"] == (
        "time limit; it was killed before its checkpoint: a step takes 410 s, stop_grace_s is 120; set it above the "
        "longest step and a checkpoint"
    )


@pytest.mark.parametrize(("resume", "kind"), [("restart", "time limit"), ("script", "stopped")])
def test_a_time_limit_of_a_script_that_begins_anew_is_final_and_says_what_to_raise(resume, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "job_details", lambda job: RUNNING)
    stops = StopRequests(RunPaths(tmp_path), {"SLURM_JOB_NODELIST": "n1"})
    stops.slurm_id, stops.signal = "7", signal.SIGUSR2
    own = {"limits": LIMITS, "spread": "own", "spec": {"spread": "own", "trainer_args": {"resume": resume}}}
    training = Training(own, RunPaths(tmp_path).attempt(1), stops, True, lambda: False, lambda: False)
    found = training._ended(75, 0, None)
    assert (found["kind"], found["again"]) == (kind, kind == "stopped")
    assert ("raise runtime in the profile" in explain(found | {"last_step": 12}, own["spec"])) == (kind == "time limit")
