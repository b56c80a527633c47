"""The numbers here were computed by hand from the definitions; 8/13 = 0.61538, 1/13 = 0.07692."""

import os
import sys

import pytest

from common.errors import UserError
from node.phi4_reward import Phi4, last_boxed

from .. import patience
from ..attempts import ROOT

RIGHT, NONE = "<think>a</think>So \\boxed{12}", "<think>a</think>So 12"


CUT_OFF = "<think>a"
DRAFT = "<think>maybe \\boxed{12}</think>I do not know"
ACCURACY = [
    # Half way, at 28672 and 1851, cos(π/2) = 0; at 1234 cos(π/3) = 0.5.
    *((RIGHT, length, value) for length, value in {1: 1.0, 25600: 1.0, 28672: 0.75}.items()),
    *((NONE, length, value) for length, value in {0: -1, 1851: -0.75, 1234: -0.875, 3702: -0.5, 30000: -0.5}.items()),
    # What is cut off at the longest length is no bad format, and a draft inside the thought is no answer.
    *((CUT_OFF, 31744, -0.5), (RIGHT, 31744, -0.5), (DRAFT, 3702, -0.5)),
    *((CUT_OFF, 10, -1.0), ("\\boxed{12}", 10, -1.0), ("Sure! <think>a</think>\\boxed{12}", 10, -1.0), ("", 10, -1.0)),
    *(("<think>a</think><think>b</think>\\boxed{12}", 10, -1.0), ("</think>a<think>\\boxed{12}", 10, -1.0)),
]


@pytest.mark.parametrize(("text", "length", "value"), ACCURACY)
def test_a_long_correct_and_a_short_wrong_answer_get_less(text, length, value):
    complete = length < 31744
    assert Phi4().accuracy(text, length, "12", complete=complete) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\boxed{1} and \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\{1}", "\\{1"),
        ("\\boxed{a\\\\}", "a\\\\"),  # a line break, then the brace that closes
        ("\\boxed{1} then \\boxed{2", "1"),
        ("\\boxed{\\", ""),
        ("12", ""),
    ],
)
def test_the_last_closed_box(text, expected):
    assert last_boxed(text) == expected


@pytest.mark.parametrize("truth", [None, "", "  "])
def test_a_missing_ground_truth_is_an_error(truth):
    with pytest.raises(UserError, match="no ground truth"):
        Phi4().accuracy("<think>a</think>\\boxed{None}", 10, truth, complete=True)


def test_repetition():
    phi4 = Phi4()
    assert phi4.repetition([1, 2, 3, 4]) == 0.0
    assert phi4.repetition(range(1000)) == 0.0
    assert phi4.repetition([7] * 9) == 0.0  # one 5-gram, 5 times: not more than 5
    assert phi4.repetition([7] * 10) == -1.0  # 6 times; 6 / (10 / 5) would be 3
    # 12345 six times, parted by new tokens: 1 of 26 different 5-grams is frequent, and it occurs 6 times; 36 tokens.
    parted = [token for part in range(6) for token in (1, 2, 3, 4, 5, 100 + part)]
    counts = {tuple(parted[start : start + 5]) for start in range(32)}
    assert len(counts) == 27
    assert phi4.repetition(parted) == pytest.approx(-6 / (36 / 5))
    # Many different ones that are frequent: the share of them counts. 0…9 eight times: 10 of 10.
    assert phi4.repetition(list(range(10)) * 8) == -1.0
    # In a long text that is otherwise new, little: 6 / (2000 / 5) is more than 1 / 1990.
    assert phi4.repetition([*parted, *range(1000, 2964)]) == pytest.approx(-6 / 400)


def test_the_sum_is_weighted():
    assert Phi4().score(RIGHT, range(10), "12", complete=True) == pytest.approx(8 / 13)
    assert Phi4().score(RIGHT, [7] * 10, "12", complete=True) == pytest.approx(7 / 13)
    assert Phi4().score("", [7] * 10, "12", complete=True) == pytest.approx(-9 / 13)


def test_only_cpu_time_of_a_comparison_counts(tmp_path):
    """Who sleeps stands for who waits: what is equal must not depend on a node's other load."""
    asleep = "import time\ndef parse(text, **_):\n    time.sleep(0.6)\n    return [text]\n"
    (tmp_path / "math_verify.py").write_text(f"{asleep}def verify(truth, answer, **_):\n    return truth == answer\n")
    code = "from node import equality as e; e.LIMIT_S = 0.5; print(e.equal('1', '1'), e.equal('1', '2'))"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert patience.run([sys.executable, "-c", code], 60, cwd=ROOT, env=environ).stdout == "True False\n"
