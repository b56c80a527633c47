"""What `rolloutbench status` tells of run folders and of Slurm's answer; the real Slurm is in tests/slurm/."""

import errno
import os
import re
import time
from contextlib import nullcontext

import pytest

from common.errors import UserError
from workflow.commands import status
from workflow.commands.status import readable_step, show_status, status_lines, take_snapshot
from workflow.runs.experiment import ExpectedRun, Experiment, named_experiment
from workflow.runs.locks import lock_experiment, try_lock
from workflow.slurm import shared_queue
from workflow.slurm.commands import seconds_of

from ..programs import executable
from ..runs.make_runs import MadeRun, answer, write

pytestmark = pytest.mark.promise("cancel-ends-only-the")

F = "f" * 64


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """An empty experiment's folder, on a machine that has Slurm's commands, which nobody calls."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for command in ("squeue", "sacct", "scancel"):
        executable(bin_folder / command, "echo called >> $0.called; echo down >&2; exit 1")
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    folder = tmp_path / "results" / "mine"
    folder.mkdir(parents=True)
    return folder


def shown(folder, *runs):
    """The status of runs that a plan wants with the usual fingerprint, steps and inputs."""
    inputs = {"data_sha256": "d", "model_sha256": "m"}
    experiment = Experiment("mine", folder, [ExpectedRun(run, F, 10, inputs) for run in runs])
    return status_lines(take_snapshot(experiment))


def row(lines, run):
    return " ".join(next(line for line in lines if line.startswith(run)).split())


def was_asked(folder):
    return (folder.parents[1] / "bin" / "squeue.called").exists()


def test_local_runs_need_no_slurm(experiment):
    MadeRun(experiment, "done").job(cluster="local").attempt(steps=10).done().end("finished")
    alive = MadeRun(experiment, "alive").job(cluster="local").attempt(steps=4)
    MadeRun(experiment, "killed").job(cluster="local").attempt(steps=2)
    MadeRun(experiment, "failed").job(cluster="local").attempt(steps=2).end("killed", code=-9, attempt=1)
    MadeRun(experiment, "asked").job(cluster="local").attempt(steps=3).end("stopped", cause="asked")
    lock = try_lock(alive.paths.live_lock)
    assert lock is not None
    with lock:
        lines = shown(experiment, "done", "alive", "killed", "failed", "asked")
    assert row(lines, "done") == "done finished here 1 10/10 2.00"
    assert row(lines, "alive") == "alive running here 1 4/10 2.00 12 s"
    assert row(lines, "killed") == "killed failed: vanished here 1 2/10 2.00"
    assert row(lines, "asked") == "asked stopped here 1 3/10 2.00 14 s"
    text = "\n".join(lines)
    assert (
        f"failed: was killed by signal 9 (often: out of memory; see `dmesg`)\n  log: {experiment}/runs/failed" in text
    )
    assert "1 finished, 1 running, 1 stopped, 2 failed of 5 runs of mine" in text
    assert "no snakemake is running: start the same command again" in lines[-1]
    assert "(3 unfinished runs without a job)" in lines[-1]
    assert not was_asked(experiment)


def test_jobs_in_slurm_as_its_answer_has_them(experiment):
    MadeRun(experiment, "runs").job(job_id="1").attempt(steps=4)
    MadeRun(experiment, "waits").job(job_id="2")
    MadeRun(experiment, "again").job(job_id="3").attempt(steps=6)
    gone = MadeRun(experiment, "gone").job(job_id="4").attempt(steps=1)
    write(gone.paths.attempt(1).exit, {"kind": "stopped"})
    MadeRun(experiment, "reused").job(job_id="5")
    MadeRun(experiment, "stands").job(job_id="6").attempt(steps=2)
    MadeRun(experiment, "omitted").job(job_id="9").attempt(steps=3)
    jobs = [
        {"job_id": "1", "name": f"runs.{'0' * 16}"},
        {"job_id": "2", "name": f"waits.{'0' * 16}", "state": "PENDING", "reason": "(BadConstraints)", "nodes": ""},
        {"job_id": "3", "name": f"again.{'0' * 16}", "state": "PENDING", "reason": "BeginTime", "nodes": ""},
        {"job_id": "4", "name": f"gone.{'0' * 16}", "state": "CANCELLED"},
        {"job_id": "5", "name": "something else"},
        {"job_id": "6", "name": f"stands.{'0' * 16}", "state": "SUSPENDED"},
    ]
    answer(experiment, jobs)
    lines = shown(experiment, "runs", "waits", "again", "gone", "reused", "stands", "omitted")
    assert row(lines, "runs") == "runs running 1 gpu1 1 4/10 2.00 12 s 18 h 30 min"
    assert row(lines, "waits") == "waits waiting 2 0/10 BadConstraints"
    assert row(lines, "again") == "again waiting 3 1 6/10 2.00 8 s BeginTime"
    assert re.match(r"gone cancelled 4 here 1 1/10", row(lines, "gone"))
    assert row(lines, "reused") == "reused stopped 5 0/10 is unknown to Slurm"
    assert row(lines, "stands").startswith("stands running 6 gpu1 1 2/10") and row(lines, "stands").endswith(
        "suspended"
    )
    assert row(lines, "omitted").startswith("omitted running 9 here 1 3/10"), (
        "its heartbeat says so, whatever squeue says"
    )
    assert any(line.startswith("BadConstraints: does not end by itself") for line in lines)
    assert not was_asked(experiment)


def test_a_users_script_is_shown_with_its_step_while_it_runs(experiment):
    made = MadeRun(experiment, "script").job(job_id="1").attempt()
    attempt = made.paths.attempt(1)
    write(attempt.spec, {"run_id": "script", "workload": {}, "spread": "own"})
    bar = "\r 12%|#    | {}/100 [00:40<05:00, 3.40s/it]"
    attempt.console.write_text("".join(map(bar.format, (11, 12))) + "\r")
    answer(experiment, [{"job_id": "1", "name": made.name}])
    mine = Experiment("mine", experiment, [ExpectedRun("script", F)])
    write(made.paths.spec, {"run_id": "script", "fingerprint": F, "workload": {}})
    lines = status_lines(take_snapshot(mine))
    assert row(lines, "script") == "script running 1 gpu1 1 12/100 3.40 5 min 18 h 30 min"


def test_a_job_that_slurm_has_running_without_a_word_of_it_is_told_with_its_remedy(experiment):
    """A slurmctld that was killed while a job ended may have it running again, for as long as it does not look."""
    for name, job_id, silent_s in (("ghost", "1", 1800), ("well", "2", 300)):
        made = MadeRun(experiment, name).job(job_id=job_id).attempt(steps=4)
        for file in made.paths.attempt(1).folder.iterdir():
            os.utime(file, (time.time() - silent_s,) * 2)
    answer(experiment, [{"job_id": str(n), "name": f"{name}.{'0' * 16}"} for n, name in ((1, "ghost"), (2, "well"))])
    lines = shown(experiment, "ghost", "well")
    assert row(lines, "ghost").startswith("ghost running 1 gpu1 1 4/10") and "last wrote at" in row(lines, "ghost")
    assert row(lines, "ghost").endswith("`scontrol requeue 1` lets it continue")
    assert "last wrote" not in row(lines, "well")


def test_slurm_that_does_not_answer_leaves_what_the_files_tell(experiment):
    MadeRun(experiment, "runs").job(job_id="1").attempt(steps=4)
    MadeRun(experiment, "done").job(job_id="2").attempt(steps=10).done()
    answer(experiment, [{"job_id": "1", "name": f"runs.{'0' * 16}"}], asked=time.time() - 600)
    lines = shown(experiment, "runs", "done")
    assert re.match(r"runs unknown 1 here 1 4/10 2.00 12 s wrote \d s ago", row(lines, "runs"))
    assert row(lines, "done").startswith("done finished")
    assert any(
        re.match(
            r"Slurm does not answer(; it was asked at .*\(down\))?: the table shows",
            line,
        )
        for line in lines
    )


def test_other_configurations_are_told(experiment):
    MadeRun(experiment, "finished", "e" * 64).job(cluster="local").attempt(steps=10).done().end("finished")
    MadeRun(experiment, "running", "e" * 64).job(job_id="1").attempt(steps=1)
    MadeRun(experiment, "unplanned").job(job_id="2").attempt(steps=1)
    names = ("running", "unplanned")
    jobs = [{"job_id": str(number), "name": f"{name}.{'0' * 16}"} for number, name in enumerate(names, start=1)]
    answer(experiment, jobs)
    lines = shown(experiment, "finished", "running")
    assert row(lines, "finished") == "finished not submitted 0/10 finished, of another configuration"
    assert row(lines, "running").endswith("of another configuration")
    assert "unplanned, which is not in this plan, also has a job: running 2" in lines


def test_a_head_is_told_and_its_next_start_takes_back_a_cancelling(experiment):
    MadeRun(experiment, "runs").job(job_id="1", cluster="local").end("stopped")
    write(experiment / "cancelled.json", {"by": "alice", "time": time.time()})
    assert any(line.startswith("cancelled by alice at ") for line in shown(experiment, "runs"))
    with lock_experiment(str(experiment)):
        lines = shown(experiment, "runs")
    assert lines[-1].startswith(f"snakemake is running: process {os.getpid()} on ")
    assert not any("alice" in line for line in lines)
    assert lines[-1] != shown(experiment, "runs")[-1]
    (experiment / ".head.lock").write_text("process 7 on login2")
    assert "(the last one: process 7 on login2)" in shown(experiment, "runs")[-1]


def test_an_experiment_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "results" / "mine" / "plan.json", {"runs": ["a"], "fingerprints": {"a": F}})
    assert named_experiment("mine").runs == [ExpectedRun("a", F)]
    with pytest.raises(UserError, match=r"unknown experiment 'mime' \(did you mean mine\?\); known: mine"):
        named_experiment("mime")
    write(tmp_path / "results" / "mine" / "plan.json", {"runs": ["a"]})
    with pytest.raises(UserError, match="damaged or too old"):
        named_experiment("mine")


@pytest.mark.parametrize("resolved", [True, False])
def test_runs_of_later_pairs_than_those_that_resolved_the_verdict_are_not_needed(resolved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "mine"
    runs = [f"{arm}-s{seed}" for seed in range(4) for arm in "ab"]
    until = {"until": 1.05, "most": 4}
    write(folder / "plan.json", {"runs": runs, "fingerprints": dict.fromkeys(runs, F), **until})
    write(folder / "looks" / "2.json", {**until, "more": 0 if resolved else 1})
    for run in runs[:4]:
        MadeRun(folder, run).job(cluster="local").attempt(steps=10).done().end("finished")
    MadeRun(folder, "a-s2").job(cluster="local").attempt(steps=2).end("killed", code=-9)
    snapshot = take_snapshot(named_experiment("mine"))
    lines = status_lines(snapshot)
    assert snapshot.finished == resolved and ("no snakemake is running" in lines[-1]) != resolved
    state = "not needed" if resolved else "not submitted"
    assert row(lines, "b-s3") == f"b-s3 {state}"
    if resolved:
        assert row(lines, "a-s2") == "a-s2 not needed here 1 2/10 2.00 failed: killed"
        assert lines[-1] == "4 finished, 4 not needed of 8 runs of mine"


def test_times_are_read_and_told():
    assert [seconds_of(text) for text in ("59:12", "18:30:00", "1-02:03:04")] == [3552.0, 66600.0, 93784.0]
    assert seconds_of("UNLIMITED") is None
    assert [readable_step(seconds) for seconds in (0.654, 12.345, 878.89)] == ["0.65", "12.3", "879"]


def refused(*args):
    raise OSError(errno.ESTALE, "Stale file handle")


@pytest.mark.parametrize("files", ["refused", "read"])
def test_a_slurm_that_hangs_and_files_that_are_refused_share_one_limit(experiment, files, monkeypatch, capsys):
    (experiment.parents[1] / "bin" / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
    MadeRun(experiment, "a-s0").job()
    monkeypatch.setattr(status, "LIMIT_S", 3.0)
    # No answer can be kept, so that each try asks Slurm again.
    monkeypatch.setattr(shared_queue, "write_json", refused)
    if files == "refused":
        monkeypatch.setattr(status, "stack_notes", refused)
    began = time.monotonic()
    with pytest.raises(OSError, match="Stale") if files == "refused" else nullcontext():
        show_status(lambda: Experiment("mine", experiment, [ExpectedRun("a-s0", F, 10, None)]), None)
    assert time.monotonic() - began < 6
    assert files == "refused" or "squeue did not answer within 3 s" in capsys.readouterr().out
