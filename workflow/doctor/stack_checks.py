"""Checks that this machine has what each stack needs: Python, compilers, conda, the GPU and its driver."""

from __future__ import annotations

import csv
import io
import re
import subprocess
from collections.abc import Sequence
from functools import cached_property, partial

from common.errors import UserError
from node.hardware import driver_version
from workflow.doctor import DoctorCheck, Outcome, failed, failed_if, passed, warning
from workflow.stacks import Stack, lock_id
from workflow.stacks.conda import find_conda
from workflow.stacks.definition import require_closed
from workflow.stacks.found import require_unchanged
from workflow.stacks.needs import find_python, missing_needs
from workflow.stacks.verification import FOUND

_PATIENCE_S = 15
_LACK = re.compile(r"(.*\)|[^:]*): (.*)")  # a program's output, in brackets, may contain colons
_LAYER = ", or build the stack with its conda layer (envs.backend: conda)"  # as envs/_needs.py says it
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html: CUDA's major release -> the
# oldest driver that runs code compiled with it.
_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
_ON_A_NODE = "run it on a GPU node: srun --partition=NAME --gres=gpu:1 rolloutbench doctor"


class Gpus:
    """The output of nvidia-smi, read once."""

    @cached_property
    def rows(self) -> list[list[str]]:
        """Name, memory in MiB, driver and compute capability of each GPU; a `UserError` if nvidia-smi fails."""
        command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap"]
        command += ["--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S)
        except FileNotFoundError:
            return []
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"nvidia-smi does not answer ({error})") from None
        if done.returncode != 0:
            output = " ".join((done.stdout or done.stderr).split())
            raise UserError(f"nvidia-smi does not answer ({output[-160:]})")
        return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(done.stdout)) if len(row) == 4]


def stack_checks(stacks: Sequence[Stack], required: bool, on_cluster: bool) -> list[DoctorCheck]:
    """The checks of each stack; `required`: the experiment trains in it; `on_cluster`: the GPUs may be elsewhere."""
    gpus = Gpus()
    on_gpus = [stack for stack in stacks if stack.cuda]
    # Jobs run on compute nodes: a login node may lack what they need.
    here = required and not on_cluster
    found = [DoctorCheck("GPU", "GPU", lambda: gpu(gpus, on_gpus, here))]
    for stack in stacks:
        must = required if stack.cuda is None else here
        found.append(DoctorCheck("stacks", stack.name, partial(needs, stack, must)))
        if stack.cuda:
            found.append(DoctorCheck("GPU", stack.name, partial(gpu_of_stack, gpus, stack, here)))
    return sorted(found, key=lambda check: check.group, reverse=True)


def needs(stack: Stack, required: bool) -> Outcome:
    """Whether Python and stack.yaml's compilers, headers and libraries exist, as a build checks it."""
    try:
        require_closed(stack.name, lock_id(stack))
        require_unchanged([stack.name])
    except UserError as error:
        what, _, remedy = str(error).rpartition("; ")
        return failed_if(required, what, remedy)
    if stack.found_python is not None:
        return passed(f"{FOUND} ({stack.found_python})")
    if stack.conda_lock is not None and find_conda() is not None:
        return passed("Python and compilers come from its conda layer")
    lines = []
    if find_python(stack.python) is None:
        lines.append(f"there is no Python {stack.python}: install Python {stack.python} or load its module")
    lines += [lack["line"] for lack in missing_needs(stack.run_needs, stack)]
    if stack.source_builds and stack.cuda:
        lines += [lack["line"] for lack in missing_needs(["nvcc", "c++"], stack, exact=True)]
    if not lines:
        return passed(", ".join([f"Python {stack.python}", *stack.run_needs]))
    parts = [_LACK.fullmatch(line.replace(_LAYER, "")) for line in dict.fromkeys(lines)]
    whats, remedies = zip(*(part.groups() for part in parts if part), strict=True)
    # Mention the conda layer only once.
    layered = _LAYER if any(_LAYER in line for line in lines) else ""
    return failed_if(required, "; ".join(whats), "; ".join(dict.fromkeys(remedies)) + layered)


def gpu(gpus: Gpus, on_gpus: Sequence[Stack], required: bool) -> Outcome:
    try:
        rows = gpus.rows
    except UserError as error:
        return failed(str(error), "repair the driver: reboot after its update, or ask the administrator")
    if rows:
        kinds = {(name, float(memory)): 0 for name, memory, _, _ in rows}
        for name, memory, _, _ in rows:
            kinds[name, float(memory)] += 1
        shown = ", ".join(f"{count} x {name} ({mib / 1024:.0f} GiB)" for (name, mib), count in kinds.items())
        return passed(f"{shown}, driver {rows[0][2]}")
    if driver := driver_version():
        return failed(f"driver {driver} is loaded, but there is no nvidia-smi", "put nvidia-smi on PATH")
    if not on_gpus:
        return passed("none, and these stacks need none")
    return failed_if(required, f"none here; {', '.join(stack.name for stack in on_gpus)} need one", _ON_A_NODE)


def gpu_of_stack(gpus: Gpus, stack: Stack, required: bool) -> Outcome:
    """Whether the driver is new enough for a stack's CUDA, and the GPUs are those that it is compiled for."""
    assert stack.cuda is not None
    rows = gpus.rows
    if not rows:
        return warning(f"CUDA {stack.cuda} is not checked: no GPU here", _ON_A_NODE)
    least = _LEAST_DRIVER[int(stack.cuda.partition(".")[0])]
    driver = rows[0][2]
    if int(driver.partition(".")[0]) < least:
        return failed_if(
            required, f"driver {driver} is too old for CUDA {stack.cuda}", f"install driver {least} or later"
        )
    built_for = stack.source_environment.get("TORCH_CUDA_ARCH_LIST", "")
    others = sorted({row[3] for row in rows} - set(built_for.split(";"))) if built_for else []
    if others:
        return failed_if(
            required,
            f"it compiles for compute capability {built_for}, but the GPUs here have {', '.join(others)}",
            f"write {others[0]} into source_environment of {stack.folder.name}/stack.yaml, and build it again",
        )
    return passed(f"driver {driver} runs CUDA {stack.cuda}")
