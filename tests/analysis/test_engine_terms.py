"""What engines run with are terms, before a run and after it: an engine's own option is never harmless by default."""

import csv
import json
import shutil

import make_results
import pytest
import yaml

from analysis.report.__main__ import main as report
from workflow.cli import main

PROBE = {
    "vllm": {"vllm_gpu_memory_utilization": 0.9},
    "sglang": {
        "sglang_disable_cuda_graph": True,
        "sglang_disable_radix_cache": True,
        "sglang_quantization": "fp8",
        "sglang_max_running_requests": 8,
        "sglang_chunked_prefill_size": 512,
    },
}
TERMS = (
    "CUDA graphs",
    "prefix cache",
    "quantisation",
    "sequences at once",
    "prefill tokens in a pass",
    "KV cache in tokens",
)
# What both engines say of themselves at their start, by their own names (engines/<engine>/reported.py).
REPORTED = {
    "vllm": {
        **{
            "name": "vllm",
            "dtype": "bfloat16",
            "seed": 0,
            "enforce_eager": False,
            "cudagraph_mode": "FULL_AND_PIECEWISE",
        },
        **{
            "max_cudagraph_capture_size": 512,
            "kv_cache_size_tokens": 900_000,
            "max_num_seqs": 256,
            "quantization": None,
        },
        **{"max_num_batched_tokens": 4096, "enable_prefix_caching": True, "attention": ["FLASH_ATTN"]},
        **{"enable_sleep_mode": True, "kv_cache_dtype": "auto"},
    },
    "sglang": {
        **{
            "name": "sglang",
            "dtype": "bfloat16",
            "random_seed": 0,
            "disable_cuda_graph": True,
            "cuda_graph_max_bs": 160,
        },
        **{
            "max_total_num_tokens": 300_000,
            "max_running_requests": 8,
            "chunked_prefill_size": 512,
            "quantization": "fp8",
        },
        **{
            "disable_radix_cache": True,
            "attention_backend": "fa3",
            "enable_memory_saver": True,
            "kv_cache_dtype": "auto",
        },
    },
}


def _experiment(folder, options=PROBE):
    arms = {
        name: {"trainer": "trl", "engine": name, "stack": f"trl-{name}", "options": own}
        for name, own in options.items()
    }
    workload = {
        **{"model": {"source": "builtin:tiny-qwen2"}, "data": {"source": "builtin:arithmetic", "rows": 4096}},
        **{"rewards": [{"name": "accuracy"}], "steps": 4, "batch_size": 1024, "num_generations": 8},
        **{"max_prompt_length": 256, "max_response_length": 1024, "gpus_per_node": 1, "gpu": "H100-80GB"},
    }
    file = folder / "probe.yaml"
    raw = {"experiment": "probe", "baseline": "vllm", "arms": arms, "workload": workload, "seeds": [0, 1, 2]}
    file.write_text(yaml.safe_dump(raw))
    return file


def _preflight(capsys, file):
    main(["check", str(file), "--json"])
    return json.loads(capsys.readouterr().out)


def _uneven(ledger):
    return {row["setting"]: row for row in ledger if row["verdict"] in ("different", "unverifiable")}


def test_options_of_one_engine_are_terms_before_a_run(tmp_path, capsys):
    found = _preflight(capsys, _experiment(tmp_path))
    uneven = _uneven(found["ledger"])
    assert set(TERMS) <= set(uneven)
    assert uneven["CUDA graphs"]["values"] == {"vllm": "unknown", "sglang": "off"}
    assert not [
        row for row in found["ledger"] if row["verdict"] == "equivalent" and row["setting"].startswith("sglang_")
    ]
    (finding,) = [one for one in found["findings"] if one["code"] == "engine-options"]
    assert finding["level"] == "unequal" and "disable_cuda_graph=True in sglang" in finding["what"]


def test_a_misspelt_option_is_not_checked_before_a_stack_composes_it(tmp_path, capsys):
    found = _preflight(capsys, _experiment(tmp_path, {**PROBE, "vllm": {"vllm_gpu_memory_utilisation": 0.5}}))
    (said,) = [text for text in found["unverifiable"] if "not checked yet" in text]
    assert "the options of vllm, sglang exist" in said or "the options of sglang, vllm exist" in said
    assert "refuse a misspelt one, before any training" in said


def test_options_that_mean_the_same_are_no_finding(tmp_path, capsys):
    """Both caches off by each engine's own option."""
    options = {"vllm": {"vllm_enable_sleep_mode": False}, "sglang": {"sglang_enable_memory_saver": False}}
    found = _preflight(capsys, _experiment(tmp_path, options))
    assert "engine-options" not in {one["code"] for one in found["findings"]}
    (row,) = [row for row in found["ledger"] if row["setting"] == "sleep between steps"]
    assert (row["verdict"], row["values"]) == ("equal", {"vllm": "off", "sglang": "off"})


@pytest.fixture
def reported(tmp_path, capsys):
    """The report's terms and verdict of two arms of runs that report these engines."""

    def of(engines=REPORTED, workload=None):
        folder = tmp_path / "case"
        shutil.rmtree(folder, ignore_errors=True)
        make_results.realistic(folder, {"vllm": ("vllm", 3.2), "sglang": ("sglang", 2.0)}, seeds=2, steps=4)
        before = _preflight(capsys, _experiment(tmp_path))
        (folder / "preflight.json").write_text(json.dumps(before | {"experiment": "case"}))
        for file in folder.glob("runs/*/done.json"):
            done = json.loads(file.read_text())
            done["resolved"] = {"trainer": {}, "engine": engines[file.parent.name.rpartition("-")[0]]}
            file.write_text(json.dumps(done))
        command = ["--plan", str(folder / "plan.json"), "--results", str(folder), "--out", str(tmp_path / "out")]
        assert report(command) == 0
        with (tmp_path / "out" / "tables" / "settings.csv").open(newline="") as table:
            rows = [row | {"values": {arm: row[f"value/{arm}"] for arm in engines}} for row in csv.DictReader(table)]
        (arm,) = json.loads((tmp_path / "out" / "verdict.json").read_text())["arms"]
        return rows, "\n".join(one["text"] for one in arm["caveats"])

    return of


@pytest.mark.usefixtures("undrawn")
def test_what_engines_report_replaces_what_was_unknown(reported):
    rows, said = reported()
    uneven = _uneven(rows)
    assert set(TERMS) <= set(uneven)
    assert uneven["CUDA graphs"]["values"] == {"vllm": "on", "sglang": "off"}
    assert uneven["KV cache in tokens"]["values"] == {"vllm": "900000", "sglang": "300000"}
    assert "Unequal terms" in said and "cuda-graphs" in said


# As vLLM 0.24 and SGLang 0.5.12 print them; most settings are left out.
PRINTED = {
    "vllm": """(EngineCore pid=7) INFO 11-02 04:20:48 [core.py:109] Initializing a V1 LLM engine (v0.24.0) \
with config: model='Qwen/Qwen2.5-7B', dtype=torch.bfloat16, tensor_parallel_size=1, quantization=None, \
enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, seed=0, enable_prefix_caching=True, compilation_config={\
'mode': \
<CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, \
'cudagraph_capture_sizes': [1, 2, 512], 'max_cudagraph_capture_size': 512}
(EngineCore pid=7) INFO 11-02 04:20:49 [cuda.py:368] Using FLASH_ATTN attention backend out of \
potential backends: ['FLASH_ATTN']
(EngineCore pid=7) INFO 11-02 04:20:50 [scheduler.py:1] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore pid=7) INFO 11-02 04:21:49 [kv_cache_utils.py:1] GPU KV cache size: 1,234,560 tokens
""",
    "sglang": """[2026-03-08 06:58:08] INFO server_args.py:2110: Attention backend not specified. \
Use fa3 backend by default.
[2026-03-08 06:58:08] INFO engine.py:177: server_args=ServerArgs(model_path='Qwen/Qwen2.5-7B', kv_cache_dtype='auto', \
quantization='fp8', max_running_requests=None, chunked_prefill_size=8192, random_seed=318, attention_backend=None, \
disable_radix_cache=False, cuda_graph_max_bs=None, disable_cuda_graph=False, enable_memory_saver=True)
[2026-03-08 06:58:40] Capture cuda graph bs [1, 2, 4, 160]
[2026-03-08 06:58:59] max_total_num_tokens=1230000, chunked_prefill_size=8192, max_running_requests=4096, context_len=1
""",
}


def test_what_a_log_prints_of_its_engine_is_read_by_the_same_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for engine, seconds in (("vllm", 50.0), ("sglang", 40.0)):
        steps = (
            f"step:{n} - timing_s/gen:{seconds - 9:.3f} - timing_s/step:{seconds + n % 3:.3f}\n" for n in range(1, 7)
        )
        (tmp_path / f"{engine}.log").write_text("verl==0.9.1\n" + PRINTED[engine] + "".join(steps), encoding="utf-8")
    assert main(["compare", "vllm=vllm.log", "sglang=sglang.log", "--report", "out"]) == 0
    found = json.loads((tmp_path / "out" / "preflight.json").read_text())
    rows = {row["setting"]: (row["verdict"], *row["values"].values()) for row in found["ledger"]}
    assert rows["CUDA graphs"] == ("equal", "on", "on")
    assert rows["largest batch with CUDA graphs"] == ("different", "512", "160")
    # Their sizes differ by less than 5%.
    assert rows["KV cache in tokens"] == ("equal", "1234560", "1234560")
    assert rows["attention kernel"] == ("equal", "FlashAttention", "FlashAttention")
    assert rows["prefill tokens in a pass"] == ("equal", "8192", "8192")
    assert rows["quantisation"] == ("different", "none", "fp8 weights")
    assert rows["sequences at once"] == ("unverifiable", "unknown", "4096")
    # SGLang prints a seed that it draws like one that it is given.
    assert rows["sampling seed"] == ("unverifiable", "fixed", "unknown")
    assert {"graph-sizes", "quantisation"} <= {one["code"] for one in found["findings"]}
