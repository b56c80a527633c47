"""A reward model's scores: its input text, batches, and errors."""

import json

import pytest

from ..attempts import TRANSFORMERS, run_job

pytestmark = pytest.mark.full("libraries of a stack")


@pytest.fixture(scope="module")
def results(stack_python, tmp_path_factory):
    """What one process of a stack tells of several tiny models."""
    folder = tmp_path_factory.mktemp("models")
    out = folder / "results.json"
    done = run_job(stack_python(TRANSFORMERS), "tests.node.score_with_models", folder, out)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_the_input_is_the_chat_template_or_the_contents(results):
    chat, raw = results["texts"]
    assert chat.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n0 + 0?<|im_end|>\n")
    assert chat.endswith("<|im_start|>assistant\n4<|im_end|>\n")
    assert raw == "Be brief.\n0 + 0?\n4"


@pytest.mark.parametrize(("scores", "by_hand"), [("together", "by_hand"), ("raw", "raw_by_hand")])
def test_the_score_is_the_classifiers_output(scores, by_hand, results):
    assert results[scores] == pytest.approx(results[by_hand], abs=1e-5)
    assert max(results[scores]) - min(results[scores]) > 1e-2


def test_a_score_does_not_depend_on_the_batch_or_the_seed(results):
    assert results["again"] == results["together"]
    assert results["reversed"] == pytest.approx(results["together"], abs=1e-5)
    assert results["alone"] == pytest.approx(results["together"], abs=1e-5)
    assert results["random_state_kept"]


def test_the_start_of_a_too_long_text_is_cut_and_counted(results):
    assert results["untruncated"] == 0 and 0 < results["truncated"] <= 7
    assert results["short"][3] == pytest.approx(results["last_tokens_alone"], abs=1e-5)


def test_half_precision_is_close_and_logs_its_counts(results):
    assert results["half"] == pytest.approx(results["together"], abs=0.05)
    assert results["half"] != results["together"]
    assert results["counted"] == {"rewards/liked/failed": 0.0, "rewards/liked/truncated": 0.0}


def test_unusable_reward_models_are_reported(results):
    assert "liked gives no finite number for any of 7 completions in float32" in results["none_finite"]
    assert "lack score.weight, so its scores would be random" in results["without_head"]
    assert "has 2 labels, and a reward model has one" in results["two_labels"]
    assert "the tokenizer of the reward model" in results["broken_tokenizer"]
    assert "elsewhere is not among the prepared inputs" in results["not_prepared"]
