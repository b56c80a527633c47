"""A user's file of rewards, before anything is built: carried in the plan, and tried on three rows."""

from pathlib import Path

import pytest

from common.errors import UserError
from trainers.resolve import resolved
from workflow.config.entry import require_readable
from workflow.config.plan import load_plan
from workflow.config.reading import read_yaml
from workflow.preflight import preflight
from workflow.preflight.cases import settings_request, settings_requests

ROOT = Path(__file__).resolve().parents[2]


def plan_with(folder, code, function="score", timeout_s=None, signature=None, **data):
    """The smoke test on a CPU with one reward of a user's file beside its own."""
    source = folder / "mine.py"
    source.write_bytes(code if isinstance(code, bytes) else code.encode())
    raw = read_yaml(ROOT / "experiments" / "cpu-smoke.yaml")
    raw["workload"]["rewards"].append({"source": str(source), "function": function, "weight": 0.5})
    given = {"timeout_s": timeout_s, "signature": signature}
    raw["workload"]["rewards"][-1] |= {key: value for key, value in given.items() if value is not None}
    raw["workload"]["data"] |= data
    return load_plan(raw)


def found(plan):
    return [one for one in preflight(plan).findings if one.code.startswith("reward-")]


def test_the_text_is_in_the_specification_and_in_the_fingerprint(tmp_path):
    code = "def score(completions):\n    return [0.0 for _ in completions]\n"
    plan = plan_with(tmp_path, code)
    run = plan.runs["vllm-s0"]
    *built_in, own = run.spec["workload"]["rewards"]
    assert built_in == [{"name": name, "weight": 1.0, "options": {}} for name in ("accuracy", "format")]
    assert (own["source"], own["code"], own["function"], own["weight"]) == ("mine.py", code, "score", 0.5)
    assert found(plan) == []
    # The ledger, and the page with it, show the hash and not the text.
    ledger = str(preflight(plan).as_json())
    assert own["sha256"] in ledger and "return [0.0" not in ledger
    # Another place of the same text is the same run; another text is another, and does not reach the plan that is made.
    (elsewhere := tmp_path / "elsewhere").mkdir()
    assert plan_with(elsewhere, code).runs["vllm-s0"].fingerprint == run.fingerprint
    other = plan_with(tmp_path, code.replace("0.0", "1.0"))
    assert other.runs["vllm-s0"].fingerprint != run.fingerprint
    assert run.spec["workload"]["rewards"][-1]["code"] == code
    # The stack loads it, whatever the trainer, before anything waits.
    assert settings_request(run)["rewards"][-1]["code"] == code
    assert len(settings_requests(plan)) == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import re\ndef scores(completions): ...\n", r"mine.py: .*'score' \(did you mean scores\?\); known: scores$"),
        ("def score(completions:\n", r"mine.py .*SyntaxError: .* \(mine.py, line 1\)"),
        ("def score(): ...\0", "mine.py .*null bytes"),
        ("raise SystemExit('it was run')\nasync def score(): ...\n", None),
        ("try:\n    from not_here import it as score\nexcept ImportError:\n    pass\n", None),
        ("from not_here import *\n", None),
    ],
)
def test_a_function_that_the_file_lacks_is_refused_before_anything_starts(tmp_path, code, words):
    if words is None:
        plan_with(tmp_path, code)
        return
    with pytest.raises(UserError, match=words) as caught:
        plan_with(tmp_path, code)
    assert "\n" not in str(caught.value)


MISTAKES = {
    "reward-file": {
        "score = 1\nscore = [].pop()\n": "IndexError: pop from empty list (mine.py, line 2)",
        "score = 1\n": "mine.py has no function 'score'",
    },
    "reward-fails": {
        "def score(completions): return [1.0]\n": "must return one value for each completion (got 1 values for 3)",
        "def score(completions): return ['a' for _ in completions]\n": "(got 'a', of type str), for the completion",
        "def score(completions): return [len(t) / len(t) for t in completions]\n": (
            "ZeroDivisionError: division by zero (mine.py, line 1), for the completion '' to row 2 of the data"
        ),
        "def score(completions): return [float('nan')] * len(completions)\n": "must return a finite number or None",
    },
    "reward-by-batch": {
        "def score(completions): return [len(completions)] * len(completions)\n": "gives [3.0, 3.0, 3.0] for 3"
    },
    "reward-untried": {
        "import not_here\ndef score(completions): ...\n": "No module named 'not_here' (mine.py, line 1)"
    },
}


@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes_are_findings(tmp_path, code):
    for text, words in MISTAKES[code].items():
        (one,) = found(plan_with(tmp_path, text))
        assert (one.code, one.level) == (code, "impossible" if code in ("reward-file", "reward-fails") else "odd")
        assert words in one.what
        assert one.arms == ("transformers", "vllm")


def test_the_time_limit_is_a_setting_which_a_run_without_it_does_not_have(tmp_path):
    code = "import time\ndef score(completions):\n    time.sleep(0.5)\n    return [1.0] * len(completions)\n"
    plain, limited = plan_with(tmp_path, code), plan_with(tmp_path, code, timeout_s=0.2)
    assert "timeout_s" not in plain.runs["vllm-s0"].spec["workload"]["rewards"][-1]
    assert limited.runs["vllm-s0"].spec["workload"]["rewards"][-1]["timeout_s"] == 0.2
    assert plain.runs["vllm-s0"].fingerprint != limited.runs["vllm-s0"].fingerprint
    assert found(plain) == []
    (one,) = found(limited)
    assert (one.code, one.level) == ("reward-fails", "impossible") and "no answer within 0.2 s" in one.what
    assert one.change == "make score faster, or raise timeout_s of this reward (0.2 s)"
    with pytest.raises(UserError, match="timeout_s"):
        plan_with(tmp_path, code, timeout_s=0)


def test_it_is_tried_on_the_datas_own_rows(tmp_path):
    code = "def score(completions, rows, prompts):\n    asked = zip(prompts, rows)\n"
    code += "    return [{'x 1': 1.0}[prompt[-1]['content'] + row['ground_truth']] for prompt, row in asked]\n"
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "x", "answer": "so # 1"}\n' * 64)
    rows = {"source": str(data), "answer_after": "#"}
    (one,) = found(plan_with(tmp_path, code, **rows))
    assert "KeyError: 'x1' (mine.py, line 3)" in one.what
    assert found(plan_with(tmp_path, code.replace("x 1", "x1"), **rows)) == []


def test_the_columns_that_a_workload_names_are_given_and_are_in_the_fingerprint(tmp_path):
    code = (
        "def score(completions, rows, level=None):\n    return [float(row.get('level', '1') == '1') for row in rows]\n"
    )
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "x", "answer": "y", "level": "1", "easy": true}\n' * 64)
    plain = plan_with(tmp_path, code, source=str(data)).runs["vllm-s0"]
    assert not {"columns"} & (plain.spec["workload"]["data"].keys() | plain.spec["workload"]["rewards"][-1].keys())
    asks = code.replace("level=None", "level, easy").replace("row.get('level', '1')", "{'1': '1'}[level[0]]")
    named = plan_with(tmp_path, asks, source=str(data), columns=["level", "easy"])
    run = named.runs["vllm-s0"]
    assert run.spec["workload"]["rewards"][-1]["columns"] == ["level", "easy"]
    assert found(named) == []
    assert run.inputs_id != plain.inputs_id
    (one,) = found(plan_with(tmp_path, asks, source=str(data), columns=["level"]))
    assert (one.code, one.level) == ("reward-file", "impossible") and "a parameter 'easy'" in one.what
    with pytest.raises(UserError, match=r"workload\.data\.columns is 'levels'.*did you mean level"):
        require_readable(plan_with(tmp_path, code, source=str(data), columns=["levels"]))
    for names, words in ((["rows"], "reward function already gets 'rows'"), (["level", "level"], "listed 2 times")):
        with pytest.raises(UserError, match=words):
            plan_with(tmp_path, code, source=str(data), columns=names)


def test_the_stack_refuses_a_file_that_it_cannot_load(tmp_path):
    plan = plan_with(tmp_path, "import not_here\ndef score(completions): ...\n")
    with pytest.raises(UserError, match=r"No module named 'not_here' \(mine.py, line 1\)"):
        resolved(settings_request(plan.runs["vllm-s0"]), "no.such.module")


ROWS = '{"question": "x", "answer": "7", "level": 1, "solution": "so it is 7"}\n' * 64
# Parameters of a function as other trainers have them, what it returns and what the configuration says of it.
QUIET = [
    ("data_source, solution_str, ground_truth, extra_info", "{'score': extra_info['index']}", {}),
    ("completions, answer, **kwargs", "[float(a in c) for c, a in zip(completions, answer)]", {"signature": "swift"}),
    ("completions, solution, **kwargs", "[s.index('so') for s in solution]", {"columns": ["solution"]}),
]


@pytest.mark.parametrize(("parameters", "value", "more"), QUIET)
def test_a_function_of_another_trainers_is_called_as_its_trainer_does(parameters, value, more, tmp_path):
    (tmp_path / "rows.jsonl").write_text(ROWS)
    code = f"def score({parameters}):\n    return {value}\n"
    assert found(plan_with(tmp_path, code, source=str(tmp_path / "rows.jsonl"), **more)) == []


def test_what_is_unclear_or_missing_is_told_with_its_remedy(tmp_path):
    messages = "def score(completions, **kwargs): return [len(c[0]['content']) for c in completions]\n"
    (one,) = found(plan_with(tmp_path, messages))
    assert (one.level, one.code) == ("impossible", "reward-fails") and "TypeError" in one.what
    assert "give it the signature of its trainer (docs/rewards.md): completions are texts" in one.change
    assert found(plan_with(tmp_path, messages, signature="trl")) == []
    needs = "from verl.utils.reward_score import math\ndef score(data_source, solution_str, ground_truth): ...\n"
    (one,) = found(plan_with(tmp_path, needs))
    assert (one.level, one.code) == ("odd", "reward-untried") and "No module named 'verl'" in one.what
    with pytest.raises(UserError, match="signature"):
        plan_with(tmp_path, messages, signature="openrlhf")
