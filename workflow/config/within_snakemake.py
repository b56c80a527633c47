"""What the Snakefile asks of Snakemake beyond its language; Snakemake's private attributes are used nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from common.errors import UserError
from common.messages import exit_on_user_error
from common.ownership import let_others_only_read
from workflow.runs.locks import Lock, lock_experiment

_held: dict[str, Lock] = {}


class Start:
    """An input function that lists no file: when jobs are to run, it takes the lock of the results folder.

    A dry run, `--summary` and their likes take none. Snakemake calls `onstart` of the main Snakefile alone, and not
    with --no-hooks. `checks` come after the lock, before Snakemake looks at files.
    """

    def __init__(self, workflow: Any, results: str, *checks: Callable[[], None]) -> None:
        self._workflow = workflow
        self._results = results
        self._checks = checks

    def __call__(self, wildcards: Any) -> list[str]:
        workflow = self._workflow
        runs_jobs = workflow.is_main_process and workflow.execution_settings is not None and not workflow.dryrun
        if runs_jobs and self._results not in _held:
            _held[self._results] = lock_experiment(self._results)
            with exit_on_user_error():
                for check in self._checks:
                    check()
        return []


def of_run(values: Mapping[str, Any]) -> Any:
    """A resource that each run has: one value where all have the same, as a function is called for each job."""
    same = set(values.values())
    return same.pop() if len(same) == 1 else lambda wildcards: values[wildcards.run_id]


def id_pattern(run_ids: Iterable[str]) -> str:
    """A pattern of these run ids, and of no other; of none, a pattern that never matches.

    Arms and seeds are listed apart: with one alternative a run, a dry run of thousands would compare each with each.
    """
    seeds: dict[str, list[str]] = {}
    for run_id in run_ids:
        arm, _, seed = run_id.rpartition("-s")
        seeds.setdefault(arm, []).append(seed)
    arms: dict[str, list[str]] = {}
    for arm, found in seeds.items():
        arms.setdefault("|".join(map(re.escape, found)), []).append(re.escape(f"{arm}-s" if arm else ""))
    return "|".join(f"(?:{'|'.join(names)})(?:{found})" for found, names in arms.items()) or "(?!)"


def require_plain_module(workflow: Any, results: str) -> None:
    """UserError if the module statement moves files: those of our Python code would stay."""
    moved = workflow.modifier.path_modifier
    if moved.prefix or moved.modifies_prefixes:
        raise UserError(
            f"module {workflow.modifier.namespace} has prefix or replace_prefix, which rolloutbench does not support; "
            f"remove it: the results are in {results}, and `experiment` in the configuration names that folder"
        )


def start_isolated() -> None:
    """Makes Snakemake start itself with -P: on a node it would import a json.py of the folder where the user stands.

    Nothing sets it: PYTHONSAFEPATH would reach a site's programs, a stack's build and the user's own rules. And nobody
    else can write what the rules write, whatever the umask: a group could exchange a model, or a log for a link.
    """
    from snakemake_interface_executor_plugins.executors.real import RealExecutor

    let_others_only_read()

    ours = "_rolloutbench_format_job_exec"
    if hasattr(RealExecutor, ours):  # read again, as a module
        return
    setattr(RealExecutor, ours, RealExecutor.format_job_exec)

    def format_job_exec(self: Any, job: Any) -> str:
        return str(getattr(self, ours)(job)).replace(" -m snakemake ", " -P -m snakemake ", 1)

    RealExecutor.format_job_exec = format_job_exec
