"""Locks die with their holders, and tell others who holds them."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.promise("a-killed-snakemake-leaves")

HOLD = """
import sys
from workflow.runs.locks import lock_experiment
lock = lock_experiment(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def holder(folder):
    command = [sys.executable, "-c", HOLD, str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_second_snakemake_is_refused_and_a_killed_one_leaves_nothing(tmp_path):
    first = holder(tmp_path)
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    second = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert second.stderr.startswith(f"error: another snakemake works on {tmp_path} (process {first.pid} on ")
    assert "Traceback" not in second.stderr
    first.kill()
    first.communicate()
    third = holder(tmp_path)
    assert third.stdout is not None
    assert third.stdout.readline() == "held\n"
    third.kill()
    third.communicate()
