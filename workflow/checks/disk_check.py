"""Checks the disks for what is still to come: stacks, a model from a hub, and checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.model_facts import model_facts
from common.verdicts import count_of
from node.hub import source_kind
from trainers.registry import trainer_named
from workflow.checks import Outcome, lacking
from workflow.stacks import Stack
from workflow.stacks.definition import STACKS

_KEPT = 2  # checkpoints of a run: the newest ones
_STATES = 3  # of a parameter in a checkpoint: its value, and Adam's two moments


class Need(NamedTuple):
    """What will be written, where, and at least how much."""

    folder: Path
    gib: float
    what: str


def disk(stacks: Sequence[Stack], runs: Sequence[Mapping[str, Any]], variables: Mapping[str, str]) -> Outcome:
    """Whether each disk has space for what these stacks and runs will write; `variables`: of a training."""
    needs = [Need(STACKS, sum(stack.disk_gib for stack in stacks), f"{count_of(len(stacks), 'stack')} to build")]
    needs += [*_model_needs(runs, variables), *_checkpoint_needs(runs)]
    found: list[str] = []
    full: list[str] = []
    disks: dict[int, list[Need]] = {}
    for need in needs:
        disks.setdefault(existing(need.folder).stat().st_dev, []).append(need)
    for some in disks.values():
        there = existing(some[0].folder)
        if not os.access(there, os.W_OK):
            return lacking("disk", f"{there} cannot be written", "work in a folder of your own")
        free_gib = shutil.disk_usage(there).free / 2**30
        parts = [f"at least {need.gib:.3g} GiB for {need.what}" for need in some if need.gib]
        text = "; ".join([f"{free_gib:.0f} GiB free in {there}", *parts])
        (full if free_gib < sum(need.gib for need in some) else found).append(text)
    change = (
        "free some space there, link .stacks or results to a larger disk, or set HF_HOME; fewer checkpoints: save_steps"
    )
    return lacking("disk", "; ".join(full), change) if full else "; ".join(found)


def _model_needs(runs: Sequence[Mapping[str, Any]], variables: Mapping[str, str]) -> Iterator[Need]:
    """The weights that a hub still has to send, two bytes a parameter."""
    home = Path(variables.get("HF_HOME") or Path(variables.get("HOME", "/"), ".cache", "huggingface"))
    for source in dict.fromkeys(str(run["workload"]["model"]["source"]) for run in runs if run["stack"]):
        facts = model_facts(source)
        cached = home / "hub" / f"models--{source.replace('/', '--')}"
        if source_kind(source) == "hub" and facts and facts.parameters and not cached.is_dir():
            yield Need(home, facts.parameters * 2 / 2**30, f"the weights of {source}")


def _checkpoint_needs(runs: Sequence[Mapping[str, Any]]) -> Iterator[Need]:
    """The newest checkpoints of all runs that train every parameter of a model of known size."""
    total, counted = 0.0, 0
    for run in runs:
        workload = run["workload"]
        if not (run["stack"] and trainer_named(run["trainer"]).trains and workload.get("save_steps")):
            continue
        facts = model_facts(str(workload["model"]["source"]))
        # An adapter's checkpoints are small.
        if facts and facts.parameters and "lora" not in str(run["options"]).lower():
            width = 4 if workload["dtype"] == "float32" else 2
            kept = min(_KEPT, workload["steps"] // workload["save_steps"])
            total += kept * _STATES * facts.parameters * width / 2**30
            counted += 1
    if total:
        yield Need(Path("results"), total, f"the newest checkpoints of {count_of(counted, 'run')}")


def existing(folder: Path) -> Path:
    """The nearest folder above that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
