"""Checks an experiment before anything is built or submitted: its files, stacks, data, sources and GPUs.

`main` is the `snakemake` program of the controller's environment. Snakemake reads the files of --configfile before our
Snakefile, and answers one that cannot be read with a traceback: they are checked first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from analysis.imports.formats import INSPECTED_BYTES, inspect_source
from analysis.imports.source_check import require_of_arm, require_own_tree
from analysis.imports.which_tree import require_declared
from analysis.sources.phases_csv import read_phases_csv
from common.errors import UserError
from common.files import ROOT, is_checkout
from common.messages import did_you_mean, exit_on_user_error
from common.verdicts import count_of
from node.hub import source_kind
from trainers.timers.own import own_tree
from workflow.cluster.request import local_gpus
from workflow.cluster.site import require_partition, unknown_profile
from workflow.config.imports import is_remote, local_path
from workflow.config.plan import Plan, PlannedRun
from workflow.config.reading import read_yaml
from workflow.preflight import require_possible
from workflow.start import loading

# More are alike.
SHOWN = 5
_SNAKEFILES = [Path(folder, name) for folder in ("", "workflow") for name in ("Snakefile", "snakefile")]
_NEEDS_CHECKOUT = (
    f"rolloutbench is installed without its rules ({ROOT}), and they train; clone the repository, run `make venv` "
    "there, and start the snakemake of its .venv (nothing was started)"
)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Snakemake's own program with its arguments; one message and exit code 1 where a configuration file is wrong."""
    words = sys.argv[1:] if argv is None else argv
    given = snakemake_options(words)
    files = given.configfile
    named = any(word.startswith(("-s", "--snakefile")) for word in words)
    # Another workflow of the user's has a Snakefile.
    if files and not (named or is_checkout() or any(one.is_file() for one in _SNAKEFILES)):
        sys.exit(f"error: {_NEEDS_CHECKOUT}")
    for file in files:
        if file.is_fifo():
            continue  # it can be read once
        with exit_on_user_error():
            read_yaml(file)
    with loading():
        from snakemake.cli import get_profile_dir
        from snakemake.cli import main as snakemake
        from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry

        from workflow.config import calm

    for profile in given.profile:
        with exit_on_user_error():
            if profile not in ("", "none") and get_profile_dir(profile) is None:
                raise UserError(unknown_profile(profile))
    LoggerPluginRegistry().register_plugin(calm.NAME, calm)
    snakemake(argv)
    sys.exit(0)


def snakemake_options(argv: Sequence[str]) -> argparse.Namespace:
    """`configfile` and `profile` of a command line of Snakemake; the last --configfile counts, as there."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", type=Path, default=[])
    parser.add_argument("--profile", action="append", default=[])
    try:
        return parser.parse_known_args(list(argv))[0]
    except (argparse.ArgumentError, SystemExit):
        return parser.parse_args([])  # Snakemake says what is wrong with its arguments


@dataclass
class _Handlers:
    """A handler of the main Snakefile, and those of the experiments that are modules of it."""

    main: Callable[[Any], None]
    of_modules: dict[str, Callable[[], None]]

    def __call__(self, log: Any) -> None:
        self.main(log)
        for handler in self.of_modules.values():
            handler()


def enter_as_module(workflow: Any, results: str, handlers: Mapping[str, Any]) -> None:
    """Has Snakemake call our onstart and onerror, and follow the profile, as without a module.

    Snakemake 9 calls the main Snakefile's handlers alone. It reads a module again for each `use rule`: handlers are one
    pair a folder. A `UserError` where the declaration moves files: what Python reads and writes would not move.
    """
    moved = workflow.modifier.path_modifier
    if moved.prefix or moved.modifies_prefixes:
        raise UserError(
            f"module {workflow.modifier.namespace} has prefix or replace_prefix, which rolloutbench cannot follow; "
            f"leave it out: the results are in {results}, and `experiment` in its configuration names that folder"
        )
    for event in ("onstart", "onerror"):
        main = getattr(workflow, f"_{event}")
        both = main if isinstance(main, _Handlers) else _Handlers(main, {})
        both.of_modules[results] = handlers[event]
        setattr(workflow, f"_{event}", both)
    # set-resources and set-threads name the rules as they are here, and `use rule ... as` gives them other names.
    settings, used = workflow.resource_settings, workflow.modifier.rule_whitelist
    for said, parsed in (
        (settings.overwrite_resources, settings._parsed_overwrite_resources),
        (settings.overwrite_threads, settings._parsed_overwrite_threads),
    ):
        for rule in said if used is None else used & set(said):
            parsed.setdefault(workflow.modifier.modify_rulename(rule), parsed[rule])


def require_startable(workflow: Any, plan: Plan) -> None:
    """A `UserError` if the experiment could not run as it is; `workflow` is Snakemake's own."""
    if plan.runs:
        if not is_checkout():
            raise UserError(_NEEDS_CHECKOUT)
        require_partition(workflow)
        # Not at the top: every parse of the Snakefile would load what builds stacks.
        from workflow.stacks.verification import require_verified

        require_verified((run.stack, run.lock_id) for run in plan.runs.values())
    require_possible(plan)
    require_readable(plan)
    require_sources(plan)
    require_gpus_here(workflow, plan)


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
    found, how = local_gpus(os.environ)
    if found < wanted:
        raise UserError(
            f"experiment {plan.config.experiment} trains on {wanted} GPU{'s' * (wanted > 1)} (workload.gpus_per_node), "
            f"and this machine has {found or 'none'} to use ({how}); use --profile slurm, or a machine that has them "
            "(nothing was built or downloaded). To build its stacks here all the same: --until stack"
        )


def require_readable(plan: Plan) -> None:
    """A `UserError` for a data file without the columns that are asked for, or a folder that holds no model."""
    for request in plan.inputs.values():
        data, model = request["data"], request["model"]
        for key in ("source", "test_source"):
            if data[key] and source_kind(data[key]) == "local":
                _require_columns(f"workload.data.{key}", data[key], data)
        if source_kind(model["source"]) == "local":
            _require_model(model["source"])


def _require_columns(where: str, source: str, data: Mapping[str, Any]) -> None:
    path = Path(source).expanduser()
    if not path.is_file():
        raise UserError(f"{where} {source!r} is not a file; give a .jsonl, .json or .parquet file")
    found = columns_of(where, path)
    if found is None:
        return
    asked = [(name, data[name]) for name in ("prompt_column", "answer_column")]
    for setting, column in [*asked, *(("columns", name) for name in data.get("columns") or ())]:
        if column not in found:
            raise UserError(
                f"workload.data.{setting} is {column!r}, but {source!r} has the columns "
                f"{', '.join(found) or '(none)'}{did_you_mean(column, found)}; name one of them, or add it there"
            )


def columns_of(where: str, path: Path) -> list[str] | None:
    """The columns of the first row, or nothing where only a whole reading would tell."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        try:
            # Open: pyarrow takes a path such as gs:my.parquet for a bucket's.
            with path.open("rb") as file:
                return list(pyarrow.parquet.read_schema(file).names)
        except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
            problem = " ".join(str(error).split())
            raise UserError(f"{where} {str(path)!r} cannot be read as parquet: {problem}") from None
    if path.suffix == ".jsonl":
        # A later row may have a column that the first one lacks, which is refused in any case: a blank is no prompt.
        with path.open(encoding="utf-8", errors="replace") as file:
            first = next((line for line in file if line.strip()), "")
        try:
            row = json.loads(first)
        except ValueError:
            return None  # the job names the line
        return list(row) if isinstance(row, dict) else None
    return None


def _require_model(source: str) -> None:
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise UserError(f"workload.model.source {source!r} is not a folder; give the one that holds config.json")
    if not (folder / "config.json").is_file():
        inside = sorted(path.name for path in folder.iterdir())
        raise UserError(
            f"workload.model.source {source!r} is no model: it lacks config.json (in it: "
            f"{', '.join(inside[:8]) or 'nothing'}{', ...' * (len(inside) > 8)}); give the folder that holds it"
        )


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
    looks = [None if is_remote(one) else inspect_source(one, facts["format"], versioned) for one in facts["sources"]]
    seen = [(source, look) for source, look in zip(facts["sources"], looks, strict=True) if look is not None]
    require_of_arm(run.spec, seen)
    # What tells no format at first sight is no table.
    require_own_tree(run.spec, list(zip(facts["sources"], looks, strict=True)))
    require_declared(run.spec, looks, of_arm)
    tables = [source for source, look in seen if look.tree is not None]
    if tables and all(local_path(table).stat().st_size <= INSPECTED_BYTES for table in tables):
        names = tuple(str(run.spec[key]) for key in ("run_id", "arm", "engine"))
        trees = [read_phases_csv(local_path(table), names).tree for table in tables]
        own_tree(run.spec["trainer"], "", run.spec["engine"], trees)
