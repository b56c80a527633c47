"""A reward model's scores: its input text, batches, and errors."""

import pytest

from ..attempts import TRANSFORMERS, run_job


@pytest.mark.full("libraries of a stack")
def test_scores_are_the_classifiers_and_what_cannot_be_used_is_named(stack_python, tmp_path):
    done = run_job(stack_python(TRANSFORMERS), "tests.node.score_with_models", tmp_path)
    assert done.returncode == 0, done.stderr
