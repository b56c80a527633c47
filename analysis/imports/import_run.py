"""Reads a run that was trained elsewhere, and writes the files that a run trained here has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
import yaml

from analysis.collect import in_the_tree, polling_verdicts, timer_verdicts
from analysis.imports.formats import WANDB, existing_path, read_source
from analysis.imports.one_run import change_reason, configurations, merged
from analysis.imports.step_checks import (
    add_time_between,
    clock_verdicts,
    hole_verdicts,
    require_steps,
)
from analysis.imports.which_tree import tree_of
from analysis.steps import ChosenStep, step_tables, write_steps
from analysis.tokens import add_known_tokens
from common.contracts import ImportedFile, LaterSettings, SpecFile
from common.errors import UserError
from common.files import file_sha256, write_bytes
from common.redaction import without_secrets
from common.verdicts import Verdict
from engines import engine_named
from engines.printed import printed_in
from trainers.logs.hf_rows import BARS_TOO_COARSE, SUPERVISED
from trainers.logs.hf_work import add_shared_generations
from trainers.logs.record import TIMERS, WALL, Imported, SourceRead, timers_as_phases
from trainers.registry import trees_of
from trainers.timers.own import tree_to_json
from trainers.timers.tree import TimerTree

CACHE = Path(".wandb-cache")
# What says why the time of the whole step may be missing.
_WITHOUT_TIMES = ("timings-missing", BARS_TOO_COARSE)


_Facts = TypeVar("_Facts", ImportedFile, dict[str, Any])


@dataclass(frozen=True)
class RunRead:
    """A run that was read from its logs."""

    tables: Iterator[pa.Table]
    """Its tidy steps, in parts (docs/files.md)."""
    imported: ImportedFile
    tree: TimerTree
    verdicts: list[Verdict]


def read_sources(
    spec: Mapping[str, Any], cache: Path = CACHE, known: Mapping[str, Imported] | None = None
) -> list[Imported]:
    """The content of a run's sources, but for those that are known already; downloads from wandb go to `cache`.

    `UserError` when a source is missing, is no log, holds several runs, or grows.
    """
    facts, known = spec["import"], known or {}
    names = (spec["run_id"], spec["arm"], spec["engine"])
    given = (facts.get("format"), names, cache, facts.get("step_seconds"), spec["trainer"], facts.get("unit"))
    return [known[one] if one in known else read_whole(one, *given) for one in facts["sources"]]


def read_whole(source: str, *given: Any) -> Imported:
    """As `read_source`; `UserError` where the source grows while it is read."""
    before = _file_state(source)
    found = read_source(source, *given)
    if _file_state(source) != before:
        raise UserError(
            f"{source} changed while it was read: the run is still writing, or a copy is incomplete. Start again; of a "
            "long run, import a copy"
        )
    return found


def run_of(spec: Mapping[str, Any], parts: Sequence[Imported], run_dir: Path) -> RunRead:
    """The run in the content of its sources, whose steps are taken out of them.

    `UserError` when sources disagree, or the timers have no time of the whole step.
    """
    run_id, facts = spec["run_id"], spec["import"]
    for part in parts:
        require_steps(part, run_id)
    step_counts = [len(part.read.records) for part in parts]
    read = merged([part.read for part in parts], run_id)
    add_shared_generations(read, run_id)
    clock = "wall" if any(WALL in record.scalars for record in read.records.values()) else ""
    tree, version, tree_verdicts = tree_of(spec, facts, parts, read)
    config, later = configurations(parts)
    untimed = [part.read.untimed_from for part in parts if part.read.untimed_from is not None]
    for part in parts:
        part.read = SourceRead()
    chosen = [
        ChosenStep(1, record, bool(record.resumed), step in read.repeated)
        for step, record in sorted(read.records.items())
    ]
    read.records.clear()
    verdicts = [*read.verdicts, *tree_verdicts]
    if tree.flat:
        verdicts += in_the_tree(chosen, tree, run_id)
    else:
        chosen = [replace(c, record=timers_as_phases(c.record)) for c in chosen]
    _require_times(chosen, tree, run_id, verdicts)
    verdicts += _step_verdicts(spec, chosen, tree, config, later)
    verdicts = list(dict.fromkeys(verdicts))
    metadata: dict[str, Any] = {"timers": tree.name, "attempts": [1], "verdicts": [v.as_dict() for v in verdicts]}
    if tree not in trees_of(tree.trainer):
        metadata["tree"] = tree_to_json(tree)
    imported = _imported_file(spec, version, chosen, parts, step_counts, config)
    imported["clock"] = clock
    imported["first_step"] = min([imported["first_step"], *untimed])
    paths = (path for source in facts["sources"] if (path := existing_path(source)))
    if printed := printed_in(paths, engine_named(str(spec["engine"])).printed):
        imported["engine"] = printed
    if later:
        imported["later"] = later
    return RunRead(step_tables(cast(SpecFile, spec), run_dir, chosen, tree, metadata), imported, tree, verdicts)


def _step_verdicts(
    spec: Mapping[str, Any],
    chosen: list[ChosenStep],
    tree: TimerTree,
    config: Mapping[str, Any],
    later: Sequence[LaterSettings],
) -> Iterator[Verdict]:
    """The findings about a run's steps, to which their tokens and the time between them are added."""
    run_id = spec["run_id"]
    batch_size = spec["import"].get("batch_size") or (spec.get("workload") or {}).get("batch_size")
    if later:
        text = f"{run_id}: {change_reason(later)}. These steps are left out: they are of another measurement"
        yield Verdict("warning", "configuration-changed", text)
    yield from add_known_tokens(chosen, batch_size, run_id, config)
    yield from timer_verdicts(chosen, tree, run_id)
    yield from polling_verdicts(chosen, tree, run_id)
    yield from hole_verdicts(chosen, run_id)
    yield from clock_verdicts(chosen, run_id)
    yield from add_time_between(chosen, run_id)


def import_run(spec: Mapping[str, Any], run_dir: Path, cache: Path = CACHE) -> tuple[Iterator[pa.Table], ImportedFile]:
    """A run's tidy table, in parts, and its imported.json (both: docs/files.md), from its spec.json."""
    found = run_of(spec, read_sources(spec, cache), run_dir)
    return found.tables, with_hashes(found.imported)


def with_hashes(imported: _Facts) -> _Facts:
    """imported.json with the hashes of its files, each read once more."""
    for one in imported["sources"]:
        one["sha256"] = None if one["bytes"] is None else file_sha256(Path(one["source"]).expanduser())
    return imported


def _require_times(chosen: Sequence[ChosenStep], tree: TimerTree, run_id: str, verdicts: Sequence[Verdict]) -> None:
    if not any(tree.root in c.record.phases for c in chosen):
        if (supervised := next((one.text for one in verdicts if one.code == SUPERVISED), None)) is not None:
            raise UserError(
                f"{supervised}. None of its {len(chosen)} steps has its seconds: import a log with the progress bar, "
                "or TensorBoard's event files, which have a clock"
            )
        phases = sorted({path for c in chosen for path in c.record.phases})
        present = f"; its timers are {', '.join(phases[:8])}" if phases else ""
        why = next((f". {one.text}" for one in verdicts if one.code in _WITHOUT_TIMES), "")
        root = " or ".join(key if "/" in key else TIMERS + key for key in tree.phases[0].keys or (tree.root,))
        raise UserError(
            f"run {run_id}: none of its {len(chosen)} steps has the time of the whole step "
            f"({root}{present}). Import a source that has it; several sources of one run are joined by "
            f"step{why}"
        )


def _file_state(source: str) -> tuple[int, int] | None:
    path = None if source.startswith(WANDB) else existing_path(source)
    state = path.stat() if path is not None and path.is_file() else None
    return (state.st_size, state.st_mtime_ns) if state is not None else None


def _imported_file(
    spec: Mapping[str, Any],
    version: str,
    chosen: Sequence[ChosenStep],
    parts: Sequence[Imported],
    step_counts: Sequence[int],
    config: Mapping[str, Any],
) -> ImportedFile:
    """imported.json, which an imported run has instead of done.json."""
    steps = [c.record.step for c in chosen]
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
        # The configuration may contain secrets.
        "resolved": without_secrets(config),
        "command": {} if config else without_secrets(_settings_of_command(parts)),
        "git": next((part.git for part in parts if part.git), None),
        "started": min((p.started for p in parts if p.started is not None), default=None),
        "finished": max((p.finished for p in parts if p.finished is not None), default=None),
        "clock": "",
        "column": next((part.column for part in parts if part.column is not None), None),
        "sources": [
            {
                "source": source,
                "format": part.format,
                "sha256": None,
                "bytes": state[0] if (state := _file_state(source)) else None,
                "steps": count,
                "selected": part.selected or None,
            }
            for source, part, count in zip(spec["import"]["sources"], parts, step_counts, strict=True)
        ],
    }


def _settings_of_command(parts: Sequence[Imported]) -> dict[str, Any]:
    """The settings of the printed start command, with values as Hydra reads them; None for those of shell variables."""
    found: dict[str, Any] = {}
    for key, text in next((part.overrides for part in parts if part.overrides), {}).items():
        try:
            found[key] = None if "$" in text else yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):  # a date without such a day, a number of 5,000 digits
            found[key] = text
    return {key: value if isinstance(value, str | int | float | list | dict) else None for key, value in found.items()}


def write_import(spec: Mapping[str, Any], out: Path, cache: Path = CACHE) -> int:
    """Imports a run: writes spec.json, imported.json and `out`, its steps.parquet; returns the number of rows."""
    tables, imported = import_run(spec, out.parent, cache)
    write_facts(spec, imported, out.parent)
    return write_steps(tables, out)


def write_facts(spec: Mapping[str, Any], imported: Mapping[str, Any], run_dir: Path) -> None:
    """Writes spec.json and imported.json of a run."""
    for name, content in (("spec.json", spec), ("imported.json", imported)):
        text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
        write_bytes(run_dir / name, (text + "\n").encode())
