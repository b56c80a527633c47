"""Writes the files of a command again, except those that somebody has edited since."""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import write_text_at
from workflow.config.plan import Plan, load_plan
from workflow.config.reading import read_yaml

_SHOWN = 5


def line_changes(before: str, after: str) -> Iterator[tuple[int, str, str]]:
    """Where two texts differ: the line's number in the first, its lines there, and those of the second."""
    old, new = before.splitlines(), after.splitlines()
    for kind, start, end, other, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield start + 1, "\n".join(old[start:end]), "\n".join(new[other:last])


def line_blocks(before: str, afters: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Where any of several texts differs from the first: a line's number there, its lines, and those of each text."""
    old = before.splitlines()
    found = [[(at - 1, len(was.splitlines()), now) for at, was, now in line_changes(before, one)] for one in afters]
    ends: list[list[int]] = []
    for start, end in sorted((at, at + length) for changes in found for at, length, _ in changes):
        if ends and start < ends[-1][1]:
            ends[-1][1] = max(end, ends[-1][1])
        elif [start, end] not in ends:
            ends.append([start, end])
    for start, end in ends:
        texts = []
        for changes in found:
            lines, at = [], start
            for begin, length, now in changes:
                if start <= begin and begin + length <= end:
                    lines += [*old[at:begin], *now.splitlines()]
                    at = begin + length
            texts.append("\n".join([*lines, *old[at:end]]))
        yield start + 1, "\n".join(old[start:end]), texts


def write_unless_edited(writes: Mapping[Path, str], mark: str, about: str) -> list[Path]:
    """Write files whose first line is a mark with the hash of what follows; the files that are kept as edited.

    A `UserError`, before anything is written, if a file has no such mark.
    """
    marked = re.compile(rf"{re.escape(mark)}(?: \((\w+)\))?; .*")
    kept = []
    for file, text in writes.items():
        if not file.exists():
            continue
        if not file.is_file():
            raise UserError(f"{file} is not a file; give another one with --save FILE.yaml")
        first, _, rest = file.read_text(encoding="utf-8", errors="replace").partition("\n")
        if (found := marked.fullmatch(first)) is None:
            raise UserError(f"{file} exists and was not written by this command; give --save FILE.yaml")
        if found[1] != _hash(rest) and rest != text:
            kept.append(file)
    for file, text in writes.items():
        if file in kept:
            print(f"kept {file}, edited since this command wrote it; {_instead(file, text)}")
        else:
            write_text_at(file, f"{mark} ({_hash(text)}); {about}\n{text}", "give another file with --save")
            print(f"wrote {file}")
    return kept


def kept_plan(file: Path, raw: Mapping[str, Any], use: str) -> Plan:
    """The plan of an edited configuration; `UserError` if its arms are others than the command asks for."""
    keys = ("script", "arguments", "words", "python", "image")
    kept = read_yaml(file)
    plan = load_plan(kept)
    own, asked = (
        {name: [(arm.get("options") or {}).get(key) for key in keys] for name, arm in one["arms"].items()}
        for one in (kept, raw)
    )
    if own != asked:
        raise UserError(
            f"{file} as edited has other arms or values than this command asks for ({', '.join(own)}), so nothing was "
            f"started; start those by `{use}`, or give another file with --save"
        )
    return plan


def _instead(file: Path, text: str) -> str:
    """What a kept file would have, and how it is written all the same."""
    rest = file.read_text(encoding="utf-8", errors="replace").partition("\n")[2]
    found = [
        f"{_of(before)} -> {_of(after)}" for _, before, after in line_changes(rest, text) if _of(before) != _of(after)
    ]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"it would become: {', '.join(found[:_SHOWN])}{more}; rm {shlex.quote(str(file))} before, to have it written"


def _of(lines: str) -> str:
    return " | ".join(line.strip() for line in lines.splitlines()) or "(nothing)"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
