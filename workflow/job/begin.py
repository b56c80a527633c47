"""Begins a job on its node: `python -m workflow.job.begin ... FOLDER`, in place of submitit's own entry.

submitit loads a pickle from the job's folder, and a pickle is code: first the folder must be this user's alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from submitit.core.submission import process_job

from common.ownership import obey_only_own_files, open_own_folder, require_own_files
from common.retry import retry_io
from node.exit_codes import run
from workflow.runs.history import FILES

_ABOVE = 4
"""submitit, the run, runs and the experiment are above a submission's folder."""


def main() -> None:
    """Check the folder, and let submitit find the job's function in it and call it."""
    obey_only_own_files()
    folder = Path(sys.argv[-1])
    descriptor = retry_io(lambda: open_own_folder(folder, _ABOVE), FILES, for_others=False)
    require_own_files(descriptor, folder, ".pkl")
    # The folder itself, whatever has its path by now.
    process_job(f"/proc/self/fd/{descriptor}")


if __name__ == "__main__":
    sys.exit(run(main))
