"""The site's setup script in a job's script: what it exports is there, what fails in it ends the job and says so.

On a real Slurm it is in tests/slurm/scenarios.toml.
"""

import json
import os
import signal
import subprocess
import time

import pytest

from workflow.head.submit import slurm_parameters
from workflow.runs.ends import explain
from workflow.runs.paths import RunPaths

from ..patience import ended

pytestmark = pytest.mark.promise("a-failing-setup-script")


def start(folder, script):
    """A job's script up to where srun would stand, which prints a variable and what is left of our own."""
    setup, job = folder / "it's 100% \\ set up.sh", RunPaths(folder / "1")
    setup.write_text(script)
    job.folder.mkdir()
    order = {"site": {"setup": str(setup), "runtime": 1, "nodes": 1, "partition": "p"}, "limits": {"stop_grace_s": 1}}
    lines = slurm_parameters(order | {"name": "n", "cpus": 1, "avoid": [], "start": "s"}, job, folder)["slurm_setup"]
    (folder / "job.sh").write_text("\n".join([*lines, 'echo "srun $A$(set | grep -c ^rolloutbench)"']))
    command = ["bash", str(folder / "job.sh")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True), job


@pytest.mark.parametrize(
    "script",
    [
        "export A=1",
        "declare -x A=1; set -eu",
        "nowhere || true; [ -n '' ] && echo; A=1",
        "tried() { nowhere; true; }; tried; if nowhere; then :; fi; A=1",
    ],
)
def test_what_a_script_exports_is_there(tmp_path, script):
    job, paths = start(tmp_path, script)
    assert ended(job, 20)[0] == "srun 10\n" and job.returncode == 0
    assert not paths.end.exists()


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ("module load cuda\nexport A=1", 127, "line 1: module load cuda: exit code 127"),
        ("module() { return 3; }\nmodule load cuda\ntrue", 3, "line 2: "),
        ("true\nfalse", 1, "line 2: false: exit code 1"),
        ("set -e\ntried() { false; }\ntried\n", 1, ""),
        ("if then", 2, "syntax error"),
        ("exit 5", 5, ""),
        ("exit 0", 0, ""),
    ],
)
def test_what_fails_in_it_ends_the_job(tmp_path, script, code, says):
    job, paths = start(tmp_path, script)
    assert ended(job, 20)[0] == "" and job.returncode == code
    end = json.loads(paths.end.read_text())
    assert (end["kind"], end["code"], end["order"]) == ("setup failed", code, "s")
    assert explain(end, {}).startswith(
        f"{tmp_path}/it's 100% \\ set up.sh " + ("failed" if code else "ended the job by")
    )
    assert says in paths.setup_log.read_text()


def test_a_signal_is_slurms_matter(tmp_path):
    job, paths = start(tmp_path, "echo begun; sleep 60")
    while not paths.setup_log.exists() or "begun" not in paths.setup_log.read_text():
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGTERM)
    ended(job, 20)
    assert job.returncode == 143 and not paths.end.exists()
