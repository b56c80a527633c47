"""Finds finished runs that did a planned run's work under another name, and gives the planned run their files.

The work is a specification without its names: another order of the sweep, another name of an arm or of the experiment,
or a value that becomes a factor change names only. A script's work also depends on files that nobody hashes, so its
runs count within their own experiment only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import write_json
from common.messages import print_message
from common.verdicts import count_of
from workflow.config.plan import Plan
from workflow.config.planned_run import PlannedRun, sha256_of
from workflow.runs.history import finished_attempt, matching_attempts, read_object, steps_of
from workflow.runs.paths import AttemptPaths, RunPaths

_NAMES = ("experiment", "run_id", "arm", "factors", "fingerprint")
_SHOWN = 8
# A dry run asks for each rule that needs all runs.
_named: dict[str, dict[str, FinishedRun]] = {}


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run, its specification, and the attempt that finished it with its done.json."""

    run: RunPaths
    spec: Mapping[str, Any]
    attempt: AttemptPaths
    done: Mapping[str, Any]

    @property
    def trained_as(self) -> dict[str, Any]:
        """The names under which it was trained; copies keep them."""
        own = {"run": str(self.run.folder), "attempt": self.attempt.number, "fingerprint": self.spec["fingerprint"]}
        return dict(self.done.get("trained_as") or own)

    @property
    def identity(self) -> str:
        """The same for a run and its copies, wherever they lie."""
        return sha256_of([self.trained_as["fingerprint"], self.done.get("started"), self.done.get("finished")])


def work_of(spec: Mapping[str, Any]) -> str:
    """A hash of what a run trains, without names."""
    work = {key: value for key, value in spec.items() if key not in _NAMES}
    return sha256_of([work, "" if spec["stack"] else spec["experiment"]])


def finished_before(plan: Plan) -> dict[str, FinishedRun]:
    """The plan's runs without an attempt -> a finished run of the same work, each for one run only.

    One that the plan has under its own name stands for no other: the arms of an A/A comparison are two measurements.
    """
    folders = {run_id: paths_of(plan, run_id) for run_id in plan.runs}
    new = {id_: work_of(run.spec) for id_, run in plan.runs.items() if not _began(folders[id_], run.fingerprint)}
    found: dict[str, list[FinishedRun]] = {work: [] for work in new.values()}
    used = set()
    for one in _finished_runs(Path(plan.folder).parent) if new else ():
        own = plan.runs.get(one.run.folder.name) if str(one.run.experiment) == plan.folder else None
        if own is not None and own.fingerprint == one.spec["fingerprint"]:
            used.add(one.identity)
        elif (work := work_of(one.spec)) in found:
            found[work].append(one)
    chosen = {}
    for run_id, work in new.items():
        left = [one for one in found[work] if one.identity not in used]
        if left:
            here = [one for one in left if str(one.run.experiment) == plan.folder] or left
            chosen[run_id] = max(here, key=lambda one: float(one.done.get("finished") or 0.0))
            used.add(chosen[run_id].identity)
    return chosen


def left_to_make(plan: Plan, runs: Mapping[str, PlannedRun]) -> dict[str, PlannedRun]:
    """The runs without those that a start gives the files of finished ones; the first call names these."""
    if plan.folder not in _named:
        _named[plan.folder] = found = finished_before(plan)
        _say(found, "the start gives it its files, and it is not trained again")
    return {run_id: run for run_id, run in runs.items() if run_id not in _named[plan.folder]}


def paths_of(plan: Plan, run_id: str) -> RunPaths:
    """Where a planned run lies in its experiment's folder."""
    return RunPaths(Path(plan.folder) / "runs" / run_id)


def _began(run: RunPaths, fingerprint: str) -> bool:
    return bool(matching_attempts(run, fingerprint))


def _finished_runs(results: Path) -> Iterator[FinishedRun]:
    """This user's finished runs of all experiments; a run that cannot be read is not one."""
    for folder in sorted(results.glob("*/runs/*")):
        run = RunPaths(folder)
        for attempt in run.attempts():
            with suppress(OSError, UserError, KeyError, TypeError):
                if not attempt.done.is_file() or attempt.done.stat().st_uid != os.geteuid():
                    continue
                spec, done = read_object(attempt.spec), read_object(attempt.done)
                finished = finished_attempt(run, spec["fingerprint"], steps_of(spec))
                if finished is not None and finished.number == attempt.number:
                    yield FinishedRun(run, spec, attempt, done)


def take_over(plan: Plan) -> None:
    """Give the plan's runs that were trained under other names the files of those, and say so."""
    found = finished_before(plan)
    for run_id, one in dict(found).items():
        try:
            _take(one, paths_of(plan, run_id), plan.runs[run_id].spec)
        except OSError as error:
            del found[run_id]
            why = f"its files cannot be copied ({error.strerror or error}), and it is trained"
            print_message(f"warning: {run_id}: finished before, as {one.run.folder}; {why}")
    _say(found, "it is not trained again")


def _say(found: Mapping[str, FinishedRun], follows: str) -> None:
    for run_id, one in list(found.items())[:_SHOWN]:
        print_message(f"{run_id}: finished before, as {one.run.folder}; {follows}")
    if len(found) > _SHOWN:
        print_message(f"... and {count_of(len(found) - _SHOWN, 'more run')} finished before under other names")


def _take(one: FinishedRun, run: RunPaths, spec: Mapping[str, Any]) -> None:
    """Make the attempts that led to a finished run attempts of another run: its names, and links to their files.

    An attempt counts when it is whole: its folder gets its number last.
    """
    inputs = one.done.get("inputs")
    ready = []
    for attempt in matching_attempts(one.run, str(one.spec["fingerprint"]), inputs):
        if attempt.number > one.attempt.number:
            break
        part = AttemptPaths(run.folder / "attempts" / f".taken-{attempt.number}")
        shutil.rmtree(part.folder, ignore_errors=True)
        shutil.copytree(attempt.folder, part.folder, symlinks=True, copy_function=_link)
        ready.append((part, attempt))
    last = max((one.number for one in run.attempts()), default=0)
    for number, (part, attempt) in enumerate(ready, start=last + 1):
        target = run.attempt(number)
        names = {"run_id": spec["run_id"], "fingerprint": spec["fingerprint"], "attempt": number}
        places = {"spec": str(target.spec.resolve()), "attempt_dir": str(target.folder.resolve())}
        write_json(part.spec, spec)
        write_json(part.request, read_object(attempt.request) | names | places)
        if attempt.number == one.attempt.number:
            write_json(part.done, dict(one.done) | names | {"trained_as": one.trained_as})
    for number, (part, _) in enumerate(ready, start=last + 1):
        part.folder.rename(run.attempt(number).folder)


def _link(source: str, target: str) -> None:
    """Link a file, or copy it where its file system has no links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
