"""The built-in rewards, called as TRL calls them in a thread of a stack's Python; rewards.yaml has their values."""

import json
import math
import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from node.built_in_rewards import BUILT_IN
from trainers.reward_settings import Reward

from .. import patience
from ..attempts import ROOT, TRANSFORMERS

GROUPS = yaml.safe_load(Path(__file__).with_name("rewards.yaml").read_text(encoding="utf-8"))
PROGRAM = """
import json, sys, threading
from common.errors import UserError
from node import equality
from node.rewards import reward_functions
equality.LIMIT_S = 1.0
found = []
def work():
    for group in json.load(sys.stdin):
        given = {"name": group["reward"], "options": group.get("options")}
        (reward,) = reward_functions([given], group.get("longest"))
        reward.end_ids = frozenset({99})
        values = []
        for row in group["rows"]:
            truths = [{"ground_truth": row.get("truth"), "style": "rule"}]
            text = row.get("text", "")
            try:
                values += reward(completions=[text], completion_ids=[row["tokens"]], reward_model=truths, prompts=[""])
            except UserError as error:
                values.append(str(error))
        found.append(values)
thread = threading.Thread(target=work); thread.start(); thread.join()
print(json.dumps(found))
"""


def token_ids(given):
    """A row's tokens: so many different ones, or all of them, in lines."""
    if isinstance(given, int):
        return list(range(1000, 1000 + given))
    return [token for line in given for token in (line if isinstance(line, list) else [line])]


@pytest.fixture(scope="module")
def found(stack_python):
    """By group, what each row came to."""
    groups = [
        group | {"rows": [row | {"tokens": token_ids(row.get("tokens", 1))} for row in group["rows"]]}
        for group in GROUPS
    ]
    command = [str(stack_python(TRANSFORMERS)), "-c", PROGRAM]
    done = patience.run(command, 90, input=json.dumps(groups), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("at", range(len(GROUPS)), ids=[f"{at}-{one['reward']}" for at, one in enumerate(GROUPS)])
def test_each_value_is_the_definitions(at, found):
    for row, got in zip(GROUPS[at]["rows"], found[at], strict=True):
        if "says" in row:
            assert row["says"] in got, row
        else:
            expected = eval(str(row["value"]), {"exp": math.exp, "cos": math.cos, "pi": math.pi})
            assert got == pytest.approx(expected, abs=1e-12), row


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_has_a_row_with_its_options_and_a_meaning(name):
    (row,) = re.findall(rf"^\| `{name}` \|.*", (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8"), re.M)
    assert all(f"`{option}`" in row for option in BUILT_IN[name].options)
    key = next(line for line in (ROOT / "docs" / "configuration.md").read_text().splitlines() if "DAPO's" in line)
    assert f"`{name}`: " in key, "its meaning in the docstring of Reward.name, then make docs"
    assert Reward(name=name).name == name


def test_only_cpu_time_of_a_comparison_counts(tmp_path):
    """Who sleeps stands for who waits: what is equal must not depend on a node's other load."""
    asleep = "import time\ndef parse(text, **_):\n    time.sleep(0.6)\n    return [text]\n"
    (tmp_path / "math_verify.py").write_text(f"{asleep}def verify(truth, answer, **_):\n    return truth == answer\n")
    code = "from node import equality as e; e.LIMIT_S = 0.5; print(e.equal('1', '1'), e.equal('1', '2'))"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert patience.run([sys.executable, "-c", code], 60, cwd=ROOT, env=environ).stdout == "True False\n"
