"""The floor that a fit takes is that of one and the same machine for both arms, the baseline's."""

import pytest
from roofline_results import ROLLOUT, an_import, article_row, steps_to, trained

from analysis.counted import wide_steps
from analysis.roofline.floors import with_floors

LENGTHS = [5001] * 32
MANY = [2001] * 512


def floored(*runs, baseline="a", **columns):
    """The counted steps with their floors."""
    wide, _ = with_floors(wide_steps(runs, 2)[0].assign(**columns), runs, baseline)
    return wide[wide["counted"]]


def floor_s(steps):
    return steps["efficiency"] * steps["own_s/step/gen"]


@pytest.mark.parametrize("baseline", ["a", "b"])
@pytest.mark.parametrize(
    "lengths, other",
    [
        (LENGTHS, {f"{ROLLOUT}.tensor_model_parallel_size": 4}),
        (MANY, {f"{ROLLOUT}.engine_kwargs.vllm.max_num_seqs": 4}),
        (MANY, {f"{ROLLOUT}.n": 8}),
        (MANY, {f"{ROLLOUT}.dtype": "float32"}),
    ],
)
def test_the_same_lengths_have_the_same_floor_on_any_machine_of_the_arm(tmp_path, lengths, other, baseline):
    a, b = trained(tmp_path, lengths, "a", 900.0), trained(tmp_path, lengths, "b", 500.0, **other)
    steps = floored(a, b, baseline=baseline, **{"prompt_length/min": 4000.0})
    assert steps["equal_floor_s"].nunique() == 1
    own = floor_s(steps).groupby(steps["arm"]).first()
    assert own["a"] != pytest.approx(own["b"]) and own[baseline] == pytest.approx(steps["equal_floor_s"].iloc[0])


def test_other_lengths_are_worked_out_for_the_baselines_roof(tmp_path):
    """On four copies that run one response at a time, whatever b has: 8 · 5000 iterations against 8 · 2500."""
    a = trained(tmp_path, LENGTHS, "a", 600.0, **{f"{ROLLOUT}.engine_kwargs.vllm.max_num_seqs": 1})
    b = trained(tmp_path, [2501] * 32, "b", 600.0, **{f"{ROLLOUT}.tensor_model_parallel_size": 4})
    steps = floored(a, b)
    floors = steps.groupby("arm")["equal_floor_s"].first()
    assert 0.45 < floors["b"] / floors["a"] < 0.5


def test_prompts_that_one_arm_alone_logs_count_for_none(tmp_path):
    a, b = trained(tmp_path, LENGTHS, "a"), trained(tmp_path, LENGTHS, "b")
    name = "prompt_length/min"
    steps = floored(a, b, **{name: lambda wide: wide["arm"].map({"a": 4000.0})})
    assert floor_s(steps).round(6).nunique() == 2 and steps["equal_floor_s"].nunique() == 1
    # Both log it: it counts, as it does in each arm's own floor.
    steps = floored(a, b, **{name: 4000.0})
    assert steps["equal_floor_s"].tolist() == pytest.approx(floor_s(steps).tolist())


def test_the_estimate_takes_no_floor_from_means(tmp_path):
    """Such a floor is a function of the lengths that it takes already."""
    steps = floored(an_import(tmp_path, steps_to(article_row()), "a", "vllm"))
    assert steps["efficiency"].notna().all() and steps["equal_floor_s"].isna().all()


def test_a_baseline_of_two_roofs_bounds_nothing(tmp_path):
    four = {f"{ROLLOUT}.tensor_model_parallel_size": 4}
    runs = [trained(tmp_path, LENGTHS, f"a-s{seed}", **(four if seed else {})) for seed in (0, 1)]
    runs += [trained(tmp_path, LENGTHS, f"b-s{seed}") for seed in (0, 1)]
    steps = floored(*runs)
    assert steps["efficiency"].notna().all() and steps["equal_floor_s"].isna().all()
