"""Writes what each arm is, in a line: trainer, engine, release, GPUs, model, runs and steps."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from analysis.report.content import Content
from analysis.roofline.setup import setup_of
from analysis.runs import Run
from common.verdicts import count_of
from engines import UNKNOWN
from trainers.logs.record import STEPS_LOGGED
from trainers.registry import trainer_named
from trainers.timers.own import MODE


def arm_lines(content: Content, unnamed: Container[str], machine: Callable[[Run], str] = lambda run: "") -> list[str]:
    """A line per arm: its timer tree, engine, machine, runs and steps; `unnamed` are those without a named release."""
    lines = []
    for name, arm in content.plan.arms.items():
        own = [run for run in content.runs if run.arm == name]
        if own:
            scalars = [rows_of_kind(run, "scalar") for run in own]
            # Of all attempts; a row may stand for several steps.
            means = [rows.filter(pc.equal(rows["name"], STEPS_LOGGED)).to_pylist() for rows in scalars]
            more = sum(min(row["value"], row["step"]) - 1 for rows in means for row in rows)
            steps = int(more) + sum(pc.count_distinct(run.rows(["step"])["step"]).as_py() for run in own)
            trees = ", ".join(dict.fromkeys(_source_of(run, name in unnamed) for run in own))
            engine = "engine not in its log" if arm["engine"] == UNKNOWN else arm["engine"]
            results = of_results(own[0])
            rows = f"{count_of(len(own), 'run')}, {count_of(steps, 'result' if results else 'step')}"
            lines.append("; ".join(filter(None, (f"{name}: {trees}, {engine}", machine(own[0]), rows))))
            shown_numbers = trainer_named(arm["trainer"]).logs.quantities if results else {}
            found = (_range(scalars, name, unit) for unit, (name, *_) in shown_numbers.items())
            if numbers := [text for text in found if text]:
                lines.append(f"  {', '.join(numbers)}")
    return lines


def machine_of(run: Run) -> str:
    """`8 x NVIDIA H100, Qwen2.5-7B`, as far as it is known."""
    setup = setup_of(run)
    gpus = f"{setup.gpus} x {setup.gpu}" if setup.gpu and setup.gpus else setup.gpu
    return ", ".join(filter(None, (gpus, setup.model and setup.model.rpartition("/")[2])))


def without_release(content: Content) -> set[str]:
    """The arms with a run whose log and import do not name a release."""
    imported = [run for run in content.runs if "import" in run.spec]
    return {run.arm for run in imported if not (run.spec["import"].get("version") or run.done.get("versions"))}


def rows_of_kind(run: Run, kind: str) -> pa.Table:
    """The tidy rows of one kind: step, name, value."""
    rows = run.rows(["kind", "step", "name", "value"])
    return rows.filter(pc.equal(rows["kind"], kind))


def of_results(run: Run) -> bool:
    """Whether a run has results of an engine alone, in place of steps."""
    return trainer_named(run.tree.trainer).step_of != "step"


def _source_of(run: Run, release_unknown: bool) -> str:
    """What a run was read from: its timer tree, a table, or a benchmark's format."""
    if of_results(run):
        return str(run.done["sources"][0]["format"])
    if run.tree.mode == MODE:
        return "a table"
    series = run.tree.series
    return run.tree.name.replace(series, f"(read as {series})", 1) if release_unknown and series else run.tree.name


def _range(runs: Sequence[pa.Table], scalar: str, unit: str) -> str:
    """A scalar of runs with its unit, from its lowest to its highest; empty without it."""
    values = [value for rows in runs for value in rows.filter(pc.equal(rows["name"], scalar))["value"].to_pylist()]
    ends = [f"{end(values):,.{3 if end(values) < 1000 else 4}g}" for end in (min, max)] if values else []
    return f"{' to '.join(dict.fromkeys(ends))} {unit}" if ends else ""
