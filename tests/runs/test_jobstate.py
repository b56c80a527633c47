"""The one state of a job: what each piece of evidence makes of it, and how evidence that takes time is gathered."""

import errno
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from common import retry
from common.files import write_text
from common.retry import retry_io
from workflow.head import watch as scheduler
from workflow.head.watch import LocalScheduler, SlurmScheduler
from workflow.runs import job_state as jobstate
from workflow.runs.job_state import Evidence, HeartbeatWatch, JobVerdict, Life, Pulse, job_state
from workflow.runs.jobs import Submission, belongs_to, identity, make_identity
from workflow.runs.paths import JobPaths, RunPaths
from workflow.slurm.commands import EndedJob, QueueJob
from workflow.slurm.shared_answer import Answer

from ..job.run_bench import ROOT
from .make_runs import MadeRun

NAME = "a.0123456789abcdef"
QUIET, BEATS, UNSURE = Pulse(True, False, False), Pulse(True, False, True), Pulse(True, False, None)


def submission(end=None, **record):
    told = {"cluster": "slurm", "job_id": "7", "name": NAME, "answer": ["s", 1]} | record
    return Submission(JobPaths(Path("jobs/1")), {}, told, end or {})


def queued(state, job_id="7", name=NAME):
    return {job_id: QueueJob(job_id, state, "gpu1", "", "", None, None, "h100", "None", name)}


def ended(state, name=NAME):
    return {"7": EndedJob("7", state, "0:0", None, "gpu1", name)}


def answer(number=9, **more):
    return Answer(series="s", number=number, asked=1.0, tried=1.0, **more)


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (Evidence(submission()), JobVerdict.OPEN),
        (Evidence(submission(), finished=True, cancelled_by="alice"), JobVerdict.FINISHED),
        (Evidence(submission({"kind": "failed"}), cancelled_by="alice"), JobVerdict.ENDED),
        (Evidence(submission(), current=False, cancelled_by="alice"), JobVerdict.SUPERSEDED),
        (Evidence(submission(), cancelled_by="alice"), JobVerdict.CANCELLED),
    ],
)
def test_the_files_verdict(evidence, verdict):
    assert job_state(evidence).verdict is verdict


@pytest.mark.parametrize(
    ("given", "pulse", "looks", "life"),
    [
        ({"jobs": queued("RUNNING")}, QUIET, 0, Life.RUNNING),
        ({"jobs": queued("PENDING")}, Pulse(), 0, Life.WAITING),
        ({"jobs": queued("PENDING")}, QUIET, 0, Life.REQUEUED),
        ({"jobs": queued("SUSPENDED")}, BEATS, 0, Life.SUSPENDED),
        ({"jobs": queued("RUNNING", "8")}, BEATS, 0, Life.RUNNING),  # another number, the same name
        # Both agree: at once, but where the trainer writes, or only the node is known to be gone.
        ({"jobs": queued("CANCELLED"), "ended": ended("CANCELLED")}, Pulse(True, True, None), 1, Life.NONE),
        ({"jobs": queued("CANCELLED"), "ended": ended("CANCELLED")}, UNSURE, 1, Life.DOUBTED),
        ({"jobs": queued("FAILED"), "ended": ended("FAILED")}, QUIET, 1, Life.NONE),
        ({"jobs": queued("FAILED"), "ended": ended("FAILED")}, BEATS, 9, Life.ABANDONED),  # its launch "failed"
        ({"jobs": queued("NODE_FAIL"), "ended": ended("NODE_FAIL")}, BEATS, 9, Life.ABANDONED),
        ({"jobs": queued("NODE_FAIL"), "ended": ended("NODE_FAIL")}, QUIET, 2, Life.NONE),
        # One source alone is not believed at once, and never while the trainer writes.
        ({"ended": ended("PREEMPTED")}, QUIET, 1, Life.DOUBTED),
        ({"ended": ended("PREEMPTED")}, QUIET, 2, Life.NONE),
        ({"ended": ended("PREEMPTED")}, UNSURE, 9, Life.DOUBTED),
        ({"ended": ended("PREEMPTED")}, BEATS, 9, Life.ABANDONED),
        ({"ended": ended("PREEMPTED", "other.job")}, QUIET, 2, Life.DOUBTED),  # of a job that had this number before
        ({}, QUIET, 5, Life.DOUBTED),
        ({}, QUIET, 6, Life.NONE),
        ({}, Pulse(True, True, None), 6, Life.NONE),
        ({"accounting": False}, QUIET, 2, Life.DOUBTED),
        ({"accounting": False}, QUIET, 3, Life.NONE),
        ({"jobs": queued("RUNNING", name="another.name")}, QUIET, 6, Life.NONE),
        ({"number": 2}, QUIET, 9, Life.WAITING),  # asked perhaps before it was submitted
    ],
)
def test_a_slurm_jobs_life(given, pulse, looks, life):
    state = job_state(Evidence(submission(), answer=answer(**given), pulse=pulse, answers_without=looks))
    assert state.life is life
    assert state.alive is (life is not Life.NONE)


def test_what_has_no_life_or_cannot_be_known():
    assert job_state(Evidence(replace(submission(), record={}))).life is Life.NONE
    assert job_state(Evidence(submission(), unavailable="down")).life is Life.SILENT
    on_its_way = Evidence(submission(job_id=None), answer=answer(), submitting=True)
    assert job_state(on_its_way).life is Life.SUBMITTING and not job_state(on_its_way).known
    assert job_state(replace(on_its_way, submitting=False)).life is Life.NONE
    over = Evidence(submission({"kind": "died"}), pulse=BEATS)
    assert job_state(over).life is Life.ABANDONED and "still writes" in job_state(over).note
    assert job_state(replace(over, pulse=UNSURE)).life is Life.DOUBTED
    assert job_state(replace(over, pulse=Pulse(True, True, True))).life is Life.NONE
    here = Evidence(submission(cluster="local"), holds_lock=True)
    assert job_state(here).life is Life.RUNNING
    assert job_state(replace(here, holds_lock=False)).life is Life.NONE
    assert job_state(replace(here, holds_lock=False, submitting=True)).life is Life.STARTING


def test_the_page_has_every_state_and_no_other():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    for head, states in (("verdict", JobVerdict), ("life", Life)):
        rows = re.findall(r"^\| ([a-z, ]+) \|", page.partition(f"| {head} | evidence")[2].partition("\n\n")[0], re.M)
        assert {word for row in rows for word in row.split(", ")} == {str(state) for state in states}


def test_answers_without_a_job_are_counted_for_each_job_alone(tmp_path, monkeypatch):
    """Where the first job was lost after its answers, the next one is not lost after one."""
    made = MadeRun(tmp_path / "results" / "mine", "a").job(1, job_id="7").job(2, job_id="8")
    numbers = iter(range(1, 100))
    monkeypatch.setattr(scheduler, "ask", lambda folder, **more: answer(next(numbers)))
    monkeypatch.setattr(scheduler, "DOUBT_S", 0.0)
    slurm = SlurmScheduler(made.paths, "a", lambda: None)
    for number in (1, 2, 1):
        job, looks = made.paths.job(number), 1
        while slurm.current_state(job).alive:
            looks += 1
        assert looks == 6


def test_a_job_of_this_machine_that_began_and_ended_between_two_looks_is_not_waited_for(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(scheduler.time, "monotonic", lambda: now)
    made = MadeRun(tmp_path, "a").job(cluster="local")
    head, job = LocalScheduler(made.paths), made.paths.job(1)
    assert head.current_state(job).alive, "it may be about to begin"
    made.attempt()
    assert head.current_state(job).alive, "it may be about to say how it ended"
    now += 3
    assert not head.current_state(job).alive


def test_a_heartbeat_is_compared_with_itself_alone(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(jobstate.time, "monotonic", lambda: now)
    made = MadeRun(tmp_path, "a").job().attempt()
    beat = made.paths.attempt(1).heartbeat
    os.utime(beat, (9e9, 9e9))  # a clock that is far ahead
    watch = HeartbeatWatch(lambda: made.paths.attempt(1))
    assert watch.check().beats is None
    now += 10
    assert watch.check().beats is None
    now += 6
    assert watch.check() == QUIET
    os.utime(beat, (1.0, 1.0))
    assert watch.check() == BEATS
    now += 14
    assert watch.check() == BEATS
    now += 1
    assert watch.check() == QUIET
    made.paths.attempt(1).exit.write_text("{}")
    assert watch.check().exited and watch.check().quiet


def test_files_that_cannot_be_read_are_no_silence(tmp_path, monkeypatch):
    now, fails = 100.0, False
    monkeypatch.setattr(jobstate.time, "monotonic", lambda: now)
    made = MadeRun(tmp_path, "a").job().attempt()

    def newest():
        if fails:
            raise OSError(errno.ESTALE, "Stale file handle")
        return made.paths.attempt(1)

    watch = HeartbeatWatch(newest)
    watch.check()
    now, fails = now + 60, True
    assert watch.check() == UNSURE
    fails = False
    assert watch.check().beats is None, "the watch begins anew"


def test_a_folder_keeps_its_identity_and_a_copy_has_none(tmp_path):
    run = RunPaths(tmp_path / "runs" / "a")
    run.folder.mkdir(parents=True)
    assert identity(run) is None
    token = make_identity(run)
    assert make_identity(run) == identity(run) == token
    (tmp_path / "runs").rename(tmp_path / "renamed")
    moved = RunPaths(tmp_path / "renamed" / "a")
    assert identity(moved) == token
    shutil.copytree(moved.folder, tmp_path / "copy" / "a")
    copy = RunPaths(tmp_path / "copy" / "a")
    assert (
        identity(copy) is None and not belongs_to({"identity": token}, copy) and belongs_to({"identity": token}, moved)
    )
    assert make_identity(copy) != token
    assert belongs_to({"folder": str(moved.folder)}, moved) and not belongs_to({"folder": "/elsewhere"}, moved)


def test_what_the_file_system_refuses_is_tried_again_and_said_once(capsys, monkeypatch):
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: None)
    errors = [OSError(errno.ESTALE, "Stale file handle")] * 3

    def read():
        if errors:
            raise errors.pop()
        return "content"

    assert retry_io(read, "the run's files") == "content"
    assert capsys.readouterr().err.count("the run's files: [Errno 116] Stale file handle; trying again") == 1
    with pytest.raises(FileNotFoundError):
        retry_io(lambda: Path("/nowhere").read_text(), "it")
    errors = [OSError(errno.EIO, "Input/output error")] * 3
    with pytest.raises(OSError, match="Input/output"):
        retry_io(read, "it", patience_s=0.1)


def test_a_written_file_has_the_rights_that_the_umask_leaves_which_no_other_thread_finds_changed(tmp_path, monkeypatch):
    before = os.umask(0o027)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os, "umask", lambda mask: pytest.fail("it is that of all threads"))
        write_text(tmp_path / "file", "")
    os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
