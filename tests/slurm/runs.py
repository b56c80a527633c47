"""Runs of the stand-in trainer on the tests' Slurm."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from trainers.command.trainer import options_of
from trainers.workload import TrainedArm
from workflow.launch_scripts.words import script_facts

from ..job.run_bench import ROOT, STAND_IN, RunBench

# Slurm is asked every other second, not every half-minute.
QUICK = {"ROLLOUTBENCH_SLURM_EVERY_S": "2"}
OPTIONS = ("submit_to=slurm", "slurm_partition=h100", "gres=gpu:h100:8", "mem_mb=1000", "runtime=60", "stop_grace_s=60")
ALIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD")


class SlurmRun(RunBench):
    """A run whose heads submit to a cluster of the tests."""

    def __init__(self, cluster, folder, options=(), head_env=None, **more):
        self.cluster = cluster
        head_env = cluster.env | QUICK | (head_env or {})
        super().__init__(folder, options=(*OPTIONS, *options), head_env=head_env, **more)

    def jobs(self):
        """This run's jobs that Slurm has not ended; asserts that there is at most one that could train."""
        found = [job for job in self.cluster.jobs() if job["name"].startswith(f"{self.run_id}.")]
        running = [job for job in found if job["state"] in ("RUNNING", "COMPLETING", "SUSPENDED")]
        assert len(running) <= 1, f"{len(running)} jobs of one run: {found}"
        return found

    def job_id(self):
        """The last job's id; waits for it, since a job may begin before whoever submits it has noted that."""
        order = self.run / "order.json"
        return str(self.wait(lambda: order.is_file() and json.loads(order.read_text())["job_ids"])[-1])

    def looks(self, times):
        """Wait until somebody has asked squeue so many times more: what a head concludes from its answer is done."""
        file, seen = self.run.parents[1] / ".squeue.json", set()

        def asked():
            # There is no file before the first question.
            seen.update(one.stat().st_mtime_ns for one in (file,) if one.exists())
            return len(seen) > times

        self.wait(asked)

    def state(self):
        """Slurm's queue, its log and the jobs' output, too."""
        slurm = (self.cluster.folder / "slurmctld.log").read_text()[-3000:]
        return f"{self.cluster.jobs()}\n{super().state()}\n{self.output()}\n{slurm}"

    def release(self):
        """Let the requeued job begin now, once it is back in the queue."""

        def waits():
            return any(job["state"] == "PENDING" for job in self.jobs())

        self.wait(waits)
        self.cluster.release(self.jobs()[0]["id"])


class SlurmScript(SlurmRun):
    """A run of a user's script, which starts the stand-in and continues from its checkpoint by itself."""

    setup = ""
    """Lines of the script before the training."""

    def write_spec(self, fingerprint, steps=5, env=None):
        """The specification; it names the steps, which a real one does not, for the tests to compare with."""
        script = self.folder / "scripts" / f"{self.run_id}.sh"
        script.parent.mkdir(exist_ok=True)
        attempt = f"{self.run}/attempts/$ROLLOUTBENCH_ATTEMPT/attempt.json"
        script.write_text(f"#!/bin/bash\n{self.setup}{sys.executable} {STAND_IN} --script engine=vllm {attempt}\n")
        options = {"script": str(script), "words": ["engine=sglang"], "resume": "script"}
        arm = TrainedArm(trainer="command", engine="sglang", options=options)
        args = options_of(arm).model_dump(mode="json")
        self.spec = {
            **{"run_id": self.run_id, "trainer": "command", "fingerprint": fingerprint, "env": env or {}, "arm": "arm"},
            **{"engine": "sglang", "stack": "", "seed": 0, "factors": {}, "options": options, "spread": "own"},
            "job_module": "trainers.command.driver",
            "trainer_args": args | script_facts(args, script, {}),
            "workload": {"nodes": 1, "gpus_per_node": 0, "steps": steps},
        }

    def command(self):
        """The launcher's command, without a stack and inputs."""
        command = super().command()
        for option in ("--inputs", "--stack"):
            del command[command.index(option) + 1]
        return command


def build_faults(folder):
    """The library that makes files and clocks lie, built into a folder."""
    library, source = folder / "faults.so", Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def fake(folder, command, script):
    """A head's environment in which a command of Slurm does something else; $real is the true one."""
    folder = folder / "bin"
    folder.mkdir(exist_ok=True)
    real = next((path for path in (f"/usr/bin/{command}", f"/usr/local/bin/{command}") if Path(path).exists()), "")
    (folder / command).write_text(f"#!/bin/bash\nreal={real}\n{script}\n")
    (folder / command).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}:/usr/sbin:/usr/bin:/sbin:/bin"}


def rolloutbench(one, code):
    """What a line of Python prints about the run's `experiment`, on a machine of the cluster's."""
    lines = (
        "import sys; from pathlib import Path",
        "from workflow.commands.cancel import cancel",
        "from workflow.runs.experiment import Experiment, ExpectedRun",
        "from workflow.commands.status import status_lines, take_snapshot",
        "experiment = Experiment('experiment', Path(sys.argv[1]), [ExpectedRun('arm-s0', sys.argv[2])])",
        code,
    )
    words = [sys.executable, "-c", "\n".join(lines), str(one.run.parents[1]), one.spec["fingerprint"]]
    told = subprocess.run(words, env=one.head_env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout


def cancel(one, *runs):
    return rolloutbench(one, f"print(cancel(experiment, {[*runs]!r}))")


def status(one):
    return rolloutbench(one, "print(*status_lines(take_snapshot(experiment)), sep='\\n')")


def lose_the_node(one):
    """Its slurmd dies, and Slurm gives it up; the job's processes live on."""
    node = one.jobs()[0]["nodes"]
    one.cluster.kill_daemon(node)
    one.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=slurmd is dead")
    return node


def stopped(one):
    """The trainer and what started it get no signal but to go on."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = one.processes()
        return bool(found) and all(process.status() == psutil.STATUS_STOPPED for process in found)
    return False


def rays(folder):
    """The Ray processes on this machine that belong to a run's folder."""
    found = []
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error):
            if process.info["name"] in ("raylet", "gcs_server") and str(folder) in " ".join(process.environ().values()):
                found.append(process)
    return found


def preempt(one):
    one.cluster.run("sbatch", "-p", "h100-urgent", "-N2", "--gres=gpu:h100:8", "--wrap=sleep 2")


def kill_with_its_submission(head):
    """As a login node does that goes down: the head, and the program that submits for it."""
    words = ["pgrep", "-P", str(head.pid)]
    children = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    head.kill()
    for child in children:
        os.killpg(int(child), signal.SIGKILL)
