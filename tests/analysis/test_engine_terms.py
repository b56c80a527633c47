"""What engines run with are terms before a run: an engine's own option is never harmless by default."""

import json

import pytest
import yaml

from workflow.cli import main

MISSPELT = {"vllm_gpu_memory_utilisation": 0.9}
SGLANG = {"sglang_disable_cuda_graph": True, "sglang_disable_radix_cache": True, "sglang_quantization": "fp8"}
SGLANG |= {"sglang_max_running_requests": 8, "sglang_chunked_prefill_size": 512}
TERMS = {"CUDA graphs", "prefix cache", "quantisation", "sequences at once", "prefill tokens in a pass"}


@pytest.fixture
def checked(tmp_path, capsys):
    """What the preflight of one arm of each engine with these options says."""

    def check(**options):
        arms = {
            name: {"trainer": "trl", "engine": name, "stack": f"trl-{name}", "options": own}
            for name, own in options.items()
        }
        workload = {
            **{"model": {"source": "builtin:tiny-qwen2"}, "data": {"source": "builtin:arithmetic", "rows": 4096}},
            **{"rewards": [{"name": "accuracy"}], "steps": 4, "batch_size": 1024, "num_generations": 8},
            **{"max_prompt_length": 256, "max_response_length": 1024, "gpus_per_node": 1, "gpu": "H100-80GB"},
        }
        file, raw = tmp_path / "probe.yaml", {"experiment": "probe", "baseline": "vllm", "arms": arms}
        file.write_text(yaml.safe_dump(raw | {"workload": workload, "seeds": [0, 1, 2]}))
        main(["check", str(file), "--json"])
        found = json.loads(capsys.readouterr().out)
        return found, {row["setting"]: row for row in found["ledger"]}

    return check


def test_options_of_one_engine_are_terms_before_a_run(checked):
    found, rows = checked(vllm=MISSPELT, sglang=SGLANG)
    assert {rows[name]["verdict"] for name in (*TERMS, "KV cache in tokens")} <= {"different", "unverifiable"}
    assert rows["CUDA graphs"]["values"] == {"vllm": "unknown", "sglang": "off"}
    assert not [name for name, row in rows.items() if row["verdict"] == "equivalent" and name.startswith("sglang_")]
    (finding,) = [one for one in found["findings"] if one["code"] == "engine-options"]
    assert finding["level"] == "unequal" and "disable_cuda_graph=True in sglang" in finding["what"]
    # No stack has composed them yet.
    (said,) = [text for text in found["unverifiable"] if "not checked yet" in text]
    assert "the options of vllm, sglang exist" in said or "the options of sglang, vllm exist" in said
    assert "refuse a misspelt one, before any training" in said


def test_options_that_mean_the_same_are_no_finding(checked):
    """Both caches off by each engine's own option."""
    found, rows = checked(vllm={"vllm_enable_sleep_mode": False}, sglang={"sglang_enable_memory_saver": False})
    assert "engine-options" not in {one["code"] for one in found["findings"]}
    row = rows["sleep between steps"]
    assert (row["verdict"], row["values"]) == ("equal", {"vllm": "off", "sglang": "off"})
