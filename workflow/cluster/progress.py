"""How far is a run? Read from its metrics.jsonl as it grows."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Progress:
    """Follows one attempt's metrics.jsonl; `poll` returns a line for people when there is something new."""

    path: Path
    run_id: str
    steps: int
    _offset: int = 0
    _seconds: list[float] = field(default_factory=list)

    def poll(self) -> str | None:
        """The newest finished step, its time and what is left; None if nothing was finished since the last call."""
        newest = None
        for row in self._new_rows():
            newest = row
            self._seconds.append(float(row["phases"]["step"]) + float(row["scalars"].get("between_steps_s") or 0.0))
        if newest is None:
            return None
        # The median of the recent steps: the first ones of an engine are slow and would mislead.
        left_s = statistics.median(self._seconds[-10:]) * (self.steps - newest["step"])
        left = f"about {readable_duration(left_s)} left" if newest["step"] < self.steps else "last step"
        return f"{self.run_id}: step {newest['step']}/{self.steps}, {newest['phases']['step']:.2f} s, {left}"

    def _new_rows(self) -> list[dict[str, Any]]:
        """Rows that were completed since the last call; a line that is still being written waits for the next."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        rows = []
        for line in whole.splitlines():
            try:
                row = json.loads(line)
                float(row["phases"]["step"])
                int(row["step"])
                rows.append(row)
            except (ValueError, KeyError, TypeError):
                continue  # the collector says what is wrong with a line; progress only looks
        return rows


def readable_duration(seconds: float) -> str:
    """Seconds in the largest units that fit, such as `2 h 5 min` or `42 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
