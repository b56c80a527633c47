"""Result files of the engines' own benchmarks are arms, beside each other and never beside a training."""

import json

import pytest

from analysis.imports.formats import read_source
from common.errors import UserError
from workflow.cli import main

# As vLLM 0.31 and SGLang 0.5.23 write them, without their lists by request.
VLLM = {"date": "20261127", "endpoint_type": "vllm", "backend": "vllm", "model_id": "m", "num_prompts": 1000}
VLLM |= {"request_rate": "inf", "duration": 42.5, "completed": 1000, "failed": 0, "total_input_tokens": 215000}
VLLM |= {"total_output_tokens": 198000, "request_throughput": 23.5, "request_goodput": None, "mean_ttft_ms": 4000.1}
SGLANG = {
    "backend": "sglang",
    "dataset_name": "sharegpt",
    "duration": 17.5,
    "completed": 500,
    "request_throughput": 28.5,
}
SGLANG |= {"total_input_tokens": 107500, "total_output_tokens": 99000, "mean_e2e_latency_ms": 17000.0}
OFFLINE = {"backend": "engine", "successful_requests": 100, "total_latency": 10.0, "total_output_tokens": 20000}
THROUGHPUT = {"elapsed_time": 8.0, "num_requests": 100, "total_num_tokens": 3e4, "requests_per_second": 12.5}
THROUGHPUT |= {"tokens_per_second": 3750.0}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM | {"input_lens": [7] * 400_000}))
    (tmp_path / "sglang.jsonl").write_text((json.dumps(SGLANG) + "\n") * 2)
    (tmp_path / "offline.jsonl").write_text(json.dumps(OFFLINE) + "\n")
    (tmp_path / "throughput.json").write_text(json.dumps(THROUGHPUT, indent=4))
    return tmp_path


def test_they_are_compared_by_request_and_token_whatever_their_number(files, capsys):
    assert main(["compare", "vllm.json", "sglang.jsonl", "--verdict-only", "--warmup", "0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "vllm: benchmark 1, vllm; 1 run, 1 step sglang: benchmark 1, sglang; 1 run, 2 steps" in said
    ratio = (42.5 / 1000 / 198) / (17.5 / 500 / 198)
    assert f"Per response token {ratio:.2f}× (no confidence interval)" in said and "Not in these logs" not in said


def test_each_form_has_its_engine_its_seconds_and_its_tokens(files):
    for name, engine, seconds, tokens in (
        ("vllm.json", "vllm", 0.0425, 198.0),
        ("sglang.jsonl", "sglang", 0.035, 198.0),
        ("offline.jsonl", "sglang", 0.1, 200.0),
        ("throughput.json", "vllm", 0.08, None),
    ):
        found = read_source(name, None, (), None)
        record = found.read.records[1]
        assert found.config == {"backend": engine} and record.scalars["timing_s/step"] == pytest.approx(seconds)
        assert record.scalars.get("response_tokens") == tokens, name


def test_an_engine_alone_and_one_in_a_training_share_no_ratio(files, capsys):
    (files / "run.log").write_text("step:1 - timing_s/gen:1.5 - timing_s/step:2.0\n" * 1)
    assert main(["compare", "vllm.json", "run.log", "--verdict-only"]) == 0
    assert "train and some run an engine alone, so their steps are different work" in capsys.readouterr().out


def test_a_benchmark_that_failed_is_told(files):
    (files / "bad.json").write_text(json.dumps(VLLM | {"completed": 0}))
    with pytest.raises(UserError, match="result 1 has no duration or no answered request"):
        read_source("bad.json", None, (), None)
    (files / "half.json").write_text(json.dumps(VLLM | {"failed": 3}))
    (verdict,) = read_source("half.json", None, (), None).read.verdicts
    assert verdict.code == "requests-failed" and "3 requests failed" in verdict.text
