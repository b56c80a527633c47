"""Checks an experiment's files, stacks, data, sources and GPUs before anything is built or submitted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.messages import did_you_mean, join_first
from common.verdicts import count_of
from node.hub import source_kind
from workflow.config.finished_before import paths_of, take_over
from workflow.config.imports import is_remote, local_path
from workflow.config.plan import Plan
from workflow.config.planned_run import PlannedRun
from workflow.config.to_train import is_trained
from workflow.head.train_rule import require_requests
from workflow.preflight import require_possible
from workflow.preflight.cases import first_of_each_case
from workflow.runs.history import finished_attempt, steps_of
from workflow.slurm.site import site_of

_SHOWN_SOURCES, _SHOWN_FILES = 5, 8


def require_requests_of(workflow: Any, train: str, plan: Plan, starts: bool = False) -> None:
    """Reads the profile's request into Snakemake's resources; UserError if it is impossible for an unfinished run.

    Commands with targets, such as `--until stack`, train nothing. `starts`: training on this machine would start now,
    so that its GPUs count. The launcher checks again.
    """
    site, settings = site_of(workflow, train), workflow.dag_settings
    if workflow.is_main_process and not (settings and (settings.targets or settings.until)):
        require_requests(site, [run.spec for run in first_of_each_case(_unfinished(plan))], starts)


def _unfinished(plan: Plan) -> list[PlannedRun]:
    """The runs that are still to be trained: of one whose done.json is missing an attempt may have finished."""
    return [
        run
        for run_id, run in plan.runs.items()
        if not is_trained(plan, run_id)
        and finished_attempt(paths_of(plan, run_id), run.fingerprint, steps_of(run.spec)) is None
    ]


def require_startable(workflow: Any, train: str, plan: Plan) -> None:
    """UserError if the experiment cannot run; `workflow` is Snakemake's object, `train` its name of that rule."""
    if plan.runs:
        take_over(plan)
        require_requests_of(workflow, train, plan, starts=True)
        # Imported here, so that a parse of the Snakefile does not load the code that builds stacks.
        from workflow.stacks.definition import require_closed, require_own_stacks
        from workflow.stacks.found import require_unchanged
        from workflow.stacks.verification import require_as_verified

        require_own_stacks()
        for name, lock in dict.fromkeys((run.stack, run.lock_id) for run in plan.runs.values() if run.stack):
            require_closed(name, lock)
        unfinished = [run for run in _unfinished(plan) if run.stack]
        require_unchanged(run.stack for run in unfinished)
        require_as_verified(((run.stack, run.lock_id) for run in unfinished), plan.config.envs.backend)
    require_possible(plan, site_of(workflow, train).setup)
    require_readable(plan)
    require_sources(plan)


def require_readable(plan: Plan) -> None:
    """UserError for a data file without the configured columns, or a folder without a model."""
    for request in plan.inputs.values():
        data, model = request["data"], request["model"]
        for key in ("source", "test_source"):
            if data[key] and source_kind(data[key]) == "local":
                _require_columns(f"workload.data.{key}", data[key], data)
        source = model["source"]
        if source_kind(source) != "local":
            continue
        folder = Path(source).expanduser()
        if not folder.is_dir():
            raise UserError(f"workload.model.source {source!r} is not a folder; give the folder with config.json")
        if not (folder / "config.json").is_file():
            found = join_first(sorted(path.name for path in folder.iterdir()), _SHOWN_FILES) or "nothing"
            raise UserError(
                f"workload.model.source {source!r} is no model: it has no config.json (got: {found}); give the folder "
                "with config.json"
            )


def _require_columns(where: str, source: str, data: Mapping[str, Any]) -> None:
    path = Path(source).expanduser()
    if not path.is_file():
        raise UserError(f"{where} {source!r} is not a file; give a .jsonl, .json or .parquet file")
    found = columns_of(where, path)
    configured = [(name, data[name]) for name in ("prompt_column", "answer_column")]
    for setting, column in [*configured, *(("columns", name) for name in data.get("columns") or ())]:
        # A dot leads into a column: verl's reward_model.ground_truth.
        if found is not None and column not in found and column.partition(".")[0] not in found:
            raise UserError(
                f"workload.data.{setting} is {column!r}, but {source!r} has the columns "
                f"{', '.join(found) or '(none)'}{did_you_mean(column, found)}; name one of them, or add it"
            )


def columns_of(where: str, path: Path) -> list[str] | None:
    """The columns of the first row; None if only reading the whole file would show them."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        try:
            # An open file: pyarrow would read a path such as gs:my.parquet from a bucket.
            with path.open("rb") as file:
                return list(pyarrow.parquet.read_schema(file).names)
        except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
            problem = " ".join(str(error).split())
            raise UserError(f"{where} {str(path)!r} cannot be read as parquet: {problem}") from None
    if path.suffix == ".jsonl":
        # The first row must have all columns: a missing prompt is an error anyway.
        with path.open(encoding="utf-8", errors="replace") as file:
            first = next((line for line in file if line.strip()), "")
        try:
            row = json.loads(first)
        except ValueError:
            return None  # the job reports the line
        return list(row) if isinstance(row, dict) else None
    return None


def require_sources(plan: Plan) -> None:
    """UserError that names every imported run whose sources cannot be read or belong to another run."""
    problems = []
    # Another Snakemake's Python may have nothing to read logs with; the jobs, which have an environment, say the same.
    for run in plan.imports.values() if find_spec("pandas") else ():
        try:
            _require_source(run)
        except UserError as error:
            problems.append(f"arms.{run.spec['arm']}.import: {error}")
    # Every run in a wrong table has the same problem.
    problems = list(dict.fromkeys(problems))
    if problems:
        hidden = len(problems) - _SHOWN_SOURCES
        more = [f"... and {count_of(hidden, 'more imported run')}"] if hidden > 0 else []
        raise UserError("\n".join([*problems[:_SHOWN_SOURCES], *more]))


def _require_source(run: PlannedRun) -> None:
    """Imports a run whose logs are small, for its errors; of other logs the format is checked."""
    # Imported here: most experiments have no logs.
    from analysis.imports.formats import INSPECTED_BYTES, require_known
    from analysis.imports.import_run import read_sources, run_of
    from analysis.imports.source_check import require_of_arm
    from trainers.logs.record import Imported, SourceRead

    sources, form = run.spec["import"]["sources"], run.spec["import"]["format"]
    local = [source for source in sources if not is_remote(source)]
    for source in local:
        require_known(source, form)
    if not local:
        require_of_arm(run.spec, [(source, Imported(SourceRead(), "wandb")) for source in sources])
    paths = [local_path(source) for source in local]
    if len(local) == len(sources) and all(p.is_file() and p.stat().st_size <= INSPECTED_BYTES for p in paths):
        run_of(run.spec, read_sources(run.spec), Path())
