"""What the page says in words beside its tables: which timers lie inside others, and on what a floor rests."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.report.nesting import MOST_TIMERS, nesting_text


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
        "X runs inside Generate: adding up both counts 1.00 s (a) and 2.00 s (b) twice. "
        "Y runs inside X: adding up both counts 0.50 s (a) and 0.25 s (b) twice. "
        "Z runs inside Generate, too, but only a logs it: it is in no sum here."
    )


def test_no_timer_inside_another():
    assert nesting_text(phases(*both("step/gen", "step", "Generate", 5, 6)), "step", 2) == (
        "No timer lies inside another."
    )


@pytest.mark.parametrize("more", [1, 3])
def test_of_many_the_rest_is_counted(more):
    gen = both("step/gen", "step", "Generate", 5.0, 6.0)
    many = [r for n in range(MOST_TIMERS + more) for r in both(f"step/gen/{n}", "step/gen", f"T{n}", 1.0, 1.0)]
    told = nesting_text(phases(*gen, *many), "step", 2)
    assert told.count("twice") == MOST_TIMERS
    assert told.endswith(f"Inside others, too: {more} more timer{'s' if more > 1 else ''}.")
