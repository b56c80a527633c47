"""Parses printed numbers and computes how much precision the printing lost."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import NamedTuple

# numpy 2 and torch print a number with its type around it: np.float64(0.5), tensor(0.5, device='cuda:0').
_TYPED = re.compile(r"(?:(?:np|numpy|torch)\.\w+|tensor|array)\((?P<inner>[^(),]*)(?:,[^()]*)?\)")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.(?P<decimals>\d*))?|\.(?P<bare>\d+))(?P<exponent>[eE][-+]?\d+)?")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}


class PrintedNumber(NamedTuple):
    """A printed number: its value and its digits after the point.

    `decimals` is None where it does not show the lost precision: for a whole number, a number with an exponent or
    inside numpy's type, and not-a-number.
    """

    value: float
    decimals: int | None
    trailing_zero: bool = False
    in_full: bool = False
    """Whether Python printed the number in full; a fixed number of decimals prints no such text."""


def parse_number(text: str) -> PrintedNumber | None:
    """The number that a text is; None for any other text (a word, None, null, True)."""
    text, typed = text.strip(), None
    match = _NUMBER.fullmatch(text)
    if match is None:
        if (typed := _TYPED.fullmatch(text)) is not None:
            text = typed["inner"].strip()
        value = _NON_FINITE.get(text.lstrip("+-").lower())
        if value is not None:
            return PrintedNumber(-value if text.startswith("-") else value, None)
        match = _NUMBER.fullmatch(text) if typed is not None else None
    if match is None:
        return None
    decimals, bare, exponent = match.groups()
    digits = decimals or bare
    if typed is not None or exponent:
        return PrintedNumber(float(text), None, in_full=True)
    if digits is None:
        return PrintedNumber(float(text), None)
    return PrintedNumber(float(text), len(digits), trailing_zero=len(digits) > 1 and digits.endswith("0"))


def leading_number(text: str) -> str:
    """The number at the start of a text that other output follows; empty if there is none."""
    match = _TYPED.match(text) or _NUMBER.match(text)
    return match[0] if match else ""


def fixed_decimals(numbers: Collection[PrintedNumber]) -> bool:
    """Whether numbers of one line were printed with a fixed number of decimals (a format like `.3f`).

    Python prints a number in full with as many digits as it needs and no zeros at its end. A trailing zero, or the same
    two or more decimals in all numbers, therefore shows a fixed format.
    """
    decimals = {n.decimals for n in numbers if n.decimals is not None}
    if any(n.in_full for n in numbers) or not decimals:
        return False
    return any(n.trailing_zero for n in numbers) or (len(decimals) == 1 and min(decimals) > 1)


def half_digit(decimals: int) -> float:
    """Half a unit of the last decimal."""
    return 0.5 * 10.0**-decimals


def half_significant(value: float, digits: int) -> float:
    """Half a unit of a value's last significant digit."""
    if value == 0.0 or not math.isfinite(value):
        return 0.0
    return half_digit(digits - 1 - math.floor(math.log10(abs(value))))
