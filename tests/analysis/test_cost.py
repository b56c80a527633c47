"""GPU-hours and their price by hand."""

import math
from dataclasses import replace

import pytest
from test_comparable import gpu_run
from test_comparison import content, results, row

from analysis.cost import cost_table
from analysis.counted import wide_steps
from analysis.planned import read_plan
from analysis.report.sections import shown_cost, shown_gate
from analysis.runs import read_runs
from analysis.wide import BAD_TIME


def costs(tmp_path, base, arm, change=lambda wide: wide, **plan):
    """Two arms of three steps of 3,600 s, the first of them warm-up and twice as long."""
    rows = [row(s, gen_s, scalars={"between_steps_s": 36.0}) for s, gen_s in ((1, 7199), (2, 3599), (3, 3599))]
    runs = {"b": ("transformers", 0, [rows], base), "a": ("vllm", 0, [rows], arm)}
    folder = results(tmp_path, runs, warmup_steps=1, **plan)
    found = read_plan(folder / "plan.json")
    read, _ = read_runs(found, folder, None)
    return cost_table(change(wide_steps(read, 1)[0]), read, found)


def test_no_gpu_no_row(tmp_path):
    assert costs(tmp_path, {}, {}).empty


@pytest.mark.parametrize("step", [1, 3])
def test_a_time_of_day_is_no_time_that_was_paid_for(tmp_path, step):
    """In the warm-up, too, whose steps are left out for another reason."""

    def change(wide):
        at = (wide["step"] == step) & (wide["arm"] == "vllm")
        wide.loc[at, "timing_s/step"] = 1.7e9
        wide.loc[at & (wide["left_out"] == ""), "left_out"] = BAD_TIME
        wide.loc[wide["step"] == step, "counted"] = False
        return wide

    whole, torn = costs(tmp_path, gpu_run(), gpu_run(), change).to_dict("records")
    assert whole["gpu_hours"] == pytest.approx(8 * 4.03) and whole["why"] == ""
    assert torn["gpu_hours"] == pytest.approx(8 * (4.03 - 0.01 - (2 if step == 1 else 1)))
    assert torn["why"] == "1 step with a wrong time"


def test_steps_that_were_done_twice_are_said(tmp_path):
    table = costs(tmp_path, gpu_run(), gpu_run(), lambda wide: wide.assign(overlap=wide["step"] == 2))
    assert table["why"].tolist() == ["the first time of 1 step done again after a restart"] * 2


def test_the_mean_step_is_weighted_by_the_steps_of_its_rows(tmp_path):
    def change(wide):
        wide["step"] = wide["step"].map({1: 1, 2: 2, 3: 5})
        wide.loc[wide["step"] == 5, "timing_s/step"] = 7200.0
        return wide.assign(steps_logged=wide["step"].map({1: 1, 2: 1, 5: 3}))

    (first, _) = costs(tmp_path, gpu_run(), gpu_run(), change).to_dict("records")
    assert first["step_gpu_s"] == 8 * (3600 + 3 * 7200) / 4


def test_steps_that_no_log_holds_are_said(tmp_path):
    def change(wide):
        """A log that begins at step 4, and a hole of 6 to 9."""
        wide.loc[wide["arm"] == "vllm", "step"] = wide["step"].map({1: 4, 2: 5, 3: 10})
        return wide

    whole, torn = costs(tmp_path, gpu_run(), gpu_run(), change).to_dict("records")
    own = "of its 2 counted steps the mean step is over all, and no step is in all arms"
    assert whole["why"] == own and torn["why"] == "7 steps missing from the logs; " + own


def test_the_cost_of_so_many_steps_is_over_the_steps_that_all_arms_have(tmp_path):
    """Equal engines whose steps grow; of one arm the last is not there yet."""

    def change(wide):
        wide.loc[wide["step"] == 3, "timing_s/step"] = 36000.0
        return wide[(wide["arm"] != "vllm") | (wide["step"] < 3)]

    first, second = costs(tmp_path, gpu_run(), gpu_run(), change, report={"to_steps": 10}).to_dict("records")
    assert first["gpu_hours_to_steps"] == second["gpu_hours_to_steps"] == pytest.approx(80)
    assert first["why"] == "of its 2 counted steps the mean step is over the 1 that all arms have" and not second["why"]


@pytest.mark.usefixtures("undrawn")
def test_what_the_gate_lacks_and_what_the_gpu_hours_lack_are_on_the_page(tmp_path):
    rows = [row(s, 3.0) for s in (1, 2, 3)]
    without = [row(s, 2.0) for s in (1, 2)] + [row(3, 2.0, scalars={"train/reward": math.nan})]
    runs = {"b": ("transformers", 0, [rows], gpu_run()), "a": ("vllm", 0, [without], gpu_run())}
    found = content(results(tmp_path, runs, report={"price_per_gpu_hour": 2, "currency": "USD"}))
    gate, heads = shown_gate(found), [column.head for column in shown_cost(found).columns]
    assert gate.columns[-1].head == "steps that only the arm lacks" and gate.rows[0].cells[-1].text == "1"
    assert "USD, of the used" in heads and "what is left out" not in heads
    rest = found.make_rest()
    tables = rest.tables | {"cost": rest.tables["cost"].assign(why="1 step with a wrong time")}
    torn = replace(found, make_rest=lambda: replace(rest, tables=tables))
    assert shown_cost(torn).columns[-1].head == "what is left out, so the true cost is higher"
