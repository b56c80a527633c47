"""Real TRL training on a real Slurm: the quickstart as it is, and runs that lose their job or head in the middle."""

import contextlib
import json
import os
import signal
import time

import pandas as pd
import psutil
import pytest
import yaml

from ..attempts import EAGER, SGLANG
from ..patience import ended
from ..programs import executable
from ..site_folder import ROOT, STACKS, Site

# A run's first life takes six seconds for a step, whatever the machine, and next to none of its CPU time.
PATIENCE = """
import os
import time

def patience(completions):
    if os.path.basename(os.environ.get("WANDB_DIR", "")) == "1":
        time.sleep(6)
    return [0.0] * len(completions)
"""


class SlurmSite(Site):
    """A working directory whose runs go to a cluster of the tests, with the shipped profile made small."""

    def __init__(self, folder, cluster):
        self.cluster = cluster
        profile = yaml.safe_load((ROOT / "profiles" / "slurm" / "config.yaml").read_text(encoding="utf-8"))
        # The nodes have 180 CPUs in name only; and one run at a time, since all nodes are this machine.
        profile["set-resources"]["train"] |= {"cpus_per_task": 2, "mem_mb": 8000, "stop_grace_s": 60}
        profile["resources"] = ["train_slots=1"]
        profile |= {"slurm-init-seconds-before-status-checks": 2, "seconds-between-status-checks": 2}
        (folder / "profile").mkdir()
        (folder / "profile" / "config.yaml").write_text(yaml.safe_dump(profile))
        # Snakemake's own job step drops SLURM_CONF, which a cluster with its configuration in /etc/slurm does not need.
        srun = folder / "bin" / "srun"
        executable(srun, f'export SLURM_CONF={cluster.conf}\nexec /usr/bin/srun "$@"')
        env = cluster.env | {"PATH": f"{srun.parent}:{cluster.env['PATH']}", "ROLLOUTBENCH_SLURM_EVERY_S": "3"}
        super().__init__(folder, folder / "profile", env)

    def run(self, run_id):
        return self.results / "runs" / run_id

    def rows(self, run_id):
        """All steps of a run as its attempts logged them, in their order."""
        attempts = [self.run(run_id) / "attempts" / str(number) for number in self.attempts(run_id)]
        lines = [
            line
            for attempt in attempts
            if (attempt / "metrics.jsonl").is_file()
            for line in (attempt / "metrics.jsonl").read_text().splitlines(keepends=True)
        ]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for_step(self, run_id, step, head):
        self.wait_for(lambda: any(row["step"] >= step for row in self.rows(run_id)), head)

    def wait_for(self, what, head, silence_s=400.0):
        """Until it is true; it fails when the head ends, or when neither it nor a run does anything any more."""
        seen = None
        since, used_s = time.monotonic(), 0.0
        while not what():
            files = (self.folder / "head.log", *self.results.glob("runs/*/attempts/*/*"))
            signs = {(file, file.stat().st_size) for file in files if file.is_file()}
            if signs != seen:
                seen, since = signs, time.monotonic()
            silent = time.monotonic() > since + silence_s
            # On a busy machine an engine starts for minutes without a word.
            if silent and abs((now_s := self.runs_cpu_s()) - used_s) > 1:
                since, used_s, silent = time.monotonic(), now_s, False
            assert head.poll() is None and not silent, (self.folder / "head.log").read_text()[-3000:]
            time.sleep(0.2)

    def runs_cpu_s(self):
        """CPU-seconds of the runs' jobs, and of what they have started."""
        used = 0.0
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(word.startswith(f"{self.results}/runs/") for word in process.cmdline()):
                    for one in (process, *process.children(recursive=True)):
                        used += sum(one.cpu_times()[:4])
        return used

    def training_jobs(self):
        """The training jobs in Slurm's accounting, one for each life."""
        keys = ("id", "name", "state", "partition", "tres")
        asked = ("sacct", "-X", "-D", "-n", "-P", "--format=JobIDRaw,JobName,State,Partition,AllocTRES")
        rows = [dict(zip(keys, line.split("|"), strict=True)) for line in self.cluster.run(*asked).stdout.splitlines()]
        names = {json.loads(file.read_text())["name"] for file in self.results.glob("runs/*/order.json")}
        return [row for row in rows if row["name"] in names]

    def assert_one_training(self, run_id, steps):
        """Every step once, counters that go on, and one run for wandb, whatever became of its jobs."""
        table = pd.read_parquet(self.run(run_id) / "steps.parquet")
        assert sorted(table[(table.kind == "phase") & (table.name == "step")].step) == list(range(1, steps + 1))
        for name in ("train/loss", "train/num_tokens"):
            values = table[table.name == name].sort_values("step")
            assert list(values.step) == list(range(1, steps + 1)) and values.value.notna().all()
        tokens = table[table.name == "train/num_tokens"].sort_values("step").value
        assert tokens.is_monotonic_increasing and tokens.is_unique, "the counter went on from the checkpoint"
        assert not table.overlap.any(), "no step was trained twice"
        folders = self.run(run_id).glob("attempts/*/wandb/offline-run-*")
        names = [folder.name.split("-", 3)[-1] for folder in folders]
        assert len(names) >= len(self.attempts(run_id)) and len(set(names)) == 1, "one run, continued"


@pytest.fixture
def make_site(stack_python, tmp_path):
    made = []
    heads = []

    def make(cluster):
        for stack in STACKS:
            stack_python(stack)
        made.append(SlurmSite(tmp_path, cluster))
        start = made[-1].start
        made[-1].start = lambda: heads.append(start()) or heads[-1]
        return made[-1]

    yield make
    for head in heads:
        if head.poll() is None:
            os.killpg(head.pid, signal.SIGKILL)
        head.wait()
    for site in made:
        site.cluster.run("scancel", "--user=root")


@pytest.mark.promise("snakemake-profile-slurm-runs")
def test_the_quickstart_runs_on_slurm_and_outlives_its_head(cluster, make_site, stack_python):
    """The configuration is the shipped one, of one seed; the head and all its launchers are killed in the first run."""
    stack_python(SGLANG)
    site = make_site(cluster)
    for name in EAGER:
        del site.env[name]  # the engines as they are shipped
    site.config = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8")) | {"seeds": [0]}
    site.results = site.folder / "results" / "quickstart"
    head = site.start()
    site.wait_for(lambda: list(site.results.glob("runs/*/attempts/1/metrics.jsonl")), head)
    first = next(site.results.glob("runs/*/attempts/1")).parents[1].name
    site.wait_for_step(first, 2, head)
    os.killpg(head.pid, signal.SIGKILL)
    head.wait()
    finished = site.snakemake()
    assert finished.returncode == 0, finished.stdout + finished.stderr
    # On a quick machine the run has finished by itself before there is a head again.
    assert f"{first}: attaching to Slurm job" in finished.stderr or f"{first}: already finished" in finished.stderr
    for run_id in ("vllm-s0", "sglang-s0", "transformers-s0"):
        assert site.attempts(run_id) == [1]
        site.assert_one_training(run_id, 12)
    jobs = site.training_jobs()
    assert len(jobs) == 3, "each run was submitted once"
    assert {(job["state"], job["partition"]) for job in jobs} == {("COMPLETED", "h100")}
    assert all("gres/gpu=8" in job["tres"] for job in jobs)
    light = site.cluster.run("sacct", "-X", "-n", "-P", "--format=Partition").stdout.split()
    assert light.count("cpu") >= 2, "inputs and the report went through Slurm, too"
    verdicts = {one["arm"]: one for one in json.loads((site.results / "verdict.json").read_text())["arms"]}
    assert list(verdicts) == ["sglang", "transformers"] and {one["baseline"] for one in verdicts.values()} == {"vllm"}
    assert verdicts["sglang"]["words"].endswith("on a CPU without SGLang's compiled kernels")
    assert "CPU" not in verdicts["transformers"]["words"]
    assert (site.results / "report.html").stat().st_size > 100_000
    again = site.snakemake()
    assert "Nothing to be done" in again.stdout + again.stderr


@pytest.mark.promise("trl-resumes-after-preemption")
def test_trl_goes_on_after_preemption_and_after_its_time_limit(make_cluster, make_site):
    """vLLM's run is preempted, with time for a checkpoint; transformers' run meets its limit."""
    # Slurm looks for limits every half-minute, which must not be enough to finish; on a busy machine the run may be
    # older than its new limit by then, and has the time for a checkpoint all the same (OverTimeLimit).
    # Two engines start beside all else: a slurmd that answers late is not lost.
    site = make_site(cluster := make_cluster(extra=("SlurmdTimeout=60",)))
    cluster.run("scontrol", "update", "PartitionName=h100", "GraceTime=60")
    site.config["workload"] |= {"steps": 25, "save_steps": 0}
    (site.folder / "waits.py").write_text(PATIENCE)
    reward = {"source": str(site.folder / "waits.py"), "function": "patience"}
    site.config["workload"]["rewards"].append(reward)
    head = site.start()
    seen = []
    for _ in range(2):
        site.wait_for(
            lambda: [run for run in site.results.glob("runs/*/attempts/1") if run.parts[-3] not in seen], head
        )
        run_id = next(run.parts[-3] for run in site.results.glob("runs/*/attempts/1") if run.parts[-3] not in seen)
        seen.append(run_id)
        site.wait_for_step(run_id, 3, head)
        job_id = json.loads((site.run(run_id) / "attempts" / "1" / "attempt.json").read_text())["slurm"]["job_id"]
        if run_id == "vllm-s0":
            site.cluster.run("sbatch", "-p", "h100-urgent", "-N2", "--gres=gpu:h100:8", "--wrap=sleep 1")
        else:
            site.cluster.run("scontrol", "update", f"jobid={job_id}", "TimeLimit=1")
        exit_file = site.run(run_id) / "attempts" / "1" / "exit.json"
        site.wait_for(exit_file.is_file, head)
        end = json.loads(exit_file.read_text())
        assert (end["kind"], end["cause"]) == ("stopped", "preempted" if run_id == "vllm-s0" else "time limit")
        site.cluster.run("scontrol", "update", f"jobid={job_id}", "TimeLimit=60")
        site.cluster.release(job_id)
        site.wait_for(lambda: (site.run(run_id) / "done.json").is_file(), head)  # noqa: B023
    ended(head, 300)
    assert head.returncode == 0, (site.folder / "head.log").read_text()[-3000:]
    for run_id in ("transformers-s0", "vllm-s0"):
        assert site.attempts(run_id) == [1, 2]
        resumed = [row["step"] for row in site.rows(run_id) if row["resumed"]]
        last = json.loads((site.run(run_id) / "attempts" / "1" / "exit.json").read_text())["last_step"]
        assert resumed == [last + 1]
        site.assert_one_training(run_id, 25)
        ids = {
            json.loads(file.read_text())["slurm"]["job_id"] for file in site.run(run_id).glob("attempts/*/attempt.json")
        }
        assert len(ids) == 1, "requeued under its own id"
