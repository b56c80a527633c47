"""Gives the logs of each folder beside this file to `rolloutbench compare`: the answer is what `answer.yaml` says.

README.md has the keys of that file.
"""

import contextlib
import functools
import io
import json
import math
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest
import yaml

from analysis.report.content import Content
from analysis.verdict.arm_verdict import seconds_text
from tests.answers.reads import logs_in, put, wrong_in_log
from tests.planted import in_text
from trainers.registry import QUANTITIES, trainers
from workflow.cli import main

HERE = Path(__file__).parent
ASKED = {"about", "from", "worked_out"}
COMPARED, READ = {"command", "right"}, {"reads"}
"""The keys of a case that is compared, and of one whose logs are read alone."""
RIGHT = {"verdict", "ratio", "within", "unit", "not_unit", "says", "says_not"}
MORE = {"licence", "wrong", "right", "logs"}
TABLES = "right"
"""The folder of a case with parts of the report's tables, as they must be."""
REPORT = "report"
KEYS = ("run_id", "arm", "step", "path", "estimate", "quantity", "factors", "baseline", "setting")
"""The columns of such a part that say which row of the report's table it is."""


@dataclass(frozen=True)
class Case:
    """A case that is compared, as its answer.yaml says it; a key of `right` that is not given is free."""

    folder: Path
    about: str
    command: tuple[str, ...]
    right: dict = field(compare=False)
    wrong: str = ""

    def parameter(self):
        marks = [pytest.mark.xfail(strict=True, reason=self.wrong)] if self.wrong else []
        return pytest.param(self, id=self.folder.name, marks=marks)


@dataclass(frozen=True)
class Answer:
    """What the command answers: a verdict with its ratio, or a refusal."""

    verdict: str
    ratio: float = math.nan
    unit: str = ""
    interval: tuple[float, float] | None = None
    caveats: int = 0
    text: str = field(default="", compare=False)
    """All words: the verdict's, its caveats, and what is said beside it."""
    of_both: tuple = field(default=((), ()), compare=False)
    """The runs of the baseline and of the arm; and their seconds, where the first sentence has them."""

    def turned(self):
        """The answer where the other arm is the baseline."""
        ends = self.interval and (1 / self.interval[1], 1 / self.interval[0])
        verdict = {"+": "-", "-": "+"}.get(self.verdict, self.verdict)
        return Answer(verdict, 1 / self.ratio, self.unit, ends, self.caveats)


def said_in(file):
    said = yaml.safe_load(file.read_text(encoding="utf-8"))
    here, wanted = file.parent.name, ASKED | (READ if "reads" in said else COMPARED)
    assert wanted <= set(said) <= wanted | MORE, (
        f"{here}/answer.yaml: keys {sorted(said)}; tests/answers/README.md has them"
    )
    assert said["from"].startswith("made up") or said.get("licence"), f"{here}: no licence of the logs"
    return said


def case_of(folder, said):
    assert set(said["right"]) <= RIGHT, f"{folder.name}/answer.yaml: right has {sorted(said['right'])}"
    return Case(folder, said["about"], tuple(said["command"]), said["right"], said.get("wrong", ""))


SAID = {file.parent: said_in(file) for file in sorted(HERE.glob("*/answer.yaml"))}
CASES = [case_of(folder, said) for folder, said in SAID.items() if "reads" not in said]
READS = [
    pytest.param(folder, name, log, id=f"{folder.name}-{name}")
    for folder, said in SAID.items()
    if "reads" in said
    for name, log in logs_in(said).items()
]
WITH_TABLES = [case for case in CASES if (case.folder / TABLES).is_dir()]


def ask(case, words, folder):
    """The answer of `rolloutbench compare` to these words, about its first arm that is no baseline."""
    out, beside = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(beside):
        code = main(["compare", *words, "--json"])
    assert not in_text(out.getvalue() + beside.getvalue()), "a planted secret is printed"
    said = " ".join(beside.getvalue().split())
    if code:
        return Answer("refused", text=said)
    found = json.loads(out.getvalue())
    said = " ".join([*texts(found), said])
    if not found["arms"]:
        return Answer("x", text=said)
    one = found["arms"][0]
    ratio = next(iter(one["ratios"]), {"unit": "", "value": [math.nan], "interval": None})
    interval = tuple(ratio["interval"]) if ratio["interval"] and None not in ratio["interval"] else None
    seconds = ratio["seconds"] if ratio.get("seconds", [None])[0] and not ratio["too_wide"] else ()
    both = one["runs"] if one["basis"] else (), seconds
    return Answer(one["verdict"], ratio["value"][0], ratio["unit"], interval, len(one["caveats"]), said, both)


def texts(found):
    """All texts of a document, one after another."""
    if isinstance(found, dict):
        return [text for value in found.values() for text in texts(value)]
    if isinstance(found, list):
        return [text for value in found for text in texts(value)]
    return [found] if isinstance(found, str) else []


@functools.cache
def logs_of(folder, parent):
    """A copy of a case's folder with all its logs. Its name has a space, as people's folders have."""
    logs = shutil.copytree(folder, parent / f"{folder.name} of mine")
    for name, log in logs_in(SAID[folder]).items():
        put(logs, name, log)
    return logs


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return tmp_path_factory.mktemp("answers")


@pytest.fixture(scope="module")
def answered(parent):
    """The answer of a case, whose report is written where its tables are asked for; or to other words of it.

    The reports have no figures, which take half of their time: tests/analysis draws those.
    """

    @functools.cache
    def answer(case, words=()):
        more = ["--report", REPORT] if case in WITH_TABLES and not words else ["--verdict-only"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Content, "figures", [])
            return ask(case, [*(words or case.command), *more], logs_of(case.folder, parent))

    return answer


@pytest.mark.parametrize("case", [case.parameter() for case in CASES])
def test_the_answer_is_right(answered, case):
    answer = answered(case)
    assert not wrong_in(answer, case.right), f"{case.about}\n{answer.text}"


def wrong_in(answer, right):
    """What is wrong in an answer, one sentence each."""
    found, verdicts = [], right.get("verdict", answer.verdict)
    if answer.verdict not in verdicts.split():
        found.append(f"the verdict is {answer.verdict}, not {verdicts}")
    if answer.verdict != "refused":
        if "ratio" in right and not abs(answer.ratio / right["ratio"] - 1) <= right.get("within", 0.03):
            found.append(f"the ratio is {answer.ratio:.3f}, not {right['ratio']:.3f}")
        if right.get("unit", "") not in answer.unit or right.get("not_unit", "no unit") in answer.unit:
            found.append(f"the unit is {answer.unit!r}")
    for key in ("says", "says_not"):
        found += [
            f"{key}: {words}" for words in right.get(key, ()) if stands(str(words), answer.text) != (key == "says")
        ]
    return found


def stands(words, text):
    lowered = text.replace(",", "").lower()
    return any(one.lower() in lowered for one in words.split("|"))


def turned(words):
    """The same command with the arms, and the files of each arm, in the opposite sequence."""
    arms = [word.partition("=") for word in words if "=" in word]
    mixed = [f"{name}={','.join(reversed(files.split(',')))}" for name, _, files in arms]
    return (*reversed(mixed), *(word for word in words if "=" not in word))


AGAINST = re.compile(r"([\d.,]*\d)%?(?: (?:s|runs?|steps?|results?|GPUs))? against ([\d.,]*\d)")
"""Both numbers of a text that does not name its arms."""
TWO_ARMS = [
    pytest.param(case, id=case.folder.name, marks=[pytest.mark.full("a third of the cases shows it")] * (at % 3 > 0))
    for at, case in enumerate(
        case
        for case in CASES
        if case.right.get("verdict") != "refused"
        and ["=" in word for word in case.command[:3]] in ([True] * 2, [True, True, False])
    )
]


@pytest.mark.parametrize("case", TWO_ARMS)
def test_the_sequence_of_files_and_of_arms_changes_nothing_but_the_sign(answered, case):
    first, other = answered(case).turned(), answered(case, turned(case.command))
    assert (other.verdict, other.unit, other.caveats) == (first.verdict, first.unit, first.caveats), other.text
    assert other.ratio == pytest.approx(first.ratio, rel=1e-9, nan_ok=True)
    assert (other.interval is None) == (first.interval is None)
    assert first.interval is None or other.interval == pytest.approx(first.interval, rel=1e-9)
    # "1 against 2": the arm's number is first in every text. Where a text has another order it names the arms.
    pairs = sorted(AGAINST.findall(answered(case).text))
    assert pairs == sorted((second, first) for first, second in AGAINST.findall(other.text))
    runs, seconds = other.of_both
    assert not runs or f"{runs[1]} run{'s' * (runs[1] > 1)} against {runs[0]}" in other.text
    assert not seconds or f"{seconds_text(seconds[1])} against {seconds_text(seconds[0])}" in other.text


@pytest.mark.parametrize(("case", "name", "log"), READS)
def test_a_log_is_read_rightly(case, name, log, parent):
    found = wrong_in_log(logs_of(case, parent), name, log)
    assert not found, f"{SAID[case]['about']}\n" + "\n".join(found)


@pytest.mark.parametrize("case", WITH_TABLES, ids=lambda case: case.folder.name)
def test_the_numbers_of_the_tables_are_right(answered, case, parent):
    answered(case)
    folder = logs_of(case.folder, parent)
    for file in sorted((case.folder / TABLES).glob("*.csv")):
        right = pd.read_csv(file, dtype=str, keep_default_na=False)
        table = pd.read_csv(folder / REPORT / "tables" / file.name, dtype=str, keep_default_na=False)
        keys = [key for key in KEYS if key in right]
        assert set(right) <= set(table), f"{file}: {table.columns.tolist()} has not {sorted(set(right) - set(table))}"
        for row in right.to_dict("records"):
            same = table[(table[keys] == [row[key] for key in keys]).all(axis=1)]
            assert len(same) == 1, f"{file}: {len(same)} rows of the table are {[row[key] for key in keys]}"
            for name, value in row.items():
                assert equal(same.iloc[0][name], value), f"{file}: {row}: {name} is {same.iloc[0][name]}, not {value}"


# The numbers of the other two are no steps of a trainer's log.
IN_LOGS = [one for one in trainers() if one.logs.quantities and one.name not in ("replay", "benchmark")]


@pytest.mark.parametrize("trainer", IN_LOGS, ids=lambda one: one.name)
def test_every_quantity_of_a_trainers_logs_stands_in_a_case(trainer):
    files = HERE.glob(f"*_of_{trainer.name.replace('-', '_')}/{TABLES}/steps.csv")
    columns = {column for file in files for column in pd.read_csv(file, nrows=0)}
    assert set(trainer.logs.quantities) <= set(QUANTITIES), "a misspelt name is in no table"
    assert set(trainer.logs.quantities) <= columns, "add the column to a case, and its right values"


def equal(value, right):
    """Whether a cell is the right one; of numbers, to the digits that are given."""
    try:
        digits = len(right.partition(".")[2])
        return abs(float(value) - float(right)) <= 0.5000001 * 10**-digits
    except ValueError:
        return value == right
