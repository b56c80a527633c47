"""A user's reward function: its arguments, and the effect of each mistake."""

import json

import pytest

from common.errors import UserError
from node import own_reward
from node.built_in_rewards import Response
from node.own_reward import RewardProblem, RewardProgram
from node.rewards import reward_functions

GOOD = """
import dataclasses

@dataclasses.dataclass
class Target:
    words: int

def brevity(completions, rows, *, target=3):
    print("this goes to the log")
    want = Target(target)
    return [None if row["ground_truth"] == "skip" else -abs(len(text.split()) - want.words)
            for text, row in zip(completions, rows, strict=True)]

def everything(completions, prompts, rows, token_ids, cut_off, **options):
    return [len(prompts[0]) + 10 * rows[0]["index"] + 100 * len(token_ids[0]) + 1000 * cut_off[0] + options["x"]] * len(
        completions)
"""


def own(code, function="score", options=None):
    return {"source": "mine.py", "function": function, "code": code, "options": options or {}, "weight": 1.0}


def test_a_function_gets_arguments_for_its_parameters():
    brevity, everything = reward_functions(
        [own(GOOD, "brevity", {"target": 2}), own(GOOD, "everything", {"x": 0.5})], max_response_length=3
    )
    rows = {"reward_model": [{"style": "rule", "ground_truth": truth} for truth in ("a", "skip")]}
    extra = {"extra_info": [{"index": 4, "split": "train"}] * 2, "data_source": ["d"] * 2}
    given = {"prompts": [[{"role": "user", "content": "?"}]] * 2, "completion_ids": [[1, 2, 3]] * 2, **rows, **extra}
    logged = {}
    asked = given | {"trainer_state": object(), "log_metric": logged.__setitem__}
    assert (brevity.__name__, everything.__name__) == ("brevity", "everything")
    assert brevity(completions=["a b c", "d"], **asked) == [-1.0, None]
    assert everything(completions=["a", [{"role": "assistant", "content": "b"}]], **asked) == [1341.5] * 2
    assert logged == {"rewards/brevity/failed": 0.0, "rewards/everything/failed": 0.0}
    for function in (brevity, everything):
        function.close()


COLUMNS = """
def picked(completions, level, rows, tags=None, *, at=0):
    return [one["n"] + (row["level"] == one) + len(tag) + at for one, row, tag in zip(level, rows, tags)]

def all_of_them(completions, **given):
    return [len(given)] * len(completions)

def none_of_them(completions):
    return [0.5] * len(completions)
"""


def test_a_function_gets_columns_for_its_parameters():
    columns = ["level", "tags", "with a space"]
    named = [own(COLUMNS, name) | {"columns": columns} for name in ("picked", "all_of_them", "none_of_them")]
    values = [{"level": {"n": at}, "tags": ["a"] * at, "with a space": None} for at in (1, 2)]
    extra = [{"index": at, "split": "train", "columns": json.dumps(one)} for at, one in enumerate(values)]
    functions = reward_functions(named)
    # 7: prompts, rows, token_ids, cut_off, and the three columns.
    expected = [[3.0, 5.0], [7.0, 7.0], [0.5, 0.5]]
    for function, wanted in zip(functions, expected, strict=True):
        assert function(completions=["a", "b"], extra_info=extra) == wanted
        function.close()


NOT_LOADED = {
    "raises": ("x = 1\n\nx / 0\n", "ZeroDivisionError: division by zero (mine.py, line 3)"),
    "lacks": ("import a_package_that_nobody_has\n", "ModuleNotFoundError: No module named 'a_package_that_nobody_has'"),
    "option": ("def score(completions): ...\n", "mine.py: score has no parameter for option 'target'"),
    "dies": ("import os\nos._exit(7)\n", "its process ended (exit code 7)"),
}


@pytest.mark.parametrize("name", NOT_LOADED)
def test_an_unusable_file_is_reported_in_one_line(name):
    code, words = NOT_LOADED[name]
    with pytest.raises(RewardProblem) as caught:
        RewardProgram(own(code, options={"target": 2}))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.missing == ("a_package_that_nobody_has" if name == "lacks" else None)


def test_a_column_is_passed_only_by_name():
    with pytest.raises(
        RewardProblem, match=r"has a parameter 'level' that is no option.*workload\.data\.columns names"
    ):
        RewardProgram(own(COLUMNS, "picked"))
    named = own(COLUMNS, "picked", {"level": 1}) | {"columns": ["level"]}
    with pytest.raises(RewardProblem, match="option 'level' has the name of a column of the data; rename it"):
        RewardProgram(named)


# What a function does with the completion "bad", and what is recorded of it; the others have their value.
BROKEN = {
    "raises": ("text['x']", "TypeError: string indices must be integers, not 'str' (mine.py, line 4)"),
    "text": ("'high'", "must return a number or None for each completion (got 'high', of type str)"),
    "nan": ("float('nan')", "must return finite numbers (got nan)"),
    "hangs": ("hang()", "mine.py: score: no answer within 0.5 s: a call of 1 completion"),
    "crashes": ("__import__('os')._exit(9)", "its process ended (exit code 9)"),
}
CODE = """
def score(completions):
    return [
        {} if text == "bad" else len(text)
        for text in completions]
def hang():
    while True: pass
"""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_row_has_no_value_and_other_rows_keep_theirs(name, tmp_path, capfd):
    does, words = BROKEN[name]
    reward = RewardProgram(own(CODE.replace("{}", does)) | {"timeout_s": 0.5}, tmp_path / "failures.jsonl")
    responses = [Response(text, row={"index": at + 5, "split": "train"}) for at, text in enumerate(["a", "bad", "abc"])]
    for _ in range(2):  # after a crash it is there again
        assert reward.score(responses) == ([1.0, None, 3.0], 1)
    reward.close()
    first, _ = map(json.loads, (tmp_path / "failures.jsonl").read_text().splitlines())
    assert words in first["problem"]
    assert (first["reward"], first["row"]["index"], first["completion"]) == ("score", 6, "bad")
    assert f"no value for a response to row 6 of the data: {first['problem']}" in capfd.readouterr().err


def test_a_list_of_the_wrong_length_is_reported_and_scored_separately(capfd):
    reward = RewardProgram(own("def score(completions): return [1.0]\n"))
    values, problem = reward.call([Response("a"), Response("b")])
    assert values == [] and "one value for each completion (got 1 values for 2)" in str(problem)
    assert reward.score([Response("a"), Response("b")]) == ([1.0, 1.0], 0)
    assert "got 1 values for 2); scoring each response separately" in capfd.readouterr().err
    reward.close()


def test_a_function_that_always_fails_ends_the_run(monkeypatch):
    monkeypatch.setattr(own_reward, "MOST_FAILED", 6)
    reward = RewardProgram(own("def score(completions):\n    return 1 / 0\n"))
    assert reward.score([Response("a")] * 5) == ([None] * 5, 5)
    with pytest.raises(UserError, match=r"failed on 6 responses in a row.*line 2"):
        reward.score([Response("a", row={"index": 3})])
    reward.close()


SLOW = """
import time
def score(completions):
    time.sleep(0.4 * len(completions))
    return [1.0] * len(completions)
"""


def test_a_slow_function_has_the_time_that_its_setting_gives():
    reward = RewardProgram(own(SLOW) | {"timeout_s": 0.2})
    values, problem = reward.call([Response("a")])
    assert (values, problem.late) == ([], True) and "within 0.2 s: a call of 1 completion, limited by" in str(problem)
    reward.close()
    reward = RewardProgram(own(SLOW) | {"timeout_s": 20})
    assert reward.score([Response("a")] * 2) == ([1.0, 1.0], 0)
    reward.close()


def test_many_hangs_take_limited_time(monkeypatch):
    monkeypatch.setattr(own_reward, "ALONE_S", 0.5)
    reward = RewardProgram(own("import time\ndef score(completions): time.sleep(99)\n") | {"timeout_s": 0.2})
    values, failed = reward.score([Response("a")] * 20)
    assert (values, failed) == ([None] * 20, 20)
    reward.close()
