"""Recognises the format of an imported file, and reads it."""

from __future__ import annotations

import codecs
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from analysis.sources import event_files, plain_table, table_frame
from analysis.sources.wandb_files import (
    FORMAT_OFFLINE,
    captured_log,
    read_wandb_api,
    read_wandb_offline_folder,
    run_files,
    with_files_beside,
)
from common.errors import UserError
from common.shown import require_shown, shown
from trainers.logs.log_files import parse_json, printouts, printouts_in, require_utf8
from trainers.logs.record import Imported
from trainers.protocol import LogFormat
from trainers.registry import trainers

WANDB = "wandb:"
# A trainer may print much before its first step, but not a gigabyte of lines.
SEARCHED_LINES = 2_000_000
# The part that is read for a first check: most runs have printed their configuration, and a step, by then.
INSPECTED_BYTES = 1_000_000
# A log of JSON lines, or a table, has a readable row among its first.
HEAD_LINES = 20
_LONGEST_SHOWN = 200
# The first bytes of packed files, and the command that unpacks them.
_PACKED = {
    b"\x1f\x8b": ("gzip", "gunzip -k"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"\xfd7zXZ\x00": ("xz", "unxz -k"),
    b"BZh": ("bzip2", "bunzip2 -k"),
}


# The identifier at the head of wandb's own files.
_OF_WANDB = b":W&B"
_SHEETS = (".xlsx", ".xls", ".ods")


def formats() -> dict[str, str]:
    """What can be imported: the values of `import.format`, and their descriptions."""
    return {
        "wandb": "wandb:entity/project/id, a run on wandb's server",
        FORMAT_OFFLINE: "a wandb folder (wandb/offline-run-...) or its .wandb file",
        event_files.FORMAT: "a folder with TensorBoard's event files (events.out.tfevents...), or one of them",
        **{name: form.what for name, form in _logs().items() if form.read is not None},
        table_frame.FORMAT: "JSON, JSON lines, a CSV or parquet file with a row for each step (step, step_time), or "
        "for each of its phases (step, phase, seconds)",
    }


def _logs() -> dict[str, LogFormat]:
    """The consoles that are read, and those that are only recognised."""
    return {form.name: form for trainer in trainers() for form in trainer.logs.formats}


def read_source(
    source: str,
    form: str | None,
    names: Collection[str],
    cache: Path,
    step_seconds: str | None = None,
    trainer: str | None = None,
    unit: str | None = None,
) -> Imported:
    """The content of a source, every number under its trainer's flat name.

    `form` is the format; None detects it by the content. `names` select one run in a table of several. Downloads from
    wandb's server are kept in `cache`. `step_seconds` is a table's column with the step's seconds, in `unit`, and
    `trainer` the one whose names such a table may have, None for any. `UserError` when the source is
    missing, empty, or of another format.
    """
    if form is not None and form not in formats():
        raise UserError(f"import.format must be one of {', '.join(formats())} (got {form!r})")
    if source.startswith(WANDB) or form == "wandb":
        return read_wandb_api(source.removeprefix(WANDB), cache)
    path = _existing(source)
    if (log := _captured_log(path)) is not None:
        return with_files_beside(read_source(str(log), form, names, cache, step_seconds, trainer, unit), log.parent)
    form = format_of(source, form)
    if form == FORMAT_OFFLINE:
        return read_wandb_offline_folder(path)
    if form == event_files.FORMAT:
        return event_files.read_event_files(path, step_seconds, unit)
    if form == table_frame.FORMAT:
        found = plain_table.read_table(path, step_seconds, names, trainer, unit)
    else:
        read = _logs()[form].read
        assert read is not None  # `formats` has no other
        found = read(path)
    if not found.read.records:
        _require_readable_console(path, source)
        if why := next((v.text for v in found.read.verdicts if v.code in ("corrupt-line", "timings-missing")), ""):
            raise UserError(f"{source} has no training step that can be read as {form}: {why}")
        raise UserError(
            f"{source} has no training step as {form} ({formats()[form]}); {_appearance(path)}. Validation alone "
            "(step 0) is not a training step. A configuration may name another format (import.format)"
        )
    return found


def format_of(source: str, given: str | None = None) -> str:
    """A source's format, detected by its content, or the given one; the `UserError` lists the known formats."""
    if (form := _format_shown(source, given)) is not None:
        return form
    known = "\n".join(f"  {name}: {what}" for name, what in formats().items())
    raise UserError(
        f"{source}: no training step of any known format was found; {_appearance(_existing(source))}. What can be "
        f"imported:\n{known}"
    )


def _format_shown(source: str, given: str | None, whole: bool = True) -> str | None:
    """The format that a source's content shows, or the given one; None for a file that shows none.

    `whole`: also beyond a file's first part. `UserError` where a file is of other formats than the given one.
    """
    path = _existing(source)
    path = _captured_log(path) or path
    if path.is_dir():
        if given not in (None, FORMAT_OFFLINE, event_files.FORMAT):
            raise UserError(f"{path} is a folder, but {given} is {formats()[given]}: name the file in it")
        return given or (event_files.FORMAT if has_event_files(path) else FORMAT_OFFLINE)
    found = None
    for detected in _formats_in(path, whole):
        if given in (None, detected):
            return detected
        found = found or detected
    if given and found:
        raise UserError(
            f"{path} is {found} by its content ({formats()[found]}), and import.format says {given} "
            f"({formats()[given]}): correct import.format, or leave it out"
        )
    if given is None:
        _require_readable_console(path, source)
    return given


def has_event_files(path: Path) -> bool:
    """Whether a file is one of TensorBoard's, or a folder has them and no run of wandb, which has all digits."""
    if not path.is_dir():
        return event_files.is_event_file(path)
    return bool(event_files.event_files(path)) and not any(path.glob("**/*.wandb"))


def _captured_log(path: Path) -> Path | None:
    """The log that a folder of wandb has instead of the run itself."""
    return captured_log(path) if path.is_dir() and not has_event_files(path) else None


def require_known(source: str, form: str | None) -> None:
    """`UserError` where a local source is missing, or its first part shows that it cannot be read."""
    try:
        if _format_shown(source, form, whole=False) == FORMAT_OFFLINE:
            run_files(_existing(source))
    except OSError as error:
        raise UserError(f"{source} cannot be read ({error.strerror or error})") from None


def existing_path(source: str) -> Path | None:
    """The path of a local source; None if there is no such file or folder."""
    try:
        path = Path(source).expanduser()
        if not (source and path.exists()):
            return None
        require_shown(source)
        return path
    except PermissionError as error:
        raise UserError(f"{source} cannot be read ({error.strerror})") from None
    except (OSError, RuntimeError):  # a name that is too long, a user that does not exist
        return None


def _existing(source: str) -> Path:
    """A local source's path; `UserError` where it is missing, or a pipe or device, whose reading may never end."""
    path = existing_path(source)
    if path is None:
        begins = source if len(source) <= _LONGEST_SHOWN else f"{source[:_LONGEST_SHOWN]}..."
        raise UserError(f"{shown(begins)} does not exist; give a file, a folder or {WANDB}entity/project/id")
    if not (path.is_file() or path.is_dir()):
        raise UserError(f"{source} is neither a file nor a folder; save what it has to a file, and give that")
    return path


def _require_readable_console(path: Path, source: str) -> None:
    """`UserError` where so many lines of a console log are of a program that is known, and not read."""
    unread = [form for form in _logs().values() if form.read is None]
    parts = islice(printouts(path), SEARCHED_LINES)
    if (what := next((form.what for part in parts for form in unread if form.is_step(part)), None)) is not None:
        raise UserError(
            f"{source} looks like {what}, which is not read: import the run from wandb "
            "(wandb:entity/project/id or its folder), or write a table with a column parent "
            "(docs/import.md#a-trainer-of-your-own). If it is of another trainer, name its format in import.format"
        )


def _formats_in(path: Path, whole: bool = True) -> Iterator[str]:
    """The formats that a file's content shows, the first one first; `whole`: beyond its head, too."""
    with path.open("rb") as file:
        head, more = file.read(INSPECTED_BYTES), file.read(1)
    _require_unpacked(path, head)
    if event_files.is_event_file(path, head):
        yield event_files.FORMAT
        return
    if path.suffix == ".wandb" or head.startswith(_OF_WANDB):
        # Its records contain printed lines, too.
        yield FORMAT_OFFLINE
        return
    lines = head.splitlines(keepends=True)
    texts = [line.strip() for line in head.removeprefix(codecs.BOM_UTF8).decode(errors="replace").split("\n")]
    texts = list(islice(filter(None, texts), HEAD_LINES))
    if not (texts and texts[0].startswith(('{"', "["))):
        # An export of a cluster's log may have a console's lines as cells.
        yield from _steps_in(lines[:HEAD_LINES], path)
    if (data := _data_format(path, texts, lines)) is not None:
        yield data
    yield from _steps_in(lines, path)
    if more and whole:
        with path.open("rb") as file:
            yield from _steps_in(islice(file, SEARCHED_LINES), path)


def _require_unpacked(path: Path, head: bytes) -> None:
    """`UserError`, with the command that unpacks or converts it, for a packed file or UTF-16."""
    require_utf8(path, head)
    if path.suffix.lower() in _SHEETS:
        raise UserError(f"{path} is a spreadsheet; save its table as CSV (UTF-8), and give that")
    for begins, (name, command) in _PACKED.items():
        if head.startswith(begins):
            raise UserError(
                f"{path} is packed ({name}); unpack it, and give the result: {command} {shlex.quote(str(path))}"
            )


def _steps_in(lines: Iterable[bytes], path: Path) -> Iterator[str]:
    """The format of each training step in a console log's lines."""
    read = [form for form in _logs().values() if form.read is not None]
    for part in printouts_in(lines, path):
        yield from (form.name for form in read if form.is_step(part))


def _data_format(path: Path, head: Sequence[str], lines: Sequence[bytes]) -> str | None:
    """The format of a file of JSON, CSV or parquet, by its first texts and lines; None for a console log."""
    first = head[0] if head else ""
    if path.suffix.lower() == ".parquet" or (first and path.suffix.lower() in (".csv", ".tsv")):
        return table_frame.FORMAT
    if first.startswith("{'"):
        return None
    # The first lines of a log that was truncated or damaged at its head may not be JSON.
    found = next((form for line in head if (form := _row_format(line)) is not None), None)
    if found is None and table_frame.is_table(head):
        return table_frame.FORMAT
    if found is None and first.startswith(("{", "[")):
        # One JSON document over many lines.
        return next(_steps_in(lines, path), None) or (table_frame.FORMAT if table_frame.is_document(path) else None)
    return found


def _row_format(line: str) -> str | None:
    try:
        row = parse_json(line) if line.startswith("{") else None
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    return next((name for name, form in _logs().items() if form.is_row(row)), None)


def _appearance(path: Path) -> str:
    """How a file begins, for an error message."""
    with path.open("rb") as file:
        head = file.read(4096)
    if not head:
        return "the file is empty"
    if b"\0" in head:
        return "the file is not text"
    lines = [line.strip() for line in head.decode("utf-8", errors="replace").splitlines() if line.strip()]
    if not lines:
        return "the file holds white space only"
    begins = "".join(c if c.isprintable() else "?" for c in lines[0][:80])
    return f"its first line begins {begins!r}"
