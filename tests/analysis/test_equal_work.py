"""The roofline estimate divides both arms' times by the floors of one and the same roof, made of the same knowledge."""

import pytest
from roofline_results import ROLLOUT, an_import, article_row, steps_to, trained, without
from test_estimates import plan

from analysis.counted import wide_steps
from analysis.estimates.equal_work import NO_ONE_ROOF
from analysis.estimates.estimate_table import estimate_table
from analysis.roofline.step_floors import with_floors

LENGTHS = [5001] * 32
MANY = [2001] * 512


def estimated(*runs, baseline="a", **columns):
    """The estimates by name, and the counted steps with their floors."""
    wide, _ = with_floors(wide_steps(runs, 2)[0].assign(**columns), runs, baseline)
    arms = sorted({run.arm for run in runs}, key=lambda arm: arm != baseline)
    return estimate_table(wide, plan(*arms), resamples=200)[0].set_index("estimate"), wide[wide["counted"]]


def floor_s(steps):
    return steps["efficiency"] * steps["generation_s"]


@pytest.mark.parametrize("baseline", ["a", "b"])
@pytest.mark.parametrize(
    "lengths, other",
    [
        (LENGTHS, {f"{ROLLOUT}.tensor_model_parallel_size": 4}),
        (MANY, {f"{ROLLOUT}.max_num_seqs": 4}),
        (MANY, {f"{ROLLOUT}.n": 8}),
        (MANY, {f"{ROLLOUT}.dtype": "float32"}),
    ],
)
def test_with_the_same_lengths_the_roofline_estimate_is_the_raw_ratio(tmp_path, lengths, other, baseline):
    a, b = trained(tmp_path, lengths, "a", 900.0), trained(tmp_path, lengths, "b", 500.0, **other)
    table, steps = estimated(a, b, baseline=baseline, **{"prompt_length/min": 4000.0})
    assert table.loc["roofline", "value"] == pytest.approx(table.loc["raw", "value"], rel=1e-12)
    assert steps["equal_floor_s"].nunique() == 1
    own = floor_s(steps).groupby(steps["arm"]).first()
    assert own["a"] != pytest.approx(own["b"]) and own[baseline] == pytest.approx(steps["equal_floor_s"].iloc[0])


def test_other_lengths_are_worked_out_for_the_baselines_roof(tmp_path):
    """On four copies that run one response at a time, whatever b has: 8 · 5000 iterations against 8 · 2500."""
    a = trained(tmp_path, LENGTHS, "a", 600.0, **{f"{ROLLOUT}.max_num_seqs": 1})
    b = trained(tmp_path, [2501] * 32, "b", 600.0, **{f"{ROLLOUT}.tensor_model_parallel_size": 4})
    table, steps = estimated(a, b)
    floors = steps.groupby("arm")["equal_floor_s"].first()
    assert 0.45 < floors["b"] / floors["a"] < 0.5
    assert table.loc["roofline", "value"] == pytest.approx(floors["b"] / floors["a"])


def logged(folder, name, *lacks, **facts):
    return an_import(folder, steps_to(without(article_row(), *lacks)), name, "vllm", **facts)


def test_floors_of_other_knowledge_are_not_divided(tmp_path):
    counts = "perf/total_num_tokens"
    a, b = logged(tmp_path, "a", counts, batch_size=64), logged(tmp_path, "b", counts, batch_size=None)
    table, steps = estimated(a, b)
    assert dict(zip(steps["arm"], steps["floor_basis"], strict=True)) == {"a": "scalars", "b": "longest"}
    why = table.loc["roofline", "why"]
    assert table.loc["roofline", "verdict"] == "x" and "made of different data: the baseline's of the number" in why
    assert "the arm's of the longest response alone" in why
    alike = logged(tmp_path / "again", "b", counts, batch_size=64)
    assert estimated(a, alike)[0].loc["roofline", "value"] == pytest.approx(1.0)


def test_prompts_that_one_arm_alone_knows_count_for_none(tmp_path):
    a, b = logged(tmp_path, "a"), logged(tmp_path, "b", "prompt_length/min")
    table, steps = estimated(a, b)
    assert floor_s(steps).round(6).nunique() == 2 and steps["equal_floor_s"].nunique() == 1
    assert table.loc["roofline", "value"] == pytest.approx(1.0)
    # Both know it: it counts, as it does in each arm's own floor.
    _, steps = estimated(a, logged(tmp_path / "again", "b"))
    assert steps["equal_floor_s"].tolist() == pytest.approx(floor_s(steps).tolist())


def test_a_baseline_of_two_roofs_bounds_nothing(tmp_path):
    four = {f"{ROLLOUT}.tensor_model_parallel_size": 4}
    runs = [trained(tmp_path, LENGTHS, f"a-s{seed}", **(four if seed else {})) for seed in (0, 1)]
    runs += [trained(tmp_path, LENGTHS, f"b-s{seed}") for seed in (0, 1)]
    table, steps = estimated(*runs)
    assert table.loc["roofline", ["verdict", "why"]].tolist() == ["x", NO_ONE_ROOF]
    assert steps["efficiency"].notna().all() and steps["equal_floor_s"].isna().all()
