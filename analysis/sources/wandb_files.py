"""Reads runs of wandb: offline files by wandb's own reader, the cache of its server, or a folder's captured console."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache as once
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from analysis.sources.wandb_api import HISTORY_PARTS, RUN_FILE, download
from analysis.sources.wandb_facts import facts_of, seconds_since_1970
from analysis.sources.wandb_rows import History, Row, steps_of, steps_of_lives, time_of
from common.dotted import as_mapping
from common.errors import UserError
from common.files import read_json_object
from common.messages import join_first
from common.shown import require_shown
from common.verdicts import Verdict
from trainers.logs.log_files import json_lines
from trainers.logs.record import Imported, LaterConfiguration, finite_number

FORMAT_OFFLINE = "wandb-offline"
FORMAT_API = "wandb"
# The console, as wandb captures it.
_CAPTURED = "files/output.log"
# The identifier, the magic number 0xBEE1 and the format's version, 0 (wandb 0.31 core/pkg/leveldb/record.go).
HEADER = b":W&B\xe1\xbe\x00"


@once
def inspect_command() -> tuple[str, ...]:
    """The command that prints a file's records as JSON, without the file's path. It sends nothing anywhere.

    `wandb leet` only starts this program of the wheel, after a second of imports.
    """
    wheel = find_spec("wandb")
    for place in wheel.submodule_search_locations or () if wheel else ():
        core = Path(place) / "bin" / "wandb-core"
        if core.is_file():
            return (str(core), "leet", "inspect", "--no-observability", "--json", "--run-file")
    return (sys.executable, "-P", "-m", "wandb", "leet", "inspect", "--json")


def records(path: Path, *kinds: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(record number, kind, content) of every record of these kinds in an offline wandb file, in file order.

    wandb's reader skips truncated and corrupt records. `UserError` when it fails altogether.
    """
    marks = {f'"type":"{kind}"': kind for kind in kinds}
    argv = [*inspect_command(), str(path.resolve())]
    with (
        tempfile.TemporaryFile() as stderr,
        # Not in the user's folder: wandb reads ./wandb/settings.
        subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                # Each line begins {"num":1,"type":"history": the many records of other kinds are not parsed.
                head = raw[:60].decode("utf-8", "replace")
                kind = next((kind for mark, kind in marks.items() if mark in head), None)
                if kind is not None:
                    record = json.loads(raw)
                    yield record["num"], kind, {**as_mapping(record.get(kind))}
        except GeneratorExit:
            process.kill()
            raise
        if process.wait() == 0:
            return
        stderr.seek(0)
        *_, last_line = ["no message", *stderr.read().decode("utf-8", "replace").strip().splitlines()]
    with path.open("rb") as file:
        if file.read(len(HEADER)) != HEADER:
            last_line = "it is damaged: it does not begin with wandb's header"
    raise UserError(
        f"wandb cannot read {path} ({last_line}); copy it again from the machine that wrote it, or import the run from "
        "wandb's server (wandb:entity/project/id), or the log that the trainer printed"
    )


@dataclass
class _Attempt:
    """One file of a run; `history` is read when it is made, and fills the other fields."""

    file: Path
    run: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    last_row_at: float | None = None

    def __post_init__(self) -> None:
        # Earlier releases of wandb wrote the metadata to a separate file.
        self.metadata |= _metadata(self.file.parent / "files")
        self.history = History(self._rows())

    @property
    def started(self) -> float | None:
        return seconds_since_1970(self.run.get("start_time"))

    def _rows(self) -> Iterator[Row]:
        for number, kind, content in records(self.file, "run", "config", "environment", "history"):
            if kind == "history":
                row = {**as_mapping(content.get("item"))}
                if (at := time_of(row)) is not None:
                    self.last_row_at = at
                yield self.file, number, row
            elif kind == "run":
                self.run |= content
                self.config |= as_mapping(as_mapping(content.get("config")).get("update"))
            elif kind == "config":
                self.config |= as_mapping(content.get("update"))
            else:
                self.metadata |= content


def read_wandb_offline_folder(path: Path) -> Imported:
    """One run's offline files: a `.wandb` file, its folder, or a `wandb` folder with the attempts of one run.

    Attempts are read in the order of their start. Where two trained a step, the later one counts; where one started
    from scratch, nothing before it counts. `UserError` when there is no such file, or when there are several runs.
    """
    attempts = [_Attempt(file) for file in run_files(path)]
    attempts.sort(key=lambda attempt: (attempt.started or 0.0, attempt.file.parent.name))
    if not any(attempt.run for attempt in attempts):
        raise UserError(
            f"{path}: its wandb file has no record: wandb writes every 15 seconds, and a run that was killed before "
            "leaves an empty one. Import the log that the trainer printed instead"
        )
    read = steps_of_lives([attempt.history for attempt in attempts], path.name)
    metadata: dict[str, Any] = {}
    for attempt in attempts:
        metadata |= attempt.metadata
    # Of attempts whose steps count; an earlier one may have been left out.
    files = {record.file for record in read.records.values()}
    configured = [one for one in attempts if one.config and one.file in files] or [
        one for one in attempts if one.config
    ]
    config = configured[0].config if configured else {}
    found = Imported(
        read, FORMAT_OFFLINE, **facts_of(config, _requirements(attempts[-1].file.parent / "files"), metadata)
    )
    for one in configured[1:]:
        if one.history.steps:
            settings = facts_of(one.config, (), {})["config"]
            found.later.append(LaterConfiguration(one.history.steps[0].record.step, settings))
    found.started = attempts[0].started
    found.finished = max((one.last_row_at for one in attempts if one.last_row_at is not None), default=None)
    return found


def run_files(path: Path) -> list[Path]:
    """The wandb files of the one run in a folder, unread; `UserError` where it has none, or several runs."""
    if path.is_file():
        return [path]
    for pattern in ("run-*.wandb", "*run-*-*/run-*.wandb", "wandb/*run-*-*/run-*.wandb"):
        # `latest-run` is a link to one of the others.
        files = sorted(file for file in path.glob(pattern) if not file.parent.is_symlink() or file.parent == path)
        for file in files:
            require_shown(str(file))
        ids = list(dict.fromkeys(file.stem.removeprefix("run-") for file in files))
        if len(ids) > 1:
            folders = join_first([str(file.parent) for file in files], 10)
            raise UserError(f"{path} holds {len(ids)} runs of wandb ({join_first(ids, 5)}); name one: {folders}")
        if files:
            return files
    logs = sorted(
        file for place in ("*.log", "*.out", "*.jsonl", "*.csv", "*/trainer_state.json") for file in path.glob(place)
    )
    # wandb names a run's folder by its time and its id.
    run = re.fullmatch(r"(?:offline-)?run-\d{8}_\d{6}-([\w-]+)", path.resolve().name)
    name = run[1] if run else "<id>"
    remedy = f"name a log: {join_first(logs, 6)}" if logs else f"give wandb:entity/project/{name}, on wandb's server"
    raise UserError(f"{path} holds no wandb run (run-{name}.wandb, which wandb sync --clean deletes); {remedy}")


def captured_log(path: Path) -> Path | None:
    """The captured console of the one run in a folder without .wandb files, as people commit it; None in others."""
    if not path.is_dir() or any(path.glob("**/*.wandb")):
        return None
    places = (_CAPTURED, f"*run-*-*/{_CAPTURED}", f"wandb/*run-*-*/{_CAPTURED}")
    found = [file for place in places for file in path.glob(place) if not file.parent.parent.is_symlink()]
    return found[0] if len(found) == 1 else None


def with_files_beside(found: Imported, folder: Path) -> Imported:
    """A read console with what wandb's other files in its folder say of the run, where it does not say it itself."""
    settings = folder / "config.yaml"
    try:
        raw = yaml.safe_load(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    except (yaml.YAMLError, ValueError, RecursionError):
        raw = {}
    facts = facts_of(as_mapping(raw), _requirements(folder), _metadata(folder))
    facts |= {"config": found.config or facts["config"], "versions": facts["versions"] | found.versions}
    return replace(found, **facts)


def _requirements(folder: Path) -> list[str]:
    file = folder / "requirements.txt"
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []


def _metadata(folder: Path) -> dict[str, Any]:
    file = folder / "wandb-metadata.json"
    return read_json_object(file, "wandb") if file.is_file() else {}


def read_wandb_api(name: str, cache: Path) -> Imported:
    """A finished run on wandb's server, `entity/project/id`, with its whole history; the cache is not downloaded again.

    `UserError` for a missing key, run, permission or network, and for a run that is still running.
    """
    folder = download(name, cache)
    about = read_json_object(folder / RUN_FILE, "the download from wandb")
    damaged: list[Verdict] = []
    rows = (
        row
        for part in sorted(folder.glob(HISTORY_PARTS))
        for row in json_lines(part, f"{name}, {part.name}", partial(_row, part), damaged)
    )
    read = steps_of(rows, name)
    read.verdicts += damaged
    if (finite_number(about.get("history_lines")) or 0) > (finite_number(about.get("rows")) or 0):
        text = (
            f"{name}: wandb counts {about['history_lines']} rows of history and gave {about['rows']}: steps may be "
            f"missing. Delete {folder} to download it again"
        )
        read.verdicts.append(Verdict("warning", "incomplete-history", text))
    requirements = about.get("requirements")
    listed = map(str, requirements) if isinstance(requirements, list) else []
    facts = facts_of(as_mapping(about.get("config")), listed, as_mapping(about.get("metadata")))
    started, finished = (seconds_since_1970(about.get(key)) for key in ("created_at", "heartbeat_at"))
    return Imported(read, FORMAT_API, **facts, started=started, finished=finished)


def _row(part: Path, row: Any, number: int) -> Row:
    if not isinstance(row, dict):
        raise TypeError(f"expected an object, got {type(row).__name__}")
    return part, number, row
