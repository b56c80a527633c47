"""Has this machine the GPUs of an experiment that is to train on it? Asked before stacks are built for hours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from common.errors import UserError
from workflow.cluster.fit import gpus_here
from workflow.config.plan import Plan


def require_gpus_here(workflow: Any, plan: Plan) -> None:
    """A `UserError` where Snakemake would train on this machine, and it has fewer GPUs than a run wants.

    `workflow` is Snakemake's own object. Not where targets were named (`--until stack` on a login node), nor for
    runs that are finished. The launcher looks again.
    """
    settings = workflow.dag_settings
    if getattr(workflow.executor_plugin, "name", "local") != "local" or settings.targets or settings.until:
        return
    waiting = [run for run in plan.runs.values() if not Path(plan.folder, "runs", run.run_id, "done.json").is_file()]
    wanted = max((int(run.spec["workload"]["gpus_per_node"]) for run in waiting), default=0)
    if not wanted:
        return
    found, how = gpus_here(os.environ)
    if found < wanted:
        raise UserError(
            f"experiment {plan.config.experiment} trains on {wanted} GPU{'s' * (wanted > 1)} (workload.gpus_per_node), "
            f"and this machine has {found or 'none'} to use ({how}); use --profile slurm, or a machine that has them "
            "(nothing was built or downloaded). To build its stacks here all the same: --until stack"
        )
