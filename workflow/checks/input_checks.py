"""Checks that the data, models, rewards and logs of an experiment are on this machine and can be read."""

from __future__ import annotations

from collections.abc import Iterator

from common.errors import UserError
from common.findings import Finding
from workflow.checks import lacking
from workflow.config.plan import Plan, require_there


def input_findings(plan: Plan) -> Iterator[Finding]:
    """What of an experiment's inputs is missing here, or is not what the configuration says."""
    from workflow.config.entry import require_readable, require_sources  # loads the readers of logs

    for check in (require_there, require_readable, require_sources):
        try:
            check(plan)
        except UserError as error:
            for line in str(error).splitlines():
                what, _, change = line.rpartition("; ")
                yield from lacking("inputs", what or line, change if what else "")
            return
