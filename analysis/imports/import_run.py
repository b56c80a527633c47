"""Reads a run that was trained elsewhere, and writes its files as those of one of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from analysis.collect import in_the_tree, timer_verdicts
from analysis.imports.added_steps import (
    add_known_tokens,
    add_time_between,
    clock_verdicts,
    drop_windows_not_ours,
    hole_verdicts,
)
from analysis.imports.formats import WANDB, read_source
from analysis.imports.merge import merged
from analysis.imports.which_tree import root_keys, tree_of
from analysis.sources.wandb_about import without_secrets
from analysis.steps import ChosenStep, step_tables, write_steps
from common.contracts import ImportedFile, ImportedSource, SpecFile
from common.errors import UserError
from common.files import file_sha256, fingerprint_of, write_bytes
from common.verdicts import Verdict
from trainers.logs.record import Imported, SourceRead, timers_as_phases
from trainers.timers.lookup import tree_named
from trainers.timers.own import tree_to_json
from trainers.timers.tree import TimerTree

CACHE = Path(".wandb-cache")
# Steps are 32-bit numbers in the tables.
HIGHEST_STEP = 2**31 - 1


def import_run(spec: Mapping[str, Any], run_dir: Path, cache: Path = CACHE) -> tuple[Iterator[pa.Table], ImportedFile]:
    """An imported run's tidy table, in parts, and its imported.json (both: docs/files.md).

    `spec` is its spec.json, with `import` in it; `cache` is where downloads from wandb are kept. `UserError` when a
    source is not there or no such log, holds several runs, or disagrees with another, or when the trainer's version or
    its timers are not known.
    """
    run_id, facts = _text(spec, "run_id"), spec.get("import")
    if not isinstance(facts, Mapping) or not facts.get("sources"):
        raise UserError(f"run {run_id}: its spec has no import.sources: it is no run to import (see docs/import.md)")
    names = (run_id, _text(spec, "arm"), _text(spec, "engine"))
    sources = [str(source) for source in facts["sources"]]
    before = _states(sources)
    parts = [read_source(source, facts.get("format"), names, cache) for source in sources]
    for part in parts:
        _require_possible(part.read, run_id)
        part.read.verdicts += drop_windows_not_ours(part, run_id)
    steps_of = [len(part.read.records) for part in parts]
    read = merged([part.read for part in parts], run_id)
    tree, version, told = tree_of(spec, facts, parts, read)
    for part in parts:
        part.read = SourceRead()
    chosen = [
        ChosenStep(1, record, bool(record.resumed), step in read.repeated)
        for step, record in sorted(read.records.items())
    ]
    read.records.clear()
    more = in_the_tree(chosen, tree, run_id) if tree.flat else []
    if not tree.flat:
        chosen = [replace(c, record=timers_as_phases(c.record)) for c in chosen]
    verdicts = [*read.verdicts, *told, *more]
    _require_times(chosen, tree, run_id, verdicts)
    workload = spec.get("workload") or {}
    config = next((part.config for part in parts if part.config), {})
    more = add_known_tokens(chosen, facts.get("batch_size") or workload.get("batch_size"), run_id, config)
    verdicts += [
        *more,
        *timer_verdicts(chosen, tree, run_id),
        *hole_verdicts(chosen, run_id),
        *clock_verdicts(chosen, run_id),
        *add_time_between(chosen, run_id),
    ]
    metadata: dict[str, Any] = {"timers": tree.name, "attempts": [1]}
    metadata["verdicts"] = [v.as_dict() for v in dict.fromkeys(verdicts)]
    if tree_named(tree.name) is None:
        metadata["tree"] = tree_to_json(tree)
    end = _end(spec, version, chosen, sources, parts, steps_of)
    _require_unchanged(before, run_id)
    return step_tables(cast(SpecFile, spec), run_dir, chosen, tree, metadata), end


def _require_possible(read: SourceRead, run_id: str) -> None:
    """`UserError` for a step whose number no table can hold."""
    last = read.records[max(read.records)] if read.records else None
    if last is not None and last.step > HIGHEST_STEP:
        raise UserError(
            f"run {run_id}: {last.file}:{last.line} is of step {last.step}, and {HIGHEST_STEP} is the highest that can "
            "be read: a damaged line, or a counter of something else. Correct it, or leave it out"
        )


def _require_times(chosen: Sequence[ChosenStep], tree: TimerTree, run_id: str, verdicts: Sequence[Verdict]) -> None:
    """`UserError` where no step tells how long it took."""
    if not any(tree.root in c.record.phases for c in chosen):
        have = sorted({path for c in chosen for path in c.record.phases})
        beside = f"; there are {', '.join(have[:8])}" if have else ""
        why = next((f". {one.text}" for one in verdicts if one.code == "timings-missing"), "")
        raise UserError(
            f"run {run_id}: none of its {len(chosen)} steps tells how long the whole step took "
            f"({root_keys(tree)}{beside}). Import a source that has it; several sources of one run are joined by "
            f"step{why}"
        )


def _require_unchanged(before: Mapping[str, tuple[int, int] | None], run_id: str) -> None:
    """`UserError` where a source is not as it was before it was read."""
    if changed := [source for source, state in _states(list(before)).items() if state != before[source]]:
        raise UserError(
            f"run {run_id}: {', '.join(changed)} changed while it was read: a run that still writes, or a copy that is "
            "not whole. Start again; of a run that goes on for long, import a copy"
        )


def _states(sources: Sequence[str]) -> dict[str, tuple[int, int] | None]:
    """Size and date of each source that is a file."""
    paths = {s: Path(s).expanduser() for s in sources if not s.startswith(WANDB)}
    stats = {s: path.stat() for s, path in paths.items() if path.is_file()}
    return {s: (stats[s].st_size, stats[s].st_mtime_ns) if s in stats else None for s in sources}


def _text(spec: Mapping[str, Any], key: str) -> str:
    value = spec.get(key)
    if not isinstance(value, str) or not value:
        raise UserError(f"the spec's {key} must be a text (got {value!r}); plan the experiment again")
    return value


def _end(
    spec: Mapping[str, Any],
    version: str,
    chosen: Sequence[ChosenStep],
    sources: Sequence[str],
    parts: Sequence[Imported],
    steps_of: Sequence[int],
) -> ImportedFile:
    """imported.json: what stands where a trained run has done.json."""
    steps = [c.record.step for c in chosen]
    first = next((part for part in parts if part.config), parts[0])
    versions = {name: v for part in reversed(parts) for name, v in part.versions.items()}
    return {
        "run_id": spec["run_id"],
        "fingerprint": spec["fingerprint"],
        "imported": True,
        "first_step": steps[0],
        "last_step": steps[-1],
        "steps": len(steps),
        "versions": versions | ({str(spec["trainer"]): version} if version else {}),
        "hardware": next((part.hardware for part in parts if part.hardware), {}),
        # A trainer may print whatever its configuration holds.
        "resolved": without_secrets(first.config),
        "git": next((part.git for part in parts if part.git), None),
        "started": min((p.started for p in parts if p.started is not None), default=None),
        "finished": max((p.finished for p in parts if p.finished is not None), default=None),
        "sources": [_source(*one) for one in zip(sources, parts, steps_of, strict=True)],
    }


def _source(source: str, part: Imported, steps: int) -> ImportedSource:
    path = Path(source).expanduser()
    is_file = not source.startswith(WANDB) and path.is_file()
    return {
        "source": source,
        "format": part.format,
        "sha256": file_sha256(path) if is_file else None,
        "bytes": path.stat().st_size if is_file else None,
        "steps": steps,
        "selected": part.selected or None,
    }


def write_import(spec: Mapping[str, Any], out: Path, cache: Path = CACHE) -> int:
    """Reads an imported run and writes spec.json and imported.json beside `out`, the steps.parquet; its rows."""
    if spec.get("fingerprint") != fingerprint_of(spec):
        raise UserError("the spec was changed by hand: its fingerprint is of other settings; start snakemake again")
    tables, end = import_run(spec, out.parent, cache)
    for name, content in (("spec.json", dict(spec)), ("imported.json", end)):
        text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
        write_bytes(out.parent / name, (text + "\n").encode())
    return write_steps(tables, out)
