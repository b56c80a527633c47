"""What the texts of a table say: a column's name (it counts the steps, or holds times, in which unit), and a number."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path

from common.errors import UserError
from trainers.logs.record import as_number

_UNITS = {
    "ns nanos nanosecond nanoseconds": 1e-9,
    # Unicode has two letters for micro.
    "us \u00b5s \u03bcs micros microsecond microseconds": 1e-6,
    "ms msec msecs millis millisecond milliseconds": 1e-3,
    "s sec secs second seconds": 1.0,
    "min mins minute minutes": 60.0,
    "h hr hrs hour hours": 3600.0,
    "day days": 86400.0,
}
UNITS: Mapping[str, float] = {unit: seconds for units, seconds in _UNITS.items() for unit in units.split()}
"""A unit's seconds."""
# They mean something else, too: a unit only beside a word for time.
_AMBIGUOUS = {"min", "h"}
_COUNTED = {"steps", "iters", "iterations", "updates"}
_STEPS = {"step", "iter", "it", "itr", "iteration", "update"} | _COUNTED
# A counter's name may end so: `step_id`, `Step No.`
_NUMBERED = {"id", "idx", "index", "no", "number"}
# `genTime` and `walltime` are times too.
_ENDS_OF_TIME = ("time", "seconds", "duration", "elapsed", "latency", "runtime", "wallclock", "timestamp")
_TIMES = {"wall", "timing", "timings"}
_NO_TIMES = {"throughput", "token", "tokens", "sample", "samples", "timestep", "timesteps"}
_NO_TIMES |= {"lr", "rate", "remaining", "left", "eta", "timeout", "count", "util", "utilization", "fps", "sps"}
_NO_TIMES |= {"ratio", "share", "fraction", "frac", "percent", "pct", "flops", "tflops", "mfu"}
_NO_TIMES |= {"tok", "toks", "lifetime"}
# A cell that begins a row of these says that it is none of a step.
_SUMMARIES = {"total", "sum", "count", "mean", "average", "avg", "median", "std", "stdev", "min", "max"}
_SUMMARIES |= {"25%", "50%", "75%"}
_SINCE = {
    "elapsed",
    "runtime",
    "uptime",
    "since",
    "wall",
    "wallclock",
    "walltime",
    "clock",
    "timestamp",
    "date",
    "datetime",
}
_WHOLES = {"total", "step", "iteration", "iter", "it", "whole"}
# Steps of something else, or a limit.
_OTHER_STEPS = {"env", "agent", "total", "num", "max"}
# Such a column beside its mean is no time of its own.
_MIDDLES = {"median", "p50"}
_SPREADS = {"min", "max", "std", "p90", "p95", "p99"} | _MIDDLES
_MEANS = {"mean", "avg", "average"}
_OVER_STEPS = {"running", "rolling", "moving", "smoothed", "ema", "cumulative"} | _MEANS
_PART = re.compile(r"[/.]")
_STEP_RATE = re.compile(
    r"(?:^|[^a-z])(?:it|its|iters?|iterations?|steps?|updates?)(?: */ *|[ _]per[ _])([a-z]+)[^a-z]*$", re.IGNORECASE
)
_GPU_TIME = re.compile(r"gpu[ _-]?(?:h|s|hours?|secs?|seconds?|min|minutes?)(?![a-z])", re.IGNORECASE)
# Longer cells are texts. Some patterns below take the square of a cell's length.
_LONGEST_NUMBER = 200
# A thin space or an apostrophe may separate thousands.
_SPACED = re.compile(r"[-+]?[1-9]\d{0,2}([ \u00a0\u202f'’]\d{3})+(\.\d+)?")
# Such commas or points may separate thousands; others are decimal ones.
_COMMAS, _POINTS = (re.compile(rf"[-+]?[1-9]\d{{0,2}}({mark}\d{{3}})+") for mark in (",", r"\."))
_DECIMAL_COMMA, _DECIMAL_POINT = re.compile(r"[-+]?[\d.]+,\d+"), re.compile(r"[-+]?[\d,]+\.\d+")
_WORDS_OF_TIME = {*UNITS, "m", "d"}
_UNIT_OF_CELL = re.compile(rf"\s*(?:{'|'.join(_WORDS_OF_TIME)})\Z")
# A spreadsheet's minutes, which pandas does not read without hours.
_MINUTES = re.compile(r"\d+:\d\d\.\d+")
_COMMA_OF_TIME = re.compile(r"(?<=\d),(?=\d)")
_WORD = re.compile(r"(?<![^\W_])[pP]\d\d(?![^\W_])|[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")


def words_of(name: str) -> list[str]:
    """The words of `stepTimeMs`, `step_time[ms]` and `Step Time (ms)` in lower case."""
    return [word.lower() for word in _WORD.findall(name.replace("e2e", "whole"))]


def stem_of(name: str) -> tuple[str, ...]:
    """A name's words without numbers (ranks), and the last one if that is the name of a mean or of a spread."""
    words = [word for word in words_of(name) if not word.isdigit()]
    return tuple(words[:-1] if words and words[-1] in _SPREADS | _MEANS else words)


def unit_of(name: str) -> str:
    """The unit in a name: at its end, at a part's end (`timing_s/gen`) or before `per_step`; empty without one."""
    parts = [words_of(part) for part in _PART.split(name)]
    if len(parts) > 1 and len(parts[-1]) == 1 and parts[-1][0] in _AMBIGUOUS:
        parts.pop()
    ends = [words[-1] for words in reversed(parts) if words]
    ends += [words[words.index("per") - 1] for words in parts if "per" in words[1:]]
    return next((end for end in ends if end in UNITS and (end not in _AMBIGUOUS or _has_time(name))), "")


def _has_time(name: str) -> bool:
    return any(word.endswith(_ENDS_OF_TIME) or word in _TIMES for word in words_of(name))


def _is_rate(name: str) -> bool:
    """Whether a name is of something per second or per token: `it/s`, `tokens_per_s`, `timing_per_token_ms/gen`."""
    words = words_of(name)
    per = words[words.index("per") + 1 :][:1] if "per" in words else []
    last = words_of(_PART.split(name)[-1])
    per_unit = "/" in name and len(last) == 1 and last[0] in UNITS and not _has_time(name)
    return per_unit or bool(per and per[0] not in _STEPS)


def unit_of_step_rate(name: str) -> str:
    """The unit of time for which a name counts steps: `s` of `it/s` and `train_speed(iter/s)`; empty for others."""
    found = _STEP_RATE.search(name)
    return found[1].lower() if found and found[1].lower() in UNITS else ""


def is_time(name: str) -> bool:
    """Whether a name is one of a time, as far as a name can say; `time/iterations` counts."""
    words = words_of(name)
    other = _NO_TIMES & {*words} or _COUNTED & {*words[-1:]} or _is_rate(name) or _GPU_TIME.search(name)
    return not other and (unit_of(name) != "" or ("%" not in name and _has_time(name)))


def is_counter(name: str) -> bool:
    """Whether a name is one of a step's or an iteration's number."""
    words = words_of(name)
    while words and words[-1] in _NUMBERED:
        words.pop()
    return not _STEPS.isdisjoint(words[-1:]) and "per" not in words and not is_time(name)


def counter_rank(name: str) -> tuple[bool, bool, bool, int]:
    """The order of counters: `step` before `train/global_step` before `iteration` before `total_env_steps`."""
    words = words_of(name)
    return words != ["step"], bool(_OTHER_STEPS & {*words}), "step" not in name.lower(), len(name)


def is_since(name: str) -> bool:
    """Whether a name is one of a time since something."""
    return bool(_SINCE & {*words_of(name)})


def is_bare(name: str) -> bool:
    """Whether a name is only `time`: of a step, or since something."""
    return [word for word in words_of(name) if word not in UNITS] == ["time"]


def whole_rank(name: str) -> int:
    """How surely a time is of a whole step: 2 for `step_time` and `time/total_s`, 1 for `duration_ms`, 0 for others."""
    words = words_of(name)
    if words and words[0].isdigit():
        # The second column of a name: `(2) time`.
        del words[0]
    while words and (words[-1] in UNITS or words[-1] in _MEANS | _SPREADS or words[-1].endswith(_ENDS_OF_TIME)):
        words.pop()
    if not words:
        return 1
    return 2 if words[-1] in _WHOLES or words[-3:] == ["end", "to", "end"] else 0


def is_averaged(name: str, names: Collection[str]) -> bool:
    """Whether a name may be one of an average over several steps: no least or largest value of one step is beside."""
    beside = any(stem_of(other) == stem_of(name) for other in names if other != name)
    return not beside and not _OVER_STEPS.isdisjoint(words_of(name))


def without_spreads(names: Collection[str]) -> list[str]:
    """The names without those of a minimum, maximum or deviation whose mean, median or plain value is there too."""
    spreads = {name for name in names if not _SPREADS.isdisjoint(words_of(name)[-1:])}
    stems = {stem_of(name) for name in names if name not in spreads}
    middles = {name for name in spreads if words_of(name)[-1] in _MIDDLES and stem_of(name) not in stems}
    stems |= {stem_of(name) for name in middles}
    return [name for name in names if name not in spreads - middles or stem_of(name) not in stems]


def is_summary(cell: object) -> bool:
    """Whether a row's first cell says that the row sums up those above."""
    return isinstance(cell, str) and cell.strip().lower() in _SUMMARIES


def number_of(text: str) -> tuple[float | None, bool]:
    """The number that a text is, and whether it is a time (`27.3s`, `0:01:27`, `2025-11-11T10:00:00Z`), in seconds."""
    if len(text) > _LONGEST_NUMBER:
        return None, False
    try:
        return float(text), False
    except ValueError:
        if _SPACED.fullmatch(text):
            return float(re.sub(r"[^\d.+-]", "", text)), False
        if not text[:1].isdigit():
            return None, False
    # Not at the top: whatever checks a configuration's sources loads this module.
    import pandas as pd

    # `1-2` would be nanoseconds, and `300 W` weeks.
    if ":" in text or ((words := set(re.findall(r"[^\W\d_]+", text))) and words <= _WORDS_OF_TIME):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # units such as `d` will have other names
                return pd.Timedelta(f"0:{text}" if _MINUTES.fullmatch(text) else text).total_seconds(), True
        except ValueError:
            pass
    try:
        return as_seconds(datetime.fromisoformat(text)), True
    except ValueError:
        return None, False


def value_of(raw: object) -> tuple[float | None, bool]:
    """A value's number, and whether it is a text of a time."""
    if isinstance(raw, list) and len(raw) == 1:
        (raw,) = raw
    if isinstance(raw, timedelta | datetime):
        return as_seconds(raw), True
    try:
        value = float(raw) if isinstance(raw, Decimal) else as_number(raw)
    except OverflowError:  # a whole number of hundreds of digits
        return None, False
    return number_of(raw) if value is None and isinstance(raw, str) else (value, False)


def has_decimal_commas(path: Path, delimiter: str) -> bool:
    """Whether the commas in a file's numbers are decimal ones; `UserError` if they may also separate thousands."""
    if delimiter == ";":
        return True
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        unclear, pointed = "", False
        if not any(("," if delimiter != "," else '"') in line for line in file):
            return False
        file.seek(0)
        for cell in chain.from_iterable(csv.reader(file, delimiter=delimiter, skipinitialspace=True)):
            if len(cell) > _LONGEST_NUMBER:
                continue
            if _COMMAS.fullmatch(number := _UNIT_OF_CELL.sub("", cell.strip())):
                unclear, pointed = unclear or number, pointed or number.count(",") > 1
            elif _DECIMAL_COMMA.fullmatch(number):
                return True
            else:
                pointed |= bool(_DECIMAL_POINT.fullmatch(number) and not _POINTS.fullmatch(number))
    if unclear and not pointed:
        raise UserError(
            f"{path}: the comma in {unclear} may be a decimal one or separate thousands, and no other number shows "
            "which; save the table with decimal points, or with semicolons between its columns"
        )
    return False


def plain_number(text: str | None, decimal_commas: bool) -> str | None:
    """A number's text with a decimal point, and without commas or points between thousands."""
    text = text and text.strip()
    if not text or "," not in text or not text.lstrip("+-")[:1].isdigit():
        return text
    if ":" in text:
        return _COMMA_OF_TIME.sub(".", text)
    decimal = decimal_commas and text.rfind(",") > text.rfind(".")
    return text.replace(".", "").replace(",", ".") if decimal else text.replace(",", "")


def as_seconds(value: timedelta | datetime) -> float:
    """The seconds of a duration, or since 1970; a time without a zone is taken as UTC."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
