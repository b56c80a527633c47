"""Sample completions: which attempt's count, what is missing, and texts that no page expects."""

import json

import make_results
import pandas as pd
import pytest
from make_results import metrics_row

from analysis.collect import main as collect
from analysis.report.__main__ import main as report
from analysis.report.content import read_content
from analysis.report.rendering import html_page
from analysis.report.sample_completions import shown_samples

pytestmark = pytest.mark.usefixtures("undrawn")


def line(step, *completions, problem=None, **changes):
    made = [
        {
            "row": row,
            "prompt": [{"role": "user", "content": f"What is {row} + 1?"}],
            "completion": text,
            "characters": len(text),
            "tokens": len(text),
            "cut_off": len(text) > 9,
            "rewards": {"accuracy": 1.0, "mine": None},
            **changes,
        }
        for row, text in enumerate(completions)
    ]
    return {"step": step, "steps": 4, "how": "greedy", "seconds": 1.5, "problem": problem, "samples": made}


def results(folder, lines, steps=4):
    """Runs of 4 steps that were asked for samples: by run, each attempt's lines of samples.jsonl."""
    for run_id, attempts in lines.items():
        rows = [metrics_row(s, {"step": 1.0 + s / 9}) for s in range(1, steps + 1)]
        arm = run_id.partition("-")[0]
        spec = {"workload": {"steps": steps, "samples": 2, "max_response_length": 64}}
        empty = [[]] * (len(attempts) - 1)
        run = make_results.write_run(folder, run_id, arm, 0, [*empty, rows], spec_more=spec)
        for number, some in enumerate(attempts, start=1):
            make_results.write_rows(run / "attempts" / str(number) / "samples.jsonl", some)
        assert collect([str(run), "--out", str(run / "steps.parquet")]) == 0
    arms = {run.partition("-")[0]: {"trainer": "trl", "engine": "vllm", "options": {}} for run in lines}
    return make_results.write_plan(folder, arms, list(lines), 1)


def content(folder, lines):
    return read_content(results(folder, lines), folder, None, None)


def told(found, code="samples-missing"):
    return [v.text for v in found.verdicts if v.code == code]


def test_a_stage_is_the_last_attempts_that_took_it(tmp_path):
    first = [line(0, "old", "old"), line(2, "half", "half")]
    found = content(tmp_path, {"a-s0": [first, [line(0, "new", "new"), line(4, "last", "last")]]})
    frame = found.tables["samples"]
    assert frame[["attempt", "step", "row", "completion"]].to_numpy().tolist() == [
        [2, 0, 0, "new"],
        [2, 0, 1, "new"],
        [1, 2, 0, "half"],
        [1, 2, 1, "half"],
        [2, 4, 0, "last"],
        [2, 4, 1, "last"],
    ]
    assert told(found) == []
    prompts, _ = shown_samples(frame, ["a"])
    assert [table.caption for table in prompts] == ["What is 0 + 1?", "What is 1 + 1?"]
    texts = [cell.text.split("\n\n") for cell in prompts[0].rows[0].cells]
    assert texts[2] == ["last", "step 4 · 4 tokens · accuracy 1 · mine none"]
    assert [text[0] for text in texts] == ["new", "half", "last"]


def test_what_is_missing_is_a_note(tmp_path):
    some = [line(0, "x", "y"), line(2, problem="CUDA out of memory")]
    found = content(tmp_path, {"a-s0": [some], "b-s0": [[]]})
    assert told(found) == [
        "run a-s0: sample completions of step 2: CUDA out of memory",
        "run a-s0: sample completions of step 4: no attempt has any",
        *(f"run b-s0: sample completions of step {n}: no attempt has any" for n in (0, 2, 4)),
    ]
    prompts, note = shown_samples(found.tables["samples"], ["a", "b"])
    assert [column.head for column in prompts[0].columns] == ["at the start"] and "No samples: b." in note


def test_a_batch_of_the_training_has_other_prompts_at_each_stage(tmp_path):
    def batch(step, first, *texts):
        made = line(step, *texts)
        for at, one in enumerate(made["samples"]):
            one["row"], one["prompt"][0]["content"] = first + at, f"What is {first + at} + 1?"
        return made

    taken = [batch(1, 10, "a", "b"), batch(2, 20, "c", "d"), batch(4, 30, "e", "f")]
    found = content(tmp_path, {"a-s0": [taken], "b-s0": [taken[:1]]})
    assert told(found) == [f"run b-s0: sample completions of step {n}: no attempt has any" for n in (2, 4)]
    prompts, _ = shown_samples(found.tables["samples"], ["a", "b"])
    assert [table.caption for table in prompts] == [f"What is {n} + 1?" for n in (10, 20, 30, 11, 21, 31)]
    assert [[one.head for one in table.columns] for table in prompts[:3]] == [
        ["at the start"], ["halfway"], ["at the end"]
    ]  # fmt: skip
    assert [[cell.text.split("\n\n")[0] for cell in row.cells] for row in prompts[1].rows] == [["c"], ["not taken"]]
    assert "not taken" in html_page(found)


BAD = [
    [],
    {"step": 0},
    {**line(0, "x"), "step": -1},
    {**line(0, "x"), "samples": {"row": 0}},
    line(0, "x", completion=None),
    line(0, "x", rewards=[1.0]),
    line(0, "half \ud83d of a character"),
]


def test_lines_that_are_none_are_named_with_their_number(tmp_path):
    found = content(tmp_path, {"a-s0": [[*BAD, line(0, "good"), line(2, "good"), line(4, "good")]]})
    assert list(found.tables["samples"]["completion"]) == ["good"] * 3
    corrupt = told(found, "corrupt-line")
    assert len(corrupt) == len(BAD), corrupt
    assert corrupt[2].startswith("a-s0: attempts/1/samples.jsonl:3 cannot be read and was skipped (step must be")


TEXTS = {
    "<script>alert(1)</script>&amp;": "<script>alert(1)</script>&amp;",
    "a\x00b\x1b[31mred\x7f\x9bz": "a␀b␛[31mred␡\N{REPLACEMENT CHARACTER}z",
    "two\r\nlines\ttab\rreturn": "two\nlines\ttab␍return",
    "مرحبا \u202egnorw\u202c 変換": "مرحبا \u202egnorw\u202c 変換",
    "": "",
    "🧑‍🚀 e\u0301": "🧑‍🚀 e\u0301",
}


def test_the_files_stand_any_text(tmp_path):
    long = "x" * 10_000
    texts = [*TEXTS, long]
    plan = results(tmp_path, {"a-s0": [[line(step, *texts) for step in (0, 2, 4)]]})
    assert report(["--plan", str(plan), "--results", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    expected = [*TEXTS.values(), long] * 3
    assert list(pd.read_parquet(tmp_path / "out" / "tables" / "samples.parquet")["completion"]) == expected
    table = pd.read_csv(tmp_path / "out" / "tables" / "samples.csv", keep_default_na=False)
    assert list(table["completion"]) == expected
    assert json.loads(table["rewards"][0]) == {"accuracy": 1.0, "mine": None}
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp;" in page
    assert "\x00" not in page and "\x1b" not in page


def test_a_step_after_samples_does_not_count(tmp_path):
    rows = [
        metrics_row(s, {"step": 1.0}, scalars={"outside_step_s/samples": 2.0} if s in (1, 3) else {})
        for s in range(1, 6)
    ]
    run = make_results.write_run(tmp_path, "a-s0", "a", 0, [rows])
    assert collect([str(run), "--out", str(run / "steps.parquet")]) == 0
    plan = make_results.write_plan(tmp_path, {"a": {"trainer": "trl", "engine": "vllm", "options": {}}}, ["a-s0"], 1)
    steps = read_content(plan, tmp_path, None, None).tables["steps"].set_index("step")
    assert steps["left_out"].tolist() == ["warm-up", "", "first after sample completions", "", ""]
