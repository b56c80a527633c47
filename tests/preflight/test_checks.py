"""Each check of a case: it fires where it should, and nowhere else."""

from pathlib import Path

import pytest
import yaml

from common.errors import UserError
from workflow.preflight.cases import LaunchContext
from workflow.preflight.variables import VARIABLES, variables_of
from workflow.slurm.site import Site

from . import plans
from .plans import ACTOR, ARTICLE, EQUAL, ROLLOUT, cases, codes, found, looked_at, planned

KWARGS = f"+{ROLLOUT}.engine_kwargs"
LORA = "actor_rollout_ref.model.lora_rank"
GRAPHS = {f"{ROLLOUT}.enforce_eager": False}
GRAPHS_NO_CACHE = GRAPHS | {f"{ROLLOUT}.free_cache_engine": False}
PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
SLURM = Path("profiles/slurm")
ROOT = Path(__file__).resolve().parents[2]
TRL = {
    "model": {"source": "Qwen/Qwen2.5-0.5B", "revision": "0" * 40},
    "num_generations": 4,
    "mini_batch_size": None,
    "micro_batch_size": 1,
    "gpus_per_node": 1,
}


def site(hours=20, **more):
    paces = more.pop("paces", {})
    train = {"gres": "gpu:h100:8", "nodes": "1", "runtime": str(hours * 60), **more}
    return LaunchContext(Site({key: str(value) for key, value in train.items()}, SLURM), paces)


FIRES = [
    # level, code, experiment, changes
    ("odd", "one-completion", ARTICLE, {}),
    ("impossible", "arch-list", ARTICLE, {"env": {"TORCH_CUDA_ARCH_LIST": "80;90"}}),
    ("odd", "mini-batch", ARTICLE, {}),
    ("odd", "mini-batch", ARTICLE, {"batch_size": 20, "mini_batch_size": 20}),
    ("impossible", "dynamic-tokens", ARTICLE, {"options": {f"{ACTOR}.ppo_max_token_len_per_gpu": 16384}}),
    ("odd", "lr-warmup", ARTICLE, {"steps": 5}),
    ("odd", "weights-in-half", ARTICLE, {}),
    ("odd", "validation-in-step", ARTICLE, {"test_steps": 5}),
    ("impossible", "eager-and-cache", ARTICLE, {"options": GRAPHS}),
    ("unequal", "engine-kwargs-ignored", ARTICLE, {"options": {f"{KWARGS[1:]}.sglang.attention_backend": "fa3"}}),
    ("impossible", "model-length", EQUAL, {"options": {f"{ROLLOUT}.max_model_len": 8192}}),
    ("odd", "trainer-mode", EQUAL, {"options": {"trainer.v1.trainer_mode": "colocate_async"}}),
    ("impossible", "setting-gpus-beside", EQUAL, {"options": {"trainer.v1.trainer_mode": "separate_async"}}),
    ("impossible", "lora-sglang", ARTICLE, {"options": {LORA: 16}}),
    (
        "impossible",
        "lora-weights",
        ARTICLE,
        {"options": {LORA: 16, f"{ROLLOUT}.layered_summon": True}, "without": ("sglang",)},
    ),
    ("impossible", "checkpoint-contents", EQUAL, {"options": {f"{ACTOR}.checkpoint.save_contents": ["hf_model"]}}),
    ("odd", "lora-sglang", EQUAL, {"options": {LORA: 16}}),
    ("unequal", "ignore-eos", EQUAL, {"options": {f"{ROLLOUT}.ignore_eos": True}}),
    ("impossible", "tensor-parallel-gpus", ARTICLE, {"options": {PARALLEL: 16}}),
    # Phi-4 has 10 heads of keys and values.
    ("impossible", "tensor-parallel-heads", ARTICLE, {"options": {PARALLEL: 4}}),
    ("impossible", "context", ARTICLE, {"max_response_length": 40000}),
    ("odd", "context", EQUAL, {"max_response_length": 40000}),
    ("unequal", "sampling-added", ARTICLE, {"options": {f"+{ROLLOUT}.min_p": 0.1}}),
    ("impossible", "attention-kernels-missing", EQUAL, {"options": {f"{KWARGS}.sglang.attention_backend": "fa4"}}),
    ("odd", "mismatch-not-logged", ARTICLE, {"temperature": 0.7}),
    ("odd", "one-seed", ARTICLE, {}),
]


@pytest.mark.parametrize(("level", "code", "raw", "changes"), FIRES, ids=[f"{one[1]}-{one[0]}" for one in FIRES])
def test_it_fires(level, code, raw, changes):
    raw = raw | {"warmup_steps": 1}
    assert code in codes(raw, level, **changes)


@pytest.mark.parametrize(
    ("code", "raw", "changes"),
    [
        ("eager-and-cache", ARTICLE, {"options": GRAPHS_NO_CACHE}),
        # 0.9.1 has no such assertion, and passes what it is given.
        ("eager-and-cache", EQUAL, {"options": GRAPHS}),
        ("engine-kwargs-ignored", EQUAL, {"options": {f"{KWARGS}.sglang.page_size": 1}}),
        ("lora-sglang", ARTICLE, {"options": {LORA: 16}, "without": ("sglang",)}),
        ("mismatch-not-logged", ARTICLE, {"temperature": 1.0}),
        ("mismatch-not-logged", EQUAL, {"temperature": 0.7}),
        ("lora-sglang", EQUAL, {"options": {LORA: 16, "actor_rollout_ref.model.lora.merge": True}}),
        ("tensor-parallel-heads", ARTICLE, {"options": {PARALLEL: 2}}),
        *(
            ("arch-list", ARTICLE, {"env": {"TORCH_CUDA_ARCH_LIST": value}})
            for value in ("9.0", "8.0;9.0a+PTX", "Hopper")
        ),
        ("attention-kernels-missing", EQUAL, {"options": {f"{KWARGS}.sglang.attention_backend": "fa3"}}),
    ],
)
def test_it_keeps_quiet(code, raw, changes):
    assert code not in found(raw, **changes)


def test_a_release_whose_timers_are_not_declared_is_told_before_the_queue(monkeypatch):
    assert "undeclared-release" not in trl_with({})
    monkeypatch.setitem(plans._VERSIONS, "trl", "1.99.0")
    finding = trl_with({})["undeclared-release"]
    assert (finding.level, finding.arms) == ("odd", ("vllm",))
    assert "TRL 1.99.0 is not among" in finding.what and "as those of trl 1." in finding.why


TRL_GPU = {name: {"trainer": "trl", "engine": name, "stack": f"trl-gpu-{name}"} for name in ("transformers", "vllm")}


def trl_with(options, engine="vllm", **words):
    """The findings of one arm of TRL on a GPU, with these options."""
    return found(ARTICLE, arms={engine: {**TRL_GPU[engine], "options": options}}, **{**TRL, **words})


def test_the_one_engine_of_a_server_has_the_batch():
    two = {**TRL, "gpus_per_node": 2}
    arms = {"vllm": {**TRL_GPU["vllm"], "options": {"vllm_mode": "server"}}}
    case = cases(ARTICLE, arms=arms, **two)["vllm"]
    assert case.per_replica == case.workload["batch_size"]


def test_a_server_on_a_node_of_its_own_has_as_many_gpus_as_divide_the_models_heads():
    two = {**TRL, "gpus_per_node": 8, "nodes": 2}

    def with_server(trainer, **options):
        arm = {"trainer": trainer, "engine": "vllm", "stack": f"{trainer}-gpu-vllm"}
        return {"vllm": arm | {"options": {"vllm_mode": "server", **options}}}

    for trainer in ("trl", "swift"):
        whole = found(ARTICLE, arms=with_server(trainer), **two)
        assert "tensor-parallel-heads" in whole
        arms = with_server(trainer, vllm_tensor_parallel_size=2)
        some = found(ARTICLE, arms=arms, **two)
        assert not [finding.code for finding in some.values() if finding.level == "impossible"]
    arms = with_server("swift", vllm_tensor_parallel_size=2, vllm_data_parallel_size=4)
    assert "tensor-parallel-heads" not in found(ARTICLE, arms=arms, **two)


def test_vllm_sleeps_beside_trl_on_a_gpu_and_not_on_a_cpu():
    case = cases(ARTICLE, arms=TRL_GPU, **TRL)
    assert case["vllm"].settings.true("vllm_enable_sleep_mode")
    assert "vllm_enable_sleep_mode" not in case["transformers"].settings
    on_cpu = {**TRL, "gpus_per_node": 0, "gpu": None, "dtype": "float32"}
    arms = {"vllm": {"trainer": "trl", "engine": "vllm", "stack": "trl-cpu-vllm"}}
    assert "vllm_enable_sleep_mode" not in cases(ARTICLE, arms=arms, **on_cpu)["vllm"].settings


def test_weights_in_half_are_told():
    half = {"model_init_kwargs": {"dtype": "bfloat16", "attn_implementation": "sdpa"}}
    assert trl_with(half)["weights-in-half"].level == "odd"
    assert "weights-in-half" not in trl_with({"model_init_kwargs": {"attn_implementation": "sdpa"}})


@pytest.mark.parametrize(("engine", "told"), [("vllm", {"merged-in-half"}), ("transformers", set())])
def test_an_adapter_is_float32_but_merged_into_the_weights_as_they_are(engine, told):
    lora = {"use_peft": True, "lora_r": 16}
    half = {"model_init_kwargs": {"dtype": "bfloat16"}}
    codes = {"weights-in-half", "merged-in-half"}
    assert codes & trl_with(half | lora, engine).keys() == told
    assert not codes & trl_with(lora, engine).keys()


def test_a_replay_beyond_the_models_context_or_heads_is_refused():
    alone = {"trainer": "replay", "engine": "vllm", "stack": "verl04-vllm"}
    alone["options"] = {"lengths": {"mean": 100}}
    two, eight = ({"gpus_per_node": gpus, "mini_batch_size": None} for gpus in (2, 8))
    assert not {"context", "tensor-parallel-heads"} & set(found(ARTICLE, arms={"vllm": alone}, **two))
    assert found(ARTICLE, arms={"vllm": alone}, max_response_length=40000, **two)["context"].level == "impossible"
    finding = found(ARTICLE, arms={"vllm": alone}, **eight)["tensor-parallel-heads"]
    assert finding.level == "impossible" and finding.change.startswith("tensor_parallel: 1")


def test_trl_with_sglang_on_one_gpu_sleeps_during_the_update_as_vllm_does():
    arms = {name: {"trainer": "trl", "engine": name, "stack": f"trl-gpu-{name}"} for name in ("vllm", "sglang")}
    plan = planned(ARTICLE, arms=arms, **TRL)
    args = next(run.spec["trainer_args"] for run in plan.runs.values() if run.spec["arm"] == "sglang")
    assert (args["sglang_enable_memory_saver"], args["sglang_mem_fraction_static"]) == (True, 0.3)
    assert "sglang-speed-on-cpu" not in found(ARTICLE, arms=arms, **TRL)
    with pytest.raises(UserError, match="trl with engine sglang trains in one process"):
        planned(ARTICLE, arms=arms, **{**TRL, "gpus_per_node": 2, "batch_size": 16})


def test_trl_with_sglang_on_a_cpu_says_that_its_speed_is_no_gpus():
    arms = {name: {"trainer": "trl", "engine": name, "stack": f"trl-gpu-{name}"} for name in ("vllm", "sglang")}
    arms = {"sglang": {**arms["sglang"], "stack": "trl-cpu-sglang"}}
    on_cpu = {**TRL, "gpus_per_node": 0, "gpu": None, "dtype": "float32"}
    finding = found(ARTICLE, arms=arms, **on_cpu)["sglang-speed-on-cpu"]
    assert (finding.level, finding.arms) == ("unequal", ("sglang",))
    assert finding.scope == "on a CPU without SGLang's compiled kernels" and "GPUs" in finding.settle
    for option, value in (("sglang_dtype", "bfloat16"), ("sglang_random_seed", 3)):
        with pytest.raises(UserError, match=f"options.{option} of an arm is not free"):
            planned(ARTICLE, arms={"sglang": {**arms["sglang"], "options": {option: value}}}, **on_cpu)


def test_an_engines_option_that_changes_what_is_written_makes_the_terms_unequal():
    arms = {name: {"trainer": "trl", "engine": name, "stack": f"trl-cpu-{name}"} for name in ("vllm", "sglang")}
    on_cpu = {**TRL, "gpus_per_node": 0, "gpu": None, "dtype": "float32"}
    for arm, option in (("vllm", "vllm_structured_outputs_regex"), ("sglang", "sglang_preferred_sampling_params")):
        told = {**arms, arm: {**arms[arm], "options": {option: "x"}}}
        assert option.partition("_")[2] in found(ARTICLE, arms=told, **on_cpu)["engine-options"].what


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_a_variable_of_one_arm_is_unequal_and_of_all_odd(variable):
    value = next(value for value in ("1", "0", "INFO", "DEBUG") if variable.costs(value))
    code = variable.name.lower().replace("_", "-")
    assert found(EQUAL, env={variable.name: value})[code].level == "odd"
    arms = {name: dict(arm) for name, arm in EQUAL["arms"].items()}
    arms["sglang"]["env"] = {variable.name: value}
    one = found(EQUAL, arms=arms)[code]
    assert (one.level, one.arms) == ("unequal", ("sglang",))
    assert code not in found(EQUAL, env={variable.name: "warn"}) or variable.costs("warn")


def test_variables_of_the_shell_and_of_a_profile_are_seen(tmp_path):
    (tmp_path / "setup.sh").write_text(
        "module load cuda\nexport CUDA_LAUNCH_BLOCKING=1 # while debugging\n# export NCCL_DEBUG=INFO\nX=1\n"
    )
    place = LaunchContext(variables=variables_of(tmp_path / "setup.sh", {"NCCL_DEBUG": "INFO", "HOME": "/root"}))
    blocking, nccl = found(EQUAL, place)["cuda-launch-blocking"], found(EQUAL, place)["nccl-debug"]
    assert str(tmp_path / "setup.sh") in blocking.what and "setup.sh" in blocking.change
    assert "this shell" in nccl.what and "unset NCCL_DEBUG" in nccl.change
    # What the experiment says, wins.
    assert "nccl-debug" not in found(EQUAL, place, env={"NCCL_DEBUG": "WARN"})


@pytest.mark.parametrize(
    ("script", "codes_found"),
    [
        ("export CUDA_LAUNCH_BLOCKING=1; unset CUDA_LAUNCH_BLOCKING", {"nccl-debug"}),
        ("unset NCCL_DEBUG", set()),
        ("export OMP_NUM_THREADS=8 CUDA_LAUNCH_BLOCKING=1", {"nccl-debug", "cuda-launch-blocking"}),
        ("CUDA_LAUNCH_BLOCKING=1; export CUDA_LAUNCH_BLOCKING", {"nccl-debug", "cuda-launch-blocking"}),
        ("CUDA_LAUNCH_BLOCKING=1", {"nccl-debug"}),
        ("level=WARN\nexport NCCL_DEBUG=$level", set()),
    ],
)
def test_a_setup_script_is_followed(tmp_path, script, codes_found):
    setup = tmp_path / "setup.sh"
    setup.write_text(script)
    place = LaunchContext(variables=variables_of(setup, {"NCCL_DEBUG": "INFO"}))
    assert {code for code in found(EQUAL, place) if code in ("nccl-debug", "cuda-launch-blocking")} == codes_found


def test_what_a_setup_script_sets_is_a_term_of_all_arms_without_secrets(tmp_path):
    setup = tmp_path / "setup.sh"
    setup.write_text("export NCCL_ALGO=Ring\nexport VLLM_API_KEY=abc123secret9999\n")
    rows = looked_at(planned(EQUAL), LaunchContext(variables=variables_of(setup, {}))).ledger
    of_setup = {row.setting: row for row in rows if row.setting.startswith("env.")}
    assert set(of_setup) == {"env.NCCL_ALGO"} and of_setup["env.NCCL_ALGO"].verdict == "equal"


@pytest.mark.parametrize(
    ("level", "code", "hours", "pace", "words"),
    [
        ("impossible", "never-ends", 2, 900.0, {"save_steps": 0}),
        ("impossible", "never-ends", 2, 900.0, {"save_steps": 10}),
        ("odd", "rare-checkpoints", 2, 900.0, {"save_steps": 4}),
        ("odd", "no-checkpoints", 2, None, {"save_steps": 0}),
        ("odd", "stop-grace", 2, 900.0, {"save_steps": 1}),
    ],
)
def test_walltime(level, code, hours, pace, words):
    place = site(hours, paces={} if pace is None else {"vllm": pace, "sglang": pace})
    assert code in codes(EQUAL, level, place, **words)


def test_enough_walltime_is_none():
    seen = found(EQUAL, site(20, paces={"vllm": 900.0, "sglang": 400.0}), save_steps=0)
    assert not {"never-ends", "rare-checkpoints", "no-checkpoints", "stop-grace"} & set(seen)


def test_a_kernel_that_is_compiled_in_the_run_needs_a_compiler():
    asked = yaml.safe_load((ROOT / "experiments/camino-2025-equal.yaml").read_text())
    finding = found(asked)["kernel-compiler"]
    assert finding.level == "odd" and len(finding.arms) == 1 and "nvcc" in finding.change
    assert "kernel-compiler" not in found(ARTICLE)


def test_checkpoints_behind_the_end_and_folders_that_nothing_expands():
    assert found(EQUAL, save_steps=50, steps=20)["save-steps"].level == "odd"
    assert "save-steps" not in found(EQUAL, save_steps=20, steps=20)
    folder = found(EQUAL, env={"HF_HOME": "/scratch/$USER/hf", "NCCL_ALGO": "$A"})["not-expanded"]
    assert "HF_HOME=/scratch/$USER/hf" in folder.what and "setup script" in folder.change


def test_a_built_in_model_is_not_shared_by_two_transformers():
    words = {"model": {"source": "builtin:small-qwen2"}, "max_prompt_length": 64, "max_response_length": 64}
    mixed = {name: dict(arm) for name, arm in EQUAL["arms"].items()} | {"old": ARTICLE["arms"]["sglang"]}
    assert "built-in-tokenizer" not in found(EQUAL, **words)
    assert found(EQUAL, arms=mixed, **words)["built-in-tokenizer"].level == "impossible"
    assert "built-in-tokenizer" not in found(EQUAL, arms=mixed)


@pytest.mark.parametrize(
    ("steps", "every", "validated"),
    # verl validates at each step that `test_freq` divides, and at the last one.
    [(10, 4, "3 of 10"), (10, 5, "2 of 10"), (10, 20, "1 of 10"), (1, 1, "1 of 1"), (7, 3, "3 of 7")],
)
def test_the_steps_with_a_validation_are_counted(steps, every, validated):
    seen = found(ARTICLE | {"warmup_steps": 0}, steps=steps, test_steps=every)["validation-in-step"]
    assert f"({validated}, always the last one)" in seen.what


def test_two_trainers_are_compared_by_common_names_and_the_rest_is_unverifiable():
    verl = {"trainer": "verl", "engine": "vllm", "stack": "verl09-vllm"}
    trl = {"trainer": "trl", "engine": "vllm", "stack": "trl-gpu-vllm"}
    seen = looked_at(planned(EQUAL, arms={"verl": verl, "trl": trl | {"options": {"vllm_tensor_parallel_size": 1}}}))
    assert "trainers" in {one.code for one in seen.findings}
    rows = {row.setting: row for row in seen.ledger}
    sizes = rows["tensor_parallel"]
    assert (sizes.verdict, sizes.values) == ("different", {"verl": "2", "trl": "1"})
    assert not {f"{ROLLOUT}.tensor_model_parallel_size", "vllm_tensor_parallel_size"} & rows.keys()
    assert rows["algorithm.norm_adv_by_std_in_grpo"].verdict == "unverifiable"
