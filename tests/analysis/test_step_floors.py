"""The efficiency of steps: the article's, that of lengths, and where a fact is wrong."""

import pytest
from roofline_results import ARTICLE_VLLM, an_import, article_row, row, steps_to, trained

from analysis.counted import wide_steps
from analysis.roofline.floors import efficiencies, with_floors


def worked(*runs, warmup=2):
    return with_floors(wide_steps(runs, warmup)[0], runs)[0]


def floor_s(wide):
    """All tests' generation is in these two phases."""
    return wide["efficiency"] * wide.filter(regex="^own_s/step/gen(/generate_sequences)?$").sum(axis=1)


def codes(*runs, warmup=2):
    return {v.code: v.text for v in with_floors(wide_steps(runs, warmup)[0], runs)[1]}


def test_an_arm_whose_lengths_are_not_published_has_no_floor(tmp_path):
    """The article has vLLM's phases only."""
    run = an_import(tmp_path, steps_to(row(3, ARTICLE_VLLM)), "vllm", "vllm")
    wide = worked(run)
    assert wide["efficiency"].isna().all() and codes(run) == {}


def test_an_unknown_fact_is_named_and_no_number_is_made(tmp_path):
    run = an_import(tmp_path, steps_to(article_row()), gpu=None, tensor_parallel=None)
    assert worked(run)["efficiency"].isna().all()
    text = codes(run)["no-floor"]
    assert "sglang" in text and "the data sheet of its GPU, which is unknown (set import.gpu)" in text
    assert "tensor parallel size unknown" in text and "(set import.tensor_parallel)" in text


@pytest.mark.parametrize("wrong", [{"tensor_parallel": 1}, {"gpu": "A10-24GB"}, {"model": "meta-llama/Llama-3.1-70B"}])
def test_a_floor_above_the_time_is_an_error_and_no_efficiency(tmp_path, wrong):
    slow = article_row(**{"timing_s/gen": 140.0, "timing_s/generate_sequences": 137.0, "timing_s/step": 165.3})
    run = an_import(tmp_path, steps_to(slow), **wrong)
    wide = worked(run)
    assert wide["efficiency"].isna().all() and wide["equal_floor_s"].isna().all()
    assert "run sglang, step 3: " in (text := codes(run)["floor-exceeds-time"]) and "against 137.69 s" in text


def test_a_step_that_threw_completions_away_has_no_floor(tmp_path):
    """Its seconds are of more responses than its lengths are of."""
    rows = steps_to(article_row(**{"training/filter_groups/discarded_surplus_samples": 2.0}))
    run = an_import(tmp_path, rows)
    assert worked(run)["efficiency"].isna().all()


def test_the_lengths_of_a_trained_run_by_hand(tmp_path):
    """Longest 20001 of 4: 20000 iterations of 4.22247 ms, 20000 * 20001 / 2 positions; no prompt is known."""
    run = trained(tmp_path, [100, 200, 300, 20001])
    found = worked(run).iloc[2]
    expected = 20000 * 4.22247e-3 + 20000 * 20001 / 2 * 204800 / 2 / 3.35e12
    assert found["efficiency"] == pytest.approx(expected / 300.0, rel=1e-5)
    assert codes(run) == {}


def test_the_articles_efficiency(tmp_path):
    """SGLang: 134.034 + 15.651 s of 380.602."""
    found = worked(an_import(tmp_path, steps_to(article_row()))).iloc[2]
    assert found["efficiency"] == pytest.approx(149.685 / 380.602, rel=1e-4)


def test_an_arms_efficiency_is_the_mean_of_its_runs(tmp_path):
    """One number a run, however many steps it has."""
    runs = [trained(tmp_path, [100, 20001], f"vllm-s{n}", gen_s=300.0 + 300 * n, steps=4 + n) for n in (0, 1)]
    wide = worked(*runs)
    floor = floor_s(wide).iloc[2]
    share = (floor / 300 + floor / 600) / 2
    assert efficiencies(wide) == {("", "vllm"): pytest.approx(share)}
