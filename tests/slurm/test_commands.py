"""What people type between runs, on a real Slurm: `status` and `check` tell the truth, `cancel` ends what is ours."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from workflow.config.plan import load_plan

from ..patience import run
from ..two_arms import two_arms
from .runs import SlurmRun

pytestmark = pytest.mark.promise("cancel-ends-only-the")

ROOT = Path(__file__).resolve().parents[2]
LONG = {"STAND_IN_WAIT": "5"}
STEPS = 100


class Desk:
    """One experiment of the default configuration, whose runs the stand-in trains, and a person's terminal."""

    def __init__(self, cluster, folder, name="mine", seeds=2):
        self.cluster, self.folder, self.name = cluster, folder, name
        raw = two_arms()
        raw |= {"experiment": name, "seeds": seeds if isinstance(seeds, dict) else list(range(seeds))}
        raw["workload"]["steps"] = STEPS
        self.config = folder / f"{name}.yaml"
        self.config.write_text(yaml.safe_dump(raw))
        self.plan = load_plan(raw)
        self.results = folder / "results" / name
        self.results.mkdir(parents=True)
        (self.results / "plan.json").write_text(json.dumps(self.plan.as_json()))
        self.runs = []

    def run(self, run_id, env=None, **kwargs):
        """A run of the plan; it is not started yet."""
        one = SlurmRun(self.cluster, self.folder, run_id=run_id, **kwargs)
        one.run = self.results / "runs" / run_id
        one.spec = self.plan.runs[run_id].spec | {"env": LONG if env is None else env, "job_module": "stand_in"}
        inputs = self.folder / self.plan.inputs_file(run_id)
        inputs.parent.mkdir(parents=True, exist_ok=True)
        inputs.write_text(one.inputs.read_text())
        self.runs.append(one)
        return one

    def type(self, *words, code=0):
        """What a command says, on both streams."""
        env = {**os.environ, **self.cluster.env, "ROLLOUTBENCH_SLURM_EVERY_S": "1", "PYTHONPATH": str(ROOT)}
        done = run([sys.executable, "-m", "workflow.cli", *words], 60, cwd=self.folder, env=env)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        print(said)  # pytest shows it with a failure
        return said

    def status(self):
        """Each run's row, by its id, and everything beneath the table as `""`."""
        table, _, rest = self.type("status", "--experiment", self.name).partition("\n\n")
        return {line.split()[0]: line for line in table.splitlines()} | {"": rest}


@pytest.fixture
def desk(cluster, tmp_path):
    made = []

    def make(**kwargs):
        made.append(Desk(cluster, tmp_path, **kwargs))
        return made[-1]

    yield make
    cluster.run("scancel", "--user=root")
    for one in made:
        for launched in one.runs:
            launched.end()


def occupy(cluster, nodes=1):
    """Another user's job in all but name, on whole nodes."""
    words = (
        "sbatch", "--parsable", "-p", "h100", f"-N{nodes}", "--gres=gpu:h100:8", "-J", "another", "-o", "/dev/null",
    )  # fmt: skip
    answer = cluster.run(*words, "--wrap=sleep 600")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def test_status_and_check_tell_what_each_run_is_doing(desk, cluster):
    mine = desk(seeds=3)
    finished = mine.run("transformers-s0", env={"STAND_IN_STEP_S": "0.001"})
    failing = mine.run("transformers-s1", env={"STAND_IN": "refuse"})
    heads = [finished.start(), failing.start()]
    finished.finish(heads[0])
    failing.ended(heads[1])
    requeued = mine.run("vllm-s0")
    requeued.start(2)
    cluster.run("scontrol", "requeue", requeued.job_id())
    requeued.wait(lambda: [job["state"] for job in requeued.jobs()] == ["PENDING"])
    cluster.run("scontrol", "update", f"jobid={requeued.job_id()}", "StartTime=now+1hour")  # not in two minutes
    running, waiting = mine.run("vllm-s1"), mine.run("transformers-s2")
    running.start(3)
    occupy(cluster)
    waiting.start()
    # Until Slurm was asked after the submission it is "just submitted".
    waiting.wait(lambda: re.search("Resources|Priority", mine.status()["transformers-s2"]))

    rows = mine.status()
    assert re.match(r"transformers-s0 +finished +\d+ +gpu\d +1 +100/100 +0.05$", rows["transformers-s0"])
    assert re.match(
        rf"vllm-s1 +running +{running.job_id()} +gpu\d +1 +\d+/100 +0.05 +\d s +(5\d min|1 h 0 min)$", rows["vllm-s1"]
    )
    assert re.match(rf"vllm-s0 +waiting +{requeued.job_id()} +1 +\d+/100 +0.05 +\d s +BeginTime, from", rows["vllm-s0"])
    assert re.match(
        rf"transformers-s2 +waiting +{waiting.job_id()} +0/100 +(Resources|Priority)", rows["transformers-s2"]
    )
    assert re.match(r"transformers-s1 +failed: refused +\d+ +gpu\d +1 +0/100$", rows["transformers-s1"])
    assert re.match(r"vllm-s2 +not submitted", rows["vllm-s2"])
    assert "transformers-s1: was refused by the trainer's job\n  log: results/mine/runs/" in rows[""]
    assert "1 finished, 1 running, 2 waiting, 1 failed, 1 not submitted of 6 runs of mine" in rows[""]
    assert "3 launchers are running" in rows[""]
    assert all(len(line) <= 120 for run_id, line in rows.items() if run_id)

    checked = mine.type("check", "mine.yaml", "--profile", str(ROOT / "profiles" / "slurm"))
    told = {line.split()[0]: " ".join(line.split()[5:]) for line in checked.split("\n\n")[1].splitlines()}
    assert told["transformers-s0"].endswith("skip: finished")
    assert told["vllm-s1"].endswith(f"attach: Slurm job {running.job_id()}, running")
    assert told["vllm-s0"].endswith(f"attach: Slurm job {requeued.job_id()}, waiting")
    assert told["transformers-s1"].endswith("start")
    assert told["vllm-s2"].endswith("start")


def test_status_says_since_when_slurm_is_silent_and_cancel_that_it_did_nothing(desk, cluster):
    mine = desk(seeds=1)
    running = mine.run("vllm-s0")
    running.start(2)
    assert "running" in mine.status()["vllm-s0"]
    cluster.stop_daemon("slurmctld")
    running.wait(lambda: "unknown" in mine.status()["vllm-s0"])
    rows = mine.status()
    assert " s ago" in rows["vllm-s0"]
    assert "Slurm does not answer" in rows[""]
    said = mine.type("cancel", "--experiment", "mine", "vllm-s0", code=1)
    assert said.startswith("error: Slurm does not answer: ")
    assert "nothing was cancelled. Jobs of vllm-s0" in said
    assert not (running.run / "end.json").exists()
    cluster.start_daemon("slurmctld")
    cluster.wait_until_ready()
    running.wait(lambda: "running" in mine.status()["vllm-s0"])


def test_cancel_ends_the_experiments_jobs_and_no_others(desk, cluster):
    mine, other = desk(seeds=1), desk(name="other", seeds=1)
    foreign = occupy(cluster)
    running, waiting, others = mine.run("vllm-s0"), mine.run("transformers-s0"), other.run("vllm-s0")
    heads = [running.start()]
    running.wait_for_step(1)
    heads.append(waiting.start())
    others.start()
    waiting.wait(lambda: len(cluster.jobs()) == 4)
    said = mine.type("cancel", "mine.yaml")
    assert f"vllm-s0: cancelled Slurm job {running.job_id()} (running)" in said
    assert f"transformers-s0: cancelled Slurm job {waiting.job_id()} (pending)" in said
    assert "mine is cancelled: nothing is submitted until snakemake is started again" in said
    for one, head in zip((running, waiting), heads, strict=True):
        told = one.ended(head)
        assert head.returncode == 1
        assert "was cancelled by root; start again to resume from its last checkpoint" in told
    running.wait(lambda: {job["id"] for job in cluster.jobs()} == {foreign, others.job_id()})
    rows = mine.status()
    assert "cancelled by root" in rows["vllm-s0"] and "cancelled by root" in rows["transformers-s0"]
    assert "nothing is submitted until snakemake is started again" in rows[""]
    assert "2 runs had nothing to cancel" in mine.type("cancel", "mine.yaml")
    refused = running.launch()
    assert refused.returncode == 1
    assert "root cancelled it meanwhile" in refused.stderr


def test_an_id_that_is_now_another_jobs_is_let_alone(desk, cluster):
    mine = desk(seeds=1)
    foreign = occupy(cluster)
    one = mine.run("vllm-s0")
    head = one.start(1)
    head.kill()
    true = one.job_id()
    (one.run / "order.json").write_text(json.dumps(one.read("order.json") | {"job_ids": [foreign]}))
    assert f"cancelled Slurm job {true} (running)" in mine.type("cancel", "mine.yaml", "vllm-s0")
    one.wait(lambda: [job["id"] for job in cluster.jobs()] == [foreign])
    assert "vllm-s0: nothing to cancel" in mine.type("cancel", "mine.yaml", "vllm-s0")
    assert "no snakemake is running" in mine.status()[""]


def test_check_reads_a_real_site_and_tries_its_files_from_a_node(cluster, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    train = {"slurm_partition": "'h100'", "gres": "'gpu:h100:8'", "cpus_per_task": 180, "runtime": 1200}
    profile = {
        "executor": "slurm",
        "default-resources": {"slurm_partition": "'cpu'"},
        "set-resources": {"train": train},
    }
    (site / "config.yaml").write_text(json.dumps(profile))
    program = str(Path(sys.executable).with_name("rolloutbench"))
    words = [program, "check", "--profile", "site", "--across-nodes", "--json"]
    done = run(words, 120, cwd=tmp_path, env=cluster.env | {"PIP_NO_INDEX": "1"})
    found = json.loads(done.stdout)
    codes = {one["code"]: one["level"] for one in found["findings"] if not one["code"].startswith("stack-")}
    assert codes == {"task-plugin": "odd"} and done.returncode == 0, found
    assert found["passed"]["sbatch"].startswith("--test-only accepts a training job")
    assert "respects the locks and sees the renames" in found["passed"]["across nodes"]
    assert not list(tmp_path.glob(".check-*"))


def test_runs_in_the_queue_are_withdrawn_when_the_verdict_is_known(desk, cluster):
    mine = desk(seeds={"until": 1.05, "most": 4})
    training, waiting = mine.run("vllm-s2"), mine.run("vllm-s3")
    training.start(1)
    occupy(cluster)
    head = waiting.start()
    waiting.wait(lambda: re.search("Resources|Priority", mine.status()["vllm-s3"]))
    unneeded = ["vllm-s2", "vllm-s3", "transformers-s3"]
    program = (
        "import sys, yaml; from workflow.commands.rule_commands import withdraw; "
        "from workflow.config.plan import load_plan; "
        f"withdraw(load_plan(yaml.safe_load(open(sys.argv[1]))), {set(unneeded)!r})"
    )
    env = {**os.environ, **cluster.env, "ROLLOUTBENCH_SLURM_EVERY_S": "1", "PYTHONPATH": str(ROOT)}
    done = run([sys.executable, "-c", program, str(mine.config)], 60, cwd=mine.folder, env=env)
    assert done.returncode == 0 and "not needed any more: vllm-s3: cancelled Slurm job" in done.stderr, done.stderr
    assert "vllm-s2" not in done.stderr, "what trains already is not lost"
    assert "was cancelled by" in waiting.ended(head) and waiting.jobs() == []
    assert training.jobs()
