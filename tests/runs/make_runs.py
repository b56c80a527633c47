"""Run folders as heads and jobs leave them, made by hand for those who only look on."""

import json
import time

from common.files import write_bytes
from workflow.runs.paths import RunPaths, queue_file

START = "5" * 16
INPUTS = {"data_sha256": "d", "model_sha256": "m"}


class MadeRun:
    """One run's folder; every method adds what its name says."""

    def __init__(self, experiment, run_id, fingerprint="f" * 64, steps=10):
        self.paths = RunPaths(experiment / "runs" / run_id)
        self.run_id, self.fingerprint, self.steps = run_id, fingerprint, steps
        write(self.paths.spec, self.spec)

    def job(self, cluster="slurm", job_id="7", **order):
        """An order, whose job was submitted a minute ago."""
        same = {"fingerprint": self.fingerprint, "inputs_sha256": INPUTS, "spec": self.spec, "run_id": self.run_id}
        same |= {"site": {"gres": "gpu:h100:4", "nodes": 2}, "limits": {"restarts": 5}, "cpus": 1, "count_from": 1}
        told = {"cluster": cluster, "name": self.name, "job_ids": [job_id] if job_id else [], "avoid": []}
        told |= {"start": START, "folder": str(self.paths.folder.resolve()), "submitted": time.time() - 60}
        write(self.paths.order, same | told | order)
        return self

    @property
    def name(self):
        return f"{self.run_id}.{'0' * 16}"

    def end(self, kind, order=START, **more):
        """How an order ended."""
        write(self.paths.end, {"kind": kind, "order": order, **more})
        return self

    def attempt(self, number=1, steps=0, step_s=2.0, **request):
        """A life of its job, with so many steps done."""
        files = self.paths.attempt(number)
        order = {"fingerprint": self.fingerprint, "inputs_sha256": INPUTS, "host": "here", "slurm": None}
        write(files.request, order | request)
        write(files.spec, self.spec)
        rows = [{"step": step, "phases": {"step": step_s}, "scalars": {}} for step in range(1, steps + 1)]
        files.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files.heartbeat.touch()
        return self

    def done(self, attempt=1):
        """An attempt's proof that it finished the run."""
        told = {"fingerprint": self.fingerprint, "attempt": attempt, "last_step": self.steps, "inputs": INPUTS}
        write(self.paths.attempt(attempt).done, told)
        return self

    def checkpoint(self, name):
        """A checkpoint of that name."""
        (self.paths.checkpoints(self.fingerprint, INPUTS) / name).mkdir(parents=True)
        return self

    @property
    def spec(self):
        return {"run_id": self.run_id, "fingerprint": self.fingerprint, "workload": {"steps": self.steps}}


def answer(experiment, jobs, **told):
    """What squeue said just now of jobs, given by what is not as usual."""
    usual = {"state": "RUNNING", "nodes": "gpu1", "left": "18:30:00", "start": None, "reason": "None", "job_id": "7"}
    write(queue_file(experiment), {"asked": time.time(), "error": None, "jobs": [usual | job for job in jobs]} | told)


def write(path, value):
    write_bytes(path, json.dumps(value).encode())
