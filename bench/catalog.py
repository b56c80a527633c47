"""Runs what Snakemake's workflow catalog and snakedeploy ask of a workflow: lint, format, and a deployment.

snakedeploy comes from the package index into an environment of its own. Its address of a repository on GitHub is this
repository here: git's own `insteadOf` says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import ROOT, Line, cost_of
from workflow.stacks.uv import configured_uv

SNAKEDEPLOY = "snakedeploy==0.17.1"
ADDRESS = "https://github.com/somebody/rolloutbench"


def catalog_lines() -> list[Line]:
    """Seconds of the catalog's checks, and of a deployment with the dry run of what it left; each must succeed."""
    beside = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clone, deployed = folder / "clone", folder / "deployed"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        branch = _branch(clone)
        environ = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{clone}.insteadOf",
            "GIT_CONFIG_VALUE_0": ADDRESS,
            "XDG_CACHE_HOME": f"{folder}/cache",  # Snakemake keeps clones there
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
        }
        lint = cost_of([str(beside / "snakemake"), "--lint"], cwd=clone)
        files = ["workflow/Snakefile", *map(str, (clone / "rules").glob("*.smk"))]
        form = cost_of([str(beside / "snakefmt"), "--check", *files], cwd=clone)
        program = _installed(folder / "snakedeploy")
        command = [str(program), "deploy-workflow", ADDRESS, str(deployed), "--branch", branch]
        deploy = cost_of(command, env=environ)
        dry = cost_of([str(beside / "snakemake"), "--profile", "profiles/local", "-n"], cwd=deployed, env=environ)
    return [
        Line("catalog: snakemake --lint, snakefmt --check", lint.seconds + form.seconds, None, "s"),
        Line("snakedeploy deploy-workflow", deploy.seconds, None, "s"),
        Line("... snakemake -n of what it left", dry.seconds, None, "s"),
    ]


def _branch(clone: Path) -> str:
    command = ["git", "rev-parse", "--abbrev-ref", "HEAD"]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True).stdout.strip()


def _installed(env: Path) -> Path:
    """snakedeploy's program, in an environment of its own."""
    uv = configured_uv()
    for command in (
        ["venv", str(env), "--python", sys.executable],
        ["pip", "install", *uv.arguments, "--python", str(env / "bin" / "python"), SNAKEDEPLOY],
    ):
        status, said = uv.run(command)
        if status != 0:
            raise SystemExit(f"{SNAKEDEPLOY} could not be installed:\n{said}")
    return env / "bin" / "snakedeploy"
