"""Result files of benchmarks of an engine alone are arms, beside each other and never beside a training."""

import json
import re
import shutil
from pathlib import Path

import pytest

from analysis.imports.formats import read_source
from common.errors import UserError
from workflow.cli import main

# Written by SGLang 0.5.23 against a server on loopback; a part of it, and twelve requests, are kept.
RECORDED = Path(__file__).parents[2] / "goldens" / "data" / "benchmarks"
# As vLLM 0.31 and SGLang 0.5.23 write them, without their lists by request.
VLLM = {"date": "20261127", "endpoint_type": "vllm", "backend": "vllm", "model_id": "m", "num_prompts": 1000}
VLLM |= {"request_rate": "inf", "duration": 42.5, "completed": 1000, "failed": 0, "total_input_tokens": 215000}
VLLM |= {"total_output_tokens": 198000, "request_throughput": 23.5, "request_goodput": None, "mean_ttft_ms": 4000.1}
SGLANG = {"backend": "sglang-oai", "duration": 17.5, "completed": 500, "request_throughput": 28.5}
SGLANG |= {"total_input_tokens": 107500, "total_output_tokens": 99000, "mean_e2e_latency_ms": 17000.0}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(RECORDED, tmp_path / "files"))
    Path("vllm.json").write_text(json.dumps(VLLM | {"input_lens": [7] * 400_000}))
    Path("sglang.jsonl").write_text((json.dumps(SGLANG) + "\n") * 2)


def told(capsys, *given):
    assert main(["compare", *given, "--verdict-only"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_they_are_compared_by_request_whatever_their_number(files, capsys):
    said = told(capsys, "vllm.json", "sglang.jsonl")
    assert "vllm: bench-serving, vllm; 1 run, 1 result 1,000 requests, 23.5 requests/s, 4,659 output tokens/s" in said
    assert "sglang: bench-serving, sglang; 1 run, 2 results 500 requests, 28.6 requests/s" in said
    assert "not resolved, one result only: 1.21x, " in said
    assert "1 run against 1, 1 result each." in said and "equal work" not in said and "Not in these logs" not in said


# By hand: the seconds of a request are one over the throughput that the file itself states.
@pytest.mark.parametrize(
    ("name", "engine", "per_s", "tokens", "first_token_s", "latency_s", "load"),
    [
        ("vllm.json", "vllm", 1000 / 42.5, 198, 4.0001, None, "all at once"),
        ("sglang.jsonl", "sglang", 500 / 17.5, 198, None, 17.0, "all at once"),
        ("sglang-serving.jsonl", "vllm", 55.65170, 79 / 12, 0.0408770, 0.0628712, "4 at once"),
    ],
)
def test_each_form_has_its_engine_its_seconds_and_its_tokens(
    files, name, engine, per_s, tokens, first_token_s, latency_s, load
):
    found = read_source(name, None, (), None)
    scalars = found.read.records[1].scalars
    assert found.config.get("backend") == engine and found.config["load"] == load
    assert scalars["timing_s/step"] == pytest.approx(1 / per_s) and scalars["benchmark/requests_per_s"] > 0
    assert scalars.get("response_tokens") == (tokens and pytest.approx(tokens))
    for scalar, seconds in (("benchmark/first_token_s", first_token_s), ("benchmark/latency_s", latency_s)):
        assert scalars.get(scalar) == (seconds and pytest.approx(seconds, rel=2e-3))


def test_the_single_requests_are_kept_where_the_file_has_them(files):
    samples = read_source("sglang-serving.jsonl", None, (), None).read.records[1].samples
    assert len(samples["benchmark/latency_s"]) == len(samples["benchmark/response_tokens"]) >= 3
    mean = sum(samples["benchmark/latency_s"]) / len(samples["benchmark/latency_s"])
    assert mean == pytest.approx(0.0629, rel=0.2) and max(samples["benchmark/first_token_s"]) < mean


def test_other_loads_are_unequal_terms_and_a_rate_that_the_client_sets_is_said(files, capsys):
    for name, load in (("a.json", {"request_rate": 24.0}), ("b.json", {"max_concurrency": 4})):
        Path(name).write_text(json.dumps(VLLM | load))
    said = told(capsys, "a.json", "b.json")
    assert "Unequal terms (1 setting differs between arms: load ('24 requests/s' in a; '4 at once' in b))" in said
    assert "a.json: result 1: its client sent 24 requests/s, and 23.53/s were answered" in said


# By hand, of the same form as vLLM's and SGLang's.
PRINTED = """============ Serving Benchmark Result ============
Successful requests:                     1000
Benchmark duration (s):                  {duration}
Total input tokens:                      215000
Total generated tokens:                  198000
Request throughput (req/s):              23.50
---------------Time to First Token----------------
Mean TTFT (ms):                          4000.10
==================================================
"""


def test_what_a_benchmark_printed_is_a_result(files, capsys):
    Path("a.log").write_text("Starting initial single prompt test run...\n" + PRINTED.format(duration="42.50"))
    Path("b.log").write_text("".join(PRINTED.format(duration=s) for s in ("21.00", "21.50")))
    said = told(capsys, "vllm=a.log", "sglang=b.log")
    assert "vllm: bench-serving, vllm; 1 run, 1 result 1,000 requests, 23.5 requests/s" in said
    assert "sglang: bench-serving, sglang; 1 run, 2 results 1,000 requests" in said
    assert "4 s to the first token" in said and "one result only: 2.02x, " in said


def test_results_of_one_load_are_compared_where_files_have_several(files, capsys):
    for name, speed, loads in (("a.jsonl", 1.0, (1, 8, 64)), ("b.jsonl", 2.0, (64, 8))):
        rows = [VLLM | {"max_concurrency": n, "duration": 1e3 / n / speed} for n in loads]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = told(capsys, "a.jsonl", "b.jsonl")
    assert ": 2.00x, " in said and " s per request." in said and "2 results each" in said


def training(engine, seconds):
    command = f"+ python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name={engine}\n"
    steps = [f"step:{step} - timing_s/gen:{seconds - 0.5} - timing_s/step:{seconds}\n" for step in (1, 2, 3)]
    Path(f"{engine}.log").write_text("verl==0.4.1\n" + command + "".join(steps))


def test_an_engine_alone_and_one_in_a_training_share_no_ratio(files, capsys):
    training("vllm", 2.0)
    said = told(capsys, "vllm.json", "vllm.log")
    assert "No comparison: a step is different work in each of them" in said and "a request to an engine alone" in said


@pytest.mark.parametrize("swapped", [False, True], ids=["as-given", "other-order"])
def test_faster_alone_and_slower_inside_stand_in_one_answer(files, capsys, swapped):
    """Alone SGLang is faster, in the trainings slower; which engine is the baseline of which pair does not matter."""
    training("vllm", 2.0)
    training("sglang", 2.5)
    pairs = [["vllm.json", "sglang.jsonl"], ["vllm.log", "sglang.log"]]
    given = [*pairs[0], *pairs[1][:: -1 if swapped else 1]]
    assert main(["compare", *given, *["--verdict-only"] * swapped]) == 0
    said = " ".join(capsys.readouterr().out.split())
    ratio = "verl-vllm vs verl-sglang" if swapped else "verl-sglang vs verl-vllm"
    assert f"{ratio}: not resolved, one run an arm: {'1.25' if swapped else '0.80'}x, " in said
    assert "benchmark-sglang vs benchmark-vllm: not resolved, one result only: 1.21x, " in said
    alone = "The engines alone say the opposite: benchmark-sglang is 1.21x as fast as benchmark-vllm per request"
    assert said.count(alone) == 1 and said.index(ratio) < said.index(alone) < said.index("benchmark-sglang vs")
    assert "2 steps each; 2 of 6 steps left out (warm-up)." in said, "a result is no reason to count the warm-up"
    if swapped:
        return
    for page in ("comparison/report.md", "comparison/report.html"):
        text = re.sub(r"<[^>]*>|\\", "", Path(page).read_text())
        assert alone in text and "benchmark-sglang vs benchmark-vllm: not resolved" in text, page
    verdicts = json.loads(Path("comparison/verdict.json").read_text())["arms"]
    assert [(one["baseline"].partition("-")[0], one["runs"]) for one in verdicts] == [
        ("verl", [1, 1]),
        ("benchmark", [1, 1]),
    ]


def test_no_opposite_is_said_where_both_agree_or_an_engine_is_not_known(files, capsys):
    training("vllm", 2.5)
    training("sglang", 2.0)
    assert "opposite" not in told(capsys, "vllm.json", "sglang.jsonl", "vllm.log", "sglang.log")
    for engine, seconds in (("vllm", 2.0), ("sglang", 2.5)):
        training(engine, seconds)
        log = Path(f"{engine}.log")
        log.write_text("".join(line for line in log.read_text().splitlines(True) if line.startswith("step:")))
    said = told(capsys, "sglang.jsonl", "vllm.json", "run-sglang=sglang.log", "run-vllm=vllm.log")
    assert "opposite" not in said and "run-vllm vs run-sglang: " in said
    assert "`--names sglang,vllm,ENGINE,ENGINE --release" in said


def test_a_benchmark_that_failed_is_told(files):
    Path("bad.json").write_text(json.dumps(VLLM | {"completed": 0}))
    with pytest.raises(UserError, match="result 1 has no answered request or no duration: the benchmark has failed"):
        read_source("bad.json", None, (), None)
    Path("half.json").write_text(json.dumps(VLLM | {"failed": 30}))
    (verdict,) = read_source("half.json", None, (), None).read.verdicts
    assert verdict.code == "requests-failed" and "30 requests of 1030 without an answer" in verdict.text
    Path("cut.json").write_text(json.dumps(VLLM)[:-50])
    with pytest.raises(UserError, match=r"cut\.json is no complete JSON"):
        read_source("cut.json", "bench-serving", (), None)
