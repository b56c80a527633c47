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


def test_accuracy_in_any_thread(stack_python):
    code = (
        "import json, sys, threading\n"
        "from node.built_in_rewards import accuracy\n"
        "from node.rewards import reward_functions\n"
        "cases, out = json.load(sys.stdin), []\n"
        "def work():\n"
        "    out.append([accuracy(text, truth) for text, truth, _ in cases])\n"
        "    rows = [{'ground_truth': truth} for _, truth, _ in cases]\n"
        "    function = reward_functions([{'name': 'accuracy'}])[0]\n"
        "    out.append(function(completions=[text for text, *_ in cases], reward_model=rows))\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "print(json.dumps(out))"
    )
    command = [str(stack_python(TRANSFORMERS)), "-c", code]
    done = patience.run(command, 60, input=json.dumps(ACCURACY_CASES), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    expected = [value for *_, value in ACCURACY_CASES]
    assert json.loads(done.stdout) == [expected, expected]
