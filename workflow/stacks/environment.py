"""Runs our modules in a built stack, and computes what its verify.json says of paths, caches and needs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT, module_command
from common.stack_environment import ENV, stack_environment
from workflow.stacks.definition import SITE_PACKAGES, Stack

CONDA = "{conda}"
"""Placeholder in `run_paths` for the conda prefix; without a conda layer the path is left out."""


def run_in_stack(stack_file: Path, module: str, *arguments: str | Path, **options: Any) -> bool:
    """Runs a module of ours in the stack of that verify.json; True if it succeeded.

    Its output is shown, unless `options` of subprocess.run say otherwise.
    """
    python = stack_file.parent / "env" / "bin" / "python"
    env = stack_environment(stack_file, os.environ) | {"PYTHONPATH": str(ROOT)}
    command = [python, *module_command(module)[-2:], *arguments]
    return subprocess.run(command, env=env, check=False, **options).returncode == 0


def run_time(stack: Stack, lock: str, env: Path) -> dict[str, Any]:
    """The `run` section of verify.json: the stack's paths, caches and needs, resolved for the environment in `env`."""
    below_packages = any(SITE_PACKAGES in path for listed in stack.run_paths.values() for path in listed)
    packages = _packages(env) if below_packages else ""
    layer = (env / "conda-meta").is_dir()
    paths = {
        variable: [
            path.replace(CONDA, ENV).replace(SITE_PACKAGES, packages) for path in listed if layer or CONDA not in path
        ]
        for variable, listed in stack.run_paths.items()
    }
    return {
        "paths": {variable: found for variable, found in paths.items() if found},
        "caches": dict(stack.run_caches),
        "cache": f"{stack.name}-{lock}",
        "needs": list(stack.run_needs),
    }


def _packages(env: Path) -> str:
    """The folder of the environment's packages, with the placeholder for the environment; an image keeps its path."""
    python = env.absolute() / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python), "-I", "-c", ask], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{python} does not run: {done.stderr.strip()[-500:]}")
    folder = done.stdout.strip()
    own = next((one for one in (str(env.absolute()), str(env.resolve())) if folder.startswith(f"{one}/")), None)
    return folder if own is None else ENV + folder.removeprefix(own)
