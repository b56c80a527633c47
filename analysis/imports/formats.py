"""Recognises the format of a file that is imported, and reads it."""

from __future__ import annotations

import codecs
import json
import shlex
from collections.abc import Collection, Iterator
from itertools import chain, islice
from pathlib import Path

from analysis.sources import phases_csv
from analysis.sources.wandb_import import FORMAT_OFFLINE, read_wandb_api, read_wandb_offline_folder, require_wandb_run
from common.errors import UserError
from trainers.logs.log_files import clear_cache, open_log, printouts, require_utf8
from trainers.logs.record import Imported, SourceRead
from trainers.protocol import LogFormat
from trainers.registry import trainers

WANDB = "wandb:"
# A trainer may print much before its first step, but not a gigabyte of lines.
SEARCHED_LINES = 2_000_000
# What is looked at before anything is read: a verl run has printed its configuration, and mostly a step, by then.
INSPECTED_LINES, INSPECTED_BYTES = 5_000, 1_000_000
# A log of JSON lines has a row that can be read among its first.
LINES_OF_JSON = 20
# How packed files begin, and what unpacks them.
_PACKED = {
    b"\x1f\x8b": ("gzip", "gunzip -k"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"\xfd7zXZ\x00": ("xz", "unxz -k"),
    b"BZh": ("bzip2", "bunzip2 -k"),
}


def formats() -> dict[str, str]:
    """What can be imported: the names that `import.format` gives them, and what they are."""
    return {
        "wandb": "wandb:entity/project/id, a run on wandb's server",
        FORMAT_OFFLINE: "a wandb folder (wandb/offline-run-...) or its .wandb file",
        **{name: form.what for name, form in _logs().items()},
        phases_csv.FORMAT: "a CSV with the columns step, phase, seconds",
    }


def _logs() -> dict[str, LogFormat]:
    """The formats of trainers' own files."""
    return {form.name: form for trainer in trainers() for form in trainer.formats}


def read_source(source: str, form: str | None, names: Collection[str], cache: Path) -> Imported:
    """What a source holds, every number under its trainer's flat name.

    `form` is the format, None to tell it by the content; `names` tell runs in one table apart; what comes from
    wandb's server is kept in `cache`. `UserError` when it is not there, empty, or of another format.
    """
    clear_cache()
    given, form = form, form or format_of(source)
    if form not in formats():
        raise UserError(f"import.format must be one of {', '.join(formats())} (got {form!r})")
    if source.startswith(WANDB) or form == "wandb":
        return read_wandb_api(source.removeprefix(WANDB), cache)
    path = _there(source)
    if given is not None and path.is_file():
        _require_format(path, form, SEARCHED_LINES)
    if form == FORMAT_OFFLINE:
        return read_wandb_offline_folder(path)
    _require_file(path, form)
    require_unpacked(path)
    found = phases_csv.read_phases_csv(path, names) if form == phases_csv.FORMAT else _logs()[form].read(path)
    if not found.read.records:
        if form != phases_csv.FORMAT:
            _require_of_ours(path, source, SEARCHED_LINES)
        corrupt = next((v.text for v in found.read.verdicts if v.code == "corrupt-line"), None)
        raise UserError(
            f"{source} holds no training step as {form} ({formats()[form]}); {looks_like(path)}. Validation alone "
            "(step 0) is no training step. If it is of another format, say which in import.format"
            + (f". {corrupt}" if corrupt else "")
        )
    return found


def _require_file(path: Path, form: str) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a folder, but {form} is {formats()[form]}: name the file in it")


def _require_of_ours(path: Path, source: str, lines: int) -> None:
    """`UserError` where so many lines of a console log are of a program that is known, and not read."""
    unread = [(one.label or one.name, one.unread) for one in trainers() if one.unread is not None]
    found = (name for part in islice(printouts(path), lines) for name, console in unread if console.printed(part.text))
    if (name := next(found, None)) is not None:
        raise UserError(
            f"{source} looks like {name}'s console, which is not read: import the run from wandb "
            "(wandb:entity/project/id or its folder), or write a table with a column parent "
            "(docs/import.md#a-trainer-of-your-own). If it is of another trainer, say its format in import.format"
        )


def _there(source: str) -> Path:
    """A local source's path; `UserError` where nothing is there, or what could be waited for without end."""
    path = Path(source).expanduser()
    if not path.exists():
        raise UserError(f"{source} is not there; give a file, a folder or {WANDB}entity/project/id")
    if not (path.is_file() or path.is_dir()):
        raise UserError(f"{source} is neither a file nor a folder")
    return path


def format_of(source: str) -> str:
    """A source's format, told by its content; `UserError` that lists the known ones, and says what it looks like."""
    if source.startswith(WANDB):
        return "wandb"
    path = _there(source)
    if path.is_dir() or path.suffix == ".wandb":
        return FORMAT_OFFLINE
    require_unpacked(path)
    if (found := _of_data(path) or next(_of_steps(path, SEARCHED_LINES), None)) is not None:
        return found
    _require_of_ours(path, source, SEARCHED_LINES)
    known = "\n".join(f"  {name}: {what}" for name, what in formats().items())
    raise UserError(
        f"{source}: no training step of any known format was found; {looks_like(path)}. What can be imported:\n{known}"
    )


def inspect_source(source: str, form: str | None, versioned: bool = False) -> Imported | None:
    """What a local file says beside its steps, by its first part alone; None where that part tells no format.

    A console log's version is looked for in all of it, unless the run is `versioned` without it. `UserError` where the
    file is none that can be read, or a folder holds no run. A folder of wandb's, or what is not there, says no more.
    """
    clear_cache()
    path = Path(source).expanduser()
    if path.is_dir():
        if form in (None, FORMAT_OFFLINE):
            require_wandb_run(path)
        else:
            _require_file(path, form)
    if not path.is_file() or path.suffix == ".wandb":
        return None
    try:
        require_unpacked(path)
    except OSError as error:
        raise UserError(f"{source} cannot be read ({error.strerror or error})") from None
    if form is not None:
        _require_format(path, form, INSPECTED_LINES)
    else:
        small = path.stat().st_size <= INSPECTED_BYTES
        form = format_of(source) if small else _of_data(path) or next(_of_steps(path, INSPECTED_LINES), None)
    if form is None:
        _require_of_ours(path, source, INSPECTED_LINES)
    if form is None or form.startswith("wandb"):
        return None
    found = Imported(SourceRead(), form)
    if form == phases_csv.FORMAT:
        found.tree = {} if phases_csv.has_tree(path) else None
    elif (look := _logs()[form].preview) is not None:
        found = look(path, islice(printouts(path), INSPECTED_LINES), versioned)
    return found


def _of_steps(path: Path, lines: int) -> Iterator[str]:
    """The format of each training step that so many lines of a console log hold."""
    tests = [(name, form.is_step) for name, form in _logs().items() if form.is_step is not None]
    for part in islice(printouts(path), lines):
        yield from (name for name, is_step in tests if is_step(part))


def _require_format(path: Path, form: str, lines: int) -> None:
    """`UserError` where so many lines of a file are of other formats, and none of the one that was given for it."""
    with open_log(path) as file:
        if b"\0" in file.read(4096):
            # wandb's own file holds what was printed, too.
            return
    try:
        found = _of_data(path)
    except UserError:
        if form == phases_csv.FORMAT:
            raise
        found = None
    for one in chain(filter(None, [found]), _of_steps(path, lines)):
        if one == form:
            return
        found = found or one
    if found is not None:
        raise UserError(
            f"{path} is {found} by its content ({formats()[found]}), and import.format says {form} "
            f"({formats()[form]}): correct it, or leave it out"
        )


def require_unpacked(path: Path) -> None:
    """`UserError` with the command that unpacks or converts it, for a file that begins as packed or as UTF-16."""
    with open_log(path) as file:
        head = file.read(8)
    require_utf8(path, head)
    for begins, (name, command) in _PACKED.items():
        if head.startswith(begins):
            raise UserError(
                f"{path} is packed ({name}): unpack it, and name what comes out: {command} {shlex.quote(str(path))}"
            )


def _of_data(path: Path) -> str | None:
    """The format of a file of JSON or CSV; None for a console log."""
    with open_log(path) as file:
        head = file.read(INSPECTED_BYTES).removeprefix(codecs.BOM_UTF8)
    lines = [line.strip() for line in head.decode("utf-8", errors="replace").split("\n") if line.strip()]
    first = lines[0] if lines else ""
    if phases_csv.columns_of(first) is not None:
        return phases_csv.FORMAT
    if path.suffix.lower() in (".csv", ".tsv") and any(d in first for d in phases_csv.DELIMITERS):
        raise UserError(phases_csv.other_columns(path, first))
    if first.startswith("{'"):
        return None
    # The first lines of a log that was cut at its head, or damaged there, may be no JSON.
    found = next((form for line in lines[:LINES_OF_JSON] if (form := _of_json(line)) is not None), None)
    if found is None and first.startswith("{"):
        # A whole document over many lines.
        return next((name for name, form in _logs().items() if form.mark and _holds(path, form.mark)), None)
    return found


def _of_json(line: str) -> str | None:
    """The format whose row a line of JSON is."""
    try:
        row = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return next((name for name, form in _logs().items() if form.is_row is not None and form.is_row(row)), None)


def _holds(path: Path, word: bytes) -> bool:
    """Whether a file holds a word, which is looked for piece by piece."""
    piece = b""
    with open_log(path) as file:
        while more := file.read(1 << 20):
            piece = piece[-len(word) :] + more
            if word in piece:
                return True
    return False


def looks_like(path: Path) -> str:
    """What a file looks like, in words for an error."""
    with open_log(path) as file:
        head = file.read(4096)
    if not head:
        return "the file is empty"
    if b"\0" in head:
        return "the file is no text"
    lines = [line.strip() for line in head.decode("utf-8", errors="replace").splitlines() if line.strip()]
    if not lines:
        return "the file holds white space only"
    shown = "".join(c if c.isprintable() else "?" for c in lines[0][:80])
    return f"its first line begins {shown!r}"
