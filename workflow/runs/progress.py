"""Reads a run's progress from its growing metrics.jsonl, and reports it."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.files import open_regular, read_json
from common.messages import print_message
from workflow.runs.history import ENDED_BY_SLURM, read_object
from workflow.runs.paths import AttemptPaths, JobPaths, RunPaths

# A line holds a step's samples, too: thousands of characters.
_TAIL_BYTES = 2**18
# A run's progress is reported after its first step, then once for each part.
STEPS_OF_A_PART, MOST_PARTS = 20, 10


class StepReader:
    """Reads the new steps of one attempt's metrics.jsonl, from an offset on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def new_steps(self) -> list[tuple[int, float]]:
        """(step, seconds) of the steps finished since the last call; seconds include the time between steps.

        An incomplete line waits for the next call. Raises OSError if the file exists and cannot be read: that does not
        mean zero steps.
        """
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:  # not written yet
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        steps = []
        for line in complete.splitlines():
            try:
                row = json.loads(line)
                steps.append((int(row["step"]), _step_seconds(row)))
            except (ValueError, KeyError, TypeError, OverflowError):
                continue  # the collector reports invalid lines
        return steps


def _step_seconds(row: dict[str, Any]) -> float:
    """A step's time, as a phase or a scalar, plus the time before it; 0 if invalid: the step still counts."""
    try:
        phases, scalars = row["phases"], row["scalars"]
        seconds = float(phases["step"] if "step" in phases else scalars["timing_s/step"])
        seconds += float(scalars.get("between_steps_s") or 0.0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


class Progress:
    def __init__(self, metrics: Path, steps: int | None) -> None:
        self._reader = StepReader(metrics)
        self._steps = steps or 0  # 0: unknown
        # Only recent steps: an engine's first ones are slow.
        self._recent: deque[float] = deque(maxlen=10)
        self.last_step: int | None = None

    def poll(self) -> str | None:
        """The newest step, its time and the time left; None without a new step since the last call."""
        new: list[tuple[int, float]] = []
        with suppress(OSError):  # no decision depends on this report
            new = self._reader.new_steps()
        if not new:
            return None
        self._recent.extend(seconds for _, seconds in new)
        self.last_step, last_s = new[-1]
        if not self._steps:
            return f"step {self.last_step}, {last_s:.2f} s"
        left = f"about {readable_duration(self.left_s)} left" if self.last_step < self._steps else "last step"
        return f"step {self.last_step}/{self._steps}, {last_s:.2f} s, {left}"

    @property
    def part(self) -> int:
        return part_of(self.last_step or 0, self._steps)

    @property
    def seconds_per_step(self) -> float | None:
        """Median of the recent steps; None before the first."""
        return median(self._recent) if self._recent else None

    @property
    def left_s(self) -> float:
        """Duration of the remaining steps at the recent pace; 0 before the first step."""
        return (self.seconds_per_step or 0.0) * (self._steps - (self.last_step or 0))


def last_step(metrics: Path) -> int:
    """The highest step in an attempt's metrics.jsonl; 0 without a step."""
    return max((step for step, _ in StepReader(metrics).new_steps()), default=0)


def recent_steps(metrics: Path) -> list[tuple[int, float]]:
    """(step, seconds) of an attempt's newest steps, usually ten or more, without reading the whole file."""
    try:
        size = metrics.stat().st_size
    except FileNotFoundError:  # not written yet
        return []
    return StepReader(metrics, offset=max(0, size - _TAIL_BYTES)).new_steps()


def median(values: Iterable[float]) -> float:
    """Like statistics.median, whose import would cost every waiting launcher half a megabyte."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def part_of(step: int, steps: int) -> int:
    """The part that a run has reached: 0 before its first step, then from 1 to at most `MOST_PARTS` + 1."""
    if not step or not steps:
        return 0
    parts = max(1, min(MOST_PARTS, steps // STEPS_OF_A_PART))
    return 1 + step * parts // steps


def readable_duration(seconds: float) -> str:
    """Seconds in the largest units that fit, such as `2 h 5 min` or `42 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def without_new_step(attempts: Sequence[AttemptPaths]) -> int:
    """The number of attempts in a row, up to the last, that reached no step beyond the earlier ones."""
    best = fruitless = 0
    for attempt in attempts:
        reached = last_step(attempt.metrics)
        fruitless = 0 if reached > best else fruitless + 1
        best = max(best, reached)
    return fruitless


class JobReporter:
    """Reports on one job whenever `report` is called: a line for each part of the run."""

    def __init__(self, run: RunPaths, run_id: str, steps: int | None, job: JobPaths) -> None:
        self._run, self._run_id, self._steps, self._job = run, run_id, steps, job
        self._attempt: AttemptPaths | None = None
        self._ended: AttemptPaths | None = None
        self._progress: Progress | None = None
        self._latest: str | None = None
        self._reported_part = 0
        self._reported_wait = False

    def report(self, last: bool = False) -> None:
        """Print a new attempt, its end, and progress that is worth a line."""
        attempts = self._run.attempts()
        newest = attempts[-1] if attempts else None
        if not self._reported_wait and self._attempt is None:
            with suppress(OSError):  # it does not wait, or not any more
                print_message(f"{self._run_id}: {self._job.waits.read_text(encoding='utf-8')}")
                self._reported_wait = True
        has_ended = self._attempt is not None and self._attempt != self._ended and self._attempt.exit.is_file()
        self._report_progress(last or has_ended)
        if has_ended:
            self._report_end()
        if newest and newest != self._attempt and read_object(newest.request).get("job") == self._job.number:
            self._attempt, self._progress, self._reported_part = newest, Progress(newest.metrics, self._steps), 0
            host = read_json(newest.request)["host"]
            print_message(f"{self._run_id}: attempt {newest.number} runs on {host}; log: {newest.log}")
            self._report_progress(last)

    def _report_progress(self, at_once: bool) -> None:
        if self._progress is None:
            return
        self._latest = self._progress.poll() or self._latest
        if self._latest and (at_once or self._progress.part > self._reported_part):
            print_message(f"{self._run_id}: {self._latest}")
            self._latest, self._reported_part = None, self._progress.part

    def _report_end(self) -> None:
        """The end of an attempt that is followed by another; the launcher reports the last one's end."""
        assert self._attempt is not None
        self._ended = self._attempt
        end = read_object(self._attempt.exit)
        if end.get("again") or end.get("cause") == ENDED_BY_SLURM:
            why = end.get("detail") or end.get("cause")
            print_message(
                f"{self._run_id}: attempt {self._attempt.number} {end['kind']} after step {end['last_step']}: {why}"
            )
