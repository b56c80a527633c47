"""How is one of our modules run by a built stack's Python, on this machine and outside a job?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from common.files import ROOT
from workflow.stacks.environment import stack_environment


def run_in_stack(stack_file: Path, module: str, *arguments: str | Path) -> bool:
    """Whether `python -m module` succeeded with the stack whose verify.json is given; its output is shown."""
    python = stack_file.parent / "env" / "bin" / "python"
    env = stack_environment(stack_file, os.environ) | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([python, "-m", module, *arguments], env=env, check=False).returncode == 0
