"""Reward functions as verl, TRL and ms-swift call them: which is recognised, and what each gets under every trainer."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.built_in_rewards import Response
from node.own_reward import FOREIGN_CALL_S, RewardProblem, RewardProgram
from node.rewards import reward_functions
from trainers.swift.driver.pipeline import as_reward
from trainers.verl.driver.reward import compute_score

TEXTS = ["so <answer>7</answer>", "<answer>8</answer>", ""]
VALUES = [1.0, 0.0, 0.0]
ROWS = [{"index": at, "split": "train", "ground_truth": "7", "data_source": "my/data", "level": at} for at in range(3)]

# As they are written for verl, with a limit of their own that needs the process's main thread.
VERL = """
import signal

def too_late(number, frame):
    raise TimeoutError("the comparison took too long")

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    print("---", solution_str)
    assert data_source == "my/data" and extra_info == {
        "index": extra_info["index"], "split": "train", "level": extra_info["index"]}
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

def plain(solution_str, ground_truth, extra_info, *, bonus=0.0, **kwargs):
    assert not kwargs.keys() - {"data_source"}
    return (ground_truth in solution_str) + bonus

async def judged(data_source, solution_str, ground_truth, extra_info, **kwargs):
    import asyncio
    await asyncio.sleep(0)
    assert data_source == "openai/gsm8k"
    return ground_truth in solution_str
"""
TRL = """
def accuracy_reward(completions, solution, **kwargs):
    assert len(kwargs["level"]) == len(solution) and kwargs["answer"] == kwargs["ground_truth"] == solution
    assert [prompt[-1]["role"] for prompt in kwargs["prompts"]] == ["user"] * len(solution)
    return [float(truth in one[0]["content"]) for one, truth in zip(completions, solution)]

def logged(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, ground_truth):
    log_extra("truth", ground_truth)
    log_metric("lengths", 1.0)
    assert getattr(trainer_state, "global_step", 0) == 0 and len(completion_ids) == len(completions)
    return [truth in one[-1]["content"] for one, truth in zip(completions, ground_truth)]

async def judged(completions, answer, log_extra=None, **kwargs):
    return [truth in one[0]["content"] for one, truth in zip(completions, answer)]

def by_level(completions, level, **kwargs):  # fits this project's signature, too
    return [float("7" in one if isinstance(one, str) else "7" in one[0]["content"]) for one in completions]
"""
SWIFT = """
import importlib
from swift.IMPORTED import ORM, orms
from swift.utils import get_logger

logger = get_logger()

class Accuracy(ORM):
    def __call__(self, completions, solution, **kwargs):
        assert [row[-1]["content"] for row in kwargs["messages"]] == completions
        assert kwargs["finish_reason"] == ["length" if cut else "stop" for cut in kwargs["is_truncated"]]
        assert len(kwargs["response_token_ids"]) == len(kwargs["level"]) == len(completions)
        return [float(truth in text) for text, truth in zip(completions, solution)]

class Scaled(ORM):
    def __init__(self, args, scale=1.0, **kwargs):
        super().__init__(args, **kwargs)
        self.value = scale / args.divisor

    def __call__(self, infer_requests, answer, *, bonus, **kwargs):
        return [self.value * (truth in text) + bonus for text, truth in zip(infer_requests, answer)]

orms["mine"] = Accuracy
"""
ASYNC = """
from swift.rewards import AsyncORM, orms
class Judge(AsyncORM):
    async def __call__(self, completions, **kwargs):
        return [float(truth in text) for text, truth in zip(completions, kwargs["solution"])]
orms['judge'] = Judge
"""
OURS = """
def everything(completions, **kwargs):
    assert list(kwargs) == ["prompts", "rows", "token_ids", "cut_off", "level"], kwargs
    return [float(row["ground_truth"] in text) for text, row in zip(completions, kwargs["rows"])]

async def awaited(completions, rows):
    return [float(row["ground_truth"] in text) for text, row in zip(completions, rows)]
"""
PLUGIN, REWARDS = SWIFT.replace("IMPORTED", "plugin"), SWIFT.replace("IMPORTED", "rewards.orm")
# Text, function, options, the signature that is recognised, others that it fits.
FUNCTIONS = [
    (OURS, "everything", {}, "rolloutbench", ["trl", "swift"]),
    (OURS, "awaited", {}, "rolloutbench", []),
    (TRL, "by_level", {}, "rolloutbench", ["trl", "swift"]),
    (VERL, "compute_score", {}, "verl", []),
    (VERL, "plain", {"bonus": 0.0}, "verl", []),
    (VERL, "judged", {"data_source": "openai/gsm8k"}, "verl", []),
    (TRL, "accuracy_reward", {}, "trl", ["swift"]),
    (TRL, "logged", {}, "trl", []),
    (TRL, "judged", {}, "trl", ["swift"]),
    (PLUGIN, "mine", {}, "swift", []),
    (PLUGIN, "Accuracy", {}, "swift", []),
    (REWARDS, "Accuracy", {}, "swift", []),
    (REWARDS, "Scaled", {"scale": 2, "divisor": 2, "bonus": 0}, "swift", []),
    (ASYNC, "judge", {}, "swift", []),
]


def own(code, function, options=None, **more):
    return {
        "source": "mine.py",
        "function": function,
        "code": code,
        "options": options or {},
        "columns": ["level"],
    } | more


@pytest.mark.parametrize(("code", "function", "options", "signature", "others"), FUNCTIONS)
def test_a_function_is_recognised_by_its_parameters_and_scores(code, function, options, signature, others):
    program = RewardProgram(own(code, function, options))
    assert (program.signature, program.others) == (signature, others)
    assert program.limit_s == (30.0 if signature == "rolloutbench" else FOREIGN_CALL_S)
    prompt = [{"role": "user", "content": "3 + 4?"}]
    responses = [Response(text, prompt=prompt, row=row) for text, row in zip(TEXTS, ROWS, strict=True)]
    assert program.call(responses) == (VALUES, None)
    assert program.call(responses[:1]) == (VALUES[:1], None)  # as verl calls it, in the same process
    program.close()


class Tokenizer:
    """A token for each character; as transformers' tokenizers as far as trainers use it here."""

    all_special_ids = (0,)

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [ord(one) for one in text]}

    def batch_decode(self, ids, skip_special_tokens):
        return ["".join(chr(token) for token in one if token) for one in ids]


@pytest.mark.parametrize(("code", "function", "options"), [one[:3] for one in FUNCTIONS])
def test_the_same_completions_score_the_same_under_every_trainer(code, function, options, tmp_path, monkeypatch):
    reward = own(code, function, options)
    prompts = [[{"role": "user", "content": f"{at}?"}] for at in range(3)]
    extra = [{"index": at, "split": "train", "columns": json.dumps({"level": at})} for at in range(3)]
    truths = [{"style": "rule", "ground_truth": "7"}] * 3
    columns = {"data_source": ["my/data"] * 3, "reward_model": truths, "extra_info": extra}
    ids = [[*map(ord, text), 0] for text in TEXTS]
    (ours,) = reward_functions([reward], 64)
    replies = [[{"role": "assistant", "content": text}] for text in TEXTS]
    metric = {}
    under_trl = ours(
        prompts=prompts,
        completions=replies,
        completion_ids=ids,
        trainer_state=object(),
        log_extra=print,
        log_metric=metric.__setitem__,
        **columns,
    )
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


NOT_LOADED = {
    "class without a call": ("class score: ...\n", {}, "mine.py: score is a class without __call__"),
    "args without the option": (
        "class score:\n    def __init__(self, args): self.x = args.scale\n    def __call__(self, completions): ...\n",
        {},
        "AttributeError: args has no scale: give it as one of the reward's options (mine.py, line 2)",
    ),
    "verl's with more": (
        "def score(data_source, solution_str, ground_truth, extra_info, url): ...\n",
        {},
        "a parameter 'url' that is no option; functions are given data_source, solution_str, ground_truth, extra_info",
    ),
    "more of ms-swift": ("from swift.plugin import ORM, rm_plugins\n", {}, "No module named 'swift.plugin.rm_plugins'"),
}


@pytest.mark.parametrize("name", NOT_LOADED)
def test_what_cannot_be_called_is_reported_in_one_line(name):
    code, options, words = NOT_LOADED[name]
    with pytest.raises(RewardProblem) as caught:
        RewardProgram(own(code, "score", options))
    assert words in str(caught.value) and "\n" not in str(caught.value)
    lacks = {"more of ms-swift": "swift"}.get(name)
    assert (caught.value.missing or "").partition(".")[0] == (lacks or "")
    assert ("correct the file" in str(caught.value)) == (lacks is None)
    assert caught.value.parameters == (["url"] if name == "verl's with more" else [])


# What a function with verl's signature returns, and what is recorded.
RETURNED = {
    "{'acc': 1.0}": "compute_score must return a number, or a dict with 'score' (got {'acc': 1.0}, of type dict)",
    "{'score': float('nan')}": "must return finite numbers (got nan)",
}


@pytest.mark.parametrize("returned", RETURNED)
def test_a_response_without_a_score_costs_no_other_its_value(returned, tmp_path):
    code = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    mine = own(f"{code}    return {returned} if solution_str == 'bad' else 0.5\n", "compute_score")
    program = RewardProgram(mine, tmp_path / "failures.jsonl")
    responses = [Response(text, row=ROWS[0]) for text in ("a", "bad", "b")]
    assert program.score(responses) == ([0.5, None, 0.5], 1)
    program.close()
    (line,) = map(json.loads, (tmp_path / "failures.jsonl").read_text().splitlines())
    assert RETURNED[returned] in line["problem"] and line["completion"] == "bad"


SLOW = """
import signal, time
def compute_score(data_source, solution_str, ground_truth):
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, 1000)  # and forgets it
    time.sleep(0.6)
    return left_s
"""


def test_each_response_of_verls_signature_has_the_whole_time_and_no_alarm_of_the_one_before():
    program = RewardProgram(own(SLOW, "compute_score", timeout_s=1.5))
    assert program.score([Response("a", row=ROWS[0])] * 3) == ([0.0] * 3, 0)
    program.close()


def test_the_named_signature_is_used():
    reward = own(TRL, "by_level", signature="trl")
    code = "def score(completions, **kwargs):\n    return [len(one) for one in completions]\n"
    for signature, length in (("trl", 1.0), ("swift", 2.0), (None, 2.0)):
        program = RewardProgram(own(code, "score", signature=signature))
        assert program.call([Response("ab", row=ROWS[0])]) == ([length], None)
        assert program.others == (["trl", "swift"] if signature is None else [])
        program.close()
    program = RewardProgram(reward)
    assert program.signature == "trl"
    program.close()


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
