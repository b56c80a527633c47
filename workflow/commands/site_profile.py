"""Makes the Slurm profile that a command writes: the training as requested, other jobs on a partition without GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError
from workflow.slurm.site import filled_profile

_ANSWER_S = 10.0


NEEDED = "and a profile needs it"
_UNREQUESTED = {
    **dict.fromkeys(("slurm_partition", "runtime"), NEEDED),
    "cpus_per_task": "and a job gets what Slurm gives by default, often one CPU",
}


def profile_of(train: Mapping[str, str], profile: Path) -> tuple[str, str]:
    """A profile with these keys of `train`, and a sentence if its light jobs go where it trains, with GPUs."""
    training = train.get("slurm_partition", "")
    if not training or not train.get("gres"):
        return filled_profile(train, training), ""
    light, why = _without_gpus()
    note = (
        f"light jobs (stacks, inputs, report) go to {training}, too, and wait for its nodes: {why}; "
        f"for another, default-resources: slurm_partition in {profile}/config.yaml"
    )
    return filled_profile(train, light or training), "" if light else note


def unrequested(request: Mapping[str, str]) -> dict[str, str]:
    """The keys that a script's #SBATCH lines do not have -> what follows."""
    return {key: why for key, why in _UNREQUESTED.items() if key not in request}


def _without_gpus() -> tuple[str, str]:
    """The default partition if it has no GPUs, else the first one without; or why there is none."""
    if not shutil.which("sinfo"):
        return "", "without Slurm here no other is known"
    try:
        with slurm.limited(_ANSWER_S):
            lines = slurm.command("sinfo", "--noheader", "--format=%P|%a|%G").splitlines()
    except SlurmError as error:
        return "", f"Slurm names no other ({error})"
    rows = [row for line in lines if len(row := line.split("|")) == 3]
    unfit = {name for name, available, gres in rows if available != "up" or "gpu" in gres}
    free = [name for name, *_ in rows if name not in unfit]
    # sinfo marks the default one.
    found = next((name for name in free if name.endswith("*")), free[0] if free else "")
    return found.rstrip("*"), "" if found else "this site shows none without GPUs"
