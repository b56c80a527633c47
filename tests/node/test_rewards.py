"""The rewards' formulas, called as TRL calls them."""

import json
import math

import pytest

from node.built_in_rewards import format_match, length_near
from node.rewards import completion_text, reward_functions

from .. import patience
from ..attempts import ROOT, TRANSFORMERS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        (" <think>a\nb</think>\n <answer></answer>\n", 1.0),
        ("<think>a</think> so <answer>b</answer>", 0.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("<think>a</think><think>a</think><answer>b</answer>", 0.0),
        ("<think>a<think></think><answer>b</answer>", 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_format(text, value):
    assert format_match(text) == value


def test_length():
    assert length_near("x" * 30) == 1.0
    assert length_near("x" * 20) == length_near("x" * 40) == pytest.approx(math.exp(-1.5))
    assert length_near("x" * 10, target=12, alpha=0.5) == pytest.approx(math.exp(-1))


def test_completions_may_be_texts_or_conversations():
    assert completion_text("a") == "a"
    assert completion_text([{"role": "assistant", "content": "a"}]) == "a"
    assert completion_text([{"role": "assistant", "content": None}]) == ""
    functions = reward_functions([{"name": "format"}, {"name": "length", "options": {"target": 1}}])
    assert [function.__name__ for function in functions] == ["format", "length"]
    completions = ["a", [{"role": "assistant", "content": "<think></think><answer></answer>"}]]
    assert functions[0](completions=completions, prompts=["", ""], trainer_state=None) == [0.0, 1.0]
    assert functions[1](completions=completions)[0] == 1.0


ACCURACY_CASES = [
    ("42", "42", 1.0),
    ("<answer> 42 </answer>", "42", 1.0),
    ("<answer>1</answer> no, <answer>42</answer>", "42", 1.0),
    ("<think>42</think><answer>41</answer>", "42", 0.0),
    ("It is 42.", "42", 1.0),
    (r"$\frac{1}{2}$", "0.5", 1.0),
    ("1,234", "1234", 1.0),
    ("-7", "7", 0.0),
    ("blue", "blue", 1.0),
    ("red", "blue", 0.0),
    ("", "42", 0.0),
]


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
from node.built_in_rewards import accuracy
from node.rewards import reward_functions
equality.LIMIT_S = 2.0
cases, equal = json.load(sys.stdin)
out = [[equality.equal(f"\\\\boxed{{{truth}}}", f"\\\\boxed{{{answer}}}") for truth, answer, _ in equal]]
texts = ["<think>a</think>\\\\boxed{0.5}", "<think>a", "<think>a</think>\\\\boxed{13}"]
halves = [{"ground_truth": "\\\\frac{1}{2}"}] * 3
def work():
    out.append([accuracy(text, truth) for text, truth, _ in cases])
    rows = [{"ground_truth": truth} for _, truth, _ in cases]
    (reward,) = reward_functions([{"name": "accuracy"}])
    out.append(reward(completions=[text for text, *_ in cases], reward_model=rows))
    (reward,) = reward_functions([{"name": "phi4"}], max_response_length=62)
    out.append(reward(completions=texts, reward_model=halves, completion_ids=[list(range(n)) for n in (50, 62, 7)]))
thread = threading.Thread(target=work); thread.start(); thread.join()
print(json.dumps(out))
"""


def test_accuracy_in_any_thread(stack_python):
    """In limited time, too."""
    given = json.dumps([ACCURACY_CASES, EQUALITY])
    done = patience.run([str(stack_python(TRANSFORMERS)), "-c", PROGRAM], 90, input=given, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    verdicts, alone, as_reward, scores = json.loads(done.stdout)
    assert verdicts == [expected for *_, expected in EQUALITY]
    assert alone == as_reward == [value for *_, value in ACCURACY_CASES]
    right, cut, wrong = scores
    assert right == pytest.approx(8 / 13)  # 50 tokens are up to 25600/31744 of 62
    assert cut == pytest.approx(-0.5 * 8 / 13)
    assert wrong == pytest.approx(8 / 13 * (-0.5 - 0.25 * (1 + math.cos(math.pi * 7 / (62 * 3702 / 31744)))))
