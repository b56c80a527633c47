"""The launcher on one machine: whatever dies, a run is trained by one job at a time and finished work is kept.

The trainer is a stand-in (stand_in_trainer.py); submitit, the job, the locks and the processes are real.
"""

import contextlib
import json
import os
import time
from pathlib import Path

import psutil
import pytest

from workflow.commands.cancel import cancel
from workflow.head.watch import START_PATIENCE_S, LocalWatch
from workflow.runs.experiment import ExpectedRun, Experiment
from workflow.runs.locks import try_lock
from workflow.runs.orders import Presence, order_of

from ..job.run_bench import ROOT
from ..programs import executable
from ..runs.make_runs import MadeRun
from ..slurm.play import play, scenarios

pytestmark = pytest.mark.promise("a-start-right-after")


@pytest.mark.parametrize("scenario", [*scenarios(Path(__file__).with_name("scenarios.toml"), every_time=True)])
def test_a_scenario(bench, tmp_path, scenario):
    play(scenario, bench, tmp_path)


@pytest.mark.promise("a-finished-run-is")
def test_a_run_is_trained_once_and_its_progress_is_told(bench):
    one = bench()
    first = one.launch()
    assert first.returncode == 0, first.stderr
    said = first.stderr.splitlines()
    assert said[0].startswith("arm-s0: attempt 1 runs on ") and said[-1] == "arm-s0: step 5/5, 0.05 s, last step"
    assert len(said) <= 3, said  # attempt, first and last step: a quickstart has six runs
    assert one.done()["attempt"] == 1
    assert one.done()["env_threads"] == "2"
    (one.run / "done.json").unlink()  # Snakemake deletes the outputs of a rule that it reruns
    again = one.launch()
    assert again.returncode == 0
    assert "already finished (attempt 1)" in again.stderr
    assert one.journal() == [(1, step) for step in range(1, 6)]
    assert one.done()["attempt"] == 1
    one.wait(lambda: one.processes() == [])  # the job may end a moment after its result is there


def test_a_start_right_after_a_cancellation_trains_on(bench):
    """While the cancelled job still ends: it writes its checkpoint."""
    one = bench(env={"STAND_IN_WAIT": "2", "STAND_IN_SAVE": "100", "STAND_IN_SAVE_S": "1"})
    head = one.start(2)
    head.kill()  # as with its snakemake; the job lives on
    expected = ExpectedRun(one.run_id, one.spec["fingerprint"])
    cancel(Experiment("experiment", one.run.parents[1], [expected]), [one.run_id])
    again = one.launch()
    assert again.returncode == 0 and "was cancelled by" in again.stderr, again.stderr
    assert one.journal() == [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]


@pytest.mark.promise("a-changed-workload-lock")
def test_a_changed_spec_or_data_is_another_run_and_going_back_finds_the_old_one(bench):
    """The stand-in leaves a checkpoint at every step, as save_steps: 1 does; each run has its own."""
    one = bench()
    for fingerprint, data in (("f", "d1"), ("e", "d1"), ("f", "d2")):
        one.write_inputs(data)
        one.write_spec(fingerprint * 64)
        assert one.launch().returncode == 0
    assert one.done()["attempt"] == 3 and one.done()["inputs"]["data_sha256"] == "d2"
    assert one.journal() == [(attempt, step) for attempt in (1, 2, 3) for step in range(1, 6)]
    one.write_inputs("d1")
    assert "already finished (attempt 1)" in one.launch().stderr


def test_a_damaged_done_or_inputs_file_is_told(bench):
    one = bench()
    assert one.launch().returncode == 0
    (one.run / "attempts" / "1" / "done.json").write_text('{"run')
    assert one.launch().returncode == 0, "trained on from its checkpoint"
    assert one.done()["attempt"] == 2
    one.inputs.write_text("[]")
    result = one.launch()
    assert result.returncode == 1
    assert "is damaged" in result.stderr and "Traceback" not in result.stderr


def test_a_job_waits_for_its_stack_that_is_verified_again(bench):
    one = bench()
    verdict = one.folder / "stack" / "verify.json"
    verdict.rename(verdict.with_suffix(".away"))
    head = one.start()
    one.wait(lambda: any("waiting up to 900 s" in log.read_text() for log in one.run.rglob("*.err")))
    verdict.with_suffix(".away").rename(verdict)
    assert one.ended(head) and head.returncode == 0, one.said(head)
    assert one.done()["attempt"] == 1


def test_a_job_may_be_much_younger_than_its_launcher(tmp_path, monkeypatch):
    """Which waited for another launcher of the run before it submitted its own job."""
    made = MadeRun(tmp_path, "arm-s0").job(cluster="local").paths
    watched = LocalWatch(made)
    later = time.monotonic() + 10 * START_PATIENCE_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    watched.submitted()
    assert watched.state(order_of(made)).job is Presence.WAITING
    monkeypatch.setattr(time, "monotonic", lambda: later + 2 * START_PATIENCE_S)
    assert watched.state(order_of(made)).job is Presence.NONE


def test_data_with_fewer_prompts_than_a_step_is_refused_before_a_job(bench):
    one = bench()
    one.spec["workload"] |= {"batch_size": 64, "num_generations": 8}
    inputs = one.inputs
    content = json.loads(inputs.read_text())
    for rows, code in ((7, 1), (8, 0)):
        content["data"]["rows"] = rows
        inputs.write_text(json.dumps(content))
        told = one.launch()
        assert told.returncode == code, told.stderr
        assert ("a step needs 8 prompts" in told.stderr and "the data has 7" in told.stderr) == (code == 1)
        assert (one.run / "order.json").exists() == (code == 0)


@pytest.mark.promise("invariant-8")
def test_a_launcher_leaves_with_its_snakemake_and_is_named_to_whoever_waits_for_it(bench):
    """A launcher survives its killed snakemake: it would go on with a configuration that nobody wants any more."""
    one = bench(steps=8, env={"STAND_IN_WAIT": "2"})
    lock = try_lock(one.run.parents[1] / ".head.lock", note="snakemake")
    assert lock is not None
    with lock:
        head = one.start(2)
        one.write_spec("e" * 64, steps=3)
        after = one.start()
        one.wait_for_words(after, f"is responsible for this run (process {head.pid} on ")
        assert f"configuration {'f' * 12}); waiting for it" in one.said(after)
        after.kill()
    said = one.ended(head)
    assert head.returncode == 1 and "its snakemake is gone; detached; its job continues" in said, said
    one.go()
    one.wait(lambda: not one.processes())


@pytest.mark.promise("a-healthy-run-that")
@pytest.mark.full("processes that are struck")
def test_a_healthy_run_that_logs_a_gigabyte_costs_neither_memory_nor_heartbeats(bench):
    one = bench(steps=12, env={"STAND_IN": "chatty", "STAND_IN_STEP_S": "0.5"})
    head = one.start()
    log = one.run / "attempts" / "1" / "log"
    most = {"head": 0.0, "job": 0.0, "cpu": 0.0}
    while head.poll() is None:
        jobs = [process for process in one.processes() if "submitit.core._submit" in process.info["cmdline"]]
        for name, pid in [("head", head.pid), *(("job", job.pid) for job in jobs)]:
            with contextlib.suppress(OSError, StopIteration):
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                peak = next(int(line.split()[1]) / 1000 for line in status if line.startswith("VmHWM"))
                most[name] = max(most[name], peak)
        with contextlib.suppress(psutil.Error):
            most["cpu"] = max([most["cpu"], *(sum(job.cpu_times()[:2]) for job in jobs)])
        time.sleep(0.1)
    assert head.returncode == 0, one.said(head)
    assert log.stat().st_size > 2**30
    log.unlink()
    assert 0 < most["head"] < 60 and 0 < most["job"] < 120, most
    assert 0 < most["cpu"] < 10, "twice a heartbeat's period: who computes longer keeps it from beating"


@pytest.mark.promise("a-job-of-an")
def test_a_job_of_an_older_configuration_is_not_taken_for_this_one(bench):
    one = bench(env={"STAND_IN_WAIT": "1"})
    head = one.start()
    one.wait_for_step(1)
    head.kill()
    one.write_spec("e" * 64, steps=3)
    after = one.start()
    one.wait_for_words(after, "its job is of another configuration; waiting for its end")
    one.go()
    said = one.ended(after)
    assert after.returncode == 0, said
    assert one.done()["fingerprint"] == "e" * 64
    assert one.journal() == [*((1, step) for step in range(1, 6)), *((2, step) for step in range(1, 4))]
    assert json.loads((one.run / "attempts" / "1" / "done.json").read_text())["fingerprint"] == "f" * 64


@pytest.mark.promise("ray-has-a-runs")
@pytest.mark.full("processes that are struck")
def test_a_trainer_that_spreads_by_ray_gets_one_of_its_own_with_its_cpus_and_gpus(bench, tmp_path):
    """The machine's GPUs are there in name only; another Ray's address in the shell is not believed."""
    executable(tmp_path / "bin" / "nvidia-smi", "printf 'GPU 0: a\\nGPU 1: b\\nGPU 2: c\\n'")
    head_env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RAY_ADDRESS": "192.0.2.77:6379"}
    head_env |= {"CUDA_VISIBLE_DEVICES": "4,6,7"}
    one = bench(env={"NCCL_DEBUG": "INFO"}, head_env=head_env)
    one.spread_by_ray()
    one.spec["workload"]["gpus_per_node"] = 4
    refused = one.launch()
    assert refused.returncode == 1
    assert "arm-s0: the experiment needs 4 GPUs" in refused.stderr and "this machine has 3 to use" in refused.stderr
    assert not (one.run / "order.json").exists()
    one.spec["workload"]["gpus_per_node"] = 2
    refused = one.launch()
    assert refused.returncode == 1 and "set private_nodes: true under set-resources: train:" in refused.stderr
    assert not (one.run / "order.json").exists()
    one.options = (*one.options, "private_nodes=true")
    result = one.launch()
    assert result.returncode == 0, result.stderr
    seen = one.read("attempts", "1", "ray.json")
    assert (seen["nodes"], seen["cpus"], seen["gpus"]) == (1, 2, 2)
    assert seen["address"] != "192.0.2.77:6379"
    [worker] = seen["workers"]
    assert (worker["NCCL_DEBUG"], worker["PYTHONPATH"], worker["WANDB_RUN_ID"]) == ("INFO", str(ROOT), None)
    assert one.done()["gpus"] == "4,6" and worker["CUDA_VISIBLE_DEVICES"] in ("4", "6")
    one.wait(lambda: one.processes() == [])
