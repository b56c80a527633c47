"""Result files of benchmarks of an engine alone, large and beside trainings; what they hold is in tests/answers."""

import json
import re
import shutil
from pathlib import Path

from analysis.imports.formats import read_source
from workflow.cli import main

ANSWERS = Path(__file__).parents[2] / "answers"


def test_a_result_with_the_lists_of_all_its_requests_is_read(tmp_path):
    row = json.loads((ANSWERS / "engines_alone" / "vllm.json").read_text())
    (tmp_path / "vllm.json").write_text(json.dumps(row | {"input_lens": [7] * 400_000}))
    assert read_source(str(tmp_path / "vllm.json"), None, (), None).read.records[1].scalars["response_tokens"] == 198


def test_faster_alone_and_slower_inside_stand_on_one_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(shutil.copytree(ANSWERS / "faster_alone_and_slower_inside", tmp_path / "logs"))
    assert main(["compare", "vllm.json", "sglang.jsonl", "vllm.log", "sglang.log"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    alone = "The engines alone say the opposite: benchmark-sglang is 1.21x as fast as benchmark-vllm per request"
    assert said.count(alone) == 1
    assert said.index("verl-sglang vs verl-vllm: not") < said.index(alone) < said.index("benchmark-sglang vs")
    for page in ("comparison/report.md", "comparison/report.html"):
        text = re.sub(r"<[^>]*>|\\", "", Path(page).read_text())
        assert alone in text and "benchmark-sglang vs benchmark-vllm: not resolved" in text, page
    verdicts = json.loads(Path("comparison/verdict.json").read_text())["arms"]
    assert [(one["baseline"].partition("-")[0], one["runs"]) for one in verdicts] == [
        ("verl", [1, 1]),
        ("benchmark", [1, 1]),
    ]
