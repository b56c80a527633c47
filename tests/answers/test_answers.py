"""Small logs with a known right answer, given to `rolloutbench compare`: right in all of them, in any sequence."""

import math
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from . import made, more_runs, more_work
from .answer import Case, Right, ask, wrong_in

READ = Path(__file__).with_name("read")
ORDERS = 2


def read_case(folder):
    """The case of a folder with its logs and `right.yaml`."""
    said = yaml.safe_load((folder / "right.yaml").read_text(encoding="utf-8"))
    assert said["from"].startswith("made up") or said.get("licence"), f"{folder}: no licence of the logs"

    def make():
        shutil.copytree(folder, ".", dirs_exist_ok=True)
        return said["command"]

    lists = {name: tuple(map(str, said["right"].get(name, ()))) for name in ("says", "says_not")}
    return Case(folder.name, said["about"], make, Right(**said["right"] | lists), said.get("wrong", ""))


ALL = [
    *made.CASES,
    *more_runs.CASES,
    *more_work.CASES,
    *(read_case(file.parent) for file in sorted(READ.glob("*/right.yaml"))),
]


@pytest.fixture
def answered(tmp_path, monkeypatch, capsys):
    """The answer to a command; its logs are in the working folder."""
    monkeypatch.chdir(tmp_path)
    return lambda words: ask(words, capsys)


@pytest.mark.parametrize("case", [case.as_parameter() for case in ALL])
def test_the_answer_is_right(answered, case):
    answer = answered(case.make())
    assert not wrong_in(answer, case.right), f"{case.about}\n{answer.text}"


def shuffled(words, chance):
    """The same command with each arm's files in another sequence."""
    arms = [word.partition("=") for word in words if not word.startswith("-")]
    mixed = [f"{name}={','.join(chance.sample(files.split(','), files.count(',') + 1))}" for name, _, files in arms]
    return mixed, [word for word in words if word.startswith("-")]


@pytest.mark.parametrize("case", [replace(case, wrong="").as_parameter() for case in made.CASES])
def test_the_sequence_of_files_and_of_arms_changes_nothing_but_the_sign(answered, case):
    words, chance = case.make(), random.Random(case.name)
    first = answered(words)
    for _ in range(ORDERS):
        mixed, flags = shuffled(words, chance)
        assert _numbers(answered([*mixed, *flags])) == _numbers(first), mixed
    mixed, flags = shuffled(words, chance)
    turned = answered([*mixed[::-1], *flags])
    assert turned.verdict == {"+": "-", "-": "+"}.get(first.verdict, first.verdict)
    assert (turned.unit, turned.caveats) == (first.unit, first.caveats)
    if not math.isnan(first.ratio):
        assert turned.ratio == pytest.approx(1 / first.ratio, rel=1e-9)
    if first.interval:
        assert turned.interval == pytest.approx([1 / end for end in first.interval[::-1]], rel=1e-9)


def _numbers(answer):
    """What the sequence of files must not change."""
    return answer.verdict, repr(answer.ratio), answer.unit, answer.interval, answer.caveats
