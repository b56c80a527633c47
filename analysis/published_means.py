"""What published means of two arms hold: a table with a row an arm, as a page, a paper or a pull request prints them.

Nothing is estimated: ratios are those of the printed numbers, at equal tokens and on equal GPUs where the table has
them. A row is one run, whatever it averages: how far repeated runs differ decides what is likely (docs/estimates.md).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analysis.planned import SPREAD
from analysis.verdict.arm_verdict import ratio_text, seconds_text
from common.errors import UserError
from common.messages import unknown_name

TIMES = {"step_time": 1.0, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
"""Columns of time, in seconds; all but `step_time` are of all `steps` together."""
NUMBERS = ("steps", "gpus", "responses", "response_length", "tokens", "tokens_per_second", "tokens_per_gpu_second")
TEXTS = ("case", "arm", "part", "said")
PHASE = "timing_s/"
MEASURES = {"gpus": "GPUs", "responses": "responses", "response_length": "tokens a response", "steps": "steps"}
FASTER = "faster"
SAID = re.compile(r"(?:(?P<times>[\d.]+)x|(?P<less>[-+]?[\d.]+)% time|(?P<more>[-+]?[\d.]+)% speed)")
ALIKE = 0.02
"""Work, GPUs and what was said that differ by less are the same: tables round."""
CONTRADICTS = 0.05
HOLDS, LIKELY, OPEN, UNEQUAL, OTHER, AGAINST = (
    "holds",
    "likely",
    "not resolved",
    "not equal work",
    "not what the numbers give",
    "contradicts itself",
)


@dataclass(frozen=True)
class PublishedRow:
    """One arm's printed numbers; NaN where the table has none."""

    case: str
    arm: str
    part: str
    """The phase that the time is of; "" for a whole step."""
    said: str
    time: float
    """Seconds of a step, or of the whole where the table does not say how many steps that was."""
    implied: float
    """The steps that the whole's time over a step's gives; NaN where not both are printed."""
    numbers: dict[str, float]
    phases: dict[str, float]

    @property
    def works(self) -> dict[str, float]:
        """Tokens of a step, by the columns that give them; lengths alone where no table has the number of responses."""
        n = self.numbers
        rate = n["tokens_per_second"]
        rate = n["tokens_per_gpu_second"] * n["gpus"] if math.isnan(rate) else rate
        tokens = n["tokens"] if math.isnan(n["steps"]) else n["tokens"] / n["steps"]
        lengths = n["response_length"] * (1.0 if math.isnan(n["responses"]) else n["responses"])
        return {"tokens": tokens, "lengths": lengths, "rates": rate * self.time}


@dataclass(frozen=True)
class Held:
    """What the printed numbers hold of an arm against its baseline."""

    arm: PublishedRow
    baseline: PublishedRow
    verdict: str
    speed: float
    """The baseline's time over the arm's; the ratio of tokens a second where not both times are printed."""
    equal: float
    """The same at equal tokens, and on equal GPUs where both are printed; NaN where no time or tokens are printed."""
    notes: tuple[str, ...] = field(default=())

    @property
    def sentence(self) -> str:
        """`async against sync: holds: 1.56x at equal tokens. Said: -35.4% time.`"""
        where = f"{self.arm.case}: " if self.arm.case else ""
        said = f" Said: {self.arm.said}." if self.arm.said else ""
        return f"{where}{self.arm.arm} against {self.baseline.arm}: {self.verdict}: {self.number}.{said}"

    @property
    def number(self) -> str:
        """`1.56x at equal tokens`."""
        value, unit = self.equal, self._terms
        if math.isnan(value):
            value, unit = self.speed, f"in {self.arm.part}" if self.arm.part else "as printed"
            unit = "in tokens a second" if math.isnan(self.arm.time) else unit
        return f"{ratio_text(value)} {unit}"

    @property
    def _terms(self) -> str:
        gpus = not math.isnan(self.arm.numbers["gpus"] + self.baseline.numbers["gpus"])
        return "at equal tokens and GPUs" if gpus else "at equal tokens"


def published(path: Path) -> list[Held]:
    """What a CSV holds, arm by arm against the first row of its case; `UserError` for an unknown column or number."""
    found: list[Held] = []
    baselines: dict[str, PublishedRow] = {}
    for row in _rows(path):
        if row.case in baselines:
            found.append(_held(baselines[row.case], row))
        else:
            baselines[row.case] = row
    if not found:
        raise UserError(f"{path}: a baseline's row and an arm's are needed in one case")
    return found


def _rows(path: Path) -> Iterable[PublishedRow]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a CSV in UTF-8: {error}") from error
    lines = csv.DictReader([line for line in text.splitlines() if not line.startswith("#")], strict=True)
    columns = [name for name in lines.fieldnames or () if not name.startswith(PHASE)]
    known = (*TEXTS, *TIMES, *NUMBERS)
    if "arm" not in columns:
        raise UserError(
            f"{path}: a table of published means has a column `arm`, and of {', '.join(known)} what is printed"
        )
    if unknown := [name for name in columns if name not in known]:
        raise UserError(f"{path}: {unknown_name('column', unknown[0], known)}")
    for line in lines:
        if None in line:
            raise UserError(f"{path}:{lines.line_num}: more cells than columns; quote a cell that has a comma")
        yield _row(path, {name: (text or "").strip() for name, text in line.items()})


def _row(path: Path, line: dict[str, str]) -> PublishedRow:
    def number(name: str) -> float:
        text = line.get(name, "")
        try:
            value = float(text) if text else math.nan
        except ValueError:
            value = -1.0
        if text and not 0 < value < math.inf:
            raise UserError(f"{path}: {name} of {line.get('arm', '')!r} must be a number above 0 (got {text!r})")
        return value

    numbers = {name: number(name) for name in NUMBERS}
    totals = [scale * number(name) for name, scale in TIMES.items() if name != "step_time" and line.get(name)]
    total = totals[0] if totals else math.nan
    step = number("step_time")
    # Without a number of steps the whole stands for one.
    time = step if not math.isnan(step) else total / (1.0 if math.isnan(numbers["steps"]) else numbers["steps"])
    phases = {name: number(name) for name in line if name.startswith(PHASE) and line[name]}
    if all(map(math.isnan, (time, numbers["tokens_per_second"], numbers["tokens_per_gpu_second"]))):
        raise UserError(f"{path}: {line['arm']!r} has neither a time ({', '.join(TIMES)}) nor tokens a second")
    case, arm, part, said = (line.get(name, "") for name in TEXTS)
    return PublishedRow(case, arm, part, said, time, total / step, numbers, phases)


def _held(baseline: PublishedRow, arm: PublishedRow) -> Held:
    speed = baseline.time / arm.time
    if math.isnan(speed):
        speed = _rate_ratio(baseline, arm)
    works = [
        (name, arm.works[name] / of) for name, of in baseline.works.items() if not math.isnan(arm.works[name] / of)
    ]
    work = works[0][1] if works else math.nan
    gpus = arm.numbers["gpus"] / baseline.numbers["gpus"]
    timed = not math.isnan(baseline.time + arm.time)
    equal = speed * work / (1.0 if math.isnan(gpus) else gpus) if timed else math.nan
    contradictions = _contradictions(baseline, arm)
    value = speed if math.isnan(equal) else equal
    likely = max(value, 1 / value) > 1 + SPREAD
    if contradictions:
        verdict = AGAINST
    elif _other_than_said(arm.said, speed, value, likely):
        verdict = OTHER
    elif not arm.part and (abs(gpus - 1) > ALIKE or _work_decides(arm.said, speed, equal)):
        verdict = UNEQUAL
    elif not likely or (math.isnan(equal) and not arm.part):
        verdict = OPEN
    else:
        verdict = HOLDS if arm.said else LIKELY
    return Held(arm, baseline, verdict, speed, equal, (*contradictions, *_notes(baseline, arm, speed, equal, likely)))


def _other_than_said(said: str, speed: float, value: float, likely: bool) -> bool:
    """Whether the numbers give neither as printed nor at equal tokens what was said; `1x` says alike."""
    if said == FASTER:
        return likely and value < 1
    ratio, rounding = _said(said)
    return likely if ratio == 1 else min(abs(ratio / speed - 1), abs(ratio / value - 1)) > max(ALIKE, rounding)


def _work_decides(said: str, speed: float, equal: float) -> bool:
    """Whether unequal tokens make a ratio likely, turn it, or make most of what was said."""
    if math.isnan(equal):
        return False
    turned = (equal - 1) * (speed - 1) < 0 or max(speed, 1 / speed) > 1 + SPREAD >= max(equal, 1 / equal)
    # What was said is of the time as printed: work that differs by more has made a part of it.
    return turned or (bool(said) and abs(speed / equal - 1) > CONTRADICTS)


def _rate_ratio(baseline: PublishedRow, arm: PublishedRow) -> float:
    """Of tokens a second, where no time is printed."""
    for name in ("tokens_per_second", "tokens_per_gpu_second"):
        ratio = arm.numbers[name] / baseline.numbers[name]
        if not math.isnan(ratio):
            return ratio
    raise UserError(f"{arm.arm!r} and {baseline.arm!r} have no time and no tokens a second of one column")


def _said(text: str) -> tuple[float, float]:
    """What was said as a ratio of speeds, and its rounding as a share: `1.5x`, `-35% time`, `+23% speed`."""
    if not text:
        return math.nan, 0.0
    if not (found := SAID.fullmatch(text)):
        raise UserError(f"said: {text!r} must be such as 1.5x, -35% time, +23% speed or faster")
    (form, digits), *_ = ((form, digits) for form, digits in found.groupdict().items() if digits)
    value, half = float(digits), 0.5 * 10 ** -len(digits.partition(".")[2])
    ratio = {"times": value, "less": 1 / (1 + value / 100), "more": 1 + value / 100}[form]
    return ratio, half / value if form == "times" else half / 100


def _contradictions(baseline: PublishedRow, arm: PublishedRow) -> list[str]:
    """Numbers of the table that cannot all be right."""
    found = []
    printed = [(row.works["rates"] / row.works["lengths"], row) for row in (baseline, arm)]
    if abs(printed[0][0] / printed[1][0] - 1) > CONTRADICTS:
        both = " and ".join(f"{ratio:.2f} times ({row.arm})" for ratio, row in printed)
        found.append(f"tokens a second, GPUs and seconds multiply to {both} the tokens of its responses")
    if abs(baseline.implied / arm.implied - 1) > CONTRADICTS:
        both = " and ".join(f"{row.implied:.0f} steps ({row.arm})" for row in (baseline, arm))
        found.append(f"the whole over a step's seconds gives {both}")
    return found


def _notes(baseline: PublishedRow, arm: PublishedRow, speed: float, equal: float, likely: bool) -> list[str]:
    """What a sceptic asks beside the ratio."""
    if math.isnan(baseline.time + arm.time):
        notes = ["tokens a second alone: no step's seconds are printed"]
    else:
        both = f"{seconds_text(arm.time)} against {seconds_text(baseline.time)}"
        notes = [f"{both}: {ratio_text(speed)}, {100 * abs(1 - 1 / speed):.1f}% {'less' if speed > 1 else 'more'} time"]
    if arm.part:
        notes.append(f"{arm.part} is a part of the step, and no step")
    for name, what in MEASURES.items():
        sides = arm.numbers[name], baseline.numbers[name]
        if abs(sides[0] / sides[1] - 1) > (ALIKE if name == "response_length" else 0):
            per_gpu = (
                f": {ratio_text(speed * sides[1] / sides[0])} a GPU" if name == "gpus" and math.isnan(equal) else ""
            )
            notes.append(f"{sides[0]:,.6g} {what} against {sides[1]:,.6g}{per_gpu}")
    if not arm.part and not math.isnan(arm.time):
        if math.isnan(equal):
            notes.append("how many tokens a step has is not printed")
        elif math.isnan(arm.works["lengths"]) and math.isnan(arm.works["tokens"]):
            notes.append("a step's tokens are its seconds times tokens a second")
    notes += [
        f"the phases of {row.arm} sum to {seconds_text(sum(row.phases.values()))}, more than its step"
        for row in (baseline, arm)
        if sum(row.phases.values()) > (1 + ALIKE) * row.time
    ]
    if not likely:
        notes.append(f"one row an arm: repeated runs differ by up to {100 * SPREAD:.3g}%")
    return notes


def published_file(held: Sequence[Held]) -> list[dict[str, object]]:
    """The same for a program; what is not printed is null."""
    return [
        {
            "case": one.arm.case,
            "arm": one.arm.arm,
            "baseline": one.baseline.arm,
            "verdict": one.verdict,
            "as_printed": one.speed,
            "at_equal_tokens": None if math.isnan(one.equal) else one.equal,
            "notes": list(one.notes),
        }
        for one in held
    ]


def published_lines(held: Sequence[Held]) -> list[str]:
    """Each verdict and, below it, what it rests on."""
    return [line for one in held for line in (one.sentence, *(f"  · {note}" for note in one.notes))]
