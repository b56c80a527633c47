"""Reads a run's progress from its growing metrics.jsonl, or from what a user's script prints, and reports it."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.files import open_regular
from common.messages import print_message
from workflow.runs.ends import ENDED_BY_SLURM
from workflow.runs.history import is_own_command, is_request_for, read_object, steps_of
from workflow.runs.paths import AttemptPaths, RunPaths

# A line holds a step's samples, too: thousands of characters.
_TAIL_BYTES = 2**18
# A run's progress is reported after its first step, then once for each part.
STEPS_OF_A_PART, MOST_PARTS = 20, 10


# What a user's script prints of its steps: a line that counts them, perhaps with the step's seconds, or the training's
# progress bar, which has the number of all steps, too. Other bars have a description.
_LINE = re.compile(rb"(?<![/\w])step:(\d+)\b(?:[^\r\n]*?/step:([\d.]+))?")
_BAR = re.compile(
    rb"^(?:Train[^:\r\n]*:)? *\d+%\|[^|\r\n]*\| (\d+)/(\d+) \[[\d:]+<[\d:?]+, +(?:([\d.]+)s/it|([\d.]+)it/s)",
    re.MULTILINE,
)


class GrowingLog:
    """Reads the complete new lines of a growing file: from its start on, or only its newest part."""

    def __init__(self, path: Path, newest: bool = False) -> None:
        self._path, self._newest = path, newest
        self._offset = 0

    def new_lines(self) -> bytes:
        """The lines since the last call; an incomplete one waits for the next call.

        Raises OSError if the file exists and cannot be read: that does not mean that nothing was written.
        """
        try:
            with open_regular(self._path) as file:
                newest = file.seek(0, 2) - _TAIL_BYTES if self._newest else 0
                file.seek(max(self._offset, newest))
                # A progress bar returns to its line's start.
                data = file.read().replace(b"\r", b"\n")
                complete = data[: data.rfind(b"\n") + 1]
                self._offset = file.tell() - len(data) + len(complete)
                return complete
        except FileNotFoundError:  # not written yet
            return b""


class StepReader:
    """Reads the new steps of one attempt's metrics.jsonl, or of its newest part."""

    steps = None
    """How many it will be: it does not say."""

    def __init__(self, metrics: Path, newest: bool = False) -> None:
        self._log = GrowingLog(metrics, newest)

    def new_steps(self) -> list[tuple[int, float]]:
        """(step, seconds) of the steps finished since the last call; seconds include the time between steps."""
        steps = []
        for line in self._log.new_lines().splitlines():
            try:
                row = json.loads(line)
                steps.append((int(row["step"]), _step_seconds(row)))
            except (ValueError, KeyError, TypeError, OverflowError):
                continue  # the collector reports invalid lines
        return steps


class PrintedSteps:
    """Reads the new steps from a growing log of a user's script; `steps` is how many it will be, if it says so."""

    def __init__(self, console: Path) -> None:
        self._log = GrowingLog(console, newest=True)
        self._last = 0
        self.steps: int | None = None

    def new_steps(self) -> list[tuple[int, float]]:
        """(step, seconds) of the steps since the last call; 0 seconds where it does not say them."""
        lines = self._log.new_lines()
        found = [(int(line[1]), float(line[2] or 0)) for line in _LINE.finditer(lines)]
        for bar in [] if found else _BAR.finditer(lines):
            self.steps = self.steps or int(bar[2])
            if int(bar[2]) == self.steps:
                found.append((int(bar[1]), float(bar[3] or 0) or 1 / float(bar[4] or "inf")))
        new = [(step, seconds) for step, seconds in found if step > self._last]
        self._last = max((step for step, _ in new), default=self._last)
        return new


def reader_of(attempt: AttemptPaths, newest: bool = False) -> StepReader | PrintedSteps:
    """The reader of an attempt's steps, or of those in the newest part of its log."""
    own = is_own_command(read_object(attempt.spec))
    return PrintedSteps(attempt.console) if own else StepReader(attempt.metrics, newest)


def log_that_grows(attempt: AttemptPaths) -> Path:
    """What an attempt's trainer or script prints."""
    return attempt.console if is_own_command(read_object(attempt.spec)) else attempt.log


def _step_seconds(row: dict[str, Any]) -> float:
    """A step's time, as a phase or a scalar, plus the time before it; 0 if invalid: the step still counts."""
    try:
        phases, scalars = row["phases"], row["scalars"]
        seconds = float(phases["step"] if "step" in phases else scalars["timing_s/step"])
        seconds += float(scalars.get("between_steps_s") or 0.0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


class Pace:
    """The steps of an attempt as they are made: the last one, and the usual time of the recent ones.

    An engine's first steps are slow.
    """

    def __init__(self, reader: StepReader | PrintedSteps, recent: int = 10) -> None:
        self._reader = reader
        self._recent: deque[float] = deque(maxlen=recent)
        self.last_step: int | None = None

    def advance(self) -> bool:
        """Whether there are new steps; raises OSError if they cannot be read now."""
        new = self._reader.new_steps()
        self._recent.extend(seconds for _, seconds in new)
        self.last_step = new[-1][0] if new else self.last_step
        return bool(new)

    @property
    def steps(self) -> int | None:
        """How many there will be, if the log says so."""
        return self._reader.steps

    @property
    def last_s(self) -> float:
        """The seconds of the last step; 0 before the first."""
        return self._recent[-1] if self._recent else 0.0

    @property
    def usual_s(self) -> float | None:
        """The median of the recent steps' seconds; None before the first."""
        return median(self._recent) if self._recent else None


class Progress(Pace):
    """The progress of an attempt in words."""

    def __init__(self, reader: StepReader | PrintedSteps, steps: int | None) -> None:
        super().__init__(reader)
        self._steps = steps or 0  # 0: unknown

    def poll(self) -> str | None:
        """The newest step, its time and the time left; None without a new step since the last call."""
        with suppress(OSError):  # no decision depends on this report
            if self.advance() and self.last_step is not None:
                self._steps = self._steps or self.steps or 0
                if not self._steps:
                    return f"step {self.last_step}, {self.last_s:.2f} s"
                left_s = (self.usual_s or 0.0) * (self._steps - self.last_step)
                left = f"about {readable_duration(left_s)} left" if self.last_step < self._steps else "last step"
                return f"step {self.last_step}/{self._steps}, {self.last_s:.2f} s, {left}"
        return None

    @property
    def part(self) -> int:
        """The part that a run has reached: 0 before its first step, then from 1 to at most `MOST_PARTS` + 1."""
        if not self.last_step or not self._steps:
            return 0
        parts = max(1, min(MOST_PARTS, self._steps // STEPS_OF_A_PART))
        return 1 + self.last_step * parts // self._steps


def reached_step(attempt: AttemptPaths) -> int:
    """The highest step of an attempt; 0 without a step."""
    logged = max((step for step, _ in StepReader(attempt.metrics).new_steps()), default=0)
    return logged or max((step for step, _ in reader_of(attempt).new_steps()), default=0)


def median(values: Iterable[float]) -> float:
    """Like statistics.median, whose import would cost every waiting launcher half a megabyte."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def readable_duration(seconds: float) -> str:
    """Seconds in the largest units that fit, such as `2 h 5 min` or `42 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def without_new_step(attempts: Sequence[AttemptPaths]) -> int:
    """The number of attempts in a row, up to the last, that reached no step beyond the earlier ones.

    Nobody knows the steps of every user's script: one that printed and was ended from outside has got on.
    """
    best = fruitless = 0
    for attempt in attempts:
        reached = reached_step(attempt)
        fruitless = 0 if reached > best or (not reached and _printed_until_killed(attempt)) else fruitless + 1
        best = max(best, reached)
    return fruitless


def _printed_until_killed(attempt: AttemptPaths) -> bool:
    if not is_own_command(read_object(attempt.spec)):
        return False
    outside = read_object(attempt.exit).get("kind") in (None, "stopped", "node lost", "superseded")
    with suppress(FileNotFoundError):
        return outside and attempt.console.stat().st_size > 0
    return False


class JobReporter:
    """Reports on an order's job whenever `report` is called: a line for each part of the run."""

    def __init__(self, run: RunPaths, order: Mapping[str, Any]) -> None:
        self._run, self._order, self._run_id = run, order, str(order["run_id"])
        self._attempt: AttemptPaths | None = None
        self._ended: AttemptPaths | None = None
        self._progress: Progress | None = None
        self._latest: str | None = None
        self._reported_part = 0
        self._reported_wait = self._warned = False

    def report(self, last: bool = False) -> None:
        """Print a new attempt, its end, and progress that is worth a line."""
        newest = next(reversed(self._run.attempts()), None)
        if not self._reported_wait and self._attempt is None:
            with suppress(OSError):  # it does not wait, or not any more
                self._print(self._run.waits.read_text(encoding="utf-8"))
                self._reported_wait = True
        has_ended = self._attempt is not None and self._attempt != self._ended and self._attempt.exit.is_file()
        self._report_progress(last or has_ended)
        if has_ended:
            self._report_end()
        if newest and newest != self._attempt and newest.number >= self._order["count_from"]:
            request = read_object(newest.request)
            if is_request_for(request, self._order["fingerprint"], self._order["inputs_sha256"]):
                self._attempt, self._reported_part = newest, 0
                self._progress = Progress(reader_of(newest), steps_of(self._order["spec"]))
                self._print(f"attempt {newest.number} runs on {request['host']}; log: {log_that_grows(newest)}")
                self._report_progress(last)

    def _print(self, message: str) -> None:
        print_message(f"{self._run_id}: {message}")

    def _report_progress(self, at_once: bool) -> None:
        if self._progress is None:
            return
        self._latest = self._progress.poll() or self._latest
        if self._latest and (at_once or self._progress.part > self._reported_part):
            self._print(self._latest)
            self._latest, self._reported_part = None, self._progress.part
        grace_s, step_s = float(self._order["limits"]["stop_grace_s"]), self._progress.usual_s or 0.0
        if self._order["cluster"] == "slurm" and step_s > grace_s and not self._warned:
            self._warned = True
            self._print(
                f"warning: a step takes {step_s:.0f} s and stop_grace_s is {grace_s:.0f}: at its time limit it is "
                "killed before a checkpoint; set stop_grace_s in the profile above the longest step and a checkpoint"
            )

    def _report_end(self) -> None:
        """The end of an attempt that is followed by another; the launcher reports the last one's end."""
        assert self._attempt is not None
        self._ended = self._attempt
        end = read_object(self._attempt.exit)
        if end.get("again") or end.get("cause") == ENDED_BY_SLURM:
            why = end.get("detail") or end.get("cause") or f"exit code {end.get('code')}"
            self._print(f"attempt {self._attempt.number} {end['kind']} after step {end['last_step']}: {why}")
