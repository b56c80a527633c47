"""The launcher on one machine: whatever dies, a run is trained by one job at a time and finished work is kept.

The trainer is a stand-in (stand_in_trainer.py); submitit, the job, the locks and the processes are real.
"""

import contextlib
import time
from pathlib import Path

import psutil
import pytest

from workflow.head.watch import START_PATIENCE_S, LocalWatch
from workflow.runs.orders import Presence, order_of

from ..runs.make_runs import MadeRun
from ..slurm.play import play, scenarios


@pytest.mark.parametrize("scenario", [*scenarios(Path(__file__).with_name("scenarios.toml"), every_time=True)])
def test_a_scenario(bench, tmp_path, faults, scenario):
    play(scenario, bench, tmp_path, faults)


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
