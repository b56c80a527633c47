"""Sample completions: when they are taken, their length, and failures that do not end a run."""

import json
import math

import pytest

from common.contracts import Sample, SamplesLine
from node.samples import MOST_CHARACTERS, sample, sample_steps, write_samples

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
