"""What the page says in words beside its tables: which timers lie inside others, and on what a floor rests."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
from test_comparable import gpu_run
from test_comparison import content, results, row

from analysis.report.answer import answers
from analysis.report.sections import cost_block, gate_block
from analysis.report.timing_tables import nesting_text

pytestmark = pytest.mark.usefixtures("undrawn")


def phases(*rows):
    columns = ["arm", "path", "parent", "label", "mean_s"]
    return pd.DataFrame([(arm, "step", None, "Step", 9.0) for arm in ("a", "b")] + list(rows), columns=columns)


def both(path, parent, label, *seconds):
    return [(arm, path, parent, label, s) for arm, s in zip(("a", "b"), seconds, strict=False)]


def test_each_nested_timer_of_all_arms_is_told_with_its_parent_and_its_seconds():
    gen = both("step/gen", "step", "Generate", 5.0, 6.0)
    deep = both("step/gen/x/y", "step/gen/x", "Y", 0.5, 0.25)
    one = both("step/gen/z", "step/gen", "Z", 0.1)
    told = nesting_text(phases(*gen, *both("step/gen/x", "step/gen", "X", 1.0, 2.0), *deep, *one), "step", 2)
    assert told == (
        "X is inside Generate: adding both counts 1.00 s (a) and 2.00 s (b) twice. "
        "Y is inside X: adding both counts 0.50 s (a) and 0.25 s (b) twice. "
        "Z is inside Generate, but only a logs it: no sum includes it."
    )


def test_one_run_pair_has_no_interval(tmp_path):
    for seeds in (1, 2):
        arms = {"transformers": [row(s, 3.0 + s % 3) for s in range(1, 9)], "vllm": [row(s, 2.0) for s in range(1, 9)]}
        runs = {f"{arm}-s{seed}": (arm, seed, [rows]) for seed in range(seeds) for arm, rows in arms.items()}
        (answer,) = answers(content(results(tmp_path / str(seeds), runs)))
        assert ("Small: the 95% interval" in answer.note) == (seeds > 1) and answer.numbers
        assert all(bool(interval) == (seeds > 1) for _, _, interval in answer.numbers)


def test_what_the_gate_lacks_and_what_the_gpu_hours_lack_are_on_the_page(tmp_path):
    rows = [row(s, 3.0) for s in (1, 2, 3)]
    without = [row(s, 2.0) for s in (1, 2)] + [row(3, 2.0, scalars={"train/reward": math.nan})]
    runs = {"b": ("transformers", 0, [rows], gpu_run()), "a": ("vllm", 0, [without], gpu_run())}
    found = content(results(tmp_path, runs, report={"price_per_gpu_hour": 2, "currency": "USD"}))
    gate, cost = gate_block(found), cost_block(found)
    assert gate.heads[-1] == "steps that only the arm lacks" and gate.rows[0].cells[-1].text == "1"
    assert "USD, of the used" in cost.heads and "what is left out" not in cost.heads
    torn = replace(
        found,
        tables=found.tables | {"cost": found.tables["cost"].assign(why="without 1 step with a wrong time")},
    )
    assert cost_block(torn).heads[-1] == "what is left out" and "too few" in cost_block(torn).note
