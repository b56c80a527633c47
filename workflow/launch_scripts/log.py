"""Reads what a script's run has logged, as `rolloutbench compare` would: its trainer, its engine, and its steps.

python -m workflow.launch_scripts.log RUN_FOLDER --attempt N      prints what the log has, for the job on the node
python -m workflow.launch_scripts.log RUN_FOLDER --out PARQUET    collects a finished run; also writes imported.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.imports.import_run import import_run
from analysis.steps import write_steps
from common.contracts import DoneFile, ImportedFile, SpecFile, read_file
from common.dotted import flatten
from common.errors import UserError
from common.files import atomic_path, open_private, write_json
from common.messages import report_errors
from engines import UNKNOWN
from trainers.command.driver import CONSOLE, LOGS
from workflow.commands.compared_arms import ComparedArm, detect
from workflow.launch_scripts.words import OWN_VALUE
from workflow.runs.history import is_request_for, read_object
from workflow.runs.paths import RunPaths

_NOT_GIVEN = ("format", "version", "gpu", "tensor_parallel", "model", "batch_size", "max_response_length")


def read_log(run: RunPaths, spec: SpecFile, number: int) -> tuple[pa.Table, ImportedFile]:
    """The steps of a run up to an attempt, and its imported.json; `UserError` if its log has no steps."""
    sources = [str(source) for source in _sources(run, spec, number)]
    arm = ComparedArm("", sources)
    detect(arm)
    engine = spec["engine"] if arm.engine == UNKNOWN else arm.engine
    doubts = []
    if spec["engine"] not in (UNKNOWN, engine):
        doubts.append(f"the arm says engine {spec['engine']}, its log says {engine}: the log counts")
    workload = spec["workload"]
    facts: dict[str, Any] = {"sources": sources, "mode": "", **dict.fromkeys(_NOT_GIVEN)}
    facts |= {key: workload[key] if workload["gpus_per_node"] else None for key in ("nodes", "gpus_per_node")}
    read_as = {"trainer": arm.trainer, "engine": engine, "import": facts}
    tables, imported = import_run({**spec, **read_as}, run.folder)
    table = pa.concat_tables(tables)
    doubts += _words_without_effect(spec, imported)
    imported["read_as"] = {**read_as, "doubts": doubts}
    return table, imported


def _sources(run: RunPaths, spec: SpecFile, number: int) -> list[Path]:
    """The logs of a run: of one attempt, or of all its lives where the script continues by itself."""
    settings, fingerprint = spec["trainer_args"], spec["fingerprint"]
    lives = [
        attempt
        for attempt in run.attempts()
        if attempt.number == number
        or (
            settings["resume"] == "script"
            and attempt.number < number
            and is_request_for(read_object(attempt.request), fingerprint, {})
        )
    ]
    if settings["read"]:
        files = [file for life in lives for file in sorted((life.folder / LOGS).rglob("*")) if file.is_file()]
        # A run may have several event files, which are read together.
        found = list(dict.fromkeys(file.parent if "tfevents" in file.name else file for file in files))
        if not found:
            raise UserError(f"the script wrote no file that options.read names ({', '.join(settings['read'])})")
        return found
    consoles = [life.folder / CONSOLE for life in lives]
    if len(consoles) == 1:
        return consoles
    joined = run.folder / CONSOLE
    with atomic_path(joined) as part, open_private(part, "wb") as out:
        for console in consoles:
            if console.is_file():
                with console.open("rb") as text:
                    shutil.copyfileobj(text, out)
                out.write(b"\n")
    return [joined]


def _words_without_effect(spec: SpecFile, imported: ImportedFile) -> Iterator[str]:
    """Words of the arm that the run's own configuration, where the log has it, contradicts."""
    resolved = flatten(imported["resolved"] or imported["command"])
    for word in spec["trainer_args"]["words"]:
        name, _, value = word.partition("=")
        logged = resolved.get(name.lstrip("+-"))
        if "$" in value or value.startswith(OWN_VALUE):
            continue  # what the script makes of it is not known here
        if isinstance(logged, str | int | float) and not _same(value, str(logged)):
            yield f"the arm says {word}, and its log says {logged}: the word had no effect"


def _same(given: str, logged: str) -> bool:
    """Whether two texts are one value: 1e-6 and 1e-06, 0.60 and 0.6, with or without quotes."""
    one, other = (text.strip("'\"").lower() for text in (given, logged))
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


def summary(table: pa.Table, imported: ImportedFile) -> dict[str, Any]:
    """What the job on the node needs to know of a log."""
    rows = table.filter(pa.compute.and_(pa.compute.equal(table["kind"], "phase"), pa.compute.is_null(table["parent"])))
    by_name: dict[str, list[float]] = {}
    for name, value in zip(rows["name"].to_pylist(), rows["value"].to_pylist(), strict=True):
        by_name.setdefault(name, []).append(value)
    longest: list[float] = max(by_name.values(), key=sum, default=[0.0])
    read_as = imported["read_as"]
    found = {key: imported[key] for key in ("first_step", "last_step", "steps")}
    return {**found, "step_s": statistics.median(longest), "trainer": read_as["trainer"], "engine": read_as["engine"]}


def collect(run: RunPaths, out: Path) -> int:
    """Write steps.parquet and imported.json of a finished run; returns the number of rows."""
    spec = read_file(SpecFile, run.spec, "the plan", ("run_id", "fingerprint"))
    done = read_file(DoneFile, run.done, "the job, as its last act", ("fingerprint", "attempt"))
    if done["fingerprint"] != spec["fingerprint"]:
        raise UserError(f"run {spec['run_id']}: done.json is of another plan; start snakemake again")
    table, imported = read_log(run, spec, done["attempt"])
    imported["versions"] = {**done["versions"], **imported["versions"]}
    imported["hardware"] = imported["hardware"] or done["hardware"]
    imported["started"], imported["finished"] = done["started"], done["finished"]
    for doubt in imported["read_as"]["doubts"]:
        print(f"warning: {spec['run_id']}: {doubt}", file=sys.stderr)
    write_json(run.folder / "imported.json", imported)
    return write_steps(table, out)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workflow.launch_scripts.log", description="Read a script's log.")
    parser.add_argument("run_folder", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--attempt", type=int, help="print what this attempt's log has")
    parser.add_argument("--out", type=Path, help="the steps.parquet to write")
    args = parser.parse_args()
    return report_errors(lambda: _print(args))


def _print(args: argparse.Namespace) -> None:
    run = RunPaths(args.run_folder.resolve())
    if args.attempt is None:
        print(f"{args.out}: {collect(run, args.out)} rows")
        return
    spec = read_file(SpecFile, run.folder / "attempts" / str(args.attempt) / "spec.json", "the job")
    print(json.dumps(summary(*read_log(run, spec, args.attempt))))


if __name__ == "__main__":
    sys.exit(main())
