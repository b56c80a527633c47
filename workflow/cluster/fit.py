"""Checks, before a job is submitted, that a run gets the nodes, CPUs and GPUs that its experiment wants."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from workflow.cluster.place import visible_gpus
from workflow.cluster.site import gpus_of_gres

_PATIENCE_S = 60.0


def require_fit(request: Mapping[str, Any]) -> str:
    """A `UserError` if a run would lack nodes, CPUs or GPUs; otherwise a remark on GPUs that would idle, or nothing."""
    spec, site = request["spec"], request["site"]
    nodes, gpus = int(spec["workload"].get("nodes", 1)), int(spec["workload"].get("gpus_per_node", 0))
    if nodes > 1 and not spec.get("ray"):
        raise _refusal(f"trainer {spec['trainer']} trains on one node (got workload.nodes: {nodes})", "set it to 1")
    cpus, least = int(request["cpus"]) * nodes, int(spec.get("least_cpus", 1))
    if cpus < least:
        raise _refusal(
            f"{spec['trainer']} reserves {least} CPUs with these settings and would wait for them for ever: the "
            f"profile gives {cpus}" + f", {request['cpus']} on each node" * (nodes > 1),
            "raise cpus_per_task under set-resources: train: (on one machine set-threads: train) in the profile",
        )
    if request["cluster"] == "slurm":
        return _require_slurm(nodes, gpus, int(site["nodes"]), str(site["gres"]))
    if nodes > 1:
        raise _refusal(
            f"the experiment wants {nodes} nodes (workload.nodes), and this machine is one", "use --profile slurm"
        )
    if gpus and (there := gpus_here({**os.environ, **spec["env"]}))[0] < gpus:
        raise _refusal(
            f"the experiment wants {gpus} GPU{'s' * (gpus > 1)} (workload.gpus_per_node), and this machine has "
            f"{there[0] or 'none'} to use ({there[1]})",
            "use --profile slurm, or a machine that has them",
        )
    return ""


def _require_slurm(nodes: int, gpus: int, asked_nodes: int, gres: str) -> str:
    if asked_nodes != nodes:
        raise _refusal(
            f"the experiment wants {nodes} node{'s' * (nodes > 1)} per run (workload.nodes), and the profile asks "
            f"Slurm for {asked_nodes}",
            "take `nodes` out of set-resources: train: in the profile, or change one of the two",
        )
    asked = gpus_of_gres(gres)
    if asked is None:
        return ""  # a site's own words: Slurm decides
    if asked < gpus:
        raise _refusal(
            f"the experiment wants {gpus} GPU{'s' * (gpus > 1)} per node (workload.gpus_per_node), and the profile "
            f"asks Slurm for {asked or 'none'} (gres: {gres!r})",
            "correct gres under set-resources: train: in the profile, or take it out there",
        )
    if gpus and asked > gpus:
        return f"asks Slurm for {asked} GPUs per node (gres: {gres!r}) and uses {gpus} of them (workload.gpus_per_node)"
    return ""


def gpus_here(env: Mapping[str, str]) -> tuple[int, str]:
    """How many of NVIDIA's GPUs a program with this environment could use on this machine, and how that is known."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=False
        )
        found = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
        # With a driver that does not work there are GPUs, and none to use.
        words = " ".join((listed.stderr or listed.stdout).split()) if listed.returncode else f"it lists {found}"
        how = f"nvidia-smi -L: {words}"
    except subprocess.TimeoutExpired:
        found, how = 0, f"nvidia-smi -L did not answer within {_PATIENCE_S:.0f} s"
    except OSError:
        found = len(list(Path("/dev").glob("nvidia[0-9]*")))
        how = f"no nvidia-smi, and {found or 'no'} /dev/nvidia*"
    visible = visible_gpus(env)
    if visible is None or visible >= found:
        return found, how
    return visible, f"CUDA_VISIBLE_DEVICES is {env['CUDA_VISIBLE_DEVICES']!r}"


def _refusal(what: str, instead: str) -> UserError:
    return UserError(f"{what}; {instead} (nothing was submitted)")
