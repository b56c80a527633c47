"""A second user with a made-up id: its processes drop root's rights after their imports.

Root's Python may lie where nobody else may read.
"""

import os
import sys

from ..job.run_bench import ROOT
from ..patience import run

GROUP, OTHER = 20000, 20001
STARTS = f"""
import os, sys
from pathlib import Path
import workflow.head.launcher, workflow.commands.status, encodings.idna, tempfile, multiprocessing
from workflow.slurm.shared_queue import ask
import time
from workflow.commands.cancel import cancel
from workflow.runs.experiment import Experiment, ExpectedRun
from workflow.runs.locks import lock_experiment
from workflow.runs.paths import RunPaths
from workflow.commands.status import show_status
from common.messages import report_errors
os.setgroups([])
os.setgid({GROUP})
os.umask(0o002)
folder = Path(sys.argv[1])
experiment = Experiment("experiment", folder, [ExpectedRun("arm-s0", "f" * 64)])
"""


def in_group(folder, code, *words, user=0, **env):
    """What a program of a user of the group says about the experiment."""
    command = [sys.executable, "-c", f"{STARTS}os.setuid({user})\n{code}"]
    command += [str(folder / "results" / "experiment"), *words]
    return run(command, 120, cwd=ROOT, env={**os.environ, **env})


def other(folder, code, *words, **env):
    """What the other user's program says."""
    done = in_group(folder, code, *words, user=OTHER, **env)
    assert "Traceback" not in done.stderr, done.stderr
    assert "trying again" not in done.stderr, "it does not wait for rights that it never gets"
    return done
