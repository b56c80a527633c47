"""What finished runs report is compared beside their settings: machine, inputs, engine, stack, commit, settings."""

import json
import shutil
from pathlib import Path

import make_results
import pytest
import yaml

from analysis.report.content import read_content
from common.findings import Preflight

CASES = yaml.safe_load(Path(__file__).with_name("reported.yaml").read_text(encoding="utf-8"))
GIT = {"git": {"commit": "a" * 40, "dirty": False}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "case"
    make_results.realistic(folder, {"sglang": ("sglang", 3.2), "vllm": ("vllm", 0.9)}, seeds=2, steps=4)
    composed = {"setting": "beta", "values": {"sglang": "0.04", "vllm": "0.04"}, "verdict": "equal"}
    preflight = Preflight((), (), (), "case").as_json() | {"ledger": [{**composed, "why": "", "source": ""}]}
    (folder / "preflight.json").write_text(json.dumps(preflight))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_what_runs_report_are_terms(made, tmp_path, name):
    case = CASES[name]
    folder = Path(shutil.copytree(made, tmp_path / "case"))
    for start, change in {"": GIT, **case.get("changes", {})}.items():
        place = f"{start}.json" if "/" in start else f"{start}*/done.json"
        for file in folder.glob(f"runs/{place}"):
            done = json.loads(file.read_text())
            known = {key: done.get(key, {}) | more for key, more in change.items() if isinstance(more, dict)}
            file.write_text(json.dumps(done | change | known))
    found = read_content(folder / "plan.json", folder, None, None)
    (arm,) = found.arm_verdicts
    said = "\n".join([arm.words, arm.basis, *(one.text for one in arm.caveats)])
    assert all(words in said for words in case["says"]), said
    assert not any(words in said for words in case.get("not", ())), said
    assert "0 unequal" not in said or ("Unequal terms" not in said and "between runs of" not in said)
    terms = {
        row.setting: [row.verdict, *(row.values.get(arm) for arm in ("sglang", "vllm"))]
        for row in found.preflight.ledger
    }
    rows = case.get("rows", {})
    assert {term: terms[term][: len(right)] for term, right in rows.items()} == rows
