"""Generation seconds and decode floors of steps: the article's, those of lengths, and where a fact is wrong."""

import pytest
from roofline_results import ARTICLE_VLLM, an_import, article_row, row, steps_to, trained

from analysis.counted import wide_steps
from analysis.roofline.step_floors import floor_lines, with_floors


def worked(*runs, warmup=2):
    return with_floors(wide_steps(runs, warmup)[0], runs)[0]


def floor_s(wide):
    return wide["efficiency"] * wide["generation_s"]


def codes(*runs, warmup=2):
    return {v.code: v.text for v in with_floors(wide_steps(runs, warmup)[0], runs)[1]}


def test_an_arm_whose_lengths_are_not_published_has_no_floor(tmp_path):
    """The article has vLLM's phases only."""
    run = an_import(tmp_path, steps_to(row(3, ARTICLE_VLLM)), "vllm", "vllm")
    wide = worked(run)
    assert wide["efficiency"].isna().all() and set(wide["floor_basis"]) == {""}
    assert wide["generation_s"].iloc[2] == pytest.approx(849.20 - 1.04)
    assert "no decode floor in 1 of 1 counted steps: neither each response's" in codes(run)["no-lengths-for-floor"]


def test_an_unknown_fact_is_named_and_no_number_is_made(tmp_path):
    run = an_import(tmp_path, steps_to(article_row()), gpu=None, tensor_parallel=None)
    assert worked(run)["efficiency"].isna().all()
    text = codes(run)["no-floor"]
    assert "sglang" in text and "which GPU it ran on (set import.gpu)" in text
    assert "tensor parallel size (set import.tensor_parallel)" in text


@pytest.mark.parametrize("wrong", [{"tensor_parallel": 1}, {"gpu": "A10-24GB"}, {"model": "meta-llama/Llama-3.1-70B"}])
def test_a_floor_above_the_time_is_an_error_and_no_efficiency(tmp_path, wrong):
    slow = article_row(**{"timing_s/gen": 140.0, "timing_s/generate_sequences": 137.0, "timing_s/step": 165.3})
    run = an_import(tmp_path, steps_to(slow), **wrong)
    wide = worked(run)
    assert wide["efficiency"].isna().all() and wide["equal_floor_s"].isna().all()
    text = codes(run)["floor-exceeds-time"]
    assert "in 1 of 1 counted steps" in text and "137.69 s" in text


def test_lengths_that_cannot_be_are_an_error(tmp_path):
    run = an_import(tmp_path, steps_to(article_row(**{"response_length/max": 1000.0})))
    assert worked(run)["efficiency"].isna().all()
    assert "step 3" in codes(run)["impossible-lengths"]


def test_a_step_that_threw_completions_away_has_no_floor(tmp_path):
    """Its seconds are of more responses than its lengths are of."""
    rows = steps_to(article_row(**{"training/filter_groups/discarded_surplus_samples": 2.0}))
    run = an_import(tmp_path, rows)
    assert worked(run)["efficiency"].isna().all()
    assert "in 1 of 1 counted steps: completions were thrown away" in codes(run)["no-lengths-for-floor"]


def test_the_token_counts_tell_how_many_responses_there_were(tmp_path):
    """283792 / (301.312 + 17435.688) = 16, whatever was declared."""
    right, wrong, none = (
        an_import(tmp_path / str(size), steps_to(article_row()), batch_size=size) for size in (16, 2048, None)
    )
    floors = [floor_s(worked(run)).iloc[2] for run in (right, wrong, none)]
    assert floors[0] == floors[1] == floors[2]
    assert "give 16 responses a step, the settings 2048" in codes(wrong)["completions-differ"]
    assert "completions-differ" not in codes(right) and "completions-differ" not in codes(none)


def test_the_lengths_of_a_trained_run_by_hand(tmp_path):
    """Longest 20001 of 4: 20000 iterations of 4.22247 ms, 20000 * 20001 / 2 positions; no prompt is known."""
    run = trained(tmp_path, [100, 200, 300, 20001])
    found = worked(run).iloc[2]
    assert found["floor_basis"] == "lengths" and found["generation_s"] == 300.0
    expected = 20000 * 4.22247e-3 + 20000 * 20001 / 2 * 204800 / 2 / 3.35e12
    assert found["efficiency"] == pytest.approx(expected / 300.0, rel=1e-5)
    assert codes(run) == {}


def test_the_articles_efficiency(tmp_path):
    """SGLang: 134.034 + 15.651 s of 380.602; where arithmetic binds, a step of many short responses has a floor too."""
    found = worked(an_import(tmp_path, steps_to(article_row()))).iloc[2]
    assert found["efficiency"] == pytest.approx(149.685 / 380.602, rel=1e-4)
    assert found["generation_s"] == pytest.approx(380.602)
    assert 0 < worked(trained(tmp_path, [20] * 4_000, gen_s=300.0))["efficiency"].iloc[2] < 1


def test_an_arms_efficiency_is_of_sums_over_its_runs(tmp_path):
    """(floor + floor) / (300 + 600), not a mean of ratios; what the floor assumes is said once."""
    runs = [trained(tmp_path, [100, 20001], f"vllm-s{seed}", gen_s=300.0 + 300 * seed) for seed in (0, 1)]
    wide = worked(*runs)
    share = 2 * floor_s(wide).iloc[2] / 900
    first, *others = floor_lines(wide, runs)
    assert first == f"Efficiency (decode floor / seconds of generation): vllm {100 * share:.1f} %."
    assert len(others) == 1 and "The decode floor of vllm assumes: 8 × H100-80GB" in others[0]
