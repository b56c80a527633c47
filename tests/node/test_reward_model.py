"""A reward model's scores: of which text, the same in any batch, and told where there are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..attempts import TRANSFORMERS, run_job


@pytest.fixture(scope="module")
def told(stack_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process of a stack tells of several tiny models."""
    folder = tmp_path_factory.mktemp("models")
    out = folder / "told.json"
    done = run_job(stack_python(TRANSFORMERS), "tests.node.score_with_models", folder, out)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found | {"said": done.stderr}


def test_the_text_is_the_chat_templates_or_the_contents(told: dict[str, Any]) -> None:
    chat, raw = told["texts"]
    assert chat.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n0 + 0?<|im_end|>\n")
    assert chat.endswith("<|im_start|>assistant\n4<|im_end|>\n")
    assert raw == "Be brief.\n0 + 0?\n4"


@pytest.mark.parametrize(("scores", "by_hand"), [("together", "by_hand"), ("raw", "raw_by_hand")])
def test_the_score_is_the_classifiers_own(scores: str, by_hand: str, told: dict[str, Any]) -> None:
    assert told[scores] == pytest.approx(told[by_hand], abs=1e-5)
    assert max(told[scores]) - min(told[scores]) > 1e-2


def test_a_score_depends_on_no_batch_and_no_chance(told: dict[str, Any]) -> None:
    assert told["again"] == told["together"]
    assert told["reversed"] == pytest.approx(told["together"], abs=1e-5)
    assert told["alone"] == pytest.approx(told["together"], abs=1e-5)
    assert told["random_state_kept"]


def test_a_text_that_is_too_long_loses_its_beginning_and_is_counted(told: dict[str, Any]) -> None:
    assert told["untruncated"] == 0 and 0 < told["truncated"] <= 7
    assert told["short"][3] == pytest.approx(told["last_tokens_alone"], abs=1e-5)
    assert f"reward model liked: {told['truncated']} of 7 texts have more than 20 tokens" in told["said"]


def test_half_precision_is_near_and_logs_its_counts(told: dict[str, Any]) -> None:
    assert told["half"] == pytest.approx(told["together"], abs=0.05)
    assert told["half"] != told["together"]
    assert told["counted"] == {"rewards/liked/failed": 0.0, "rewards/liked/truncated": 0.0}


def test_what_cannot_score_is_told(told: dict[str, Any]) -> None:
    assert "liked gives no finite number for any of 7 completions in float32" in told["none_finite"]
    assert told["none_finite_of_samples"] == [[None] * 7, 7]
    assert "lack score.weight, so its scores would be random" in told["without_head"]
    assert "has 2 labels, and a reward model has one" in told["two_labels"]
    assert "the tokenizer of the reward model" in told["broken_tokenizer"]
    assert "elsewhere is not among the prepared inputs" in told["not_prepared"]
