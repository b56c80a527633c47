"""A stack that is built by a Slurm job: what the job asks for follows from what the stack compiles."""

import os
import re
import subprocess
import sys

import pytest

from workflow.stacks import load_stack, stack_names
from workflow.stacks.build import GIB_PER_JOB
from workflow.stacks.definition import BUILD_JOB, ENVS

ROOT = ENVS.parent


def planned(folder, *arguments):
    """The resources of each stack's job of gpu-smoke under the shipped Slurm profile; nothing built yet."""
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--profile", "profiles/slurm"]
    command += ["--set-resources", "train:private_nodes=true"]
    command += ["--directory", str(folder), "--configfile", str(ROOT / "experiments/gpu-smoke.yaml"), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {}
    for job in re.findall(r"rule stack:\n(?:    .*\n)+", done.stdout + done.stderr):
        (stack,) = re.findall(r"wildcards: stack=([\w-]+)", job)
        found[stack] = dict(re.findall(r"(\w+)=([^,\n]+)", job.partition("resources: ")[2]))
    return found


@pytest.mark.parametrize("name", stack_names())
def test_a_job_of_a_stack_that_compiles_has_memory_for_each_of_its_compilers(name):
    stack = load_stack(name)
    if "flash-attn" not in stack.source_builds:
        assert stack.build_job == BUILD_JOB
        return
    compilers = min(stack.build_job["cpus_per_task"], stack.build_job["mem_mb"] // 1024 // GIB_PER_JOB)
    # Nodes that are sold with 128 GB have some 125,000 MB for jobs.
    assert compilers >= 14 and stack.build_job["mem_mb"] <= 120000
    assert stack.build_job["runtime"] >= 4 * BUILD_JOB["runtime"]


@pytest.mark.full("stacks are built")
def test_the_default_slurm_profile_gives_a_build_what_it_needs(tmp_path):
    asked = planned(tmp_path)
    assert sorted(asked) == ["verl09-sglang", "verl09-vllm"]
    for stack, resources in asked.items():
        assert {key: int(resources[key]) for key in BUILD_JOB} == load_stack(stack).build_job
        assert resources["slurm_partition"] == "cpu"
