"""A user's reward function: its arguments under every trainer, and the effect of each mistake."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from common.errors import UserError
from node import own_reward
from node.built_in_rewards import Response
from node.own_reward import RewardProblem, RewardProgram
from node.rewards import reward_functions
from trainers.swift.driver.pipeline import as_reward
from trainers.verl.driver.reward import compute_score

REWARDS = yaml.safe_load(Path(__file__).with_name("own_rewards.yaml").read_text(encoding="utf-8"))
TEXTS = ["so <answer>7</answer>", "<answer>8</answer>", ""]
VALUES = [1.0, 0.0, 0.0]


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


@pytest.mark.parametrize("name", REWARDS["refused"])
def test_an_unusable_file_is_reported_in_one_line(name):
    case = REWARDS["refused"][name]
    with pytest.raises(RewardProblem) as caught:
        RewardProgram(own(case["code"], options={"target": 2}))
    assert case["says"] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.missing == case.get("missing")


@pytest.mark.parametrize("name", REWARDS["scored"])
def test_each_response_has_its_value_or_none_and_what_was_wrong_is_written_down(name, program, tmp_path, capfd):
    case = REWARDS["scored"][name]
    mine = program(
        own(**{key: case.get(key) for key in ("code", "signature", "timeout_s")}), tmp_path / "failures.jsonl"
    )
    responses = [
        Response(text.rstrip("…"), row={"index": at + 5, "split": "train"}, complete=not text.endswith("…"))
        for at, text in enumerate(case["completions"])
    ]
    failed = int("bad" in case["completions"])
    assert mine.score(responses) == (case["values"], failed)
    assert mine.score(responses) == (case.get("again", case["values"]), failed)  # after a crash it is there again
    stderr = capfd.readouterr().err
    assert case.get("says", "") in stderr
    if "written" in case:
        first, _ = map(json.loads, (tmp_path / "failures.jsonl").read_text().splitlines())
        assert case["written"] in first["problem"]
        assert (first["reward"], first["row"]["index"], first["completion"]) == ("score", 6, "bad")
        assert f"no value for a response to row 6 of the data: {first['problem']}" in stderr


def test_a_function_that_always_fails_ends_the_run(monkeypatch, program):
    monkeypatch.setattr(own_reward, "MOST_FAILED", 6)
    reward = program(own("def score(completions):\n    return 1 / 0\n"))
    assert reward.score([Response("a")] * 5) == ([None] * 5, 5)
    with pytest.raises(UserError, match=r"failed on 6 responses in a row.*line 2"):
        reward.score([Response("a", row={"index": 3})])


def test_many_hangs_take_limited_time(monkeypatch, program):
    monkeypatch.setattr(own_reward, "CALL_S", 0.5)
    reward = program(own("import time\ndef score(completions): time.sleep(99)\n", timeout_s=0.2))
    assert reward.score([Response("a")] * 20) == ([None] * 20, 20)


class Tokenizer:
    """A token for each character; as transformers' tokenizers as far as trainers use it here."""

    all_special_ids = (0,)

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [ord(one) for one in text]}

    def batch_decode(self, ids, skip_special_tokens):
        return ["".join(chr(token) for token in one if token) for one in ids]


@pytest.mark.parametrize("one", REWARDS["functions"], ids=lambda one: f"{one['file']}-{one['function']}")
def test_the_same_completions_score_the_same_under_every_trainer(one, tmp_path, monkeypatch):
    function = one["function"]
    reward = own(REWARDS["files"][one["file"]], function, one.get("options"), columns=["level", "with a space"])
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
    assert under_trl == under_swift == [row[function] for row in under_verl] == VALUES
    assert metric == {f"rewards/{function}/failed": 0.0}
    assert all(row[f"{function}_failed"] == 0 for row in under_verl)


def test_verl_asks_a_judge_about_several_responses_at_a_time(tmp_path):
    """It calls from a pool of threads; this judge answers when it is asked about four responses."""
    (tmp_path / "asked").mkdir()
    given = {"rewards": [own(REWARDS["judge"], "compute_score", timeout_s=120)], "data": []}
    (tmp_path / "rewards.json").write_text(json.dumps(given))
    about = {"folder": str(tmp_path / "asked"), "index": 0, "split": "train"}

    def score(text):
        return compute_score("my/data", text, "7", about, rewards_file=str(tmp_path / "rewards.json"))

    with ThreadPoolExecutor(4) as pool:
        scores = [one["score"] for one in pool.map(score, ["a", "b", "c", "d"])]
    assert scores == [1.0] * 4
