"""Two users on one folder of results: the second one is told whose a run is, and neither harms nor waits for it.

The second user has a made-up id; its processes drop root's rights after their imports, since root's Python may lie
where nobody else may read.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from ..job.run_bench import ROOT, RunBench
from ..patience import run
from ..programs import executable

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.promise("a-second-user-on"),
]

GROUP, OTHER = 20000, 20001
AS_THE_OTHER = f"""
import os, sys
from pathlib import Path
import workflow.head.launcher, workflow.commands.status, encodings.idna, tempfile, multiprocessing
from workflow.slurm.shared_queue import ask
import time
from workflow.commands.cancel import cancel
from workflow.runs.experiment import Experiment, ExpectedRun
from workflow.runs.paths import RunPaths
from workflow.commands.status import show_status
from common.messages import report_errors
os.setgroups([])
os.setgid({GROUP})
os.setuid({OTHER})
os.umask(0o002)
folder = Path(sys.argv[1])
experiment = Experiment("experiment", folder, [ExpectedRun("arm-s0", "f" * 64)])
"""


@pytest.fixture
def shared():
    """A group's folder, as groups make them: whatever is made in it is the group's, who may write there."""
    folder = Path(tempfile.mkdtemp(prefix="rbu"))
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    before = os.umask(0o002)
    yield folder
    os.umask(before)
    shutil.rmtree(folder)


def python(folder, code, *words, **env):
    """What a program says about the experiment."""
    command = [sys.executable, "-c", code, str(folder / "results" / "experiment"), *words]
    return run(command, 120, cwd=ROOT, env={**os.environ, **env})


def other(folder, code, *words, **env):
    """What the other user's program says."""
    done = python(folder, AS_THE_OTHER + code, *words, **env)
    assert "Traceback" not in done.stderr, done.stderr
    assert "trying again" not in done.stderr, "it does not wait for rights that it never gets"
    return done


@pytest.mark.full("processes that are struck")
@pytest.mark.parametrize("umask", [0o002, 0o077])
def test_the_second_user_is_told_whose_the_run_is_and_harms_nothing(shared, umask):
    (shared / "results" / "experiment" / "runs" / "arm-s0").mkdir(parents=True)  # as snakemake makes them
    os.umask(umask)
    one = RunBench(shared, env={"STAND_IN_WAIT": "2"})
    try:
        head = one.start()
        one.wait_for_step(2)
        start = "sys.exit(workflow.head.launcher.main(sys.argv[2:]))"
        refused = other(shared, start, *one.command()[3:])
        assert refused.returncode == 1
        assert "belongs to root" in refused.stderr and len(refused.stderr.splitlines()) == 1, refused.stderr
        looked = other(shared, "sys.exit(report_errors(lambda: show_status(lambda: experiment, None)))")
        if umask == 0o002:
            assert looked.returncode == 0 and " running " in looked.stdout
        else:
            assert looked.returncode == 1 and "Permission denied" in looked.stderr
        cancelled = other(shared, "sys.exit(report_errors(lambda: print(cancel(experiment, []))))")
        assert cancelled.returncode == 1 and "belongs to root, and only root can cancel" in cancelled.stderr
        one.go()
        assert one.ended(head) and head.returncode == 0
        assert one.journal() == [(1, step) for step in range(1, 6)]
        again = other(shared, start, *one.command()[3:])
        assert again.returncode == 1 and "belongs to root" in again.stderr
    finally:
        one.end()


def test_two_users_ask_slurm_each_for_their_own_jobs_in_one_results_folder(shared):
    (shared / "results").mkdir()
    bin_folder = shared / "bin"
    executable(bin_folder / "squeue", "echo down >&2; exit 1")
    path = f"{bin_folder}:{os.environ['PATH']}"
    # As a head does, whose umask lets nobody else write.
    code = "os.umask(0o022); at = RunPaths(folder.with_name(f'of-{os.getuid()}') / 'runs' / 'a').queue"
    code += "; at.parent.mkdir(exist_ok=True)"
    code += "; print(ask(at, time.time()).error, at.stat().st_uid)"
    first = python(shared, AS_THE_OTHER.replace("os.setuid", "id") + code, PATH=path)
    assert first.stdout.split() == ["down", "0"], first.stderr
    second = other(shared, code, PATH=path)
    assert second.stdout.split() == ["down", str(OTHER)], second.stderr
