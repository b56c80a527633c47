"""Run folders as heads and jobs leave them, made by hand for those who only look on."""

import json
import time

from common.files import write_bytes
from workflow.runs.paths import RunPaths

INPUTS = {"data_sha256": "d", "model_sha256": "m"}


class MadeRun:
    """One run's folder; every method adds what its name says."""

    def __init__(self, experiment, run_id, fingerprint="f" * 64, steps=10):
        self.paths = RunPaths(experiment / "runs" / run_id)
        self.run_id, self.fingerprint, self.steps = run_id, fingerprint, steps
        write(self.paths.spec, self.spec)

    def job(self, number=1, cluster="slurm", job_id="7", **record):
        """A submission, the one that counts; `asked` and `submitted` are a minute ago."""
        files, then = self.paths.job(number), time.time() - 60
        same = {"fingerprint": self.fingerprint, "inputs_sha256": INPUTS, "spec": self.spec}
        write(files.request, same | {"job": number, "cluster": cluster, "site": {"gres": "gpu:h100:4", "nodes": 2}})
        told = {"job": number, "cluster": cluster, "name": self.name, "job_id": job_id, "asked": then}
        write(files.record, told | {"submitted": then} | record)
        write(self.paths.current, {"job": number})
        return self

    @property
    def name(self):
        return f"{self.run_id}.{'0' * 16}"

    def end(self, kind, number=1, **more):
        """How a submission ended."""
        write(self.paths.job(number).end, {"kind": kind, **more})
        return self

    def attempt(self, number=1, job=1, steps=0, step_s=2.0):
        """A life of a submission, with so many steps done."""
        files = self.paths.attempt(number)
        order = {"fingerprint": self.fingerprint, "inputs_sha256": INPUTS, "job": job, "host": "here", "slurm": None}
        write(files.request, order)
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
    """What Slurm said just now of jobs, given by what is not as usual."""
    usual = {"state": "RUNNING", "nodes": "gpu1", "limit": "20:00:00", "left": "18:30:00", "start": None, "end": None}
    usual |= {"partition": "h100", "reason": "None", "job_id": "7"}
    now = time.time()
    queued = {job.get("job_id", "7"): usual | job for job in jobs}
    raw = {
        "series": "s",
        "number": 3,
        "asked": now,
        "tried": now,
        "error": None,
        "accounting": True,
        "jobs": queued,
        "ended": {},
    }
    write(RunPaths(experiment / "runs" / "any").slurm / "answer.json", raw | told)


def write(path, value):
    write_bytes(path, json.dumps(value).encode())
