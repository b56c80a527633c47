"""Lists where each run's numbers come from (files, machine, data, model, code), and what a history compares of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.compared import TOKENS
from analysis.counted import mean_of, steps_per_row
from analysis.report.tables import Column, Table, count, records_of, shown_table, text
from analysis.reported_terms import origin_of
from analysis.runs import Run
from analysis.wide import PHASE, counted_rows, threw_away
from common.dotted import as_mapping
from common.errors import UserError
from common.files import ROOT, fingerprint_of, read_json_object
from common.verdicts import RunInReport, count_of
from engines import engine_named
from node.hardware import git_state
from trainers.logs.record import STEPS_LOGGED
from trainers.registry import discards, trainer_named

if TYPE_CHECKING:
    from analysis.report.content import Content

STEP = PHASE + "step"
# The page shows at most this many runs; tables/runs has all.
SHOWN_RUNS = 60

# Each column of tables/runs and its head on the page; a column without a head is only in the file.
HEADS = {
    "run_id": "",
    "arm": "arm",
    "factors": "factors",
    "seed": "seed",
    "steps_counted": "steps counted",
    "steps": "of steps",
    "attempts": "attempts",
    "stack": "stack",
    "lock_id": "lock",
    "fingerprint": "fingerprint",
    "data_sha256": "data",
    "model_sha256": "model",
    "hosts": "hosts",
    "gpus": "GPUs",
    "driver": "driver",
    "cuda": "CUDA",
    "slurm_job_ids": "Slurm job",
    "git_commit": "git",
    "git_dirty": "",
    "started": "started (UTC)",
    "finished": "",
    "trained_as": "trained as",
    "sources": "imported from",
    "sources_sha256": "its sha256",
    "spec": "",
}
_HASHES = ("fingerprint", "data_sha256", "model_sha256", "git_commit", "sources_sha256")
_NUMBERS = ("seed", "steps_counted", "steps")


def runs_table(runs: Sequence[Run], wide: pd.DataFrame) -> pd.DataFrame:
    """One row per run (columns: `HEADS`), as texts except the counts; "" is a value that was not recorded.

    `slurm_job_ids` and `hosts` are those of every attempt that the numbers come from, `trained_as` the run's folder
    when it was trained under another name, `sources` the files or runs that an imported run was read from, `spec` the
    run's file below results/<experiment>. Times are UTC.
    """
    by_run = dict(iter(wide[["run_id", "attempt", "counted"]].groupby("run_id")))
    rows = []
    for run in runs:
        steps = by_run[run.run_id]
        numbers = sorted(int(n) for n in steps["attempt"].unique())
        hardware, git = run.hardware, as_mapping(run.done.get("git"))
        attempts = [_attempt(file) for n in numbers for file in run.attempt_files("attempt.json", n)]
        hosts = [str(attempt.get("host") or "") for attempt in attempts]
        sources = run.done.get("sources")
        read = [s for s in sources if isinstance(s, Mapping)] if isinstance(sources, list) else []
        rows.append(
            {
                "run_id": run.run_id,
                "arm": run.arm,
                "factors": run.factors_key,
                "seed": run.seed,
                "steps_counted": int(steps["counted"].sum()),
                "steps": len(steps),
                **_texts(run.spec, "stack", "lock_id", "fingerprint"),
                **_texts(as_mapping(run.done.get("inputs")), "data_sha256", "model_sha256"),
                **_texts(hardware, "driver", "cuda"),
                "attempts": ", ".join(map(str, numbers)),
                "hosts": _each(hosts) or str(hardware.get("host") or ""),
                "gpus": gpus_text(hardware.get("gpus")),
                "slurm_job_ids": _each([str(as_mapping(a.get("slurm")).get("job_id") or "") for a in attempts]),
                "git_commit": str(git.get("commit") or ""),
                "git_dirty": "" if git.get("dirty") is None else "yes" if git["dirty"] else "no",
                "started": _utc(run.done.get("started")),
                "finished": _utc(run.done.get("finished")),
                **_texts({"trained_as": as_mapping(run.done.get("trained_as")).get("run")}, "trained_as"),
                "sources": _each([str(s.get("source", "")) for s in read]),
                "sources_sha256": _each([str(s.get("sha256") or "") for s in read]),
                "spec": f"runs/{run.run_id}/spec.json",
            }
        )
    return pd.DataFrame(rows, columns=list(HEADS))


def _texts(raw: Mapping[str, Any], *keys: str) -> dict[str, str]:
    """Some of an object's values as texts; a missing value is ""."""
    return {key: str(raw.get(key) or "") for key in keys}


def gpus_text(raw: Any) -> str:
    """`8 × NVIDIA H100 80GB HBM3` from done.json's list of GPUs; anything else as JSON."""
    if not isinstance(raw, list):
        return "" if raw is None else json.dumps(raw, ensure_ascii=False)
    names = [str(g.get("name")) if isinstance(g, Mapping) else str(g) for g in raw]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def shown_runs(runs: pd.DataFrame) -> Table:
    """The first `SHOWN_RUNS` runs, with short hashes; logs from elsewhere have places, which are no seeds."""
    left_out = {"factors", *(["seed"] if runs["sources"].astype(bool).all() else [])}
    columns = [
        Column(name, head, count if name in _NUMBERS else text, is_text=name not in _NUMBERS)
        for name, head in HEADS.items()
        if head and name not in left_out
    ]
    records = []
    for row in records_of(runs.head(SHOWN_RUNS)):
        short = {name: ", ".join(part[:12] for part in str(row[name]).split(", ")) for name in _HASHES}
        short["git_commit"] += " + changes" if row["git_commit"] and row["git_dirty"] == "yes" else ""
        records.append({**row, **short, "label": row["run_id"]})
    first = f"The first {SHOWN_RUNS} of {len(runs):,} runs. " if len(runs) > SHOWN_RUNS else ""
    note = f"{first}Hashes are cut to 12 digits; tables/runs.csv has them in full, and every run."
    return shown_table("runs", "The runs", "run", columns, records, note)


def made_of(content: Content) -> list[str]:
    """Sentences on what the numbers come from: timers, warm-up, this code, each set of inputs, each stack's checks."""
    names, sources = (
        ", ".join(dict.fromkeys(map(str, texts)))
        for texts in zip(*((t.name, t.source) for t in content.trees), strict=True)
    )
    warmup = count_of(content.plan.warmup_steps, "step")
    lines = {"timers": f"Timers: {names} ({sources}). Warm-up: {warmup} of each run."}
    commit = analysed_by()
    code = f"at commit {commit}" if commit else "in a folder that is no git checkout"
    lines["code"] = f"This report was made by rolloutbench {code}."
    for run in content.runs:
        if run.inputs is not None:
            data, model = run.inputs.get("data", {}), run.inputs.get("model", {})
            lines[str(run.spec.get("inputs_id"))] = (
                f"Data: {data.get('source')}, {count_of(data.get('rows'), 'row')} (sha256 "
                f"{str(data.get('sha256'))[:12]}); "
                f"model: {model.get('source')}, {model.get('parameters')} parameters."
            )
        if run.verify is not None:
            checks = run.verify.get("checks", [])
            passed = sum(bool(c.get("ok")) for c in checks)
            stack = f"{run.spec.get('stack')} ({run.spec.get('lock_id')})"
            state = f"{origin_of(run)['state']}; " if "state" in origin_of(run) else ""
            lines["stack " + stack] = f"Stack {stack}: {state}{passed} of {len(checks)} checks passed."
    return list(lines.values())


@cache
def analysed_by(folder: Path = ROOT) -> str:
    """The commit of the code that made this report, and whether it has changes; "" without a git checkout."""
    found = git_state(folder)
    if found is None:
        return ""
    return f"{found['commit'][:12]}{', with uncommitted changes' if found['dirty'] else ''}"


def _attempt(file: Path) -> dict[str, Any]:
    try:
        return read_json_object(file, "the job on the node")
    except UserError:
        return {}


def _each(texts: Sequence[str]) -> str:
    return ", ".join(text for text in dict.fromkeys(texts) if text)


def _utc(raw: Any) -> str:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return str(raw) if isinstance(raw, str) else ""
    try:
        return datetime.fromtimestamp(raw, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return ""


def run_columns() -> tuple[str, ...]:
    """The columns of tables/steps that `run_in_report` uses."""
    return (STEPS_LOGGED, STEP, TOKENS, *discards())


def runs_in_report(runs: Sequence[Run], wide: pd.DataFrame) -> list[RunInReport]:
    """The runs that have counted steps, for report.json."""
    counted = counted_rows(wide, "run_id", *run_columns())
    by_run = dict(iter(counted.groupby("run_id", sort=False)))
    return [run_in_report(run.run_id, run.spec, run.done, by_run[run.run_id]) for run in runs if run.run_id in by_run]


def run_in_report(run_id: str, spec: Mapping[str, Any], done: Mapping[str, Any], counted: pd.DataFrame) -> RunInReport:
    """One run, from its files and its counted steps (columns: `run_columns`)."""
    workload, text = _workload(spec, done)
    weights = steps_per_row(counted)
    tokens, seconds = counted.get(TOKENS), float((counted[STEP] * weights).sum())
    known = tokens is not None and bool((tokens > 0).all()) and not threw_away(counted).any()
    started = done.get("started")
    return {
        "run_id": run_id,
        "arm": str(spec.get("arm")),
        "factors": dict(spec.get("factors") or {}),
        "trainer": str(spec.get("trainer")),
        "engine": str(spec.get("engine")),
        "releases": _releases(spec, done),
        "stack": " ".join(str(spec[key]) for key in ("stack", "lock_id") if spec.get(key)),
        "workload": workload,
        "workload_text": text,
        "hardware": _hardware(spec, done),
        "started": float(started) if isinstance(started, int | float) and math.isfinite(started) else None,
        "steps": int(weights.sum()),
        "step_s": mean_of(counted[STEP], weights),
        "tokens_per_s": float((tokens * weights).sum()) / seconds if known and tokens is not None else None,
    }


def _workload(spec: Mapping[str, Any], done: Mapping[str, Any]) -> tuple[str, str]:
    """A hash that equal work shares, and the workload in words.

    Work that is not declared is equal where the script is, or else within experiments of one name.
    """
    workload, imported = as_mapping(spec.get("workload")), as_mapping(spec.get("import"))
    if "model" in workload:
        model, data = (str(as_mapping(workload[key]).get("source")) for key in ("model", "data"))
        text = (
            f"{model}, {data}, {count_of(workload['batch_size'], 'completion')} of at most "
            f"{count_of(workload['max_response_length'], 'token')}, {count_of(workload['steps'], 'step')}"
        )
        return fingerprint_of({"workload": dict(workload), "inputs": done.get("inputs")})[:12], text
    known = {key: imported[key] for key in ("model", "batch_size", "max_response_length") if imported.get(key)}
    script = as_mapping(spec.get("options")).get("script")
    known = {"script": script} if script else {"experiment": spec.get("experiment"), **known}
    return fingerprint_of(known)[:12], ", ".join(f"{key} {value}" for key, value in known.items())


def _hardware(spec: Mapping[str, Any], done: Mapping[str, Any]) -> str:
    """The machine in words, such as `2 nodes of 8 × NVIDIA H100 80GB HBM3`; empty where no file has it."""
    hardware, imported = as_mapping(done.get("hardware")), as_mapping(spec.get("import"))
    nodes = as_mapping(spec.get("workload")).get("nodes") or imported.get("nodes") or 1
    machine = gpus_text(hardware.get("gpus"))
    if not hardware.get("gpus"):
        cpu, cpus = hardware.get("cpu"), hardware.get("cpus")
        machine = f"{cpu}, {count_of(cpus, 'CPU')}" if cpu and isinstance(cpus, int) else str(cpu or "")
    if not machine and imported.get("gpu"):
        machine = f"{imported.get('gpus_per_node') or '?'} × {imported['gpu']}"
    return f"{nodes} nodes of {machine}" if machine and nodes != 1 else machine


def _releases(spec: Mapping[str, Any], done: Mapping[str, Any]) -> dict[str, str]:
    """The releases of the trainer and the engine, by package, where they are known."""
    trainer, versions = trainer_named(str(spec.get("trainer"))).distribution, as_mapping(done.get("versions"))
    names = (trainer, *engine_named(str(spec.get("engine"))).packages)
    known = {name: str(versions[name]) for name in names if versions.get(name)}
    declared = as_mapping(spec.get("import")).get("version")
    return {**({trainer: str(declared)} if declared else {}), **known}
