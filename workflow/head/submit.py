"""Submits one job of a run's order through submitit, as a short program: the waiting launcher stays small.

    python -m workflow.head.submit RUN_FOLDER

The order is written before. Its `job_ids` get the new job's id, its `error` what Slurm said instead.
"""

from __future__ import annotations

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

from common.files import module_command, write_json
from common.messages import report_errors
from common.ownership import obey_only_own_files
from common.retry import exists, is_transient, retry_io
from trainers import Spread
from workflow.job.job import run_job
from workflow.runs.history import FILES, read_object
from workflow.runs.orders import end_of
from workflow.runs.paths import RunPaths
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError
from workflow.slurm.request import sbatch_options

# submitit's local executor needs a time limit; a run on this machine has none.
_NO_LIMIT_MIN = 60 * 24 * 365
# In front of submitit's own entry.
_BEGIN = dict.fromkeys(("local_python", "slurm_python"), shlex.join(module_command("workflow.job.begin", "-u")))
_SET_UP = Path(__file__).with_name("set_up.sh")


def submit(run: RunPaths) -> None:
    """Submit a job of a run's order; order.json has the result.

    Waits for files that cannot be read or written: an aborted submission would leave a job without its id.
    """
    order = retry_io(lambda: read_object(run.order), FILES)
    folder = retry_io(run.new_submission, FILES)
    # Either `rolloutbench cancel` sees the order, or this sees the cancellation.
    if _is_cancelled(run, order):
        result: dict[str, Any] = {"error": "it was cancelled"}
    else:
        result = _submitted(run, folder, order)
    if job_id := result.pop("job_id", ""):
        result["job_ids"] = [*order["job_ids"], job_id]
    # A cancellation changes end.json alone.
    retry_io(lambda: write_json(run.order, {**order, "error": "", "submitted": time.time(), **result}), FILES)
    # An sbatch may take minutes, and `rolloutbench cancel` does not wait for it.
    if order["cluster"] == "slurm" and job_id and _is_cancelled(run, order):
        with suppress(SlurmError):  # the job checks for it when it begins
            slurm.cancel([job_id])


def _is_cancelled(run: RunPaths, order: dict[str, Any]) -> bool:
    return retry_io(lambda: exists(run.cancelled) or bool(end_of(run, order["start"])), FILES)


def _submitted(run: RunPaths, folder: Path, order: dict[str, Any]) -> dict[str, Any]:
    """What the order has to record: the id of the submitted job, or the error."""
    try:
        # -P: a job must not import a json.py from where the user stands. A process of submitit's beside a local job has
        # no such option; a site's script may rely on where sbatch was called.
        executor = submitit.AutoExecutor(folder=folder, cluster=order["cluster"], **_BEGIN)
        if order["cluster"] == "local":
            executor.update_parameters(timeout_min=_NO_LIMIT_MIN, name=order["name"])
        else:
            executor.update_parameters(**slurm_parameters(order, run, folder))
        # clean_env also removes the path of Slurm's configuration.
        kept = {name: value for name, value in os.environ.items() if name == "SLURM_CONF"}
        where = folder if order["cluster"] == "local" else Path()
        with clean_env(), _ignored(signal.SIGINT), chdir(where), warnings.catch_warnings():
            os.environ.update(kept)
            # submitit warns of its own settings, which the user cannot change.
            warnings.simplefilter("ignore")
            submitted = executor.submit(run_job, str(run.folder), int(folder.name), order["name"])
    except (FailedJobError, FailedSubmissionError) as error:
        return {"error": _sbatch_error(error)}
    except OSError as error:
        # "try again" marks errors that may pass (workflow/slurm/commands.py).
        return {"error": _sbatch_error(error) + ("; try again later" if is_transient(error) else "")}
    return {"job_id": submitted.job_id}


def slurm_parameters(order: dict[str, Any], run: RunPaths, folder: Path) -> dict[str, Any]:
    site = order["site"]
    # As in a batch script: an own command runs on the first node, and starts its tasks itself.
    only = ["--nodes=1", "--ntasks=1"] if Spread.from_spec(order) is Spread.OWN else []
    cpus = [f"--cpus-per-task={order['cpus']}"] if order["cpus"] else []
    setup = _setup_lines(site["setup"], run, order["start"]) if site.get("setup") else []
    options = {"requeue": True, "comment": "rolloutbench", **sbatch_options(site)}
    if order["avoid"]:
        options["exclude"] = ",".join(filter(None, (site.get("exclude"), *order["avoid"])))
    return {
        "name": order["name"],
        "timeout_min": site["runtime"],
        "nodes": site["nodes"],
        "tasks_per_node": 1,
        **({"cpus_per_task": order["cpus"]} if order["cpus"] else {}),
        "slurm_signal_delay_s": order["limits"]["stop_grace_s"],
        "slurm_stderr_to_stdout": True,
        # At most one job of a name runs at a time, whoever submitted it, also during the delay of a requeue.
        "slurm_dependency": "singleton",
        "slurm_wckey": "",
        "slurm_additional_parameters": options,
        # Since Slurm 22.05 srun does not inherit the job's cpus-per-task.
        "slurm_srun_args": [*cpus, "--kill-on-bad-exit=1", *only],
        "slurm_setup": [_pickle_link_line(folder), *setup],
    }


def _pickle_link_line(folder: Path) -> str:
    """A line of a job's script that links submitit's pickle to the name that the job expects.

    submitit renames the pickle once sbatch has answered, and the job waits a minute for that. The answer may never
    come, and the submitter may die first. It is a link because submitit's own renaming must still find the old name.
    """
    quoted = shlex.quote(str(folder))
    name = f'{quoted}/"$SLURM_JOB_ID"_submitted.pkl'
    return f"[ -e {name} ] || ln {quoted}/*.pkl {name} || true"


def _setup_lines(script: str, run: RunPaths, start: str) -> list[str]:
    """The lines of a job's script that source the site's script, and write end.json if it fails."""
    variables = {
        "setup": script,
        "run": str(run.folder),
        "end": json.dumps({"kind": "setup failed", "detail": script, "order": start, "told_by": "job"})[:-1],
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
    return report_errors(lambda: submit(RunPaths(Path(sys.argv[1]))))


if __name__ == "__main__":
    sys.exit(main())
