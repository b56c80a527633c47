"""Any two logs of one format are compared without a flag: what they do not name is said after the answer."""

import json

import pytest

from analysis.imports.formats import read_source
from analysis.imports.tree_by_data import trainers_by_data
from workflow.cli import main

from .test_damaged_logs import LOGS

SUFFIXES = {"trainer-state": ".json", "swift-jsonl": ".jsonl", "verl-jsonl": ".jsonl", "phases-csv": ".csv"}


@pytest.mark.parametrize("form", [form for form in LOGS if form != "wandb"])
def test_two_logs_without_a_flag_are_answered(tmp_path, monkeypatch, capsys, form):
    monkeypatch.chdir(tmp_path)
    names = [f"{name}{SUFFIXES.get(form, '.log')}" for name in ("before", "after")]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(LOGS[form] + "\n" * number)
    assert main(["compare", *names, "--verdict-only", "--json"]) == 0, capsys.readouterr().err
    streams = capsys.readouterr()
    (told,) = json.loads(streams.out)["arms"]
    assert {told["arm"], told["baseline"]} in ({"before", "after"}, {"sglang-1", "sglang-2"}), told
    assert told["ratios"][0]["value"] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("phases", "found"),
    [
        (("step", "gen", "update_actor"), ["verl"]),
        (("total_step_time", "generation", "policy_training"), ["nemo-rl"]),
        (("step", "foo", "bar"), []),
    ],
)
def test_a_table_of_phases_is_of_the_trainer_whose_timers_it_has(tmp_path, phases, found):
    rows = "".join(f"1,{phase},{2.0 / number}\n" for number, phase in enumerate(phases, start=1))
    (tmp_path / "a.csv").write_text("step,phase,seconds\n" + rows)
    assert trainers_by_data(read_source(str(tmp_path / "a.csv"), None, (), None).read) == found
