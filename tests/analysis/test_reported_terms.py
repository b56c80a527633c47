"""What finished runs report is compared beside their settings: machine, inputs, stack, commit, resolved settings."""

import json
import shutil
from pathlib import Path

import make_results
import pytest

from analysis.report.__main__ import main
from common.findings import Preflight

pytestmark = pytest.mark.usefixtures("undrawn")
COMMIT = {"commit": "a" * 40, "dirty": False}
FOUND = {"state": "as found", "python": "/opt/torch/bin/python3"}


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    made = tmp_path_factory.mktemp("made") / "case"
    make_results.realistic(made, {"transformers": ("transformers", 3.2), "vllm": ("vllm", 0.9)}, seeds=2, steps=4)
    (made / "preflight.json").write_text(json.dumps(Preflight((), (), (), "case").as_json()))
    return made


@pytest.fixture
def report(made_once, tmp_path):
    """Changes what runs report (by the beginning of their names), and returns the report's terms and caveats."""

    def of(**changes):
        folder = Path(shutil.copytree(made_once, tmp_path / "case", dirs_exist_ok=True))
        for start, change in {"": {"git": COMMIT}, **changes}.items():
            for file in folder.glob(f"runs/{start.replace('_', '-')}*/done.json"):
                done = json.loads(file.read_text())
                known = {key: done.get(key, {}) | more for key, more in change.items() if isinstance(more, dict)}
                file.write_text(json.dumps(done | change | known))
        command = ["--plan", str(folder / "plan.json"), "--results", str(folder), "--out", str(tmp_path / "out")]
        assert main(command) == 0
        (arm,) = json.loads((tmp_path / "out" / "verdict.json").read_text())["arms"]
        lines = (tmp_path / "out" / "tables" / "settings.csv").read_text().splitlines()
        return "\n".join(lines), "\n".join([arm["words"], arm["basis"], *(one["text"] for one in arm["caveats"])])

    return of


def test_runs_that_report_the_same_are_on_equal_terms(report):
    terms, said = report()
    assert "0 unequal of" in said and '"commit of rolloutbench","aaaaaaaaaaaa","aaaaaaaaaaaa","equal"' in terms


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"measurement": 2}, "measurement: 1 in transformers; 2 in vllm"),
        ({"hardware": {"cpus": 64}}, "hardware.cpus: 2 in transformers; 64 in vllm"),
        ({"inputs": {"data_sha256": "0" * 64}}, "training data: "),
        ({"git": {"commit": "b" * 40}}, "commit of rolloutbench: aaaaaaaaaaaa in transformers; bbbbbbbbbbbb in vllm"),
        (
            {"git": {"dirty": True}},
            "commit of rolloutbench: aaaaaaaaaaaa in transformers; aaaaaaaaaaaa with uncommitted",
        ),
    ],
)
def test_arms_that_report_other_terms_are_unequal(report, change, said):
    _, told = report(vllm=change)
    assert f"Unequal terms ({said}" in told and "0 unequal" not in told


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"hardware": {"driver": "550.1"}}, "hardware.driver"),
        ({"measurement": 2}, "measurement"),
        ({"stack_origin": FOUND}, "stack"),
        ({"git": {"commit": "b" * 40}}, "commit of rolloutbench"),
        ({"resolved": {"engine": {"max_num_seqs": 8}}}, "sequences at once"),
    ],
)
def test_runs_of_one_arm_that_report_other_terms_are_named(report, change, name):
    both = {"resolved": {"engine": {"max_num_seqs": 16}}, "hardware": {"driver": "560.2"}}
    terms, told = report(vllm=both, vllm_s1=change)
    assert f"1 term differs between runs of vllm ({name}: " in told and "(vllm-s1)" in told and "0 unequal" not in told
    assert f'"{name}"' in terms and "mixed" in terms


def test_a_run_that_went_on_with_other_code_is_named(report, made_once):
    """done.json has the commit of the last attempt only."""
    attempt = made_once / "runs" / "vllm-s1" / "attempts" / "1" / "attempt.json"
    before = attempt.read_text()
    try:
        attempt.write_text(json.dumps(json.loads(before) | {"git": {"commit": "b" * 40, "dirty": False}}))
        terms, told = report()
        assert "1 term differs between runs of vllm (commit of rolloutbench: " in told and "(vllm-s1)" in told
        assert "bbbbbbbbbbbb and aaaaaaaaaaaa" in terms
    finally:
        attempt.write_text(before)


def test_uncommitted_changes_of_one_commit_may_differ(report):
    _, told = report(transformers={"git": {"dirty": True}}, vllm={"git": {"dirty": True}})
    assert "settings cannot be verified (commit of rolloutbench)" in told and "Unequal" not in told


def test_what_one_arm_does_not_report_is_no_difference(report):
    _, told = report(vllm={"hardware": {"cpu": None}})
    assert "cannot be verified (hardware.cpu)" in told and "Unequal" not in told


def test_a_setting_that_runs_report_otherwise_than_it_was_composed_is_different(report, made_once):
    row = {"setting": "beta", "values": {"transformers": "0.04", "vllm": "0.04"}, "verdict": "equal"}
    composed = {**Preflight((), (), (), "case").as_json(), "ledger": [{**row, "why": "", "source": ""}]}
    before = (made_once / "preflight.json").read_text()
    try:
        (made_once / "preflight.json").write_text(json.dumps(composed))
        told = {"resolved": {"trainer": {"beta": 0.04}}}
        terms, said = report(transformers=told, vllm={"resolved": {"trainer": {"beta": 0.0}}})
        assert '"beta","0.04","0.0","different"' in terms and "1 different of" in said
        terms, said = report(transformers=told, vllm=told, vllm_s1={"resolved": {"trainer": {"beta": 0.0}}})
        assert "(beta: 0.04 (vllm-s0) | 0.0 (vllm-s1))" in said
    finally:
        (made_once / "preflight.json").write_text(before)
