"""Reads a wandb run that was trained elsewhere: from its folder on disk, or from wandb's server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from analysis.sources.wandb_api import HISTORY_PARTS, RUN_FILE, download
from analysis.sources.wandb_offline import records
from analysis.sources.wandb_rows import Row, logged_steps, read_steps, restarted_verdict, steps_of, time_of
from common.dotted import as_mapping, is_bounded
from common.errors import UserError
from common.files import json_safe, read_json_object
from common.messages import join_first
from common.redaction import without_secrets
from common.shown import require_shown
from common.verdicts import Verdict
from trainers.logs.log_files import json_lines
from trainers.logs.record import Imported, SourceRead
from trainers.logs.restarts import Restart, counter_drops, restart_verdicts

FORMAT_OFFLINE = "wandb-offline"
FORMAT_API = "wandb"
# wandb names a run's folder by its time and its id.
_RUN_FOLDER = re.compile(r"(?:offline-)?run-\d{8}_\d{6}-([\w-]+)")
# The console, as wandb captures it.
_CAPTURED = "files/output.log"
# Other importable files of a run.
_IMPORTABLE = (
    *(_CAPTURED, f"*/{_CAPTURED}", f"wandb/*/{_CAPTURED}"),
    *("[!.]*.log", "*.out", "*.jsonl", "*.csv", "trainer_state.json", "*/trainer_state.json", "*/wandb"),
)

# The packages whose versions matter for a comparison, by the name that they are installed under.
PACKAGES = (
    *("nemo-rl", "openrlhf", "skyrl", "slime", "areal", "roll", "prime-rl"),
    *("verl", "trl", "ms-swift", "vllm", "sglang", "sgl-kernel", "torch", "transformers", "accelerate", "peft"),
    *("deepspeed", "megatron-core", "ray", "tensordict", "flash-attn", "flashinfer-python", "xformers", "triton"),
    *("liger-kernel", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "numpy", "wandb"),
)
# ms-swift is `swift` everywhere else here.
SHORT_NAMES = {"ms-swift": "swift"}

_MOST_PARTS = 100_000  # CPUs or GPUs of a machine


@dataclass
class _Attempt:
    """One file of a run. Iterating over `rows` fills the other fields."""

    file: Path
    run: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    last_row_at: float | None = None

    @property
    def started(self) -> float | None:
        return seconds_since_1970(self.run.get("start_time"))

    def rows(self) -> Iterator[Row]:
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
    logged = {}
    for attempt in attempts:
        file = attempt.file
        shown_as = file.relative_to(path).as_posix() if file != path else path.name
        logged[file] = logged_steps(attempt.rows(), shown_as)
    # An attempt's start is known when its rows were read.
    attempts.sort(key=lambda attempt: (attempt.started or 0.0, attempt.file.parent.name))
    reads = read_steps([logged[attempt.file] for attempt in attempts])
    if not any(attempt.run for attempt in attempts):
        raise UserError(
            f"{path}: its wandb file has no record: wandb writes every 15 seconds, and a run that was killed before "
            "leaves an empty one. Import the log that the trainer printed instead"
        )
    metadata: dict[str, Any] = {}
    config: dict[str, Any] = {}
    for attempt in attempts:
        # Earlier releases of wandb wrote the metadata to a separate file.
        metadata |= {**_metadata(attempt.file.parent / "files"), **attempt.metadata}
        config |= attempt.config
    requirements = _requirements(attempts[-1].file.parent / "files")
    return Imported(
        joined_attempts(reads, path.name),
        FORMAT_OFFLINE,
        **facts_of(config, requirements, metadata),
        started=attempts[0].started,
        finished=max((one.last_row_at for one in attempts if one.last_row_at is not None), default=None),
    )


def run_files(path: Path) -> list[Path]:
    """The wandb files of the one run in a folder, unread; `UserError` where it has none, or several runs."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(
            f"{path} does not exist; `import` takes a wandb folder (wandb/offline-run-...) or its .wandb file"
        )
    for pattern in ("run-*.wandb", "*run-*-*/run-*.wandb", "wandb/*run-*-*/run-*.wandb"):
        # `latest-run` is a link to one of the others.
        files = sorted(file for file in path.glob(pattern) if not file.parent.is_symlink() or file.parent == path)
        if not files:
            continue
        for file in files:
            require_shown(str(file))
        ids = list(dict.fromkeys(file.stem.removeprefix("run-") for file in files))
        if len(ids) > 1:
            shown = "\n".join(f"  {file.parent}" for file in files[:10]) + ("\n  ..." if len(files) > 10 else "")
            raise UserError(
                f"{path} holds {len(ids)} runs of wandb ({join_first(ids, 5)}), and "
                f"an import is one run. Name the folder of one, or several of them as a list in `import`:\n{shown}"
            )
        return files
    raise UserError(_no_run(path))


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
    return replace(
        found,
        config=found.config or facts["config"],
        versions=facts["versions"] | found.versions,
        hardware=facts["hardware"],
        git=facts["git"],
    )


def _requirements(folder: Path) -> list[str]:
    file = folder / "requirements.txt"
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []


def _metadata(folder: Path) -> Mapping[str, Any]:
    file = folder / "wandb-metadata.json"
    return read_json_object(file, "wandb") if file.is_file() else {}


def _no_run(path: Path) -> str:
    """The error for a folder without a wandb run: its importable files, and where the run may be instead."""
    importable = sorted({file for pattern in _IMPORTABLE for file in path.glob(pattern)})
    run = _RUN_FOLDER.fullmatch(path.resolve().name)
    if importable:
        remedy = f"It contains {join_first(importable, 6)}: name one of these"
        if run is None:
            remedy = f"A folder must be wandb/offline-run-<time>-<id>, or the wandb folder above it. {remedy}"
    else:
        others = sorted(path.glob("*"))
        content = f"It contains {join_first(others, 6)}, none of which can be imported" if others else "It is empty"
        remedy = (
            f"{content}. If the run was uploaded, import it from wandb's server: wandb:entity/project/"
            f"{run[1] if run else 'id'}; else import the log that the trainer printed"
        )
    deleted = " (wandb sync --clean deletes it after the upload)" if run else ""
    return f"{path} holds no wandb run: there is no run-{run[1] if run else '<id>'}.wandb{deleted}. {remedy}"


def joined_attempts(reads: Sequence[SourceRead], shown_as: str) -> SourceRead:
    """The steps of a run's attempts, in the order of their start; of a step that two have, the later one counts.

    An attempt that starts at the first step, or before, is another training: the attempts before it are left out.
    """
    found = SourceRead()
    overlap: set[int] = set()
    for read in reads:
        first = min(read.records, default=1)
        if read.records and found.records and first <= min(found.records):
            found = SourceRead(verdicts=[restarted_verdict(shown_as, first, found.records)])
            overlap = set()
        overlap |= set(read.records) & set(found.records)
        if first > 1 and found.records:
            # The record is of another process, which counts its seconds from 0.
            record = replace(read.records[first], resumed=True, elapsed_s=None)
            before = found.records[max(step for step in found.records if step < first)]
            restarts = [Restart(before, record, fell)] if (fell := counter_drops(before, record)) else []
            found.verdicts += restart_verdicts(restarts, shown_as, lambda _: "import the folder of each by itself")
            read.records[first] = record
        found.records.update(read.records)
        found.written_by = read.written_by or found.written_by
        found.verdicts += read.verdicts
        found.repeated |= read.repeated
    found.repeated |= overlap
    found.records = dict(sorted(found.records.items()))
    if overlap:
        # Imported here, because start-up loads the sources, and this module loads pyarrow.
        from analysis.attempts import overlap_verdict

        found.verdicts.append(overlap_verdict(shown_as, sorted(overlap)))
    return found


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
    if (_number(about.get("history_lines")) or 0) > (_number(about.get("rows")) or 0):
        text = (
            f"{name}: wandb counts {about['history_lines']} rows of history and gave {about['rows']}: steps may be "
            f"missing. Delete {folder} to download it again"
        )
        read.verdicts.append(Verdict("warning", "incomplete-history", text))
    requirements = about.get("requirements")
    listed = map(str, requirements) if isinstance(requirements, list) else []
    return Imported(
        read,
        FORMAT_API,
        **facts_of(as_mapping(about.get("config")), listed, as_mapping(about.get("metadata"))),
        started=seconds_since_1970(about.get("created_at")),
        finished=seconds_since_1970(about.get("heartbeat_at")),
    )


def _row(part: Path, row: Any, number: int) -> Row:
    if not isinstance(row, dict):
        raise TypeError(f"expected an object, got {type(row).__name__}")
    return part, number, row


def facts_of(config: Mapping[str, Any], requirements: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What an import keeps of a run's configuration, its requirements.txt and wandb's metadata."""
    versions, hardware = versions_in(requirements, metadata), hardware_in(metadata)
    return {"config": plain_config(config), "versions": versions, "hardware": hardware, "git": git_in(metadata)}


def plain_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration as its program set it, without wandb's own entries, `value` wrappers and secrets."""
    plain: dict[str, Any] = {}
    for key, value in raw.items() if is_bounded(raw) else ():
        if key not in ("_wandb", "wandb_version"):
            wrapped = isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}
            plain[str(key)] = without_secrets(value["value"] if wrapped else value, str(key))
    found: dict[str, Any] = json_safe(plain)
    return found


def versions_in(requirements: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, str]:
    """Versions by package from the lines of wandb's requirements.txt, and Python's from its metadata."""
    found = {}
    for line in requirements:
        name, equals, version = line.strip().partition("==")
        name = re.sub(r"[-_.]+", "-", name).lower()
        if equals and name in PACKAGES:
            found[SHORT_NAMES.get(name, name)] = version.strip()
    if python := re.search(r"\d+(\.\d+)+", str(metadata.get("python") or "")):
        found["python"] = python.group()
    return found


def hardware_in(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Host, CPUs, memory and GPUs of the node whose process logged, under done.json's names (docs/files.md)."""
    host, cpu = metadata.get("host"), as_mapping(metadata.get("cpu")).get("model")
    memory = _number(as_mapping(metadata.get("memory")).get("total")) or 0.0
    found = {
        "host": str(host) if host else None,
        "cpu": str(cpu) if cpu else None,
        "cpus": _count(metadata.get("cpu_count_logical") or metadata.get("cpu_count")),
        # Earlier releases of wandb gave GiB, later ones bytes.
        "memory_gib": round(memory / 2**30 if memory > 2**20 else memory, 1) if memory else None,
        "gpus": _gpus(metadata),
    }
    return {key: value for key, value in found.items() if value}


def _gpus(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    devices = next((found for key in ("gpu_nvidia", "gpu_amd", "gpu_devices") if (found := metadata.get(key))), None)
    if not isinstance(devices, list):
        name = metadata.get("gpu_type") or metadata.get("gpu")
        return [{"name": str(name)}] * _count(metadata.get("gpu_count")) if name else []
    gpus = []
    for device in map(as_mapping, devices):
        if name := device.get("name") or device.get("model_name"):
            total = _number(device.get("memory_total", device.get("memoryTotal")))
            gpus.append({"name": str(name), **({"memory_gib": round(total / 2**30, 1)} if total else {})})
    return gpus


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _count(value: Any) -> int:
    """A number of parts of one machine; 0 for what cannot be one."""
    number = _number(value) or 0.0
    return int(number) if 0 < number < _MOST_PARTS else 0


def git_in(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Remote and commit of the run's code, None where wandb saw no repository."""
    git = as_mapping(metadata.get("git"))
    remote = git.get("remote") or git.get("remote_url")
    found = {"remote": without_secrets(str(remote)) if remote else None, "commit": git.get("commit")}
    return {key: value for key, value in found.items() if value} or None


def seconds_since_1970(text: object) -> float | None:
    """A time as wandb writes it (`2026-11-21T19:14:48.147693Z`; UTC without a zone); None for anything else."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
