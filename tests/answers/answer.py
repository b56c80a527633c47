"""Says what an answer must be, and checks what `rolloutbench compare` answers."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from workflow.cli import main

EQUAL_WORK, PER_STEP = "at equal work", "per step"


@dataclass(frozen=True)
class Right:
    """What is right. A field that is not given is free."""

    verdict: str = ""
    """The verdicts that are right; "refused" beside them where a refusal is right as well."""
    ratio: float | None = None
    within: float = 0.03
    """The share by which the ratio may be off."""
    unit: str = ""
    not_unit: str = ""
    says: tuple[str, ...] = ()
    """Words that stand in the answer, in any case; `a|b` is one of two."""
    says_not: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What the command answers: a verdict with its ratio, or a refusal."""

    verdict: str
    ratio: float
    unit: str
    interval: tuple[float, float] | None
    text: str
    """All words: the verdict's, its caveats, and what is said beside it."""
    caveats: int = 0


@dataclass(frozen=True)
class Case:
    name: str
    about: str
    make: Callable[[], list[str]]
    """Puts the logs into the working folder, and gives the words of the command."""
    right: Right
    wrong: str = field(default="", compare=False)
    """Why the answer is still wrong."""

    def as_parameter(self):
        marks = [pytest.mark.xfail(strict=True, reason=self.wrong)] if self.wrong else []
        return pytest.param(self, id=self.name, marks=marks)


def cases_into(cases):
    """A decorator that adds a function which makes logs to `cases`, with what is right.

    `wrong` says why the answer is not right yet.
    """

    def case(verdict, ratio=None, unit="", wrong="", **right):
        def add(make):
            cases.append(Case(make.__name__, make.__doc__, make, Right(verdict, ratio, unit=unit, **right), wrong))
            return make

        return add

    return case


def ask(words, capsys):
    """The answer of `rolloutbench compare` to these words, about its only arm that is no baseline."""
    code = main(["compare", *words, "--verdict-only", "--json"])
    streams = capsys.readouterr()
    beside = " ".join(streams.err.split())
    if code:
        return Answer("refused", float("nan"), "", None, beside)
    found = json.loads(streams.out)
    text = " ".join([*_texts(found), beside])
    if not found["arms"]:
        return Answer("x", float("nan"), "", None, text)
    one = found["arms"][0]
    ratio = next(iter(one["ratios"]), {"unit": "", "value": [float("nan")], "interval": None})
    interval = tuple(ratio["interval"]) if ratio["interval"] and None not in ratio["interval"] else None
    return Answer(one["verdict"], ratio["value"][0], ratio["unit"], interval, text, len(one["caveats"]))


def _texts(found):
    """All texts of a document, one after another."""
    if isinstance(found, dict):
        return [text for value in found.values() for text in _texts(value)]
    if isinstance(found, list):
        return [text for value in found for text in _texts(value)]
    return [found] if isinstance(found, str) else []


def wrong_in(answer, right):
    """What is wrong in an answer, one sentence each."""
    found = []
    if right.verdict and answer.verdict not in right.verdict.split():
        found.append(f"the verdict is {answer.verdict}, not {right.verdict}")
    if answer.verdict != "refused":
        if right.ratio is not None and not abs(answer.ratio / right.ratio - 1) <= right.within:
            found.append(f"the ratio is {answer.ratio:.3f}, not {right.ratio:.3f}")
        if right.unit not in answer.unit or (right.not_unit and right.not_unit in answer.unit):
            found.append(f"the unit is {answer.unit!r}")
        found += [f"does not say {words!r}" for words in right.says if not _stands(words, answer.text)]
    found += [f"says {words!r}" for words in right.says_not if _stands(words, answer.text)]
    return found


def _stands(words, text):
    lowered = text.replace(",", "").lower()
    return any(one.lower() in lowered for one in words.split("|"))
