"""`rolloutbench cancel` on this machine, and what it refuses; on Slurm it is in tests/slurm/test_commands.py."""

import os
import pwd

import pytest

from common.errors import UserError
from workflow.commands import cancel as canceller
from workflow.commands.cancel import cancel
from workflow.commands.status import show_status
from workflow.runs import orders
from workflow.runs.experiment import ExpectedRun, Experiment
from workflow.runs.run_state import run_states

from ..job.run_bench import RunBench
from ..runs.make_runs import MadeRun
from ..slurm_files.test_queue import line, squeue

pytestmark = pytest.mark.promise("cancel-ends-only-the")

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def bench(tmp_path):
    one = RunBench(tmp_path, steps=100, env={"STAND_IN_STEP_S": "0.2"})
    yield one
    one.end()


def experiment_of(bench):
    run = ExpectedRun(bench.run_id, bench.spec["fingerprint"], 100)
    return Experiment("experiment", bench.run.parents[1], [run])


def state_of(experiment):
    return run_states(experiment)[0][0].label


def test_a_local_run_stops_after_its_step_and_the_head_submits_no_more(bench):
    experiment = experiment_of(bench)
    head = bench.start()
    bench.wait_for_step(3)
    assert state_of(experiment) == "running"
    assert cancel(experiment, []) == [
        "arm-s0: asked to stop after its step, with a checkpoint",
        "experiment is cancelled: nothing is submitted until snakemake is started again",
    ]
    assert f"was cancelled by {ME}; start again" in bench.ended(head)
    assert state_of(experiment) == f"cancelled by {ME}"
    assert bench.read("attempts", "1", "exit.json")["cause"] == "asked"
    refused = bench.launch()
    assert refused.returncode == 1
    assert f"{ME} cancelled it meanwhile; start snakemake again to continue" in refused.stderr
    assert cancel(experiment, [])[0] == "1 run had nothing to cancel"


@pytest.mark.full("processes that are struck")
def test_a_chosen_run_is_ended_at_once_if_asked_and_can_be_started_again(bench):
    experiment = experiment_of(bench)
    head = bench.start()
    bench.wait_for_step(3)
    assert cancel(experiment, ["arm-s0"], now=True) == ["arm-s0: asked to stop at once"]
    bench.ended(head)
    assert cancel(experiment, ["arm-s0"]) == [f"arm-s0: nothing to cancel: cancelled by {ME} before"]
    assert not experiment.cancelled.exists()
    again = bench.start()
    bench.wait(lambda: bool(list(bench.run.glob("attempts/2/metrics.jsonl"))))
    assert state_of(experiment) == "running"
    cancel(experiment, ["arm-s0"], now=True)
    bench.ended(again)


def test_what_a_submission_on_its_way_becomes_is_waited_for(bench):
    """Whichever comes first, the intent or the cancelling, the other one sees it."""
    experiment = experiment_of(bench)
    head = bench.start()
    bench.wait(lambda: (bench.run / "order.json").exists())
    cancel(experiment, [])
    bench.ended(head)
    assert head.returncode == 1
    bench.wait(lambda: not bench.processes())


def test_names_that_are_no_run_are_refused(tmp_path):
    experiment = Experiment("mine", tmp_path / "results" / "mine", [ExpectedRun("vllm-s0", "f" * 64)])
    assert cancel(experiment, []) == ["no run of mine was started: there is nothing to cancel"]
    with pytest.raises(
        UserError, match=r"unknown run 'vlm-s0' \(did you mean vllm-s0\?\); known: .*; nothing was cancel"
    ):
        cancel(experiment, ["vlm-s0"])
    MadeRun(experiment.folder, "earlier-s0")
    assert cancel(experiment, ["earlier-s0"]) == ["earlier-s0: nothing to cancel"]


def test_another_users_experiment_is_looked_at_and_let_alone(tmp_path, monkeypatch, capsys):
    experiment = Experiment("mine", tmp_path / "results" / "mine", [ExpectedRun("vllm-s0", "f" * 64)])
    MadeRun(experiment.folder, "vllm-s0").job()
    for module in (canceller, orders):
        monkeypatch.setattr(module, "owner_of", lambda path: os.getuid() + 1 if path.exists() else os.getuid())
        monkeypatch.setattr(module, "user_name", lambda uid=None: "alice" if uid else ME)
    with pytest.raises(UserError, match=rf"mine belongs to alice, and only alice can cancel its jobs \(you are {ME}\)"):
        cancel(experiment, [])
    assert not experiment.cancelled.exists()
    show_status(lambda: experiment, None)
    assert "unknown" in capsys.readouterr().out
    assert not (tmp_path / "results" / ".slurm").exists(), "their answer is not ours to write"


def test_every_job_of_a_runs_name_is_cancelled_and_no_other(tmp_path, monkeypatch):
    """Also one of an sbatch that failed and had submitted all the same."""
    experiment = Experiment("mine", tmp_path / "results" / "mine", [ExpectedRun("vllm-s0", "f" * 64)])
    made = MadeRun(experiment.folder, "vllm-s0").job(job_id="12")
    lines = [line("11", name=made.name), line("12", "PENDING", name=made.name), line("13", name="foreign")]
    (tmp_path / "bin").mkdir()
    for name, script in {"squeue": squeue(*lines), "scancel": "true"}.items():
        (tmp_path / "bin" / name).write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/{name}.calls\n{script}\n')
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    said = cancel(experiment, ["vllm-s0"])
    assert said == ["vllm-s0: cancelled Slurm job 11 (running) and 12 (pending)"]
    assert (tmp_path / "scancel.calls").read_text() == "--quiet 11 12\n"
    assert orders.order_of(made.paths).end()["by"] == ME
    (tmp_path / "bin" / "squeue").write_text(f"#!/bin/bash\n{squeue()}\n")
    assert cancel(experiment, ["vllm-s0"]) == [f"vllm-s0: nothing to cancel: cancelled by {ME} before"]
