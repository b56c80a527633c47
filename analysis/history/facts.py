"""Describes a run by what a history of experiments compares: its workload, hardware, releases and speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.report.provenance import gpus_text
from analysis.runs import Run
from analysis.speedup import TOKENS
from analysis.wide import PHASE, threw_away
from analysis.windows import mean_of, steps_per_row
from common.dotted import as_mapping
from common.files import fingerprint_of
from common.verdicts import RunInReport, count_of
from engines import engine_named
from trainers.logs.record import STEPS_LOGGED
from trainers.registry import discarded, generation_batches, trainer_named

STEP = PHASE + "step"


def needed() -> tuple[str, ...]:
    """The columns of tables/steps that `runs_in_report` uses."""
    return ("run_id", "counted", STEPS_LOGGED, STEP, TOKENS, *discarded(), *generation_batches())


def runs_in_report(runs: Sequence[Run], wide: pd.DataFrame) -> list[RunInReport]:
    """The runs that have counted steps, for report.json."""
    counted = wide.loc[wide["counted"].astype(bool), [name for name in needed() if name in wide]]
    by_run = dict(iter(counted.groupby("run_id", sort=False)))
    return [run_in_report(run.run_id, run.spec, run.done, by_run[run.run_id]) for run in runs if run.run_id in by_run]


def run_in_report(run_id: str, spec: Mapping[str, Any], done: Mapping[str, Any], counted: pd.DataFrame) -> RunInReport:
    """One run, from its files and its counted steps (columns: `needed`)."""
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
