"""Sample completions: when they are taken, their length, and failures that do not end a run."""

import json
import math

import pytest

from common.contracts import Sample, SamplesLine
from node.rewards import reward_functions
from node.samples import MOST_CHARACTERS, StepSamples, sample, sample_steps, write_samples

from ..test_contracts import problems

PROMPT = {"prompt": [{"role": "user", "content": "x" * 50_000}]}


@pytest.mark.parametrize(
    ("steps", "every", "after"),
    [(4, 1, (0, 2, 4)), (5, 1, (0, 2, 5)), (1, 1, (0, 1)), (100, 20, (0, 40, 100)), (10, 50, (0, 10)), (0, 1, (0,))],
)
def test_samples_are_taken_before_halfway_and_after(steps, every, after):
    assert sample_steps(steps, every) == after


def test_a_sample_is_shortened_and_valid_json(tmp_path):
    rewards = {"accuracy": 1, "nan": math.nan, "inf": math.inf, "none": None}
    text = "<b>\ud83d\x00" + "変" * 50_000 + "end"
    made = sample(0, PROMPT["prompt"], text, tokens=7, cut_off=True, rewards=rewards)
    assert made["characters"] == len(text) and made["completion"].startswith("<b>?\x00変")
    assert len(made["completion"]) == len(made["prompt"][0]["content"]) == MOST_CHARACTERS + len(" … ")
    assert made["completion"].endswith("変end")
    assert made["rewards"] == {"accuracy": 1.0, "nan": None, "inf": None, "none": None}
    path = tmp_path / "samples.jsonl"
    write_samples(path, 0, 4, "greedy", [made] * 32)
    assert path.stat().st_size < 4_000_000
    line = json.loads(path.read_bytes())
    assert problems(SamplesLine, line) == [] and all(problems(Sample, one) == [] for one in line["samples"])


def test_a_batch_gives_the_first_completion_of_each_of_its_first_prompts(tmp_path):
    rewards = reward_functions([{"name": "length", "options": {"target": 1}}, {"name": "emoji"}], 8)
    taken = StepSamples(rewards, {"samples": 2, "temperature": 1.0}, tmp_path)
    assert taken.of_step(1, 4) == []  # before any completion
    rows = [7, 7, 3, 3, 5, 5]
    given = {
        "completions": list("abcdef"),
        "prompts": [[{"role": "user", "content": str(row)}] for row in rows],
        "completion_ids": [[1] * 8] * 6,
        "extra_info": [{"index": row, "split": "train"} for row in rows],
    }
    for reward in rewards:
        reward(**given)
    assert [taken.of_step(step, 4) != [] for step in (1, 2, 3, 4)] == [True, True, False, True]
    samples = taken.of_step(2, 4)
    assert [(one["row"], one["completion"], one["tokens"], one["cut_off"]) for one in samples] == [
        (7, "a", 8, True),
        (3, "c", 8, True),
    ]
    assert [one["rewards"] for one in samples] == [{"length": 1.0, "emoji": 0.0}] * 2
    rewards[1](completions=["x"])
    assert [one["rewards"] for one in taken.of_step(4, 4)] == [{"length": 1.0}] * 2
