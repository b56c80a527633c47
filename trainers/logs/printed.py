"""Reads the number that a printed text stands for, and how much of it the printing cut off."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import NamedTuple

# numpy 2 and torch print a number with its type around it: np.float64(0.5), tensor(0.5, device='cuda:0').
_TYPED = re.compile(r"(?:(?:np|numpy|torch)\.\w+|tensor|array)\((?P<inner>[^(),]*)(?:,[^()]*)?\)")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.(?P<decimals>\d*))?|\.(?P<bare>\d+))(?P<exponent>[eE][-+]?\d+)?")
_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}


class PrintedNumber(NamedTuple):
    """A printed number: its value, and its digits after the point.

    `decimals` is None where that says nothing of what was cut off: a whole number, one with an exponent, one inside
    numpy's type, not-a-number.
    """

    value: float
    decimals: int | None
    trailing_zero: bool = False
    in_full: bool = False
    """Printed as Python prints a number in full, which no fixed number of decimals gives."""


def parse_number(text: str) -> PrintedNumber | None:
    """The number that a text is; None for any other text (a word, None, null, True)."""
    text, typed = text.strip(), None
    match = _NUMBER.fullmatch(text)
    if match is None:
        if (typed := _TYPED.fullmatch(text)) is not None:
            text = typed["inner"].strip()
        word = _WORDS.get(text.lstrip("+-").lower())
        if word is not None:
            return PrintedNumber(-word if text.startswith("-") else word, None)
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
    """The number that a text begins with, where something else was printed right behind it; empty without one."""
    match = _TYPED.match(text) or _NUMBER.match(text)
    return match[0] if match else ""


def fixed_decimals(numbers: Collection[PrintedNumber]) -> bool:
    """Whether numbers that were printed together were cut to a fixed number of decimals.

    Python prints a number in full without zeros at its end, and with as many digits as it needs: so a zero at the end,
    or the same two or more decimals everywhere, are of a format like `.3f`.
    """
    decimals = {n.decimals for n in numbers if n.decimals is not None}
    if any(n.in_full for n in numbers) or not decimals:
        return False
    return any(n.trailing_zero for n in numbers) or (len(decimals) == 1 and min(decimals) > 1)


def half_digit(decimals: int) -> float:
    """Half a unit of the last of so many decimals."""
    return 0.5 * 10.0**-decimals


def half_significant(value: float, digits: int) -> float:
    """Half a unit of a value's last significant digit, of so many."""
    if value == 0.0 or not math.isfinite(value):
        return 0.0
    return half_digit(digits - 1 - math.floor(math.log10(abs(value))))
