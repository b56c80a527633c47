"""A user's reward function: its arguments under every trainer, and the effect of each mistake."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import UserError
from node import own_reward
from node.built_in_rewards import Response
from node.own_reward import RewardProblem, RewardProgram
from node.rewards import reward_functions
from trainers.swift.driver.pipeline import as_reward
from trainers.verl.driver.reward import compute_score


def own(code, function="score", options=None, **more):
    return {"source": "mine.py", "function": function, "code": code, "options": options or {}, "weight": 1.0, **more}


@pytest.fixture
def program():
    """Makes a program, which ends with the test."""
    made = []

    def make(*args, **named):
        made.append(RewardProgram(*args, **named))
        return made[-1]

    yield make
    for one in made:
        one.close()


NOT_LOADED = {
    "raises": ("x = 1\n\nx / 0\n", "ZeroDivisionError: division by zero (mine.py, line 3)"),
    "lacks": ("import a_package_that_nobody_has\n", "ModuleNotFoundError: No module named 'a_package_that_nobody_has'"),
    "class": ("class score: ...\n", "mine.py: score cannot be used: TypeError"),
    "verls": (
        "def score(data_source, solution_str, ground_truth, extra_info, url, target=0): ...\n",
        "mine.py: score has a parameter 'url' that is no option; functions get completions, prompts",
    ),
    "option": ("def score(completions): ...\n", "mine.py: score has no parameter for option 'target'"),
    "dies": ("import os\nos._exit(7)\n", "its process ended (exit code 7)"),
    # A column is passed only by name.
    "column": (
        "def score(completions, level, *, target): ...\n",
        "has a parameter 'level' that is no option; functions get completions, prompts, rows, token_ids, cut_off and "
        "the columns that workload.data.columns names",
    ),
}


@pytest.mark.parametrize("name", NOT_LOADED)
def test_an_unusable_file_is_reported_in_one_line(name):
    code, words = NOT_LOADED[name]
    with pytest.raises(RewardProblem) as caught:
        RewardProgram(own(code, options={"target": 2}))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.missing == ("a_package_that_nobody_has" if name == "lacks" else None)


# What a function does with the completion "bad", and what is recorded of it; the others have their value.
BROKEN = {
    "raises": ("text['x']", "TypeError: string indices must be integers, not 'str' (mine.py, line 4)"),
    "text": ("'high'", "must return a finite number or None for each completion (got 'high', of type str)"),
    "nan": ("float('nan')", "must return a finite number or None for each completion (got nan, of type float)"),
    "hangs": ("hang()", "mine.py: score: no answer within 0.5 s (timeout_s) for 1 completion"),
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


def test_a_value_that_is_no_number_costs_no_further_call(tmp_path):
    """A judge that answers all completions of a step at once is not asked about each again. None is an answer."""
    code = "calls = 0\ndef score(completions):\n    global calls\n    calls += 1\n"
    code += "    return [float('nan'), None, *[float(calls)] * (len(completions) - 2)]\n"
    reward = RewardProgram(own(code), tmp_path / "failures.jsonl")
    for call in (1.0, 2.0):
        assert reward.score([Response("a")] * 3) == ([None, None, call], 1)
    reward.close()


def test_a_list_of_the_wrong_length_is_reported_and_scored_separately(capfd):
    reward = RewardProgram(own("def score(completions): return [1.0]\n"))
    with pytest.raises(RewardProblem, match=r"one value for each completion \(got 1 values for 2\)"):
        reward.call([Response("a"), Response("b")])
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


def test_many_hangs_take_limited_time(monkeypatch):
    monkeypatch.setattr(own_reward, "CALL_S", 0.5)
    reward = RewardProgram(own("import time\ndef score(completions): time.sleep(99)\n") | {"timeout_s": 0.2})
    values, failed = reward.score([Response("a")] * 20)
    assert (values, failed) == ([None] * 20, 20)
    reward.close()


TEXTS = ["so <answer>7</answer>", "<answer>8</answer>", ""]
VALUES = [1.0, 0.0, 0.0]
# As they are written for verl, with a limit of their own that needs the process's main thread.
VERL = """
import signal

def too_late(number, frame):
    raise TimeoutError("the comparison took too long")

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    print("---", solution_str)
    assert data_source == "my/data" and extra_info == {
        "index": extra_info["index"], "split": "train", "level": extra_info["index"], "with a space": None}
    signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        while not solution_str: pass
        right = f"<answer>{ground_truth}</answer>" in solution_str
    except TimeoutError:
        right = False
    finally:
        signal.alarm(0)
    return {"score": float(right), "pred": solution_str, "acc": right}

async def judged(data_source, solution_str, ground_truth, extra_info, **kwargs):
    import asyncio
    await asyncio.sleep(0)
    assert data_source == "openai/gsm8k" and not kwargs
    return ground_truth in solution_str
"""
TRL = """
def accuracy_reward(completions, solution, **kwargs):
    assert len(kwargs["level"]) == len(solution) and kwargs["answer"] == kwargs["ground_truth"] == solution
    assert [prompt[-1]["role"] for prompt in kwargs["prompts"]] == ["user"] * len(solution)
    return [float(truth in one[0]["content"]) for one, truth in zip(completions, solution)]

async def judged(completions, completion_ids, answer, log_extra=None):
    assert len(completion_ids) == len(completions)
    return [truth in one[0]["content"] for one, truth in zip(completions, answer)]
"""
SWIFT = """
class Scaled:
    def __init__(self, scale=1.0, divisor=1.0):
        self.value = scale / divisor

    def __call__(self, completions, messages, solution, is_truncated, **kwargs):
        assert [row[-1]["content"] for row in messages] == completions and not any(is_truncated)
        return [self.value * (truth in text) for text, truth in zip(completions, solution)]
"""
OURS = """
import dataclasses

@dataclasses.dataclass
class Worth:
    right: float

async def awaited(completions, prompts, rows, token_ids, cut_off, level, *, worth=0):
    print("this goes to the log")
    assert [row["level"] for row in rows] == level == [row["index"] for row in rows] and not any(cut_off)
    assert [prompt[-1]["content"] for prompt in prompts] == [f"{row['index']}?" for row in rows]
    assert [len(ids) for ids in token_ids] == [len(text) for text in completions]
    return [Worth(worth).right * (row["ground_truth"] in text) for text, row in zip(completions, rows)]

def of_all(completions, **given):
    return [(truth in text) * len(given) / 10 for text, truth in zip(completions, given["ground_truth"])]
"""
FUNCTIONS = [
    (OURS, "awaited", {"worth": 1}),
    # prompts, rows, token_ids, cut_off, three names of the answer, two columns and an option.
    (OURS, "of_all", {"more": 1}),
    (VERL, "compute_score", {}),
    (VERL, "judged", {"data_source": "openai/gsm8k"}),
    (TRL, "accuracy_reward", {}),
    (TRL, "judged", {}),
    (SWIFT, "Scaled", {"scale": 2, "divisor": 2}),
]


class Tokenizer:
    """A token for each character; as transformers' tokenizers as far as trainers use it here."""

    all_special_ids = (0,)

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [ord(one) for one in text]}

    def batch_decode(self, ids, skip_special_tokens):
        return ["".join(chr(token) for token in one if token) for one in ids]


@pytest.mark.parametrize(("code", "function", "options"), FUNCTIONS)
def test_the_same_completions_score_the_same_under_every_trainer(code, function, options, tmp_path, monkeypatch):
    reward = own(code, function, options, columns=["level", "with a space"])
    prompts = [[{"role": "user", "content": f"{at}?"}] for at in range(3)]
    extra = [
        {"index": at, "split": "train", "columns": json.dumps({"level": at, "with a space": None})} for at in range(3)
    ]
    truths = [{"style": "rule", "ground_truth": "7"}] * 3
    columns = {"data_source": ["my/data"] * 3, "reward_model": truths, "extra_info": extra}
    ids = [[*map(ord, text), 0] for text in TEXTS]
    (ours,) = reward_functions([reward], 64)
    ours.end_ids = frozenset(Tokenizer.all_special_ids)
    replies = [[{"role": "assistant", "content": text}] for text in TEXTS]
    metric = {}
    of_trl = {"trainer_state": object(), "log_extra": print, "log_metric": metric.__setitem__}
    under_trl = ours(prompts=prompts, completions=replies, completion_ids=ids, **of_trl, **columns)
    in_swift = as_reward(ours, Tokenizer())
    messages = [[*prompt, *reply] for prompt, reply in zip(prompts, replies, strict=True)]
    under_swift = in_swift(["<raw>"] * 3, response_token_ids=ids, messages=messages, trainer_state=object(), **columns)
    ours.close()

    (tmp_path / "rewards.json").write_text(json.dumps({"rewards": [reward], "data": [str(tmp_path / "data.parquet")]}))
    pq.write_table(pa.table({"prompt": prompts, "extra_info": extra}), tmp_path / "data.parquet")
    loads = SimpleNamespace(from_pretrained=lambda folder: Tokenizer())  # transformers is in stacks only
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=loads))
    under_verl = [
        compute_score("my/data", text, "7", extra[at], rewards_file=str(tmp_path / "rewards.json"), tokenizer="here")
        for at, text in enumerate(TEXTS)
    ]
    assert under_trl == under_swift == [one[function] for one in under_verl] == VALUES
    assert metric == {f"rewards/{function}/failed": 0.0}
    assert all(one[f"{function}_failed"] == 0 for one in under_verl)


def test_a_response_without_a_score_costs_no_other_its_value(tmp_path, program):
    code = "def compute_score(data_source, solution_str, ground_truth):\n"
    code += "    return {'acc': 1.0} if solution_str == 'bad' else {'score': 0.5}\n"
    mine = program(own(code, "compute_score"), tmp_path / "failures.jsonl")
    assert mine.score([Response(text) for text in ("a", "bad", "b")]) == ([0.5, None, 0.5], 1)
    (line,) = map(json.loads, (tmp_path / "failures.jsonl").read_text().splitlines())
    assert "(got {'acc': 1.0}, of type dict)" in line["problem"] and line["completion"] == "bad"


FORGETS = """
import signal, time
def compute_score(data_source, solution_str, ground_truth):
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, 1000)  # and forgets it
    time.sleep(0.6)
    return left_s
"""


def test_each_response_of_verls_signature_has_the_whole_time_and_no_alarm_of_the_one_before(program):
    assert program(own(FORGETS, "compute_score", timeout_s=1.5)).score([Response("a")] * 3) == ([0.0] * 3, 0)


def test_a_response_that_was_cut_off_is_one(program):
    code = "def score(completions, cut_off):\n    return [float(one) for one in cut_off]\n"
    assert program(own(code)).call([Response("a"), Response("b", complete=False)]) == [0.0, 1.0]


@pytest.mark.parametrize(("signature", "length"), [("trl", 1.0), ("swift", 2.0), ("rolloutbench", 2.0), (None, 2.0)])
def test_the_named_signature_is_used(signature, length, program):
    code = "def score(completions, **kwargs):\n    return [len(one) for one in completions]\n"
    assert program(own(code, signature=signature)).call([Response("ab")]) == [length]


JUDGE = """
import os, time
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    open(os.path.join(extra_info["folder"], solution_str), "w").close()
    until = time.monotonic() + 30
    while len(os.listdir(extra_info["folder"])) < 4:
        assert time.monotonic() < until, "asked alone"
        time.sleep(0.01)
    return 1.0
"""


def test_verl_asks_a_judge_about_several_responses_at_a_time(tmp_path):
    """It calls from a pool of threads; this judge answers when it is asked about four responses."""
    (tmp_path / "asked").mkdir()
    given = {"rewards": [own(JUDGE, "compute_score", timeout_s=120)], "data": []}
    (tmp_path / "rewards.json").write_text(json.dumps(given))
    about = {"folder": str(tmp_path / "asked"), "index": 0, "split": "train"}

    def score(text):
        return compute_score("my/data", text, "7", about, rewards_file=str(tmp_path / "rewards.json"))

    with ThreadPoolExecutor(4) as pool:
        scores = [one["score"] for one in pool.map(score, ["a", "b", "c", "d"])]
    assert scores == [1.0] * 4
