"""Are the sources of imported runs what their arms say? Looked at before anything is read.

What the first part of each local file tells: its format, and with that its trainer; the engine and the version where
they stand there. All the rest is told where a source is read (analysis/imports/import_run.py), in the words of here.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.imports.formats import BYTES_OF_A_LOOK, first_look
from analysis.imports.source_check import require_of_arm, require_own_tree
from analysis.imports.which_tree import require_declared
from analysis.sources.phases_csv import read_phases_csv
from common.errors import UserError
from common.verdicts import count_of
from trainers.timers.own import own_tree
from workflow.config.imports import is_remote, local_path
from workflow.config.plan import Plan, PlannedRun

# More are alike.
SHOWN = 5


def require_sources(plan: Plan) -> None:
    """A `UserError` that names every imported run whose sources cannot be its own, or cannot be read."""
    wrong = []
    for run in plan.imports.values():
        try:
            _require(run, [list(one.source) for one in plan.config.imports[run.spec["arm"]].runs])
        except UserError as error:
            wrong.append(f"arms.{run.spec['arm']}.import: {error}")
    # What is wrong with a table is wrong with every run in it.
    wrong = list(dict.fromkeys(wrong))
    if wrong:
        more = [f"... and {count_of(len(wrong) - SHOWN, 'more imported run')}"] if len(wrong) > SHOWN else []
        raise UserError("\n".join([*wrong[:SHOWN], *more]))


def _require(run: PlannedRun, of_arm: Sequence[Sequence[str]]) -> None:
    facts = run.spec["import"]
    versioned = facts["version"] is not None
    looks = [None if is_remote(one) else first_look(one, facts["format"], versioned) for one in facts["sources"]]
    seen = [(source, look) for source, look in zip(facts["sources"], looks, strict=True) if look is not None]
    require_of_arm(run.spec, seen)
    # What tells no format at first sight is no table.
    require_own_tree(run.spec, list(zip(facts["sources"], looks, strict=True)))
    require_declared(run.spec, looks, of_arm)
    tables = [source for source, look in seen if look.tree is not None]
    if tables and all(local_path(table).stat().st_size <= BYTES_OF_A_LOOK for table in tables):
        names = tuple(str(run.spec[key]) for key in ("run_id", "arm", "engine"))
        trees = [read_phases_csv(local_path(table), names).tree for table in tables]
        own_tree(run.spec["trainer"], "", run.spec["engine"], trees)
