"""What `rolloutbench check` says before anything is spent."""

import time
from pathlib import Path

import pytest
import yaml

from workflow.commands.run_costs import cost_lines, cost_of
from workflow.config.plan import load_plan
from workflow.runs.locks import try_lock
from workflow.slurm.site import site_for

from ..runs.make_runs import MadeRun, answer, write
from ..two_arms import two_arms

pytestmark = pytest.mark.promise("cancel-ends-only-the")


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Where the experiment's results will lie, in a folder with a profile of 16 GPUs and an hour for each run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    resources = {"gres": "gpu:h100:8", "nodes": 2, "runtime": 60, "stop_grace_s": 600}
    (tmp_path / "site" / "config.yaml").write_text(yaml.safe_dump({"set-resources": {"train": resources}}))
    return tmp_path / "results" / "mine"


def planned(**changes):
    raw = two_arms()
    raw["workload"]["steps"] = 10
    return load_plan(raw | {"experiment": "mine", "warmup_steps": 1} | changes)


def told(plan, given=None, profile="site"):
    """The printed lines, in words."""
    site = site_for(Path(profile) if profile else None, plan.config.experiment)
    return [line.split() for line in cost_lines(cost_of(plan, site, given))]


def made(results, plan, run_id):
    return MadeRun(results, run_id, plan.runs[run_id].fingerprint)


def test_nothing_is_known_before_anything_ran(results):
    lines = told(planned())
    assert lines[0] == ["run", "trainer", "engine", "stack", "steps", "GPUs", "s/step", "time", "GPU-h", "next"]
    assert lines[2] == ["vllm-s0", "trl", "vllm", "trl-vllm-cpu", "10", "16", "?", "?", "?", "start"]
    text = "\n".join(" ".join(line) for line in lines)
    assert "left: 4 runs, ?, ? GPU-h" in text
    assert "not measured yet; give your own with --seconds-per-step X" in text
    assert "GPUs and walltime: as site asks for each run" in text
    assert not results.exists()


@pytest.mark.parametrize(("more", "stopped"), [(0, "not needed"), (1, "resume from its checkpoint")])
def test_a_stopped_run_is_not_needed_once_the_verdict_is_known(more, stopped, results):
    until = {"until": 1.05, "most": 4}
    plan = planned(seeds=until)
    for run_id in list(plan.runs)[:4]:
        made(results, plan, run_id).job(cluster="local").attempt(steps=10).done().end("finished")
    run = made(results, plan, "vllm-s2").job(cluster="local").attempt(steps=4).end("killed", code=-9)
    run.checkpoint("checkpoint-4")
    write(results / "looks" / "2.json", {**until, "more": more, "pairs": 2})
    rows = {line[0]: " ".join(line) for line in told(plan) if line}
    assert rows["vllm-s2"].endswith(stopped) and rows["vllm-s3"].endswith("if needed" if more else "not needed")


def test_what_would_become_of_each_run_and_what_it_costs(results):
    plan = planned(seeds=[0, 1, 2])
    made(results, plan, "vllm-s0").job(cluster="local").attempt(steps=10, step_s=900.0).done().end("finished")
    alive = made(results, plan, "transformers-s0").job(cluster="local").attempt(steps=5, step_s=90.0)
    stopped = made(results, plan, "transformers-s1").job(cluster="local").attempt(steps=7, step_s=180.0).end("stopped")
    stopped.checkpoint("checkpoint-4").checkpoint("checkpoint-2")
    lost = made(results, plan, "transformers-s2").job(cluster="local").attempt(steps=2, step_s=360.0)
    assert not list(lost.paths.folder.glob("checkpoints/*"))
    lock = try_lock(alive.paths.live_lock)
    assert lock is not None
    with lock:
        lines = told(plan)
    rows = {line[0]: line[4:] for line in lines if line}
    assert rows["vllm-s0"] == ["10", "16", "900", "skip:", "finished"]
    assert rows["transformers-s0"] == [*("10", "16", "90.0", "8", "min", "2.0"), *("attach:", "its", "job,", "running")]
    assert rows["transformers-s1"] == [
        *("10", "16", "180", "9", "min", "2.4"),
        *["resume", "from", "its", "checkpoint"],
    ]
    assert rows["transformers-s2"] == ["10", "16", "360", "1", "h", "0", "min", "16.0", "start"]
    assert rows["vllm-s1"] == ["10", "16", "~900", "2", "h", "30", "min", "40.0", "start"]
    text = "\n".join(" ".join(line) for line in lines)
    assert "left: 5 runs, 6 h 16 min, 100.4 GPU-h" in text
    assert "~ of vllm-s1, vllm-s2: the median s/step of vllm-s0" in text


def test_a_job_in_slurm_is_attached_to_or_waited_for(results):
    plan = planned(seeds=[0])
    same = made(results, plan, "vllm-s0").job(job_id="1").attempt(steps=5)
    other = MadeRun(results, "transformers-s0", "e" * 64).job(job_id="2").attempt(steps=5)
    answer(results, [{"job_id": "1", "name": same.name}, {"job_id": "2", "name": other.name}])
    rows = {line[0]: line for line in told(plan, given=720) if line}
    assert rows["vllm-s0"][-5:] == ["attach:", "Slurm", "job", "1,", "running"]
    assert rows["vllm-s0"][5] == "8", "its own GPUs, not the profile's"
    assert (
        " ".join(rows["transformers-s0"][6:]) == "~720 2 h 0 min 32.0 start after Slurm job 2 of another configuration"
    )
    answer(results, [], asked=time.time() - 3600, error="down")
    assert " ".join(told(plan)[2]).endswith("attach: Slurm job 1, if it still exists")
    assert any("the state of its jobs is unknown" in line for line in map(" ".join, told(plan, profile=None)))


def test_seconds_are_those_of_the_same_factors_then_of_the_arm_then_the_given_ones(results):
    plan = planned(sweep={"workload.temperature": [0.5, 1.0]})
    made(results, plan, "vllm-temperature=0.5-s0").job(cluster="local").attempt(steps=3, step_s=10.0)
    made(results, plan, "vllm-temperature=1.0-s0").job(cluster="local").attempt(steps=3, step_s=30.0)
    rows = {line[0]: line for line in told(plan, given=7) if line}
    assert rows["vllm-temperature=0.5-s1"][6] == "~10.0"
    assert rows["vllm-temperature=1.0-s1"][6] == "~30.0"
    assert rows["transformers-temperature=1.0-s1"][6] == "~7.00"
    more = planned(sweep={"workload.temperature": [0.5, 1.0, 2.0]})
    assert next(line for line in told(more) if line[:1] == ["vllm-temperature=2.0-s0"])[6] == "~20.0"
