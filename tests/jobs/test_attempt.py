"""A stack on a compute node: checked again there, with what the login node did not have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import TRANSFORMERS, VLLM, run_python

CHECK = """
import json, sys
from workflow.jobs.attempt import require_working_gpus
from workflow.jobs.errors import run
sys.exit(run(lambda: require_working_gpus({"attempt_dir": sys.argv[1]}, sys.argv[2])))
"""


@pytest.fixture(scope="module")
def python(stack_python: Callable[[str], Path]) -> Path:
    return stack_python(TRANSFORMERS)


def test_a_stack_that_works_says_so_in_the_attempts_folder(python: Path, tmp_path: Path) -> None:
    done = run_python(python, "-c", CHECK, tmp_path, TRANSFORMERS)
    assert done.returncode == 0, done.stderr
    verdict = json.loads((tmp_path / "verify.json").read_text())
    assert (verdict["ok"], verdict["gpu"]) == (True, True)


def test_a_stack_that_does_not_work_is_refused_by_what_fails(python: Path, tmp_path: Path) -> None:
    done = run_python(python, "-c", CHECK, tmp_path, VLLM)  # another stack's expectations
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: the stack {VLLM} does not work on ")
    assert "got not installed" in last
    assert "Traceback" not in done.stderr


def test_a_check_that_cannot_run_is_told(python: Path, tmp_path: Path) -> None:
    done = run_python(python, "-c", CHECK, tmp_path, "no-such-stack")
    assert done.returncode == 2
    assert "gave no verdict on this node" in done.stderr.splitlines()[-1]
