"""Finds out what each compared log is: its trainer, engine and release, and a name for its arm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from analysis.imports.formats import WANDB, existing_path, format_of, has_event_files
from analysis.imports.import_run import CACHE, read_whole
from analysis.imports.source_check import engine_of_source, trainer_of_source, trainers_by_data
from analysis.sources.event_files import is_event_file
from analysis.sources.wandb_api import download
from analysis.sources.wandb_files import captured_log
from common.errors import UserError
from engines import UNKNOWN, engine_of_name
from trainers.logs.record import Imported
from trainers.registry import trainer_named
from trainers.section import NAME_PATTERN, given_names
from trainers.timers.tree import release_of

_DOWNLOADS = 4
_USE = "rolloutbench compare A.log B.log"
_USE_SEEDS = "rolloutbench compare NAME=log1,log2 OTHER=log3,log4"
_MOST_BELOW = 20
_WANDB_ADDRESS = re.compile(r"https?://[^/]*wandb[^/]*/([^/]+)/([^/]+)/runs/([^/?#]+)")


@dataclass
class ComparedArm:
    """One arm: its given name, its runs' sources, and what was detected in them."""

    name: str
    sources: list[str]
    trainer: str = ""
    engine: str = ""
    release: str = ""
    trainer_unknown: bool = False
    """Whether its sources may be of another trainer, too."""
    named_release: str = ""
    """The release that its sources name."""
    release_unknown: bool = False
    """Whether neither its sources nor a flag name its release."""
    read: dict[str, Imported] = field(default_factory=dict)
    """The content of its sources, but for those that cannot be read."""
    runs: list[list[str]] = field(default_factory=list)
    """Its runs, each as a list of its sources."""
    folders: dict[str, list[str]] = field(default_factory=dict)
    """Given folder -> its logs, where it holds several: those of one run."""


def arms_of(given: Sequence[str], names: str | None) -> list[ComparedArm]:
    """The arms on the command line: `log`, `log1,log2`, or `NAME=log1,log2`."""
    arms = []
    for word in given:
        name, equals, rest = word.partition("=")
        if not equals or existing_path(word) or not re.fullmatch(NAME_PATTERN, name):
            name, rest = "", word
        sources = [rest] if existing_path(rest) else [one for one in rest.split(",") if one]
        if not sources:
            raise UserError(f"an arm has no log (got {word!r}); give LOG, or NAME=LOG: {_USE}")
        if word.endswith(",") and word != given[-1]:
            raise UserError(f"{word!r} ends with a comma; commas separate seeds without a blank: {_USE_SEEDS}")
        if left := [one for one in sources if re.search(r"[*?]", one) and "://" not in one and not existing_path(one)]:
            why = "the shell expands no pattern behind NAME=, and none without a match"
            raise UserError(f"no file is named {left[0]} ({why}); write the names: {_USE_SEEDS}")
        found = {one: _sources(one) for one in sources}
        folders = {one: logs for one, logs in found.items() if len(logs) > 1}
        arms.append(ComparedArm(name, [log for one in sources for log in found[one]], folders=folders))
    if len(arms) < 2:
        raise UserError(f"compare needs two runs or more (got {len(arms)}); give another log: {_USE}")
    if names is not None:
        for arm, name in zip(arms, given_names(names, len(arms)), strict=True):
            arm.name = name
    _require_different(arms)
    return arms


def _require_different(arms: Sequence[ComparedArm]) -> None:
    """`UserError` for a source that is given twice; a table may have the runs of several arms, by their names."""
    seen: dict[str, tuple[str, str]] = {}
    for name, source in ((arm.name, source) for arm in arms for source in arm.sources):
        path = existing_path(source)
        same = str(path.resolve()) if path else source
        if same in seen:
            earlier, first = seen[same]
            twice = f"{source} is given twice" if first == source else f"{first} and {source} are the same file"
            if Path(source).suffix.lower() not in (".csv", ".tsv"):
                raise UserError(f"{twice}; give the logs of two runs")
            if not name and not earlier:
                raise UserError(f"{twice}; name the runs as its column run, arm or engine does: a={source} b={source}")
        seen[same] = (name, source)


def _sources(given: str) -> list[str]:
    """Sources for the import: the run of an address on wandb, the logs of a folder, or what is given."""
    if on_wandb := _WANDB_ADDRESS.match(given):
        return [WANDB + "/".join(on_wandb.groups())]
    if "://" in given:
        raise UserError(f"{given} is an address; download it and give the file, or give {WANDB}entity/project/id")
    path = existing_path(given)
    if given.startswith(WANDB) or path is None or not path.is_dir():
        return [given]
    try:
        return _logs_in(path, given)
    except OSError as error:  # also where something vanishes meanwhile
        raise UserError(f"{given} cannot be read ({error.strerror}: {error.filename}); give the log itself") from None


def _logs_in(path: Path, given: str) -> list[str]:
    """A folder's logs, or the folder itself where it is a run; what has no name that can be shown is no log."""
    inside = [file for file in sorted(path.iterdir()) if file.is_file() and not file.name.startswith(".")]
    if any(path.glob("**/*.wandb")):
        return [given]
    logs = [file for file in inside if not is_event_file(file) and _is_log(file)]
    if not logs and (has_event_files(path) or captured_log(path)):
        return [given]
    if not logs:
        # Such as the state in a checkpoint's folder: the newest has all steps.
        below = sorted(path.glob("*/*.json*"), key=lambda file: file.stat().st_mtime, reverse=True)
        other = next((str(file) for file in below[:_MOST_BELOW] if _is_log(file)), "a log or another folder")
        raise UserError(f"{given} holds no readable log; give {other}")
    return [str(log) for log in logs]


def _is_log(file: Path) -> bool:
    try:
        return bool(format_of(str(file)))
    except UserError:
        return False


def download_all(sources: Sequence[str]) -> None:
    """Download runs from wandb into the cache, several at once: each mostly waits for the server."""
    with ThreadPoolExecutor(_DOWNLOADS) as pool:
        list(
            pool.map(lambda one: download(one.removeprefix(WANDB), CACHE), [s for s in sources if s.startswith(WANDB)])
        )


def detect(
    arm: ComparedArm,
    trainer: str | None = None,
    release: str | None = None,
    step_seconds: str | None = None,
    unit: str | None = None,
) -> list[str]:
    """Read an arm's sources, and detect its trainer, engine and release: from these, else as given.

    Returns a sentence for each source that cannot be read; `UserError` where none can.
    """
    errors: list[UserError] = []
    for source in arm.sources:
        try:
            arm.read[source] = _read(source, arm.name, step_seconds, unit)
        except UserError as error:
            # A name that is wrong is a mistake on the command line, and no run that failed.
            if not source.startswith(WANDB) and existing_path(source) is None:
                raise
            errors.append(error)
    if not arm.read:
        raise errors[0]
    arm.runs = [[source] for source in arm.read]
    _detect_trainer(arm, trainer)
    _detect_engine(arm)
    read = list(arm.read.values())
    package = trainer_named(arm.trainer).distribution
    versions = [v for found in read if (v := found.versions.get(package) or found.versions.get(arm.trainer))]
    arm.release, arm.named_release = "" if versions else release or "", next(iter(versions), "")
    arm.release_unknown = not versions and not release and all(source.tree is None for source in read)
    return [f"left out: {error}" for error in errors]


def _detect_trainer(arm: ComparedArm, trainer: str | None) -> None:
    """The trainer that the sources name, else the given one, else one that logs their numbers."""
    (first, shown), *_ = arm.read.items()
    read = list(arm.read.values())
    possible = [found[0] for source in read if (found := trainer_of_source(source)) is not None]
    packages = {name for source in read for name in source.versions}
    fitting = [name for name in (possible[0] if possible else ()) if not trainer or name == trainer]
    if len(fitting) > 1:
        fitting = [name for name in fitting if trainer_named(name).distribution in packages] or fitting
    if trainer and not fitting:
        if possible:
            raise UserError(f"{first} is a run of {' or '.join(possible[0])} (got --trainer {trainer}); omit --trainer")
        fitting = [trainer]
    if not fitting and any(source.tree is not None for source in read):
        fitting = [UNKNOWN]
    if not fitting:
        fitting = trainers_by_data(shown.read)
    if not fitting:
        raise UserError(f"{first} does not name its trainer; give --trainer NAME")
    # Those that one file may be of log the same numbers.
    arm.trainer, arm.trainer_unknown = fitting[0], not trainer and (len(fitting) > 1 or not possible)


def _detect_engine(arm: ComparedArm) -> None:
    """The engine that the sources name, else that of the arm's name, else the trainer's only one."""
    engine_names = [named[0] for source in arm.read.values() if (named := engine_of_source(source)) is not None]
    by_name = engine_of_name(arm.name)
    arm.engine = engine_names[0] if engine_names else by_name
    if by_name and arm.engine != by_name:
        first = next(iter(arm.read))
        raise UserError(
            f"{first} is a run of {arm.engine}, and its arm is named {arm.name}; swap the logs or rename it"
        )
    of_trainer = trainer_named(arm.trainer).engines
    if not arm.engine:
        arm.engine = of_trainer[0] if len(of_trainer) == 1 else UNKNOWN


def require_release(arms: Sequence[ComparedArm], given: str | None) -> None:
    """`UserError` for a given release if all logs name theirs, and one names another."""
    if not given or any(not arm.named_release for arm in arms):
        return
    for arm in arms:
        if release_of(arm.named_release) != release_of(given):
            raise UserError(
                f"{arm.sources[0]} says {arm.trainer} {arm.named_release} (got --release {given}); omit --release"
            )


def _read(source: str, name: str, step_seconds: str | None, unit: str | None) -> Imported:
    try:
        return read_whole(source, None, (name,), CACHE, step_seconds, None, unit)
    except UserError as error:
        # Omit the list of all formats: it is longer than the rest of the message.
        what, listed, _ = str(error).partition(" What can be imported:")
        remedy = "docs/import.md lists what can be read; of any other program write a CSV with step,step_time"
        raise UserError(f"{what} {remedy}" if listed else what) from None


def name_arms(arms: Sequence[ComparedArm]) -> None:
    """Name the unnamed arms: by engine, else by trainer and engine, else by the shortest paths that differ."""
    known = all(arm.name or arm.engine != UNKNOWN for arm in arms)
    deepest = max(len(Path(arm.sources[0]).parts) for arm in arms)
    for make in (
        *((lambda arm: arm.engine, lambda arm: f"{arm.trainer}-{arm.engine}") if known else ()),
        *(partial(_file_name, parts=parts) for parts in range(1, deepest + 1)),
    ):
        names = [arm.name or make(arm) for arm in arms]
        if len(set(names)) == len(names):
            break
    else:
        names = [arm.name or f"{arm.engine}-{number}" for number, arm in enumerate(arms, 1)]
    for arm, name in zip(arms, names, strict=True):
        arm.name = name
    if len({arm.name for arm in arms}) < len(arms):
        raise UserError(
            f"two arms have the same name ({', '.join(arm.name for arm in arms)}); give other names with --names"
        )


def _file_name(arm: ComparedArm, parts: int) -> str:
    """The last parts of the path of an arm's first source, as a name."""
    path = Path(arm.sources[0])
    if is_event_file(path):
        path = path.parent
    text = "-".join([*path.parent.parts[len(path.parent.parts) - parts + 1 :], path.stem])
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[-40:]
