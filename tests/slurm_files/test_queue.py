"""One answer of squeue's for all who wait; here Slurm is a script that counts how often it was asked."""

import os
import subprocess
import sys
import time

import pytest

from common.files import user_name
from workflow.runs.ends import Then, end_from_slurm, explain, what_follows
from workflow.slurm import commands as slurm
from workflow.slurm.commands import EndedJob, SlurmError
from workflow.slurm.shared_queue import Queue, ask, read

from ..patience import ended

pytestmark = pytest.mark.promise("all-waiting-launchers-of")

NAME = "vllm-s0.0123456789abcdef"


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put a command of Slurm in front of PATH; returns the file that has a line for each call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(command, script):
        calls = tmp_path / f"{command}.calls"
        (folder / command).write_text(f'#!/bin/bash\necho "$@" >> {calls}\n{script}\n')
        (folder / command).chmod(0o755)
        return calls

    return make


def line(job_id="7", state="RUNNING", reason="None", name=NAME):
    fields = [job_id, state, "gpu[1-2]", "19:00:00", "2026-11-20T10:00:00", reason]
    return "\x1f".join([*fields, name])


def squeue(*lines):
    """A script that prints what squeue prints: a header, and each record with its mark."""
    header = ["JOBID", "STATE", "NODELIST", "TIME_LEFT", "START_TIME", "REASON", "NAME"]
    return "\n".join(f"printf '%s\\x1e\\n' '{record}'" for record in ("\x1f".join(header), *lines))


def sacct(*lines):
    """A script that prints what sacct prints, from lines whose fields stand between bars."""
    header = "JobIDRaw|State|ExitCode|NodeList|JobName"
    return "\n".join(f"echo '{line.replace('|', chr(31))}'" for line in (header, *lines))


def test_squeues_lines_are_read(fake):
    calls = fake("squeue", squeue(line(), line("8", "PENDING", "(Resources)")))
    jobs = slurm.queue()
    assert list(jobs) == ["7", "8"]
    assert (jobs["7"].nodes, jobs["7"].left, jobs["7"].name) == ("gpu[1-2]", "19:00:00", NAME)
    assert jobs["7"].start is not None
    assert jobs["8"].reason == "(Resources)"
    assert f"--user={user_name()}" in calls.read_text()
    assert "--all" in calls.read_text(), "a job in a partition that the site hides is left out otherwise"


@pytest.mark.parametrize(
    ("state", "known", "by"),
    [
        ("CANCELLED by 1000", "CANCELLED", "1000"),
        ("CANCELLED+", "CANCELLED", None),
        ("OUT_OF_MEMORY", "OUT_OF_MEMORY", None),
        ("RUNNING", None, None),
        ("PENDING", None, None),
    ],
)
def test_saccts_lines_are_read(fake, state, known, by):
    fake("sacct", sacct(f"7|{state}|0:9|gpu1|{NAME}"))
    found = slurm.accounting(["7"])
    assert found == ({"7": EndedJob("7", known, "0:9", by, "gpu1", NAME)} if known else {})


@pytest.mark.parametrize(
    "script",
    [
        *("true", "echo 'slurm says hello'", "echo CLUSTER: other"),
        f"({squeue(line(), line(name='x'))}) | head -c 180",
        squeue(line()).replace("x1e", "x20"),
        squeue("7\x1fRUNNING"),
        squeue("no number" + line()),
    ],
)
def test_an_answer_that_is_empty_cut_or_foreign_is_no_answer(fake, script):
    fake("squeue", script)
    with pytest.raises(SlurmError, match="squeue's answer cannot be read"):
        slurm.queue()


@pytest.mark.parametrize("script", ["echo 'Unable to contact slurm controller' >&2; exit 1", "sleep 9"])
def test_a_command_that_fails_or_hangs_is_an_error(fake, script, monkeypatch):
    monkeypatch.setattr(slurm, "PATIENCE_S", 0.5)
    fake("squeue", script)
    with pytest.raises(SlurmError, match=r"Unable to contact slurm controller|did not answer within"):
        slurm.queue()


def test_many_who_wait_ask_once(fake, tmp_path):
    calls = fake("squeue", f"sleep 0.3; {squeue(line())}")
    program = (
        "import sys, time; from pathlib import Path; from workflow.slurm.shared_queue import ask\n"
        "end = time.monotonic() + 4\n"
        "while time.monotonic() < end: last = ask(Path(sys.argv[1]), time.time() - 3000); time.sleep(0.1)\n"
        "print([job.job_id for job in last.jobs])"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "squeue.json")]
    heads = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert {ended(head, 60)[0].strip() for head in heads} == {"['7']"}
    assert calls.read_text().count("\n") == 1


def test_a_slurm_that_is_silent_is_no_empty_queue(fake, tmp_path):
    fake("squeue", squeue(line()))
    file = tmp_path / "squeue.json"
    assert len(ask(file, time.time()).jobs) == 1
    calls = fake("squeue", "echo down >&2; exit 1")
    later = ask(file, time.time())
    assert later.error == "down"
    assert ask(file, time.time() - 30) == later and calls.read_text().count("\n") == 2, "nor asked again at once"


def test_damaged_and_future_answers_are_no_answers(fake, tmp_path):
    fake("squeue", squeue(line()))
    file = tmp_path / "squeue.json"
    file.write_text('{"asked": 1, "jo')
    assert read(file) == Queue()
    asked = ask(file, time.time() - 30).asked
    file.write_text(file.read_text().replace(str(asked), str(asked + 9000)))  # a clock that was set back
    assert ask(file, time.time() - 30).asked < asked + 1000


def test_jobs_of_a_name_are_those_that_live():
    fields = ("gpu1", "", None, "", NAME)
    states = ((12, "PENDING"), (9, "RUNNING"), (3, "COMPLETED"), (5, "CANCELLED"))
    queue = Queue(jobs=tuple(slurm.QueueJob(str(number), state, *fields) for number, state in states))
    assert [job.job_id for job in queue.living(NAME)] == ["9", "12"] and queue.living("other") == []
    assert queue.ended(NAME, ["3", "5"]).job_id == "5" and queue.ended("other", ["5"]) is None
    assert queue.ended(NAME, ["3", "12"]).job_id == "3", "an earlier order's cancellation is not this one's"


def test_what_slurm_tells_of_an_end():
    def end(state, exit_code=None, newest=None, output="", by=None):
        ended = None if exit_code is None else EndedJob("7", state, exit_code, by, "", NAME)
        return end_from_slurm(state, ended, newest, output)

    assert end("CANCELLED")["kind"] == "cancelled" and "somebody" in end("CANCELLED")["by"]
    assert end("CANCELLED", "0:0", by="0")["by"] == "root"
    assert end("CANCELLED", "0:0")["kind"] == "lost", "a new slurmctld knew nothing of it"
    assert [end("FAILED", code)["kind"] for code in ("1:0", "0:15")] == ["never started", "died"], (
        "a signal is no failure"
    )
    assert end("FAILED", "1:0", {"attempt": 1})["kind"] == "died"
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n"
    assert end("FAILED", "1:0", {"attempt": 1}, oom)["kind"] == "out of memory"
    assert end("")["kind"] == "lost" and end("NODE_FAIL")["kind"] == "node failure"
    # A clean stop whose requeue found no slurmctld is no death.
    stopped = end("COMPLETED", "0:0", {"attempt": 1, "kind": "stopped", "cause": "time limit", "again": True})
    assert what_follows(stopped) is Then.AGAIN
    assert explain(stopped, {}).startswith("was stopped (time limit, and could not be requeued)")
