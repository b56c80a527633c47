"""The page of a plain comparison: its table of estimates fits; and of nothing but repetitions."""

import json

import make_results
import pytest

from analysis.report.content import read_content


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "case"
    arms = {"transformers-as-the-baseline": ("transformers", 3.2), "vllm": ("vllm", 0.9)}
    make_results.realistic(folder, arms, seeds=2, steps=5)
    return folder


def content(folder):
    return read_content(folder / "plan.json", folder, None, None)


def test_nothing_but_a_repetition_is_no_comparison_and_says_why(plain):
    path = plain / "plan.json"
    before = path.read_text()
    plan = json.loads(before)
    plan["arms"]["vllm"]["same_as"] = "transformers-as-the-baseline"
    path.write_text(json.dumps(plan))
    try:
        found = content(plain)
    finally:
        path.write_text(before)
    value = found.tables["estimates"].set_index("estimate").loc["per_step", "value"]
    assert found.arm_verdicts == []
    assert found.no_comparison == (
        "No comparison: there are only repetitions (A/A) of one arm "
        "(vllm is the same as transformers-as-the-baseline). "
        f"By step time they are {value:.3g}x to {value:.3g}x as fast."
    )
