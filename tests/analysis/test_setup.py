"""What a run generated on: from its import, its resolved settings and its workload; nothing is guessed."""

from pathlib import Path

import make_results
import pytest
from roofline_results import IMPORT, PHI, ROLLOUT, SXM, WORKLOAD
from roofline_results import trained as trained_run

from analysis.roofline.setup import setup_of
from analysis.runs import Run
from trainers.registry import tree_for, trees_of

VERL = {
    "data.train_batch_size": 16, "trainer.n_gpus_per_node": 8, "trainer.nnodes": 1,
    f"{ROLLOUT}.tensor_model_parallel_size": 2, f"{ROLLOUT}.n": 4, f"{ROLLOUT}.dtype": "bfloat16",
    f"{ROLLOUT}.max_num_seqs": 256, f"{ROLLOUT}.multi_turn.enable": False, f"{ROLLOUT}.quantization": None,
    "actor_rollout_ref.model.path": "/shared/Phi-4-reasoning-plus",
}  # fmt: skip


POOL = {"nnodes": 1, "n_gpus_per_node": 8}
(VERL_0_4_1,) = (tree for tree in trees_of("verl") if tree.series == "0.4.1")
VERL_0_9_1, VERL_0_9_1_COLOCATE_ASYNC, _, *VERL_0_9_1_OVERLAPPING = (
    tree for tree in trees_of("verl") if tree.series == "0.9.1"
)
SEPARATE, ONE_STEP_OFF, FULLY = VERL_0_9_1_OVERLAPPING


def a_run(spec, done, *, tree=VERL_0_9_1, inputs=None, engine="vllm", trainer="verl"):
    whole = {"trainer": trainer, "engine": engine, "workload": WORKLOAD, "options": {}, "trainer_args": {}} | spec
    return Run("r", "a", 0, {}, whole, done, inputs, None, (1,), tree, Path("no file"))


def trained(settings=None, gpus=None, workload=None, **more):
    done = {"hardware": {"gpus": SXM if gpus is None else gpus}, "resolved": {"trainer": VERL | (settings or {})}}
    return setup_of(a_run({"workload": WORKLOAD | (workload or {})}, done, **more))


def imported(resolved=None, trainer="verl", engine="vllm", tree=VERL_0_4_1, spec=None, gpus=None, **facts):
    done = {"imported": True, "hardware": {"gpus": gpus} if gpus else {}, "resolved": resolved or {}}
    whole = {"workload": {}, "import": IMPORT | facts} | (spec or {})
    return setup_of(a_run(whole, done, tree=tree, trainer=trainer, engine=engine))


def test_a_trained_verl_run_tells_all():
    setup = trained(inputs={"model": {"source": PHI}})
    assert (setup.gpu, setup.gpus, setup.nodes, setup.tensor_parallel, setup.replicas) == ("H100-80GB", 8, 1, 2, 4)
    assert (setup.group, setup.concurrency, setup.max_response_length) == (4, None, 31744)
    assert (setup.model, setup.number_bytes) == (PHI, 2)
    assert setup.facts is not None and setup.unknown == ()


def test_the_drivers_word_wins_over_the_gpu_that_was_meant():
    assert trained(gpus=[{"name": "NVIDIA H100 PCIe"}] * 8).gpu == "H100-PCIe-80GB"
    other = trained(gpus=[{"name": "NVIDIA H20"}] * 8)
    assert other.gpu == "NVIDIA H20" and "its GPU, NVIDIA H20" in other.unknown[0]
    mixed = trained(gpus=["NVIDIA H100 PCIe", "NVIDIA H200"])
    assert "H100-PCIe-80GB and H200-141GB" in mixed.unknown[0]
    # A head without a GPU of its own tells of none.
    assert trained(gpus=[]).gpu == "H100-80GB"


def test_an_import_tells_what_was_declared_and_the_rest_is_unknown():
    setup = imported()
    assert (setup.gpu, setup.gpus, setup.replicas, setup.number_bytes) == ("H100-80GB", 8, 4, 2)
    assert setup.unknown == () and setup.group is None and setup.concurrency is None
    nothing = imported(**{name: None for name in IMPORT if name != "sources"})
    assert (nothing.gpu, nothing.gpus, nothing.tensor_parallel, nothing.replicas, nothing.model) == (None,) * 5
    assert [text.split()[0] for text in nothing.unknown] == ["the", "how", "the"]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({f"{ROLLOUT}.tensor_model_parallel_size": 3}, "how its engines share GPUs: 8 GPUs, tensor parallel size 3"),
        ({f"{ROLLOUT}.pipeline_model_parallel_size": 2}, "tensor parallel size 2, 2 stages"),
        ({f"{ROLLOUT}.dtype": "float8_e4m3fn"}, "number format"),
        ({f"{ROLLOUT}.quantization": "fp8"}, "quantised"),
        ({f"{ROLLOUT}.multi_turn.enable": True}, "tools' answers"),
        ({f"{ROLLOUT}.engine_kwargs.vllm.speculative_config": {"method": "ngram"}}, "several tokens"),
        ({f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_dtype": "fp8"}, "their own number format"),
    ],
)
def test_what_the_roofline_does_not_hold_for_is_said(settings, word):
    assert any(word in text for text in trained(settings).unknown)


@pytest.mark.parametrize("path", ["model", "elsewhere"])
def test_the_prepared_models_own_file_tells_its_sizes(tmp_path, path):
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


def test_a_cap_counts_only_where_the_engine_was_given_it():
    own = {f"{ROLLOUT}.engine_kwargs.vllm.max_num_seqs": 64}
    assert trained(own).concurrency == 64
    assert trained(tree=VERL_0_4_1).concurrency is None
    assert trained(own, tree=VERL_0_4_1).concurrency == 64
    sglang = {f"{ROLLOUT}.engine_kwargs.sglang.max_running_requests": 32}
    assert trained(sglang, engine="sglang").concurrency == 32
    assert trained(sglang, engine="sglang", tree=VERL_0_4_1).concurrency is None


def trl(engine="vllm", held=None, gpus=None, **settings):
    tree = tree_for("trl", "1.16.0", engine)
    done = {
        "hardware": {"gpus": SXM[:1] if gpus is None else gpus},
        "resolved": {"trainer": {"num_generations": 8, "vllm_mode": "colocate"} | settings, "engine": held or {}},
    }
    workload = WORKLOAD | {"gpus_per_node": 0 if gpus == [] else 1}
    return setup_of(a_run({"workload": workload}, done, trainer="trl", engine=engine, tree=tree))


def test_trls_engine_speaks_for_itself():
    setup = trl(held={"name": "vllm", "dtype": "float32", "tensor_parallel_size": 1, "max_num_seqs": 48})
    assert (setup.tensor_parallel, setup.replicas, setup.number_bytes, setup.concurrency) == (1, 1, 4, 48)
    assert (setup.group, setup.unknown) == (8, ())
    assert trl("transformers", {"name": "transformers", "dtype": "bfloat16"}).unknown == ()
    server = trl(vllm_mode="server", vllm_tensor_parallel_size=2)
    assert server.replicas is None and "of their own" in server.unknown[0]


def test_an_imported_runs_own_word_comes_before_its_imports_and_the_workloads():
    """Each fact of the run differs from the import's, and the import's from the workload's."""
    own = {
        "actor_rollout_ref": {
            "model": {"path": "Qwen/Qwen2.5-7B"},
            "rollout": {"tensor_model_parallel_size": 1, "n": 2, "dtype": "bfloat16"},
        },
        "trainer": {"n_gpus_per_node": 4, "nnodes": 2},
        "data": {"train_batch_size": 4, "max_response_length": 1024},
    }
    workload = {"workload": WORKLOAD | {"nodes": 3, "max_response_length": 512, "batch_size": 128}}
    said = imported(own, spec=workload)
    assert (said.nodes, said.gpus, said.tensor_parallel) == (2, 8, 1)
    assert (said.model, said.max_response_length) == ("Qwen/Qwen2.5-7B", 1024)
    assert said.facts is not None and "Qwen2.5-7B" in said.facts.source
    assert [text.partition(" is ")[0] for text in said.contradicted] == [
        *("import.nodes", "import.gpus_per_node", "import.tensor_parallel"),
        *("import.batch_size", "import.max_response_length", "import.model"),
    ]
    # Where nothing is declared the run counts before the workload, and no declaration is denied.
    alone = imported(own, spec=workload | {"import": {}})
    assert (alone.gpus, alone.model, alone.max_response_length) == (8, "Qwen/Qwen2.5-7B", 1024)
    assert alone.contradicted == ()
    # What neither says the workload may.
    assert imported({}, spec=workload | {"import": {}}).nodes == 3


def test_what_an_import_was_asked_for_is_not_its_own_word():
    """With a stack and a workload an imported run has the arguments that these would have made."""
    asked = ["trainer.nnodes=4", "actor_rollout_ref.model.path=somebody/else", "data.train_batch_size=256"]
    said = imported({}, spec={"trainer_args": {"overrides": [*asked, f"{ROLLOUT}.n=1"]}})
    assert (said.gpus, said.model, said.contradicted) == (8, PHI, ())


@pytest.mark.parametrize(
    ("own", "declared", "name", "denied"),
    [
        ("/shared/Phi-4-reasoning-plus", PHI, PHI, False),
        ("/data/step-500", PHI, PHI, False),
        ("/hub/models--microsoft--Phi-4-reasoning-plus/snapshots/0a1b", None, PHI, False),
        ("/hub/models--Qwen--Qwen2.5-7B/snapshots/0a1b", PHI, "Qwen/Qwen2.5-7B", True),
        ("/shared/Qwen2.5-7B", PHI, "/shared/Qwen2.5-7B", True),
        ("Qwen/Qwen2.5-7B", PHI, "Qwen/Qwen2.5-7B", True),
        ("microsoft/phi-4-reasoning-plus", "/shared/Phi-4-reasoning-plus", "microsoft/phi-4-reasoning-plus", False),
        ("ours/private", "/shared/phi-4", "/shared/phi-4", False),
    ],
)
def test_a_models_folder_is_what_it_is_said_to_hold(own, declared, name, denied):
    setup = imported({"actor_rollout_ref.model.path": own}, model=declared)
    assert setup.model == name and setup.facts is not None
    assert setup.contradicted == ((f"import.model is {declared}, the run itself says {own}",) if denied else ())


def test_trls_own_words_come_first_in_an_import():
    tree = tree_for("trl", "1.16.0", "vllm")
    config = {"model_name_or_path": "Qwen/Qwen2.5-7B", "vllm_mode": "colocate", "vllm_tensor_parallel_size": 1}
    nothing = {"workload": WORKLOAD, "import": {}}
    four = imported(config, "trl", tree=tree, spec=nothing, gpus=SXM[:4])
    assert (four.gpus, four.replicas, four.model, four.contradicted) == (4, 4, "Qwen/Qwen2.5-7B", ())
    # Of its node's GPUs it may have used two, if that is said; but not eight of four.
    two = imported(config, "trl", tree=tree, spec=nothing | {"import": {"gpus_per_node": 2}}, gpus=SXM[:4])
    assert (two.gpus, two.contradicted) == (2, ())
    eight = imported(config, "trl", tree=tree, spec=nothing | {"import": {"gpus_per_node": 8}}, gpus=SXM[:4])
    assert (eight.gpus, eight.contradicted) == (4, ("import.gpus_per_node is 8, the run itself says 4",))


def test_the_gpus_of_a_server_are_not_among_the_trainers():
    config, tree = {"vllm_mode": "server"}, tree_for("trl", "1.16.0", "vllm")
    unknown = imported(config, "trl", tree=tree, spec={"workload": WORKLOAD, "import": {}}, gpus=SXM[:4])
    assert (unknown.gpus, unknown.nodes, unknown.replicas, unknown.separate_engines) == (None, None, None, True)
    assert "of their own" in unknown.unknown[0]
    declared = {"workload": {}, "import": {"nodes": 1, "gpus_per_node": 8}}
    told = imported(config, "trl", tree=tree, spec=declared, gpus=SXM[:4])
    assert (told.gpus, told.replicas, told.contradicted) == (8, None, ())
    # TRL's default for a setting that means nothing without vLLM.
    without = imported(config, "trl", "transformers", tree=tree, spec={"workload": WORKLOAD, "import": {}})
    assert (without.gpus, without.separate_engines) == (8, False) and not any(
        "of their own" in text for text in without.unknown
    )


@pytest.mark.parametrize(
    ("tree", "place", "gpus"),
    [
        (FULLY, "rollout", 16),
        (ONE_STEP_OFF, "rollout", 16),
        (ONE_STEP_OFF, ROLLOUT, 16),
        (SEPARATE, ROLLOUT, 16),
        (SEPARATE, "rollout", None),
        (FULLY, "elsewhere", None),
    ],
)
def test_the_engines_own_gpus_are_the_runs(tree, place, gpus):
    pool = {f"{place}.{key}": value for key, value in POOL.items()}
    setup = trained(pool, tree=tree)
    assert (setup.gpus, setup.replicas, setup.separate_engines) == (gpus, None, True)
    brought = imported(VERL | pool, tree=tree, spec={"workload": WORKLOAD, "import": {}})
    assert (brought.gpus, brought.nodes) == (gpus, None)
    # What is declared is of the whole run: 8 GPUs are the trainer's alone, by its own settings.
    short = imported(VERL | pool, tree=tree)
    assert short.gpus == gpus and "import.nodes times import.gpus_per_node is 8" in short.contradicted[0]
    whole = imported(VERL | pool, tree=tree, nodes=2)
    assert (whole.gpus, whole.nodes, whole.contradicted) == (16, 2, ())


def test_engines_that_take_turns_with_the_trainer_have_no_gpus_of_their_own():
    none = {"rollout.nnodes": 0, "rollout.n_gpus_per_node": 8, f"{ROLLOUT}.nnodes": 0}
    assert trained(none, tree=FULLY).gpus == 8
    assert trained(none, tree=ONE_STEP_OFF).gpus is None
    # Without a word of the run's own its import's is taken, and the workload's is not: that is of trained runs.
    assert imported(tree=FULLY).gpus == 8
    assert imported(tree=FULLY, spec={"workload": WORKLOAD, "import": {}}).gpus is None
