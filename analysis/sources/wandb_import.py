"""Reads a wandb run that was not trained here: from its folder on disk, or from wandb's server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from analysis.sources.wandb_about import facts_of, seconds_since_1970
from analysis.sources.wandb_api import HISTORY_PARTS, RUN_FILE, download
from analysis.sources.wandb_offline import records
from analysis.sources.wandb_rows import Row, anew_verdict, logged_steps, read_steps, steps_of, time_of
from common.errors import UserError
from common.files import read_json_object
from common.verdicts import Verdict
from trainers.logs.log_files import json_lines
from trainers.logs.record import Imported, SourceRead
from trainers.logs.restarts import Restart, counter_drops, restart_verdicts

FORMAT_OFFLINE = "wandb-offline"
FORMAT_API = "wandb"
# wandb names a run's folder by its time and its id.
_RUN_FOLDER = re.compile(r"(?:offline-)?run-\d{8}_\d{6}-([\w-]+)")
# What else of a run may lie in a folder.
_CAPTURED = "files/output.log"  # the console, as wandb captures it
_IMPORTABLE = (
    *(_CAPTURED, f"*/{_CAPTURED}", f"wandb/*/{_CAPTURED}"),
    *("[!.]*.log", "*.out", "*.jsonl", "*.csv", "trainer_state.json", "*/trainer_state.json", "*/wandb"),
)


@dataclass
class _Attempt:
    """One file of a run: what it says of the run, filled while its rows are read."""

    file: Path
    run: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    last_row_at: float | None = None

    @property
    def started(self) -> float | None:
        return seconds_since_1970(self.run.get("start_time"))

    def rows(self) -> Iterator[Row]:
        for number, kind, content in records(self.file, "run", "config", "environment", "history"):
            if kind == "history":
                row = content.get("item") or {}
                at = time_of(row)
                self.last_row_at = self.last_row_at if at is None else at
                yield self.file, number, row
            elif kind == "run":
                self.run |= content
                self.config |= (content.get("config") or {}).get("update") or {}
            elif kind == "config":
                self.config |= content.get("update") or {}
            else:
                self.about |= content


def read_wandb_offline_folder(path: Path) -> Imported:
    """One run's offline files: a `.wandb` file, its folder, or a `wandb` folder with the attempts of one run.

    Attempts are read in the order of their start: where two trained a step, the later counts, and where one began anew
    nothing before it. `UserError` when there is no such file, or when they are of several runs.
    """
    files = _files(path)
    _require_one_run(path, files)
    attempts = [_Attempt(file) for file in files]
    # An attempt's start is known when its rows were read.
    logged = {id(attempt): logged_steps(attempt.rows(), _shown(attempt.file, path)) for attempt in attempts}
    attempts.sort(key=lambda attempt: (attempt.started or 0.0, attempt.file.parent.name))
    reads = read_steps([logged[id(attempt)] for attempt in attempts])
    if not any(attempt.run for attempt in attempts):
        raise UserError(
            f"{path}: its wandb file holds no record: wandb writes every 15 seconds, and a run that was killed before "
            "leaves an empty one. Import the log that the trainer printed instead"
        )
    about = {key: value for attempt in attempts for key, value in (_metadata(attempt.file) | attempt.about).items()}
    config = {key: value for attempt in attempts for key, value in attempt.config.items()}
    ends = [attempt.last_row_at for attempt in attempts if attempt.last_row_at is not None]
    return Imported(
        _in_one(reads, path.name),
        FORMAT_OFFLINE,
        **facts_of(config, _lines(attempts[-1].file.parent / "files" / "requirements.txt"), about),
        started=attempts[0].started,
        finished=max(ends, default=None),
    )


def require_wandb_run(path: Path) -> None:
    """A `UserError` where a folder holds no run of wandb, or several; no file is read."""
    _require_one_run(path, _files(path))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(
            f"{path} is not there; `import` takes a wandb folder (wandb/offline-run-...) or its .wandb file"
        )
    for pattern in ("run-*.wandb", "*run-*-*/run-*.wandb", "wandb/*run-*-*/run-*.wandb"):
        # `latest-run` is a link to one of the others.
        files = [file for file in path.glob(pattern) if not file.parent.is_symlink() or file.parent == path]
        if files:
            return sorted(files)
    raise UserError(_no_run(path))


def _no_run(path: Path) -> str:
    """What a folder without a run of wandb holds instead, and where else the run may be."""
    inside = sorted({file for pattern in _IMPORTABLE for file in path.glob(pattern)})
    run = _RUN_FOLDER.fullmatch(path.resolve().name)
    server = f"wandb:entity/project/{run[1] if run else 'id'}"
    if inside:
        here = f"In it lie {_listed(inside)}: name the one that is meant"
        if run is None:
            here = f"A folder should be wandb/offline-run-<time>-<id>, or the wandb folder with those in it. {here}"
    else:
        others = sorted(path.glob("*"))
        lies = f"In it lie {_listed(others)}, none of which can be imported" if others else "It is empty"
        here = (
            f"{lies}. If the run was uploaded, import it from wandb's server: {server}; else import the log that the "
            "trainer printed"
        )
    gone = " (wandb sync --clean deletes it once it is uploaded)" if run else ""
    return f"{path} holds no wandb run: there is no run-{run[1] if run else '<id>'}.wandb{gone}. {here}"


def _listed(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files[:6])) + (f", ... ({len(files)} in all)" if len(files) > 6 else "")


def _require_one_run(path: Path, files: Sequence[Path]) -> None:
    """`UserError` when the files are of several runs: wandb names them run-<id>.wandb."""
    ids = list(dict.fromkeys(file.stem.removeprefix("run-") for file in files))
    if len(ids) > 1:
        shown = "\n".join(f"  {file.parent}" for file in files[:10]) + ("\n  ..." if len(files) > 10 else "")
        raise UserError(
            f"{path} holds {len(ids)} runs of wandb ({', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''}), and an "
            f"import is one run. Name the folder of one, or several of them as a list in `import`:\n{shown}"
        )


def _shown(file: Path, path: Path) -> str:
    return file.relative_to(path).as_posix() if file != path else path.name


def _metadata(file: Path) -> dict[str, Any]:
    # Earlier releases of wandb kept it in a file of its own.
    metadata = file.parent / "files" / "wandb-metadata.json"
    return read_json_object(metadata, "wandb") if metadata.is_file() else {}


def _in_one(reads: Sequence[SourceRead], shown_as: str) -> SourceRead:
    """The steps of a run's attempts, in the order of their start: of a step that two have, the later.

    An attempt that began where the first one did, or before, is another training: those before it are left out.
    """
    found = SourceRead()
    again: set[int] = set()
    for read in reads:
        if read.records and found.records and min(read.records) <= min(found.records):
            found = SourceRead(verdicts=[anew_verdict(shown_as, min(read.records), found.records)])
            again = set()
        again |= set(read.records) & set(found.records)
        first = min(read.records, default=1)
        if first > 1 and found.records:
            # Of another process, whose own seconds begin anew.
            record = replace(read.records[first], resumed=True, elapsed_s=None)
            before = found.records[max(step for step in found.records if step < first)]
            restarts = [Restart(before, record, fell)] if (fell := counter_drops(before, record)) else []
            found.verdicts += restart_verdicts(restarts, shown_as, lambda _: "import the folder of each by itself")
            read.records[first] = record
        found.records.update(read.records)
        found.written_by = read.written_by or found.written_by
        found.verdicts += read.verdicts
        found.repeated |= read.repeated
    found.repeated |= again
    found.records = dict(sorted(found.records.items()))
    if again:
        # Not at the top: a start looks at sources, and would load pyarrow.
        from analysis.attempts import overlap_verdict

        found.verdicts.append(overlap_verdict(shown_as, sorted(again)))
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []


def read_wandb_api(name: str, cache: Path) -> Imported:
    """A finished run on wandb's server, `entity/project/id`, with its whole history; what is in the cache is not
    asked for again.

    `UserError` in words about a missing key, run, permission or network, and about a run that still runs.
    """
    folder = download(name, cache)
    said = read_json_object(folder / RUN_FILE, "the download from wandb")
    damaged: list[Verdict] = []
    read = steps_of(_cached_rows(folder, name, damaged), name)
    read.verdicts += damaged
    if (said.get("history_lines") or 0) > said.get("rows", 0):
        text = (
            f"{name}: wandb counts {said['history_lines']} rows of history and gave {said['rows']}: steps may be "
            f"missing. Delete {folder} to ask again"
        )
        read.verdicts.append(Verdict("warning", "incomplete-history", text))
    return Imported(
        read,
        FORMAT_API,
        **facts_of(said.get("config") or {}, said.get("requirements") or [], said.get("metadata") or {}),
        started=seconds_since_1970(said.get("created_at")),
        finished=seconds_since_1970(said.get("heartbeat_at")),
    )


def _cached_rows(folder: Path, name: str, verdicts: list[Verdict]) -> Iterator[Row]:
    for part in sorted(folder.glob(HISTORY_PARTS)):
        yield from json_lines(part, f"{name}, {part.name}", partial(_row, part), verdicts)


def _row(part: Path, row: Any, number: int) -> Row:
    if not isinstance(row, dict):
        raise TypeError(f"expected an object, got {type(row).__name__}")
    return part, number, row
