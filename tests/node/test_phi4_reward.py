"""The numbers here were computed by hand from the definitions; 8/13 = 0.61538, 1/13 = 0.07692."""

import json
import math
import os
import sys

import pytest

from common.errors import UserError
from node.phi4_reward import Phi4, answer_part, last_boxed

from .. import patience
from ..attempts import ROOT, TRANSFORMERS

RIGHT, NONE = "<think>a</think>So \\boxed{12}", "<think>a</think>So 12"


# Half way, at 28672 and 1851, cos(π/2) = 0; at 1234 cos(π/3) = 0.5.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RIGHT, {1: 1.0, 25600: 1.0, 28672: 0.75}),
        (NONE, {0: -1.0, 1851: -0.75, 1234: -0.875, 3702: -0.5, 30000: -0.5}),
    ],
)
def test_a_long_correct_and_a_short_wrong_answer_get_less(text, expected):
    rewards = {length: Phi4().accuracy(text, length, "12", complete=True) for length in expected}
    assert rewards == pytest.approx(expected, abs=1e-12)


def test_an_incomplete_response_is_not_a_bad_format():
    phi4 = Phi4()
    assert phi4.accuracy("<think>a", 31744, "12", complete=False) == -0.5
    assert phi4.accuracy(RIGHT, 31744, "12", complete=False) == -0.5
    assert phi4.accuracy("<think>a", 10, "12", complete=True) == -1.0
    assert phi4.accuracy("\\boxed{12}", 10, "12", complete=True) == -1.0


@pytest.mark.parametrize(
    "text",
    [
        "no thought \\boxed{1}",
        "Sure! <think>a</think>\\boxed{1}",
        "<think>a \\boxed{1}",
        "<think>a</think><think>b</think>\\boxed{1}",
        "</think>a<think>\\boxed{1}",
        "",
    ],
)
def test_bad_formats(text):
    assert answer_part(text) is None


def test_a_draft_inside_the_thought_is_not_the_answer():
    draft = "<think>maybe \\boxed{12}</think>I do not know"
    assert answer_part(draft) == "I do not know"
    assert Phi4().accuracy(draft, 3702, "12", complete=True) == -0.5


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


# truth, answer, whether they are equal; the one before the last keeps math_verify busy for hours
EQUALITY = [
    ("\\frac{1}{2}", "0.5", True),
    ("1+x^2", "x^2 + 1", True),
    ("\\{1, 2\\}", "\\{2, 1\\}", True),
    ("\\sin x", "sinx", False),
    ("12", "13", False),
    ("", "", False),
    ("3", "9^{9^{9}}", False),
    ("3", "3", True),
]
PROGRAM = """
import json, sys, threading
from node import equality
equality.LIMIT_S = float(sys.argv[1])
from node.rewards import reward_functions
cases = json.load(sys.stdin)
out = [equality.equal(f"\\\\boxed{{{truth}}}", f"\\\\boxed{{{answer}}}") for truth, answer, _ in cases]
texts = ["<think>a</think>\\\\boxed{0.5}", "<think>a", "<think>a</think>\\\\boxed{9^{9^{9}}}"]
rows = [{"ground_truth": "\\\\frac{1}{2}"}] * 3
def work():
    (reward,) = reward_functions([{"name": "phi4"}], max_response_length=62)
    out.append(reward(completions=texts, reward_model=rows, completion_ids=[list(range(n)) for n in (50, 62, 7)]))
thread = threading.Thread(target=work); thread.start(); thread.join()
print(json.dumps(out))
"""


@pytest.mark.full("libraries of a stack")
def test_equality_in_a_stack_from_any_thread_in_limited_time(stack_python):
    command = [str(stack_python(TRANSFORMERS)), "-c", PROGRAM, "2"]
    done = patience.run(command, 90, input=json.dumps(EQUALITY), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    *verdicts, scores = json.loads(done.stdout)
    assert verdicts == [expected for *_, expected in EQUALITY]
    right, cut, wrong = scores
    assert right == pytest.approx(8 / 13)  # 50 tokens are up to 25600/31744 of 62
    assert cut == pytest.approx(-0.5 * 8 / 13)
    assert wrong == pytest.approx(8 / 13 * (-0.5 - 0.25 * (1 + math.cos(math.pi * 7 / (62 * 3702 / 31744)))))


def test_only_cpu_time_of_a_comparison_counts(tmp_path):
    """Who sleeps stands for who waits: what is equal must not depend on a node's other load."""
    asleep = "import time\ndef parse(text, **_):\n    time.sleep(0.6)\n    return [text]\n"
    (tmp_path / "math_verify.py").write_text(f"{asleep}def verify(truth, answer, **_):\n    return truth == answer\n")
    code = "from node import equality as e; e.LIMIT_S = 0.5; print(e.equal('1', '1'), e.equal('1', '2'))"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert patience.run([sys.executable, "-c", code], 60, cwd=ROOT, env=environ).stdout == "True False\n"
