"""Stragglers, efficiency and Amdahl's ceiling: the article's by hand, and as ratios of sums."""

import math

import pytest
from roofline_results import ARTICLE_VLLM, an_import, article_row, row, steps_to, trained

from analysis.counted import wide_steps
from analysis.planned import PlanRead
from analysis.roofline.step_floors import with_floors
from analysis.stragglers import counted_lengths, straggler_table


def table(*runs, warmup=2):
    wide, _ = wide_steps(runs, warmup)
    arms = {run.arm: {} for run in runs}
    plan = PlanRead("made-up", "", next(iter(arms)), arms, warmup, (), {})
    return straggler_table(with_floors(wide, runs)[0], runs, plan, counted_lengths(runs, wide).by_step).set_index("arm")


def test_the_article(tmp_path):
    """SGLang: 31744 / 17435.688 = 1.8206. vLLM: 849.20 / 878.89 = 0.96622, and 1 / (1 - 0.96622) = 29.6."""
    sglang = an_import(tmp_path, steps_to(article_row()))
    vllm = an_import(tmp_path, steps_to(row(3, ARTICLE_VLLM)), "vllm", "vllm")
    found = table(vllm, sglang)
    a, b = found.loc["sglang"], found.loc["vllm"]
    assert a["straggler_ratio"] == pytest.approx(1.8206, abs=1e-4)
    assert a["length_bubble"] == pytest.approx(1 - 17435.688 / 31744)
    assert a["efficiency"] == pytest.approx(0.3933, abs=1e-4) and a["floor_s"] == pytest.approx(149.685, abs=5e-3)
    assert a["generation_s"] == pytest.approx(380.602) and math.isnan(a["tail_share"])
    assert b["generation_share"] == pytest.approx(0.966, abs=5e-4)
    assert b["amdahl_ceiling"] == pytest.approx(29.6, abs=0.05)
    assert (b["length_steps"], b["floor_steps"]) == (0, 0)
    assert b[["straggler_ratio", "length_bubble", "efficiency", "floor_s"]].isna().all()


def test_the_tail_by_hand(tmp_path):
    """Of 20 responses two are left after 100 iterations: the last 900 of 1000 are the tail."""
    found = table(trained(tmp_path, [101] * 18 + [501, 1001])).loc["vllm"]
    assert found["tail_share"] == pytest.approx(900 / 1000)
    assert found["max_length"] == 1001 and found["mean_length"] == pytest.approx((18 * 101 + 501 + 1001) / 20)
    few = table(trained(tmp_path / "few", [101, 1001])).loc["vllm"]
    assert math.isnan(few["tail_share"]) and few["straggler_ratio"] == pytest.approx(1001 / 551)


def test_ratios_are_of_sums(tmp_path):
    """Two runs of one arm: (300 + 600) / (floor + floor), not a mean of ratios."""
    one = trained(tmp_path, [100, 20001], "vllm-s0", gen_s=300.0)
    two = trained(tmp_path, [100, 20001], "vllm-s1", gen_s=600.0)
    found = table(one, two).loc["vllm"]
    alone = table(one).loc["vllm"]
    assert found["efficiency"] == pytest.approx(2 * alone["floor_s"] / 900)
    assert found["generation_share"] == pytest.approx(900 / (323 + 623))
    assert found["steps"] == 4 and found["floor_steps"] == 4
