"""What is looked at when Snakemake starts, before anything is built or submitted?"""

from __future__ import annotations

from typing import Any

from workflow.cluster.site import require_partition
from workflow.config.gpus_here import require_gpus_here
from workflow.config.import_sources import require_sources
from workflow.config.local_sources import require_readable
from workflow.config.plan import Plan
from workflow.preflight import require_possible


def require_startable(workflow: Any, plan: Plan) -> None:
    """A `UserError` if the experiment could not run as it is; `workflow` is Snakemake's own."""
    if plan.runs:
        require_partition(workflow)
        # Not at the top: every parse of the Snakefile would load what builds stacks.
        from workflow.stacks.verification import require_verified

        require_verified((run.stack, run.lock_id) for run in plan.runs.values())
    require_possible(plan)
    require_readable(plan)
    require_sources(plan)
    require_gpus_here(workflow, plan)
