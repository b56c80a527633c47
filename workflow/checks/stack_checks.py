"""Checks that this machine has what each stack needs: Python, compilers, conda, the GPU and its driver."""

from __future__ import annotations

import csv
import io
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial

from common.errors import UserError
from common.findings import Finding
from common.verdicts import count_of
from node.hardware import driver_version
from workflow.checks import Outcome, SiteCheck, Unchecked, lacking
from workflow.stacks import Stack, built_dir, lock_id
from workflow.stacks.conda import find_conda
from workflow.stacks.definition import STACKS, require_closed
from workflow.stacks.found import require_unchanged
from workflow.stacks.needs import find_python, missing_needs
from workflow.stacks.verification import FOUND

_PATIENCE_S = 15
_LACK = re.compile(r"(.*\)|[^:]*): (.*)")  # a program's output, in brackets, may contain colons
_LAYER = ", or build the stack with its conda layer (envs.backend: conda)"  # as envs/_needs.py says it
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html: CUDA's major release -> the
# oldest driver that runs code compiled with it.
_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
_ON_A_NODE = "run it on a GPU node: srun --partition=NAME --gres=gpu:1 rolloutbench check"


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


def stack_checks(stacks: Sequence[Stack], required: bool, on_cluster: bool) -> list[SiteCheck]:
    """The checks of each stack; `required`: the experiment trains in it; `on_cluster`: the GPUs may be elsewhere."""
    gpus = Gpus()
    on_gpus = [stack for stack in stacks if stack.cuda]
    # Jobs run on compute nodes: a login node may lack what they need.
    here = required and not on_cluster
    found = [SiteCheck("GPU", lambda: gpu(gpus, on_gpus))]
    for stack in stacks:
        found.append(SiteCheck(stack.name, partial(needs, stack, required, required if stack.cuda is None else here)))
    if on_gpus:
        found.append(SiteCheck("driver", lambda: drivers(gpus, on_gpus, here)))
    return found


def is_built(stack: Stack) -> bool:
    return (built_dir(stack, STACKS) / "verify.json").is_file()


def needs(stack: Stack, trained: bool, required: bool) -> Outcome:
    """Whether Python and stack.yaml's compilers, headers and libraries exist, as a build checks it.

    `trained`: an experiment trains in it; `required`: on this machine.
    """
    code = f"stack-{stack.name}"
    try:
        require_closed(stack.name, lock_id(stack))
        require_unchanged([stack.name])
    except UserError as error:
        what, _, remedy = str(error).rpartition("; ")
        return lacking(code, what, remedy, required)
    if stack.found_python is not None:
        return f"{FOUND} ({stack.found_python})"
    if stack.conda_lock is not None and find_conda() is not None:
        return "Python and compilers come from its conda layer"
    lines = []
    # A job builds it, but with the Python of this site, wherever that job is.
    no_python = not is_built(stack) and find_python(stack.python) is None
    if no_python:
        lines.append(f"there is no Python {stack.python}: install Python {stack.python} or load its module")
    lines += [lack["line"] for lack in missing_needs(stack.run_needs, stack)]
    if stack.source_builds and stack.cuda:
        lines += [lack["line"] for lack in missing_needs(["nvcc", "c++"], stack, exact=True)]
    if not lines:
        return ", ".join([f"Python {stack.python}", *stack.run_needs])
    parts = [_LACK.fullmatch(line.replace(_LAYER, "")) for line in dict.fromkeys(lines)]
    whats, remedies = zip(*(part.groups() for part in parts if part), strict=True)
    # Mention the conda layer only once.
    layered = _LAYER if any(_LAYER in line for line in lines) else ""
    what, remedy = f"{stack.name}: {'; '.join(whats)}", "; ".join(dict.fromkeys(remedies)) + layered
    return lacking(code, what, remedy, required or (no_python and trained))


def gpu(gpus: Gpus, on_gpus: Sequence[Stack]) -> Outcome:
    """The GPUs here; how many an experiment needs is in its request."""
    try:
        rows = gpus.rows
    except UserError as error:
        return lacking("gpu", str(error), "repair the driver: reboot after its update, or ask the administrator")
    if rows:
        kinds = Counter((name, float(memory)) for name, memory, _, _ in rows)
        shown = ", ".join(f"{count} x {name} ({mib / 1024:.0f} GiB)" for (name, mib), count in kinds.items())
        return f"{shown}, driver {rows[0][2]}"
    if driver := driver_version():
        return lacking("gpu", f"driver {driver} is loaded, but there is no nvidia-smi", "put nvidia-smi on PATH")
    return f"none here; {count_of(len(on_gpus), 'stack')} of these need one"


def drivers(gpus: Gpus, stacks: Sequence[Stack], required: bool) -> Outcome:
    """Whether the driver is new enough for each stack's CUDA, and the GPUs are those that it is compiled for."""
    if not gpus.rows:
        named = ", ".join(dict.fromkeys(f"CUDA {stack.cuda}" for stack in stacks))
        raise Unchecked(f"whether it runs {named}: no GPU here; {_ON_A_NODE}")
    found = [one for stack in stacks for one in driver_of(gpus.rows, stack, required)]
    return found or f"{gpus.rows[0][2]} runs {', '.join(stack.name for stack in stacks)}"


def driver_of(rows: Sequence[Sequence[str]], stack: Stack, required: bool) -> Sequence[Finding]:
    assert stack.cuda is not None
    code = f"stack-{stack.name}"
    least = _LEAST_DRIVER[int(stack.cuda.partition(".")[0])]
    driver = rows[0][2]
    if int(driver.partition(".")[0]) < least:
        what = f"driver {driver} is too old for CUDA {stack.cuda} of {stack.name}"
        return lacking(code, what, f"install driver {least} or later", required)
    built_for = stack.source_environment.get("TORCH_CUDA_ARCH_LIST", "")
    others = sorted({row[3] for row in rows} - set(built_for.split(";"))) if built_for else []
    if others:
        what = f"{stack.name} compiles for compute capability {built_for}, but the GPUs here have {', '.join(others)}"
        remedy = f"write {others[0]} into source_environment of {stack.folder.name}/stack.yaml, and build it again"
        return lacking(code, what, remedy, required)
    return []
