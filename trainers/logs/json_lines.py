"""Reads logs of JSON lines; lines that cannot be read are left out and told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from common.verdicts import Verdict

T = TypeVar("T")


def from_json(raw: bytes | str) -> Any:
    """What a text of JSON holds; `ValueError` where it is none, is nested too deeply or has texts that are none."""
    try:
        found = json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if (b"\\u" if isinstance(raw, bytes) else "\\u") in raw:  # type: ignore[operator]
        require_characters(found)
    return found


def require_characters(found: Any) -> None:
    """`ValueError` for half of a character (a lone surrogate): it can be written in JSON, and nowhere else."""
    json.dumps(found, ensure_ascii=False).encode()


def json_lines(
    path: Path, shown_as: str, read_row: Callable[[Any, int], T | None], verdicts: list[Verdict]
) -> Iterator[T]:
    """What `read_row` makes of each line's content and number, where that is not None.

    A line that is no JSON, or of which `read_row` raises ValueError, TypeError, KeyError or OverflowError, is added to
    `verdicts` with its number; but a last line without its newline was cut off by a kill, and is left out without a
    word.
    """
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            if not raw.strip():
                continue
            try:
                found = read_row(from_json(raw), number)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                if raw.endswith(b"\n"):
                    reason = " ".join(str(error).split()) or type(error).__name__
                    text = f"{shown_as}:{number} cannot be read and was skipped ({reason})"
                    verdicts.append(Verdict("warning", "corrupt-line", text))
                continue
            if found is not None:
                yield found
