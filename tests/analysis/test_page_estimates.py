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


def test_a_sweep_of_one_arm_names_the_fastest_setting_and_draws_it_first(tmp_path):
    swept = [{"options.max_num_seqs": n} for n in (4, 8, 16)]
    make_results.realistic(tmp_path / "case", {"vllm": ("vllm", 0.9)}, seeds=2, steps=5, factors=swept)
    found = content(tmp_path / "case")
    fastest = found.tables["ranking"]["factors"].iloc[0]
    assert found.no_comparison.startswith("Fastest of 3 settings: vllm (max_num_seqs = 4), ")
    assert fastest == '{"options.max_num_seqs": 4}' and "one-arm" not in {one.code for one in found.verdicts}
    bars = next(figure for figure in found.figures if figure.name == "phases")
    assert bars.alt.startswith("Mean seconds of a step. vllm, max_num_seqs = 4 ")
