"""One answer of Slurm's for all who wait; here Slurm is a script that counts how often it was asked."""

import os
import subprocess
import sys

import pytest

from common.files import user_name
from workflow.runs.history import end_from_slurm, kind_of_state
from workflow.slurm import commands as slurm
from workflow.slurm.commands import EndedJob, SlurmError
from workflow.slurm.shared_answer import Answer, ask, read, request_details

from ..patience import ended
from ..runs.make_runs import MadeRun, write

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
    fields = [job_id, state, "gpu[1-2]", "20:00:00", "19:00:00", "2026-11-20T10:00:00", "N/A", "h100", reason]
    return "\x1f".join([*fields, name])


def squeue(*lines):
    """A script that prints what squeue prints: a header, and each record with its mark."""
    header = [
        "JOBID", "STATE", "NODELIST", "TIME_LIMIT", "TIME_LEFT", "START_TIME", "END_TIME", "PARTITION", "REASON",
        "NAME",
    ]  # fmt: skip
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
    assert jobs["7"].start is not None and jobs["7"].end is None
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
        "import sys, time; from pathlib import Path; from workflow.slurm.shared_answer import ask\n"
        "end = time.monotonic() + 4\n"
        "while time.monotonic() < end: last = ask(Path(sys.argv[1]), max_age_s=3000); time.sleep(0.1)\n"
        "print(list(last.jobs))"
    )
    heads = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "slurm")], stdout=subprocess.PIPE, text=True)
        for _ in range(12)
    ]
    assert {ended(head, 60)[0].strip() for head in heads} == {"['7']"}
    assert calls.read_text().count("\n") == 1


def test_an_answer_is_kept_while_slurm_is_silent_and_says_so(fake, tmp_path):
    fake("squeue", squeue(line()))
    first = ask(tmp_path, fresh=True)
    calls = fake("squeue", "echo down >&2; exit 1")
    later = ask(tmp_path, fresh=True)
    assert later.error == "down" and later.jobs == first.jobs and later.asked == first.asked < later.tried
    again = ask(tmp_path, max_age_s=30)
    assert again == later and calls.read_text().count("\n") == 2, "a failure is not asked again at once, either"


def test_accounting_is_asked_only_of_what_ended_or_is_missed(fake, tmp_path):
    fake("squeue", squeue(line("7"), line("8", "COMPLETED", name="somebody elses")))
    calls = fake("sacct", sacct(f"9|TIMEOUT|0:0|gpu1|{NAME}"))
    ask(tmp_path, fresh=True)
    assert not calls.exists()
    request_details(tmp_path, "9")
    assert ask(tmp_path, fresh=True).ended["9"].state == "TIMEOUT"
    assert "--jobs=9" in calls.read_text()
    ask(tmp_path, fresh=True)
    assert calls.read_text().count("\n") == 1, "what is known is not asked again"
    fake("squeue", squeue(line("7", "FAILED")))
    fake("sacct", "exit 1")
    assert not ask(tmp_path, fresh=True).accounting


def scontrol(state="PENDING", job_id="7"):
    """A script that prints what `scontrol --oneliner show job` prints."""
    return (
        f"echo 'JobId={job_id} JobName={NAME} UserId=root(0) JobState={state} Reason=Priority TimeLimit=01:00:00 "
        "StartTime=Unknown EndTime=Unknown Partition=h100 NodeList= Comment=a b JobState=COMPLETED'"
    )


UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


def test_no_job_is_lost_on_squeues_word_alone(fake, tmp_path):
    fake("squeue", squeue())
    fake("sacct", sacct())
    calls = fake("scontrol", scontrol())
    assert not ask(tmp_path, fresh=True).jobs and not calls.exists(), "nobody has doubted it yet"
    request_details(tmp_path, "7")
    for _ in range(2):
        [found] = ask(tmp_path, fresh=True).jobs_named(NAME)
        assert (found.job_id, found.state, found.reason, found.partition) == ("7", "PENDING", "Priority", "h100")
    fake("scontrol", "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1")
    assert "timed out" in str(ask(tmp_path, fresh=True).error), "not known is no answer"
    calls.unlink()
    fake("scontrol", UNKNOWN)
    for _ in range(2):
        answered = ask(tmp_path, fresh=True)
        assert answered.error is None and not answered.jobs
    assert calls.read_text().split() == ["show", "job", "--oneliner", "7"], "once for each doubt"


@pytest.mark.parametrize("script", [scontrol("COMPLETED"), scontrol(job_id="70"), "echo nonsense", "exit 1"])
def test_what_scontrol_does_not_have_alive_squeue_need_not_have(fake, tmp_path, script):
    fake("squeue", squeue())
    fake("sacct", sacct())
    fake("scontrol", script)
    request_details(tmp_path, "7")
    answered = ask(tmp_path, fresh=True)
    assert answered.error is None and not answered.jobs


def test_damaged_and_future_answers_are_no_answers(fake, tmp_path):
    fake("squeue", squeue(line()))
    (tmp_path / "answer.json").write_text('{"asked": 1, "jo')
    assert read(tmp_path) == Answer()
    assert list(ask(tmp_path).jobs) == ["7"]
    text = (tmp_path / "answer.json").read_text()
    tried = read(tmp_path).tried
    (tmp_path / "answer.json").write_text(text.replace(str(tried), str(tried + 9000)))  # a clock that was set back
    assert ask(tmp_path).tried < tried + 1000


def test_jobs_of_a_name_are_those_that_live(tmp_path):
    fields = ("gpu1", "", "", None, None, "h100", "", NAME)
    jobs = {
        str(number): slurm.QueueJob(str(number), state, *fields)
        for number, state in ((12, "PENDING"), (9, "RUNNING"), (3, "COMPLETED"))
    }
    assert [job.job_id for job in Answer(jobs=jobs).jobs_named(NAME)] == ["9", "12"]
    assert Answer(jobs=jobs).jobs_named("other") == []


def test_what_slurm_tells_of_an_end(tmp_path):
    made = MadeRun(tmp_path, "vllm-s0").job()
    job = made.paths.job(1)

    def kind(state, exit_code=None):
        ended = None if exit_code is None else EndedJob("7", state, exit_code, None, "", NAME)
        return str(end_from_slurm(made.paths, job, ended, state)["kind"])

    assert kind("CANCELLED") == "cancelled"
    assert kind("CANCELLED", "0:0") == "lost", "a new slurmctld knew nothing of it"
    assert (kind("FAILED", "1:0"), kind("FAILED", "0:15")) == ("never started", "died"), "a signal is no failure"
    made.attempt()
    assert kind("FAILED", "1:0") == "died"
    job.submitit.mkdir()
    (job.submitit / "7_0_log.out").write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")
    assert (kind("FAILED", "1:0"), kind("NODE_FAIL", "0:0")) == ("out of memory", "node failure")
    write(made.paths.attempt(1).request, {"job": 1, "output_bytes": 1000})
    assert kind("FAILED", "1:0") == "died", "an earlier life's words"
    assert kind_of_state("") == "lost" and kind_of_state("NODE_FAIL") == "node failure"
