"""Tables that bring a timer tree of their own, in a column `parent`."""

import pytest

from analysis.imports.formats import read_source
from common.errors import UserError
from tests.analysis.imports_of import run_of, written
from trainers.logs.record import TablePhase

# NeMo-RL's own names; `prepare_for_generation/transfer_and_update_weights` has a slash.
NEMO = """step,phase,parent,category,seconds
1,total_step_time,,,20.0
1,generation,total_step_time,generation,12.0
1,refit/weights,total_step_time,weight sync,2.5
1,policy_training,total_step_time,loss+backward,4.0
1,backward,policy_training,loss+backward,3.0
1,mean_gen_tokens,-,,812.25
2,total_step_time,,,21.0
2,generation,total_step_time,generation,13.0
2,policy_training,total_step_time,loss+backward,4.5
"""
HEAD = "step,phase,parent,seconds\n"


def imported(tmp_path, *texts, trainer="nemo-rl", **facts):
    sources = [written(tmp_path, text, f"{place}.csv") for place, text in enumerate(texts)]
    return run_of(tmp_path, sources, trainer, arm="nemo", **facts)


def refused(tmp_path, *texts, **more):
    with pytest.raises(UserError) as caught:
        imported(tmp_path, *texts, **more)
    return str(caught.value)


@pytest.mark.parametrize("value", ["0", "nan", "2", "0.5", "inf", "-1"])
def test_a_users_scalar_of_our_name_for_windows_is_left_out(tmp_path, value):
    rows = "".join(f"{s},total,,10\n{s},gen,total,5\n{s},steps_logged,-,{value}\n" for s in (1, 2, 5, 6))
    found = imported(tmp_path, HEAD + rows)
    assert "steps_logged" not in set(found.table["name"]) and "missing-steps" in found.verdicts
    taken = found.verdicts["name-taken"]
    assert taken["level"] == "warning" and "steps_logged is left out" in taken["text"]


def test_a_tables_phases_nest_as_its_column_parent_says(tmp_path):
    found = imported(tmp_path, NEMO)
    rows = found.table
    first = rows[(rows["step"] == 1) & (rows["kind"] == "phase")].set_index("name")
    assert list(first.index) == [
        "step",
        "step/generation",
        "step/refit.weights",
        "step/policy_training",
        "step/policy_training/backward",
    ]
    own = dict(zip(first.index, first["exclusive_s"], strict=True))
    assert own["step"] == pytest.approx(20.0 - 12.0 - 2.5 - 4.0), "what no child covers is the residual"
    assert own["step/policy_training"] == pytest.approx(1.0)
    told = rows[rows["kind"] == "scalar"]
    assert told[["name", "value"]].to_numpy().tolist() == [["mean_gen_tokens", 812.25]], "it is in no sum"
    assert found.end["versions"] == {} and found.end["sources"][0]["format"] == "table"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("1,step,,2.0\n1,gen,stepp,1.5\n", "0.csv:3: phase gen has the parent stepp, and no row has that phase in"),
        ("1,step,,2.0\n1,a,b,1.0\n1,b,c,1.0\n1,c,a,1.0\n", "0.csv:3: phase a lies in itself: a, in b, in c, in a"),
        ("1,step,,2.0\n1,gen,step,1.5\n2,gen,ref,1.5\n", "two parents: step on line 3 of 0.csv and ref on line 4 of"),
        ("1,step,,2.0\n1,all,,2.5\n1,gen,step,1.5\n", "have no parent: step on line 2 of 0.csv and all on line 3"),
        ("1,step,,2.0\n1,gen,-,1.5\n2,gen,step,1.5\n", "gen is outside the step on line 3 of 0.csv (parent -)"),
        ("1,step,,2.0\n1,a/b,step,1.0\n1,a.b,step,0.5\n", "phases a/b and a.b"),
        ('1,step,,2.0\n1,"a\nb",step,1.0\n', "phase 'a\\nb' cannot be a name"),
        ("1,step,,2.0\n" + "".join(f"1,p{n},step,0.0\n" for n in range(600)), "0.csv has 601 phases; at most 500"),
        ("".join(f"1,p{n},{f'p{n - 1}' if n else ''},1.0\n" for n in range(90)), "p51 lies deeper than 50 phases"),
    ],
)  # fmt: skip
def test_a_tree_that_is_none_is_one_message(tmp_path, rows, says):
    said = refused(tmp_path, HEAD + rows)
    assert says in said.replace(f"{tmp_path}/", ""), said
    assert "\n" not in said and len(said) < 450


def test_an_unknown_category_lists_those_that_there_are(tmp_path):
    said = refused(tmp_path, "step,phase,parent,category,seconds\n1,step,,,2.0\n1,gen,step,generaton,1.5\n")
    assert "category generaton" in said and "(did you mean generation?)" in said and "loss+backward" in said


def test_a_step_without_its_total_is_told_and_does_not_count(tmp_path):
    found = imported(tmp_path, NEMO.replace("2,total_step_time,,,21.0\n", ""))
    assert "1 of its 2 steps has no total_step_time (step 2)" in found.verdicts["timings-missing"]["text"]


def test_the_tables_of_one_run_have_one_tree(tmp_path):
    second = HEAD + "1,loss,policy_training,0.5\n1,policy_training,total_step_time,4.0\n1,total_step_time,,20.0\n"
    found = imported(tmp_path, NEMO, second)
    assert "step/policy_training/loss" in set(found.table["name"])
    said = refused(tmp_path, NEMO, HEAD + "1,generation,policy_training,12.0\n")
    assert "phase generation has two parents: total_step_time on line 3 of" in said


def test_our_own_trainers_tables_may_bring_a_tree_too(tmp_path):
    """A fork of verl whose timers nest otherwise needs no release then."""
    found = imported(tmp_path, HEAD + "1,step,,2.0\n1,gen,step,1.5\n1,my_sync,gen,0.5\n", trainer="verl")
    assert "step/gen/my_sync" in set(found.table["name"])
    assert not [code for code in found.verdicts if "undeclared" in code]


def test_rows_beside_the_sum_are_rounded_by_themselves(tmp_path):
    text = HEAD + "1,step,,2.0\n1,gen,step,1.25\n1,response_length/mean,-,812.2\n"
    read = read_source(written(tmp_path, text, "a.csv"), None, (), tmp_path)
    record = read.read.records[1]
    assert record.rounding == {"timing_s/step": 0.005, "timing_s/gen": 0.005, "response_length/mean": 0.05}
    assert read.tree == {"step": TablePhase("", "", 2, record.file), "gen": TablePhase("step", "", 3, record.file)}


def test_only_the_runs_own_rows_make_its_tree(tmp_path):
    text = "arm,step,phase,parent,seconds\nnemo,1,step,,2.0\nnemo,1,gen,step,1.5\n"
    text += "other,1,total,,3.0\nother,1,gen,total,2.0\n"
    found = imported(tmp_path, text)
    assert found.table["name"].tolist() == ["step", "step/gen"]
