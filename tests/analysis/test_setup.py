"""What a run generated on: from its import, its resolved settings and its workload; nothing is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import make_results
import pandas as pd
import pytest
from roofline_results import IMPORT, PHI, ROLLOUT, SXM, WORKLOAD
from roofline_results import trained as trained_run

from analysis.roofline.setup import Setup, setup_of
from analysis.runs import Run
from analysis.timers import TimerTree, tree_for
from analysis.timers.verl import VERL_0_4_1, VERL_0_9_1, VERL_0_9_1_COLOCATE_ASYNC, VERL_0_9_1_OVERLAPPING

VERL = {
    "data.train_batch_size": 16,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.dtype": "bfloat16",
    f"{ROLLOUT}.max_num_seqs": 256,
    f"{ROLLOUT}.multi_turn.enable": False,
    f"{ROLLOUT}.quantization": None,
    "actor_rollout_ref.model.path": "/shared/Phi-4-reasoning-plus",
}


def a_run(
    spec: dict[str, Any],
    done: dict[str, Any],
    *,
    tree: TimerTree = VERL_0_9_1,
    inputs: dict[str, Any] | None = None,
    engine: str = "vllm",
    trainer: str = "verl",
) -> Run:
    whole = {"trainer": trainer, "engine": engine, "workload": WORKLOAD, "options": {}, "trainer_args": {}} | spec
    return Run("r", "a", 0, {}, whole, done, inputs, None, (1,), tree, pd.DataFrame())


def trained(
    settings: dict[str, Any] | None = None,
    gpus: list[Any] | None = None,
    workload: dict[str, Any] | None = None,
    **more: Any,
) -> Setup:
    done = {"hardware": {"gpus": SXM if gpus is None else gpus}, "resolved": {"trainer": VERL | (settings or {})}}
    return setup_of(a_run({"workload": WORKLOAD | (workload or {})}, done, **more))


def imported(
    resolved: dict[str, Any] | None = None, trainer: str = "verl", engine: str = "vllm", **facts: Any
) -> Setup:
    done = {"imported": True, "hardware": {}, "resolved": resolved or {}}
    spec = {"workload": {}, "import": IMPORT | facts}
    return setup_of(a_run(spec, done, tree=VERL_0_4_1, trainer=trainer, engine=engine))


def test_a_trained_verl_run_tells_all() -> None:
    setup = trained(inputs={"model": {"source": PHI}, "prompt_tokens": {"min": 258, "mean": 300, "max": 400}})
    assert (setup.gpu, setup.gpus, setup.nodes, setup.tensor_parallel, setup.replicas) == ("H100-80GB", 8, 1, 2, 4)
    assert (setup.completions, setup.group, setup.concurrency, setup.max_response_length) == (64, 4, 256, 31744)
    assert (setup.model, setup.number_bytes, setup.shortest_prompt) == (PHI, 2, 258)
    assert setup.facts is not None and setup.unknown == () and setup.assumed == ()


def test_the_drivers_word_wins_over_the_gpu_that_was_meant() -> None:
    assert trained(gpus=[{"name": "NVIDIA H100 PCIe"}] * 8).gpu == "H100-PCIe-80GB"
    other = trained(gpus=[{"name": "NVIDIA H20"}] * 8)
    assert other.gpu == "NVIDIA H20" and "'NVIDIA H20'" in other.unknown[0]
    mixed = trained(gpus=["NVIDIA H100 PCIe", "NVIDIA H200"])
    assert "H100-PCIe-80GB and H200-141GB" in mixed.unknown[0]
    # A head without a GPU of its own tells of none.
    assert trained(gpus=[]).gpu == "H100-80GB"


def test_an_import_tells_what_was_declared_and_the_rest_is_unknown() -> None:
    setup = imported()
    assert (setup.gpu, setup.gpus, setup.replicas, setup.completions) == ("H100-80GB", 8, 4, 16)
    assert setup.unknown == () and setup.group is None and setup.concurrency is None
    assert "two bytes" in setup.assumed[0]
    nothing = imported(**{name: None for name in IMPORT if name != "sources"})
    assert (nothing.gpu, nothing.gpus, nothing.tensor_parallel, nothing.replicas, nothing.model) == (None,) * 5
    assert [text.split()[0] for text in nothing.unknown] == ["which", "how", "the", "which"]


def test_an_imported_configuration_tells_what_was_not_declared() -> None:
    config = {
        "actor_rollout_ref": {
            "model": {"path": "/shared/Phi-4-reasoning-plus"},
            "rollout": {"tensor_model_parallel_size": 4, "n": 2, "dtype": "float16"},
        },
        "trainer": {"n_gpus_per_node": 8, "nnodes": 2},
        "data": {"train_batch_size": 32},
    }
    facts = dict.fromkeys(("tensor_parallel", "nodes", "gpus_per_node", "model", "batch_size"))
    setup = imported(config, **facts)
    assert (setup.gpus, setup.tensor_parallel, setup.replicas, setup.completions, setup.group) == (16, 4, 4, 64, 2)
    assert setup.facts is not None and "by the folder's name" in setup.facts.source
    assert setup.assumed == ()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({f"{ROLLOUT}.tensor_model_parallel_size": 3}, "how engines of 3 GPUs lie on 8"),
        ({f"{ROLLOUT}.pipeline_model_parallel_size": 2}, "2 pipeline stages"),
        ({f"{ROLLOUT}.dtype": "float8_e4m3fn"}, "number format"),
        ({f"{ROLLOUT}.quantization": "fp8"}, "quantised"),
        ({f"{ROLLOUT}.multi_turn.enable": True}, "tools' answers"),
        ({f"{ROLLOUT}.engine_kwargs.vllm.speculative_config": {"method": "ngram"}}, "several tokens"),
        ({f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_dtype": "fp8"}, "number format of their own"),
    ],
)
def test_what_the_roofline_does_not_hold_for_is_said(settings: dict[str, Any], word: str) -> None:
    assert any(word in text for text in trained(settings).unknown)


def test_settings_within_settings_are_seen() -> None:
    nested = {f"{ROLLOUT}.engine_kwargs": {"vllm": {"speculative_config": {"method": "ngram"}}}}
    assert any("several tokens" in text for text in trained(nested).unknown)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ({"source": "somebody/else"}, "the sizes of the model somebody/else"),
        ({"source": "builtin:tiny-qwen2"}, "chip's caches"),
    ],
)
def test_models_that_are_not_known_or_too_small(model: dict[str, Any], word: str) -> None:
    assert any(word in text for text in trained(workload={"model": model}).unknown)


def test_a_model_of_experts_has_no_floor(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(
        '{"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_attention_heads": 32,'
        ' "num_key_value_heads": 4, "num_hidden_layers": 48, "intermediate_size": 6144, "vocab_size": 151936,'
        ' "max_position_embeddings": 40960}'
    )
    setup = trained(inputs={"model": {"source": "./experts", "path": str(tmp_path)}})
    assert setup.model == "./experts" and any("Qwen3MoeForCausalLM" in text for text in setup.unknown)


@pytest.mark.parametrize("path", ["model", "elsewhere"])
def test_the_prepared_models_own_file_tells_its_sizes(tmp_path: Path, path: str) -> None:
    """Beside inputs.json, as its path there is relative; or where the user's own or the hub's lies."""
    inputs = tmp_path / "inputs" / "89abcdef"
    folder = inputs / "model" if path == "model" else tmp_path / path
    config = {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32}
    config |= {"num_hidden_layers": 36, "intermediate_size": 14336, "vocab_size": 50000}
    make_results.write_json(folder / "config.json", config | {"max_position_embeddings": 8192})
    told = {"path": "model" if path == "model" else str(folder), "source": "somebody/else"}
    make_results.write_json(inputs / "inputs.json", {"model": told})
    setup = setup_of(trained_run(tmp_path, [400, 600], steps=1))
    assert setup.unknown == () and setup.facts is not None
    assert setup.facts.layers == 36 and setup.facts.source == str(folder / "config.json")


@pytest.mark.parametrize("tree", [VERL_0_9_1_COLOCATE_ASYNC, *VERL_0_9_1_OVERLAPPING])
def test_a_loop_that_overlaps_has_no_floor(tree: TimerTree) -> None:
    assert len(trained(tree=tree).unknown) == 1


def test_a_cap_counts_only_where_the_engine_was_given_it() -> None:
    own = {f"{ROLLOUT}.engine_kwargs.vllm.max_num_seqs": 64}
    assert trained(own).concurrency == 64
    assert trained(tree=VERL_0_4_1).concurrency is None
    assert trained(own, tree=VERL_0_4_1).concurrency == 64
    sglang = {f"{ROLLOUT}.engine_kwargs.sglang.max_running_requests": 32}
    assert trained(sglang, engine="sglang").concurrency == 32
    assert trained(sglang, engine="sglang", tree=VERL_0_4_1).concurrency is None


def trl(
    engine: str = "vllm", held: dict[str, Any] | None = None, gpus: list[Any] | None = None, **settings: Any
) -> Setup:
    tree = tree_for("trl", "1.16.0", engine)
    done = {
        "hardware": {"gpus": SXM[:1] if gpus is None else gpus},
        "resolved": {"trainer": {"num_generations": 8, "vllm_mode": "colocate"} | settings, "engine": held or {}},
    }
    workload = WORKLOAD | {"gpus_per_node": 0 if gpus == [] else 1}
    return setup_of(a_run({"workload": workload}, done, trainer="trl", engine=engine, tree=tree))


def test_trls_engine_speaks_for_itself() -> None:
    setup = trl(held={"name": "vllm", "dtype": "float32", "tensor_parallel_size": 1, "max_num_seqs": 48})
    assert (setup.tensor_parallel, setup.replicas, setup.number_bytes, setup.concurrency) == (1, 1, 4, 48)
    assert (setup.completions, setup.group, setup.unknown) == (64, 8, ())
    assert trl("transformers", {"name": "transformers", "dtype": "bfloat16"}).unknown == ()
    server = trl(vllm_mode="server", vllm_tensor_parallel_size=2)
    assert server.replicas is None and "server" in server.unknown[0]


def test_a_run_on_the_cpu_has_no_floor() -> None:
    setup = trl("transformers", {"dtype": "float32"}, gpus=[])
    assert setup.unknown == ("a GPU: it trained on the CPU",)


def test_a_runs_own_word_of_its_gpus_comes_first_and_a_contradiction_is_told() -> None:
    done = {"hardware": {"gpus": ["NVIDIA A100-SXM4-80GB"] * 4}, "resolved": VERL | {"trainer.nnodes": 2}}
    said = setup_of(a_run({"workload": WORKLOAD, "import": IMPORT | {"gpu": "H100-80GB", "nodes": 1}}, done))
    assert said.gpu == "A100-80GB"
    assert said.contradicted == (
        "import.gpu is H100-80GB, the run itself says A100-80GB",
        "import.nodes is 1, the run itself says 2",
    )
    # What the workload says is no claim of the run: its own settings count, without a word.
    silent = setup_of(a_run({"workload": WORKLOAD, "import": dict.fromkeys(IMPORT)}, done))
    assert (silent.gpu, silent.nodes, silent.contradicted) == ("A100-80GB", 2, ())
