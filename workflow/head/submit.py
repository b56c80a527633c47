"""Submits one run's job through submitit, as a short program: the waiting launcher stays small.

    python -m workflow.head.submit RUN_FOLDER < request.json

It writes the full request and a record without an id (jobs/<k>/job.json) before the submission, and the id after it:
if it dies in between, the next launcher asks Slurm for the recorded name. job.json also records an error of Slurm.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import clean_env

from common.files import ROOT, write_json
from common.messages import report_errors
from common.ownership import obey_only_own_files
from common.retry import exists, is_transient, retry_io
from trainers import Spread, driver_module
from workflow.job.job import run_job
from workflow.runs.history import FILES
from workflow.runs.jobs import make_identity
from workflow.runs.paths import JobPaths, RunPaths
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError
from workflow.slurm.request import sbatch_options
from workflow.slurm.shared_answer import read as read_answer

# submitit's local executor needs a time limit; a run on this machine has none.
_NO_LIMIT_MIN = 60 * 24 * 365
# In front of submitit's own entry.
_BEGIN = dict.fromkeys(("local_python", "slurm_python"), f"{shlex.quote(sys.executable)} -u -P -m workflow.job.begin")
_SET_UP = Path(__file__).with_name("set_up.sh")


def submit(run: RunPaths, request: dict[str, Any]) -> None:
    """Submit a new job of a run; job.json has the result.

    Waits for files that cannot be read or written: an aborted submission would leave a job without a record.
    """
    job = retry_io(run.new_job, FILES)
    full, record = retry_io(lambda: _write_request(run, request, job), FILES)
    # Check after the record is written: either `rolloutbench cancel` sees the record, or this sees the cancellation.
    if retry_io(lambda: exists(run.cancelled), FILES):
        retry_io(lambda: write_json(job.record, {**record, "error": "the experiment was cancelled"}), FILES)
        return
    result = _submitted(run, job, full)
    retry_io(lambda: write_json(job.record, record | result), FILES)
    # An sbatch may take minutes, and `rolloutbench cancel` does not wait for it.
    if request["cluster"] != "slurm" or "job_id" not in result:
        return
    if retry_io(lambda: exists(run.cancelled) or exists(job.cancelled), FILES):
        with suppress(SlurmError):  # the job checks for it when it begins
            slurm.cancel([result["job_id"]])


def _write_request(run: RunPaths, request: dict[str, Any], job: JobPaths) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the full request and a record without an id before the submission."""
    full = {
        **request,
        "job": job.number,
        "run_id": request["spec"]["run_id"],
        "fingerprint": request["spec"]["fingerprint"],
        "checkpoint_dir": str(run.checkpoints(request["spec"]["fingerprint"], request["inputs_sha256"])),
        "module": request["spec"]["job_module"],
        "spread": Spread.from_spec(request["spec"]),
        "env": request["spec"]["env"],
        "cwd": str(ROOT),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "name": job_name(make_identity(run), request["spec"], request["inputs_sha256"]),
    }
    if full["spread"] is Spread.OWN:
        # The user's files as they are now; a module of the standard library.
        importlib.import_module(driver_module(full["module"])).keep(request["spec"], run.folder)
    write_json(job.request, full)
    record = {
        **{key: full[key] for key in ("job", "cluster", "name")},
        "identity": make_identity(run),
        "job_id": None,
        "asked": time.time(),
    }
    write_json(job.record, record)
    write_json(run.current, {"job": job.number})
    return full, record


def _submitted(run: RunPaths, job: JobPaths, full: dict[str, Any]) -> dict[str, Any]:
    """The additions to the record: the id of the submitted job, or the error."""
    try:
        # -P: a job must not import a json.py from where the user stands. A process of submitit's beside a local job has
        # no such option; a site's script may rely on where sbatch was called.
        folder = job.submitit if full["cluster"] == "local" else Path()
        executor = submitit.AutoExecutor(folder=job.submitit, cluster=full["cluster"], **_BEGIN)
        if full["cluster"] == "local":
            executor.update_parameters(timeout_min=_NO_LIMIT_MIN, name=full["name"])
        else:
            executor.update_parameters(**slurm_parameters(full, job))
        # clean_env also removes the path of Slurm's configuration.
        kept = {name: value for name, value in os.environ.items() if name == "SLURM_CONF"}
        with clean_env(), _ignored(signal.SIGINT), chdir(folder), warnings.catch_warnings():
            os.environ.update(kept)
            # submitit warns of its own settings, which the user cannot change.
            warnings.simplefilter("ignore")
            submitted = executor.submit(run_job, str(run.folder), job.number)
    except (FailedJobError, FailedSubmissionError) as error:
        return {"error": _sbatch_error(error)}
    except OSError as error:
        # "try again" marks errors that may pass (workflow/slurm/commands.py).
        return {"error": _sbatch_error(error) + ("; try again later" if is_transient(error) else "")}
    return {"job_id": submitted.job_id, "submitted": time.time(), "answer": read_answer(run.slurm).mark}


def job_name(identity: str, spec: dict[str, Any], inputs_sha256: dict[str, str]) -> str:
    """The job's name in Slurm: readable, and unique for a spec, its inputs and the run's folder."""
    key = [spec["fingerprint"], inputs_sha256, identity]
    return f"{spec['run_id']}.{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}"


def slurm_parameters(full: dict[str, Any], job: JobPaths) -> dict[str, Any]:
    site = full["site"]
    # As in a batch script: an own command runs on the first node, and starts its tasks itself.
    only = ["--nodes=1", "--ntasks=1"] if Spread.from_spec(full) is Spread.OWN else []
    setup = _setup_lines(site["setup"], job) if site.get("setup") else []
    options = {"requeue": True, "comment": f"rolloutbench job={full['job']}", **sbatch_options(site)}
    return {
        "name": full["name"],
        "timeout_min": site["runtime"],
        "nodes": site["nodes"],
        "tasks_per_node": 1,
        "cpus_per_task": full["cpus"],
        "slurm_signal_delay_s": full["limits"]["stop_grace_s"],
        "slurm_stderr_to_stdout": True,
        # At most one job of a name runs at a time, whoever submitted it, also during the delay of a requeue.
        "slurm_dependency": "singleton",
        "slurm_wckey": "",
        "slurm_additional_parameters": options,
        # Since Slurm 22.05 srun does not inherit the job's cpus-per-task.
        "slurm_srun_args": [f"--cpus-per-task={full['cpus']}", "--kill-on-bad-exit=1", *only],
        "slurm_setup": [_pickle_link_line(job), *setup],
    }


def _pickle_link_line(job: JobPaths) -> str:
    """A line of a job's script that links submitit's pickle to the name that the job expects.

    submitit renames the pickle once sbatch has answered, and the job waits a minute for that. The answer may never
    come, and the submitter may die first. It is a link because submitit's own renaming must still find the old name.
    """
    folder = shlex.quote(str(job.submitit))
    name = f'{folder}/"$SLURM_JOB_ID"_submitted.pkl'
    return f"[ -e {name} ] || ln {folder}/*.pkl {name} || true"


def _setup_lines(script: str, job: JobPaths) -> list[str]:
    """The lines of a job's script that source the site's script, and write end.json if it fails."""
    variables = {
        "setup": script,
        "job": str(job.folder),
        "end": json.dumps({"kind": "setup failed", "detail": script, "told_by": "job"})[:-1],
    }
    lines = [f"rolloutbench_{name}={shlex.quote(value)}" for name, value in variables.items()]
    return [*lines, f"source {shlex.quote(str(_SET_UP))}"]


def _sbatch_error(error: Exception) -> str:
    """sbatch's message without those of submitit and subprocess around it."""
    lines = [line for line in str(error.__cause__ or error).splitlines() + str(error).splitlines() if "sbatch:" in line]
    return " ".join(dict.fromkeys(line.strip() for line in lines)) or " ".join(str(error).split())


@contextmanager
def _ignored(number: signal.Signals) -> Iterator[None]:
    """Ignore a signal here and in the job, which inherits that: the launcher handles a Ctrl-C."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def main() -> int:
    obey_only_own_files()
    return report_errors(lambda: submit(RunPaths(Path(sys.argv[1])), json.load(sys.stdin)))


if __name__ == "__main__":
    sys.exit(main())
