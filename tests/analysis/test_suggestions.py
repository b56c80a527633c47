"""What to try next: each suggestion from a number of a table that stands beside it, and none without."""

import pytest
from roofline_results import ARTICLE_VLLM, an_import, article_row, row, steps_to
from test_waterfall import waterfall_of

from analysis.counted import wide_steps
from analysis.planned import PlanRead
from analysis.roofline.step_floors import with_floors
from analysis.stragglers import counted_lengths, straggler_table
from analysis.suggestions import suggestions
from common.findings import Finding, LedgerRow, Preflight

GRAPHS = "CUDA graphs while decoding (actor_rollout_ref.rollout.enforce_eager)"
BEFORE = Preflight(
    (
        Finding("unequal", "cuda-graphs", ("vllm", "sglang"), "off in vllm", "", "", "set enforce_eager: False"),
        Finding("unequal", "cuda-launch-blocking", ("sglang",), "CUDA_LAUNCH_BLOCKING=1", "", "", "take it out"),
    ),
    (LedgerRow(GRAPHS, {"vllm": "off", "sglang": "on"}, "different", "", ""),),
    (),
)


def tables(*runs):
    wide, _ = with_floors(wide_steps(runs, 2)[0], runs)
    plan = PlanRead("made-up", "", runs[0].arm, {run.arm: {} for run in runs}, 2, (), {})
    waterfall = waterfall_of(wide, list(plan.arms), [run.tree for run in runs])
    return straggler_table(wide, runs, plan, counted_lengths(runs, wide).by_step), waterfall, wide


def found(*runs, preflight=None):
    return {(one.arm, one.quantity): one for one in suggestions(*tables(*runs), preflight)}


def article(tmp_path, **scalars):
    vllm = an_import(tmp_path, steps_to(row(3, ARTICLE_VLLM)), "vllm", "vllm")
    return vllm, an_import(tmp_path, steps_to(article_row(**scalars)))


def test_the_article(tmp_path):
    told = found(*article(tmp_path), preflight=BEFORE)
    assert set(told) == {
        *(("vllm", "generation share"), ("sglang", "generation share")),
        *(("vllm", "generation without CUDA graphs"), ("sglang", "generation with blocking launches")),
        *(("sglang", "efficiency"), ("sglang", "length bubble"), ("sglang", "truncated share")),
    }
    first = told["vllm", "generation share"]
    assert "96.6%" in first.text and "1 / (1 - 0.9662) = 29.6×" in first.text
    assert first.source == "stragglers: generation_share" and first.value == pytest.approx(849.20 / 878.89)
    graphs = told["vllm", "generation without CUDA graphs"]
    assert "848.16 s of the mean step of 878.89 s" in graphs.text and "set enforce_eager: False" in graphs.text
    slow = told["sglang", "efficiency"]
    assert "1 / 0.3933 = 2.54 times its decode floor" in slow.text and "230.92 s of the mean step" in slow.text
    assert "31744 / 17436 = 1.821 times the mean" in told["sglang", "length bubble"].text
    assert "25.0%" in told["sglang", "truncated share"].text


@pytest.mark.parametrize(
    ("efficiency", "says"),
    [(0.59, "are above the floor"), (0.6, None), (0.79, None), (0.8, "no engine setting has much left to win")],
)
def test_generation_far_from_its_floor_or_near_it_is_told(tmp_path, efficiency, says):
    stragglers, waterfall, wide = tables(*article(tmp_path))
    stragglers["efficiency"] = efficiency
    told = [one.text for one in suggestions(stragglers, waterfall, wide) if one.quantity == "efficiency"]
    assert [says in text for text in told] == ([True] * 2 if says else []), told


def test_phases_that_take_much_of_the_step_are_told(tmp_path):
    slow = {"timing_s/generate_sequences": 320.0, "timing_s/reshard": 60.0}
    slow |= {"timing_s/update_actor": 150.0, "timing_s/step": 600.0}
    told = found(*article(tmp_path, **slow))
    assert told["sglang", "weight sync share"].value == pytest.approx(60 / 600)
    assert told["sglang", "loss+backward share"].value == pytest.approx(150 / 600)
    assert "1 / (1 - 0.250) = 1.33×" in told["sglang", "loss+backward share"].text
    assert told["sglang", "residual share"].source == "waterfall: seconds (residual)"


def test_what_the_timers_count_twice_is_not_called_time_without_a_timer(tmp_path):
    stragglers, waterfall, wide = tables(*article(tmp_path))
    waterfall.loc[waterfall["part"] == "residual", "seconds"] = -50.0
    (residual, _) = [one for one in suggestions(stragglers, waterfall, wide) if one.quantity == "residual share"]
    assert residual.value < -0.05 and "the timers sum to more than the step, by " in residual.text
    assert "no timer covers" not in residual.text and " -" not in residual.text
