"""What the preflight said, in the report; and what was installed."""

import json
import shutil
from pathlib import Path

import make_results
import pytest

from analysis.report.__main__ import main
from analysis.report.content import read_content
from analysis.report.rendering import html_page, markdown

pytestmark = pytest.mark.usefixtures("undrawn")

FINDING = {
    "level": "unequal",
    "code": "cuda-graphs",
    "arms": ["vllm", "sglang"],
    "what": "CUDA graphs: off in vllm; on in sglang",
    "why": "each decode step launches every kernel",
    "source": "verl 0.4.1 rollout.yaml: enforce_eager",
    "change": "actor_rollout_ref.rollout.enforce_eager=False",
}


def ledger_row(setting, verdict="equal", **values):
    return {"setting": setting, "values": values, "verdict": verdict, "why": f"why {setting}", "source": "somewhere"}


def preflight(findings=(FINDING,), **more):
    return {
        "experiment": "case",
        "findings": list(findings),
        "ledger": [
            ledger_row("rollout.temperature", transformers="1.0", vllm="1.0"),
            ledger_row("CUDA graphs", "different", transformers="off", vllm="on"),
            ledger_row("seed", "unverifiable", transformers="0", vllm="0"),
            ledger_row("attention", "equivalent", transformers="flash", vllm="fa2"),
            ledger_row("rollout.top_p", transformers=1.0, vllm=1.0),
        ],
        **more,
    }


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    made = tmp_path_factory.mktemp("made") / "case"
    arms = {"transformers": ("transformers", 3.2), "vllm": ("vllm", 0.9)}
    make_results.realistic(made, arms, seeds=1, steps=4)
    return made


@pytest.fixture
def folder(made_once, tmp_path):
    return Path(shutil.copytree(made_once, tmp_path / "case"))


def content(folder, **more):
    return read_content(folder / "plan.json", folder, None, more.get("stacks"), more.get("preflight"))


def test_an_unequal_finding_is_in_the_verdict_and_all_of_it_on_the_page(folder):
    make_results.write_json(folder / "preflight.json", preflight())
    found = content(folder)
    (terms,) = [c for c in found.arm_verdicts[0].caveats if c.kind == "terms"]
    assert terms.text.startswith("Unequal terms (") and FINDING["what"] in terms.text
    page, short = html_page(found), markdown(found)
    assert f'{terms.text} <a href="#ledger">Terms</a></div>' in page
    assert found.preflight.counts in page and found.preflight.counts in short
    for words in ("what", "why", "source", "change"):
        assert FINDING[words] in page
    names = [" that differ", " cannot be verified", " the same effect", " are equal"]
    places = [page.index(f'{name}"') for name in names]
    assert places == sorted(places) and "why CUDA graphs" in page


@pytest.mark.parametrize("finding", [FINDING | {"level": "odd"}, FINDING | {"arms": ["sglang", "other"]}])
def test_what_is_odd_or_about_other_arms_is_not_in_the_verdict(folder, finding):
    make_results.write_json(folder / "preflight.json", preflight([finding]))
    found = content(folder)
    assert not [c for c in found.arm_verdicts[0].caveats if c.kind == "terms"] and FINDING["what"] in html_page(found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"experiment": "other"}, "belongs to the experiment 'other', not to 'case'"),
        (
            {"ledger": [ledger_row("x", "alike")]},
            "verdict must be one of mixed, different, unverifiable, equivalent, equal",
        ),
    ],
)
def test_another_file_is_an_error_for_people(folder, tmp_path, capsys, change, said):
    make_results.write_json(folder / "preflight.json", preflight() | change)
    assert main(["--plan", str(folder / "plan.json"), "--results", str(folder), "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert said in error and "preflight.json" in error and "start snakemake again" in error


FOUND = {"state": "as found", "python": "/opt/torch/bin/python3", "sources": {"trl": "git+https://example.com/trl@abc"}}


def test_a_run_keeps_the_state_of_the_stack_that_it_was_trained_in(folder, tmp_path):
    """The stack was built since; the run was trained in one as found."""
    for stack, lock_id in (("trl-transformers-cpu", "ba9876543210"), ("trl-vllm-cpu", "0123456789ab")):
        known = {"stack": stack, "lock_id": lock_id, "ok": True, "python": "3.11.7", "checks": [], "packages": {}}
        make_results.write_json(tmp_path / "stacks" / stack / lock_id / "verify.json", known | {"state": "built"})
    for done in folder.glob("runs/*/done.json"):
        origin = FOUND if done.parent.name.startswith("vllm") else {"state": "built"}
        make_results.write_json(done, json.loads(done.read_text()) | {"stack_origin": origin})
    found = content(folder, stacks=tmp_path / "stacks")
    (text,) = {v.text for v in found.verdicts if v.code == "stack-registered"}
    assert text == "stack trl-vllm-cpu (0123456789ab) is as found: /opt/torch/bin/python3 was there already"
    assert "as found; 0 of 0 checks passed" in html_page(found)
