"""What the page says in words beside its tables: which timers lie inside others, and on what a floor rests."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
from test_comparable import gpu_run
from test_comparison import content, results, row

from analysis.report.answer import answers
from analysis.report.comparison_tables import _reasons
from analysis.report.sections import cost_block, gate_block, ledger_summary
from analysis.report.timing_tables import MOST_TIMERS, nesting_text
from common.findings import Finding, LedgerRow, Preflight

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


def test_no_timer_inside_another():
    assert nesting_text(phases(*both("step/gen", "step", "Generate", 5, 6)), "step", 2) == (
        "No timer is inside another."
    )


@pytest.mark.parametrize("more", [1, 3])
def test_of_many_the_rest_is_counted(more):
    gen = both("step/gen", "step", "Generate", 5.0, 6.0)
    many = [r for n in range(MOST_TIMERS + more) for r in both(f"step/gen/{n}", "step/gen", f"T{n}", 1.0, 1.0)]
    told = nesting_text(phases(*gen, *many), "step", 2)
    assert told.count("twice") == MOST_TIMERS
    assert told.endswith(f"Also nested: {more} more timer{'s' if more > 1 else ''}.")


def finding(level, code, what):
    return Finding(level, code, ("a", "b"), what, "", "", "")


def ledger(setting, verdict):
    return LedgerRow(setting, {"a": "1", "b": "2"}, verdict, "", "")


def test_the_ledgers_settings_and_findings_are_bridged():
    findings = (
        finding("unequal", "graphs", "CUDA graphs: off in a; on in b"),
        finding("unequal", "launch", "CUDA_LAUNCH_BLOCKING=1 in all arms (the experiment's env)"),
        finding("odd", "sleep", "weights between rollouts: dropped in a; kept in b"),
    )
    rows = ("CUDA graphs (enforce_eager)", "weights between rollouts", "name")
    before = Preflight(findings, (*(ledger(row, "different") for row in rows), ledger("batch", "equal")), ())
    assert ledger_summary(before) == (
        "Findings: 2 unequal (1 on what differs, 1 on what all arms share but may slow some more), 1 odd. "
        "Settings: 3 of 4 differ (1 unequal, 1 odd, 1 without a finding)."
    )
    assert ledger_summary(Preflight((), (ledger("batch", "equal"),), ())) == ""


def estimates(factors, raw, equal, interval=True):
    """The four rows of one arm at one factor combination."""
    values = {"raw": raw, "per_token": math.nan, "roofline": math.nan, "standardised": equal}
    return [
        {
            **{"factors": factors, "baseline": "a", "arm": "b", "estimate": name, "value": value},
            **{"low": value * 0.99 if interval else math.nan, "high": value * 1.01 if interval else math.nan},
            **{"verdict": "+", "why": "", "runs_to_resolve": math.nan},
        }
        for name, value in values.items()
    ]


def test_one_run_pair_has_no_interval(tmp_path):
    for seeds in (1, 2):
        arms = {"transformers": [row(s, 3.0 + s % 3) for s in range(1, 9)], "vllm": [row(s, 2.0) for s in range(1, 9)]}
        runs = {f"{arm}-s{seed}": (arm, seed, [rows]) for seed in range(seeds) for arm, rows in arms.items()}
        (answer,) = answers(content(results(tmp_path / str(seeds), runs)))
        assert ("Small: the 95% interval" in answer.note) == (seeds > 1) and answer.numbers
        assert all(bool(interval) == (seeds > 1) for _, _, interval in answer.numbers)


def test_a_reason_names_its_factor_combinations_and_a_blank_is_explained():
    few, known = estimates('{"t": 1}', 2.0, 1.5, interval=False), estimates('{"t": 2}', 2.0, 1.5)
    few[3]["why"], known[0]["runs_to_resolve"] = "too few steps", 0.0
    assert _reasons(pd.DataFrame([*few, *known])) == (
        'Why: standardised to equal work at t = 1: too few steps. "More runs to resolve" is computed from the '
        "interval. It is blank without an interval, without any variation, and above 1,000."
    )


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
