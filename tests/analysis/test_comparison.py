"""Numbers on small cases that were worked out by hand, and every finding about bad input."""

import json
import math

import make_results
import pandas as pd
import pytest

from analysis.collect import collect_run
from analysis.report.arm_lines import arm_lines
from analysis.report.content import read_content
from analysis.report.rendering import html_page, markdown
from analysis.report.timing_tables import shown_phases, shown_speed
from analysis.steps import write_steps
from analysis.verdict.verdict_block import verdict_text

pytestmark = pytest.mark.usefixtures("undrawn")

GEN = "step/training_step/prepare_inputs/generate"
ARMS = {name: {"trainer": "trl", "engine": name, "stack": name, "options": {}} for name in ("transformers", "vllm")}


def row(step, gen_s, tokens=100, **more):
    """A step of exactly gen_s + 1 seconds: 0.25 s of optimizer, 0.75 s that no timer covers."""
    phases = {
        "step": gen_s + 1,
        "step/training_step": gen_s,
        "step/training_step/prepare_inputs": gen_s,
        GEN: gen_s,
        "step/optimizer_step": 0.25,
    } | more.pop("phases", {})
    scalars = {"train/reward": 0.5, "response_tokens": tokens} | more.pop("scalars", {})
    return {"step": step, "phases": phases, "scalars": scalars, "samples": {"response_length": [tokens]}} | more


def results(tmp_path, runs, warmup_steps=0, arms=ARMS, **plan):
    """A results folder: `runs` maps run id to (arm, seed, attempts, further arguments of write_run)."""
    folder = tmp_path / "case"
    for run_id, (arm, seed, attempts, *more) in runs.items():
        run_dir = make_results.write_run(folder, run_id, arm, seed, attempts, engine=arm, **(more[0] if more else {}))
        write_steps(collect_run(run_dir), run_dir / "steps.parquet")
    make_results.write_plan(folder, arms, list(runs), warmup_steps, **plan)
    return folder


def content(folder, **more):
    found = read_content(folder / "plan.json", folder, more.get("baseline"), more.get("stacks"))
    html_page(found)
    markdown(found)
    return found


def block(found):
    """The verdicts, each line whole."""
    return verdict_text(found.arm_verdicts, width=10_000)


def codes(found):
    return {v.code for v in found.verdicts}


def text(found, code):
    return " / ".join(v.text for v in found.verdicts if v.code == code)


def pair(tmp_path, base, arm, **more):
    runs = {"b": ("transformers", 0, [base]), "a": ("vllm", 0, [arm])}
    return content(results(tmp_path, runs, **more))


def test_an_arms_line_counts_the_steps_of_all_attempts(tmp_path):
    last = {"done_more": {"first_step": 2, "steps": 2}}
    twice = [[row(1, 9), row(2, 9)], [row(2, 9, resumed=True), row(3, 9)]]
    once = [[row(step, 4) for step in (1, 2, 3)]]
    found = content(results(tmp_path, {"b": ("transformers", 0, twice, last), "a": ("vllm", 0, once)}))
    assert [text.rpartition("; ")[2] for text in arm_lines(found, ())] == ["1 run, 3 steps"] * 2


def test_a_step_without_a_token_leaves_no_tokens_a_second(tmp_path):
    found = pair(tmp_path, [row(s, 3) for s in (1, 2, 3)], [row(1, 1), row(2, 1, 0), row(3, 1)])
    assert math.isnan(found.tables["comparison"]["arm_tokens_per_s"][0])
    assert found.tables["comparison"]["raw_speedup"].tolist() == [pytest.approx(2.0)]
    tokens = [column.head for column in shown_speed(found).columns if column.group.startswith("response tokens")]
    assert tokens == ["baseline", "arm"], "an arm's empty column beside the baseline's is shown"


def test_other_baseline(tmp_path):
    folder = results(tmp_path, {"b": ("transformers", 0, [[row(1, 9)]]), "a": ("vllm", 0, [[row(1, 4)]])})
    assert content(folder, baseline="vllm").tables["comparison"]["raw_speedup"].tolist() == [pytest.approx(0.5)]


LEFT_OUT = {
    "analysis.collect": lambda folder: (folder / "runs/a/steps.parquet").unlink(),
    "cannot be read": lambda folder: (folder / "runs/a/steps.parquet").write_bytes(b"PAR1 not really"),
    "spec.json was changed by hand": lambda folder: edit(folder / "runs/a/spec.json", arm="other"),
    "it is of another configuration than the plan": lambda folder: edit(
        folder / "plan.json", fingerprints={"a": "0", "b": "0"}
    ),
}


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.promise("the-report-shows-a")
@pytest.mark.parametrize("says", LEFT_OUT)
def test_a_run_that_cannot_be_used_is_left_out(tmp_path, says):
    folder = results(tmp_path, {"b": ("transformers", 0, [[row(1, 1)]]), "a": ("vllm", 0, [[row(1, 1)]])})
    LEFT_OUT[says](folder)
    found = content(folder)
    assert {"run-left-out", "arm-without-runs"} <= codes(found) and not found.arm_verdicts
    assert "run a is left out" in text(found, "run-left-out") and says in text(found, "run-left-out")


def test_without_two_arms_there_is_no_comparison(tmp_path):
    found = content(results(tmp_path, {"a": ("vllm", 0, [[row(1, 1)]])}, arms={"vllm": ARMS["vllm"]}))
    assert {"one-arm"} <= codes(found) and not found.arm_verdicts
    assert found.no_comparison == "No comparison: only one arm has runs (vllm)."
    folder = tmp_path / "none"
    make_results.write_plan(folder, ARMS, ["a", "b"], 0)
    found = content(folder)
    assert found.no_comparison == "No comparison: no run could be read." and not found.figures


def test_nothing_but_a_repetition_is_no_comparison_and_says_why(tmp_path):
    runs = {"b": ("transformers", 0, [[row(1, 9)]]), "a": ("vllm", 0, [[row(1, 4)]])}
    found = content(results(tmp_path, runs, arms=ARMS | {"vllm": {**ARMS["vllm"], "same_as": "transformers"}}))
    assert found.arm_verdicts == []
    assert found.no_comparison == (
        "No comparison: there are only repetitions (A/A) of one arm (vllm is the same as transformers). "
        "By step time they are 2x to 2x as fast."
    )


def test_no_common_steps(tmp_path):
    over = {GEN: 9}
    runs = {
        "b": ("transformers", 0, [[row(1, 1), row(2, 1, phases=over)]]),
        "a": ("vllm", 1, [[row(1, 1, phases=over), row(2, 1)]]),
    }
    found = content(results(tmp_path, runs))
    assert "no-common-steps" in codes(found) and not found.arm_verdicts and found.tables["comparison"].empty
    assert found.no_comparison == (
        "No comparison: transformers and vllm have no counted step in common. Steps of equal number are compared, and "
        "these are b's 1 to 1, a's 2 to 2."
    )


def test_why_no_step_counts_is_told_where_there_is_no_comparison(tmp_path):
    overrun = [row(step, 1, phases={GEN: 9}) for step in (1, 2, 3)]
    found = pair(tmp_path, overrun, [row(step, 1) for step in (1, 2, 3)], warmup_steps=1)
    assert "none of its 3 steps; left out: 2 (children exceed their parent), 1 (warm-up)" in found.no_comparison


def test_missing_phase_in_one_arm(tmp_path, drawn):
    sync = "step/training_step/prepare_inputs/sync_weights"
    arm = [row(1, 2, phases={sync: 0.5, GEN: 1.5}), row(2, 2)]
    found = pair(tmp_path, [row(1, 5), row(2, 5)], arm)
    vllm = found.tables["phases"][found.tables["phases"]["arm"] == "vllm"].set_index("path")
    assert vllm.loc[sync, ["present_steps", "steps"]].tolist() == [1, 2]
    assert vllm.loc[sync, "mean_s"] == 0.25 and vllm["own_mean_s"].sum() == pytest.approx(3, abs=1e-12)
    speedups = found.tables["phase_speedups"].set_index("path")
    assert math.isnan(speedups.loc[sync, "speedup"]) and math.isnan(speedups.loc[sync, "baseline_mean_s"])
    # A step without the phase spends no second in it: (0.5 + 0) / 2.
    assert speedups.loc[sync, "arm_mean_s"] == 0.25


def test_stack_checks(tmp_path):
    folder = results(tmp_path, {"b": ("transformers", 0, [[row(1, 1)]]), "a": ("vllm", 0, [[row(1, 1)]])})
    checks = [{"name": "torch", "expected": "2.13.0+cpu", "got": "2.12.0", "ok": False}]
    make_results.write_json(tmp_path / "stacks/trl-vllm-cpu/0123456789ab/verify.json", {"ok": False, "checks": checks})
    found = content(folder, stacks=tmp_path / "stacks")
    assert "torch should be 2.13.0+cpu, is 2.12.0" in text(found, "stack-check-failed")
    assert "trl-transformers-cpu" in text(found, "stack-unverified")
    assert "Stack trl-vllm-cpu (0123456789ab): 0 of 1 checks passed." in html_page(found)


def test_phase_outside_the_step_is_in_no_sum(tmp_path, drawn):
    found = pair(tmp_path, [row(1, 1)], [row(1, 1, phases={"save/model": 50.0})])
    vllm = found.tables["phases"][found.tables["phases"]["arm"] == "vllm"].set_index("path")
    assert pd.isna(vllm.loc["save/model", "own_share"]) and vllm["own_share"].sum() == pytest.approx(1)
    rows = {row.label: row for row in shown_phases(found)[0].rows}
    assert float(rows["Sum of own seconds"].cells[4].value) == pytest.approx(2)
    (saved,) = [row for row in rows.values() if "50.0" in [cell.value for cell in row.cells]]
    assert saved.kind == "outside" and list(rows.values()).index(saved) > list(rows).index("Sum of own seconds")


def test_a_timer_that_one_arm_has_inside_one_of_its_own_kind_is_in_that_ones_own_seconds(tmp_path):
    """Else an arm that also times the calls inside would seem to spend no time in what both time."""
    rewards = GEN.replace("generate", "rewards")
    inner = {rewards: 3.0, f"{rewards}/accuracy": 2.75, f"{rewards}/accuracy/parse": 2.0}
    found = pair(tmp_path, [row(1, 4, phases={GEN: 1.0, rewards: 3.0})], [row(1, 4, phases={GEN: 1.0} | inner)])
    phases = found.tables["phases"]
    phases.loc[phases["path"].str.startswith(rewards), "category"] = "rewards"  # of the undeclared one, too
    (table,) = shown_phases(found)
    shown = {one.label: [cell.value for cell in one.cells] for one in table.rows}
    own = [n for n, column in enumerate(table.columns) if column.group == "own seconds"]
    assert [shown["Rewards"][n] for n in own] == ["3.0", "3.0"]
    assert [shown["Reward: accuracy"][n] for n in own] == ["", ""] and "2.75" in shown["Reward: accuracy"]
    vllm = phases[phases["arm"] == "vllm"].set_index("path")
    assert vllm.loc[rewards, "own_mean_s"] == 0.25, "the table of all digits has each timer's own"
