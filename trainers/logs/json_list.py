"""Reads the list of one key of a JSON document element by element: a document of any length takes little memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from trainers.logs.json_lines import require_characters

CHUNK_CHARS = 1 << 20
# No element is longer: what cannot be read with so much behind it is corrupt.
LONGEST_CHARS = 1 << 24
_SPACE = re.compile(r"\s*")


def list_of(path: Path, key: str) -> Iterator[Any] | None:
    """The elements of the list under a key, the first one of that name; None where there is none.

    `ValueError` and `RecursionError`, while they are read, where an element cannot be.
    """
    begins = re.compile(rf'(?<!\\)"{re.escape(key)}"\s*:\s*\[')
    file = path.open(encoding="utf-8-sig")
    text = ""
    try:
        while more := file.read(CHUNK_CHARS):
            text = text[-1000:] + more
            if (found := begins.search(text)) is not None:
                return _elements(file, text[found.end() :])
    except ValueError:
        file.close()
        raise
    file.close()
    return None


def _elements(file: TextIO, text: str) -> Iterator[Any]:
    decode, at = json.JSONDecoder().raw_decode, 0
    with file:
        while True:
            try:
                at = _after_space(text, at)
                if text[at : at + 1] == "]":
                    return
                found, end = decode(text, at)
                end = _after_space(text, end)
                if text[end : end + 1] not in (",", "]"):
                    raise ValueError("no comma behind it")
                if "\\u" in text[at:end]:
                    require_characters(found)
            except ValueError:
                text, at = text[at:], 0
                more = file.read(max(CHUNK_CHARS, len(text))) if len(text) < LONGEST_CHARS else ""
                if not more:
                    raise
                text += more
                continue
            yield found
            at = end + 1 if text[end] == "," else end


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()
