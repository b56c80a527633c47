"""The parts of the mean step: the article's by hand, and always the step again."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roofline_results import ARTICLE_VLLM, an_import, article_row, row, steps_to, trained

from analysis.counted import wide_steps
from analysis.phases import category_table, phase_table
from analysis.roofline.step_floors import with_floors
from analysis.roofline.waterfall import waterfall_table
from trainers.verl.releases.v0_4_1 import V0_4_1
from trainers.verl.releases.v0_9_1 import V0_9_1


def waterfall_of(wide, arms, trees):
    return waterfall_table(wide, category_table(phase_table(wide, arms, trees), "step"))


def waterfall(*runs, warmup=2):
    wide, _ = wide_steps(runs, warmup)
    trees = list(dict.fromkeys(run.tree for run in runs))
    return waterfall_of(with_floors(wide, runs)[0], [run.arm for run in runs], trees)


def of(table, arm):
    rows = table[table["arm"] == arm]
    return dict(zip(rows["part"], rows["seconds"], strict=True))


def test_the_articles_steps(tmp_path):
    """SGLang: 134.034 + 15.651 s of 380.602 are the floor. vLLM's lengths are not published: one part, no floor."""
    sglang = an_import(tmp_path, steps_to(article_row()))
    vllm = an_import(tmp_path, steps_to(row(3, ARTICLE_VLLM)), "vllm", "vllm")
    table = waterfall(vllm, sglang)
    found = of(table, "sglang")
    assert list(found) == [
        *("weight_read", "kv_read", "framework_gap", "weight_sync", "log-probs", "rewards", "loss+backward"),
        *("other", "residual"),
    ]
    assert found["weight_read"] == pytest.approx(134.034, abs=5e-3)
    assert found["kv_read"] == pytest.approx(15.651, abs=5e-3)
    assert found["framework_gap"] == pytest.approx(380.602 - 149.685, abs=5e-3)
    assert found["weight_sync"] == pytest.approx(2.311) and found["log-probs"] == pytest.approx(4.186 + 3.621)
    assert found["residual"] == pytest.approx(0.007, abs=1e-9)
    assert math.fsum(found.values()) == pytest.approx(408.190, rel=1e-12)
    other = of(table, "vllm")
    assert other["generation"] == pytest.approx(849.20 - 1.04) and "framework_gap" not in other
    assert math.fsum(other.values()) == pytest.approx(878.89, rel=1e-12)
    floors = table.groupby("arm")["floor_steps"].first()
    assert (floors["sglang"], floors["vllm"]) == (1, 0)


def test_arithmetic_stands_alone_where_it_binds(tmp_path):
    found = of(waterfall(trained(tmp_path, [20] * 4_000, gen_s=300.0)), "vllm")
    assert found["compute"] > 0 and not {"weight_read", "kv_read"} & set(found)
    assert math.fsum([found["compute"], found["framework_gap"]]) == pytest.approx(300.0, rel=1e-12)


def test_steps_with_a_floor_stand_for_those_without(tmp_path):
    """Of two counted steps one has lengths: its floor's share, 149.685 / 380.602, holds for the mean of both."""
    rows = [*steps_to(article_row()), row(4, ARTICLE_VLLM)]
    table = waterfall(an_import(tmp_path, rows))
    found = of(table, "sglang")
    generation = (380.602 + 848.16) / 2
    assert found["weight_read"] + found["kv_read"] == pytest.approx(generation * 149.685 / 380.602, rel=1e-4)
    assert set(table["steps"]) == {2} and set(table["floor_steps"]) == {1}


def test_a_loop_that_overlaps_has_no_parts():
    frame = pd.DataFrame(
        {"run_id": "r", "arm": "a", "factors": "", "seed": 0, "step": [1, 2], "counted": True}
        | {"timing_s/step": [3.0, 4.0], "own_s/step": [3.0, 4.0]}
    )
    assert waterfall_of(frame, ["a"], [V0_9_1.trees[3]]).empty
    assert waterfall_of(frame[:0], ["a"], []).empty


SECONDS = st.floats(0, 1e4, allow_subnormal=False)


@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS), min_size=1, max_size=6),
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.99, math.nan]), min_size=6, max_size=6),
    st.floats(1e-3, 10),
    st.sampled_from([1, -1e-3]),
)
@settings(max_examples=30)
def test_the_parts_are_the_step(phases, shares, size, sign):
    frame = {"run_id": "r", "arm": "a", "factors": "", "seed": 0, "counted": True}
    names = ("step/gen", "step/gen/reshard", "step/old_log_prob", "step/reward", "step/update_actor")
    own = np.array(phases).T
    own[0] += size  # a step of no seconds is never counted
    for name, values in zip(names, own, strict=True):
        frame[f"own_s/{name}"] = values
        frame[f"timing_s/{name}"] = values
    frame["timing_s/step/gen"] = own[0] + own[1]
    frame["timing_s/step"] = own.sum(axis=0) + sign * size
    frame["own_s/step"] = frame["timing_s/step"] - own.sum(axis=0)
    share = np.array(shares[: len(phases)])
    frame |= {"generation_s": own[0], "floor_s": share * own[0], "weight_floor_s": 0.7 * share * own[0]}
    frame |= {"kv_floor_s": 0.3 * share * own[0], "compute_floor_s": 0.1 * share * own[0]}
    wide = pd.DataFrame(frame, index=range(len(phases)))
    table = waterfall_of(wide, ["a"], [*V0_4_1.trees])
    assert math.fsum(table["seconds"]) == pytest.approx(wide["timing_s/step"].mean(), rel=1e-12)
    # What is left over is the root's own time, and no phase is hidden in it.
    root = phase_table(wide, ["a"], [*V0_4_1.trees]).set_index("path").loc["step", "own_mean_s"]
    left = of(table, "a")["residual"]
    assert left == pytest.approx(root, abs=1e-9 * (1 + wide["timing_s/step"].mean()))
    assert (table.loc[table["kind"] != "residual", "seconds"] >= -1e-9).all()
