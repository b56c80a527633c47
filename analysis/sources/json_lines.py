"""Which lines of a log of JSON lines can be read?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from analysis.verdicts import Verdict

T = TypeVar("T")


def json_lines(
    path: Path, shown_as: str, read_row: Callable[[Any, int], T | None], verdicts: list[Verdict]
) -> Iterator[T]:
    """What `read_row` makes of each line's content and number, where that is not None.

    A line that is no JSON, or of which `read_row` raises ValueError, TypeError or KeyError, is added to `verdicts` with
    its number; but a last line without its newline was cut off by a kill, and is left out without a word.
    """
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            if not raw.strip():
                continue
            try:
                found = read_row(json.loads(raw), number)
            except (ValueError, TypeError, KeyError) as error:
                if raw.endswith(b"\n"):
                    reason = " ".join(str(error).split()) or type(error).__name__
                    text = f"{shown_as}:{number} cannot be read and was skipped ({reason})"
                    verdicts.append(Verdict("warning", "corrupt-line", text))
                continue
            if found is not None:
                yield found
