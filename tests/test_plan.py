"""The plan: ids, fingerprints, sweeps, and what they depend on."""

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from trainers import Spread
from workflow.config.plan import StackFacts, load_plan, plan_runs, stack_facts
from workflow.config.reading import parse_config

from .two_arms import two_arms

ROOT = Path(__file__).resolve().parents[1]
RAW = two_arms()


def planned(lock="0" * 12, **changes):
    """The default experiment with top-level keys replaced and stacks of a given lock."""
    raw = copy.deepcopy(RAW) | changes

    def facts(stack):
        return StackFacts("trl", "vllm" if "vllm" in stack else "transformers", "cpu", "1.16.0", lock)

    return plan_runs(parse_config(raw), facts)


def test_a_sweep_is_cartesian_and_an_arms_option_multiplies_that_arm_only():
    sweep = {"workload.temperature": [0.5, 1.0], "arms.vllm.options.vllm_max_num_seqs": [4, 8]}
    runs = planned(sweep=sweep, seeds=[0]).runs
    assert list(runs) == [
        "transformers-temperature=0.5-s0",
        "transformers-temperature=1.0-s0",
        "vllm-temperature=0.5-vllm_max_num_seqs=4-s0",
        "vllm-temperature=0.5-vllm_max_num_seqs=8-s0",
        "vllm-temperature=1.0-vllm_max_num_seqs=4-s0",
        "vllm-temperature=1.0-vllm_max_num_seqs=8-s0",
    ]
    spec = runs["vllm-temperature=0.5-vllm_max_num_seqs=8-s0"].spec
    assert spec["workload"]["temperature"] == 0.5
    assert spec["trainer_args"]["temperature"] == 0.5
    assert spec["trainer_args"]["vllm_max_num_seqs"] == 8


def test_the_arms_of_a_pair_are_submitted_in_turns():
    plan = planned(seeds=[0, 1], sweep={"workload.temperature": [0.9, 1.0]})
    order = sorted(plan.runs, key=plan.priorities.__getitem__, reverse=True)
    assert [run.rpartition("-")[2] for run in order] == ["s0"] * 4 + ["s1"] * 4
    first = {seed: next(run for run in order if run.endswith(seed)).partition("-")[0] for seed in ("s0", "s1")}
    assert first == {"s0": "transformers", "s1": "vllm"}


def test_ids_are_stable_when_other_runs_come_and_go():
    few, many = planned(seeds=[3]).runs, planned(seeds=[1, 3, 5], description="other words").runs
    for run_id, run in few.items():
        assert many[run_id] == run


def test_the_fingerprint_covers_spec_and_lock():
    run = planned().runs["vllm-s0"]
    assert planned(lock="1" * 12).runs["vllm-s0"].fingerprint != run.fingerprint
    workload = copy.deepcopy(RAW["workload"]) | {"steps": 13}
    assert planned(workload=workload).runs["vllm-s0"].fingerprint != run.fingerprint
    assert planned(warmup_steps=5).runs["vllm-s0"].fingerprint == run.fingerprint, "what is reported retrains nothing"


@pytest.mark.parametrize("name", ["camino-2025", "camino-2025-ablation", "camino-2025-published"])
def test_the_order_in_which_settings_are_written_trains_nothing_anew(name):
    """verl gets its settings as a list, whose order is a part of the run's fingerprint."""
    raw = yaml.safe_load((ROOT / "experiments" / f"{name}.yaml").read_text(encoding="utf-8"))
    facts = cache(stack_facts)

    def turned(value):
        return {k: turned(v) for k, v in reversed(value.items())} if isinstance(value, dict) else value

    written, other = plan_runs(parse_config(raw), facts), plan_runs(parse_config(turned(raw)), facts)
    wanted = {one.fingerprint for one in (*written.runs.values(), *written.imports.values())}
    assert {one.fingerprint for one in (*other.runs.values(), *other.imports.values())} == wanted


@given(
    st.lists(
        st.one_of(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60),
            st.floats(allow_nan=False, allow_infinity=False),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda value: (type(value).__name__, value),
    )
)
def test_any_swept_value_gives_a_folder_name_of_its_own(values):
    runs = planned(sweep={"arms.vllm.options.generation_kwargs": values}, seeds=[0]).runs
    ids = [run_id for run_id in runs if run_id.startswith("vllm")]
    assert len(set(ids)) == len(values)
    for run_id in ids:
        assert len(run_id) <= 80
        assert "/" not in run_id and run_id not in (".", "..") and run_id.isascii() and run_id.isprintable()


def test_warmup_leaves_steps_to_count_also_where_steps_are_swept():
    with pytest.raises(UserError, match=r"warmup_steps must be less than workload.steps.*\(got 12 and 12\)"):
        planned(warmup_steps=12)
    sweep = {"workload.steps": [20, 5]}
    with pytest.raises(UserError, match=r"\(got 5 and 5\)"):
        planned(warmup_steps=5, sweep=sweep)
    assert len(planned(warmup_steps=13, sweep={"workload.steps": [20]}).runs) == 4


@pytest.mark.parametrize("values", [[1, 1.0], ["0.5", 0.5], [0.5, 0.5]])
def test_equal_values_of_a_sweep_are_refused_though_their_ids_differ(values):
    with pytest.raises(UserError, match="sweep lists the same value twice"):
        planned(sweep={"workload.temperature": values})


def test_local_files_are_the_data_and_all_of_a_model_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tmp_path / "model"
    for name in ("config.json", "shards/b.safetensors", "shards/a.safetensors", ".git/HEAD"):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text("{}")
    (tmp_path / "rows.jsonl").write_text("{}")
    workload = copy.deepcopy(RAW["workload"]) | {"data": {"source": "~/rows.jsonl"}, "model": {"source": "~/model"}}
    plan = load_plan(RAW | {"workload": workload})
    (inputs_id,) = plan.inputs
    names = ("rows.jsonl", "model/config.json", "model/shards/a.safetensors", "model/shards/b.safetensors")
    assert plan.local_files(inputs_id) == [str(tmp_path / name) for name in names]


def test_what_a_trainers_arms_share_is_under_each_arms_own_words():
    shared = {
        "trl": {"options": {"max_grad_norm": 0.5, "model_init_kwargs.dtype": "float32"}, "env": {"A": "1", "B": "1"}}
    }
    arms = copy.deepcopy(RAW["arms"])
    arms["vllm"] |= {"options": {"max_grad_norm": 0.25}, "env": {"B": "2"}}
    runs = planned(shared=shared, arms=arms).runs
    assert runs["transformers-s0"].spec["env"] == {"A": "1", "B": "1"}
    assert runs["vllm-s0"].spec["env"] == {"A": "1", "B": "2"}
    assert runs["transformers-s0"].spec["trainer_args"]["max_grad_norm"] == 0.5
    assert runs["vllm-s0"].spec["trainer_args"]["max_grad_norm"] == 0.25
    assert runs["vllm-s0"].spec["trainer_args"]["model_init_kwargs"] == {"dtype": "float32"}


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        ({"gpus_per_node": 1}, "is built for the CPU, but workload.gpus_per_node is 1"),
        ({"mini_batch_size": 8}, "workload.mini_batch_size must be null or batch_size (32) with trainer trl"),
        ({"nodes": 3}, "batch_size must be a multiple of the 3 processes"),
        ({"nodes": 2, "micro_batch_size": 32, "batch_size": 96, "num_generations": 4}, "(got 32; try 16)"),
    ],
)
def test_words_that_an_arm_cannot_follow_are_refused(workload, says):
    with pytest.raises(UserError, match=re.escape(says)):
        planned(workload=RAW["workload"] | workload)


def test_each_process_of_trl_learns_from_its_share_of_the_batch():
    arms = {"transformers": RAW["arms"]["transformers"]}
    raw = {"arms": arms, "baseline": "transformers", "workload": RAW["workload"] | {"nodes": 2}}
    one, two = (planned(**changes).runs["transformers-s0"].spec for changes in ({}, raw))
    for spec, processes in ((one, 1), (two, 2)):
        args = spec["trainer_args"]
        of_each = args["per_device_train_batch_size"] * args["gradient_accumulation_steps"]
        assert of_each * processes == RAW["workload"]["batch_size"]
    assert two["trainer_args"]["generation_batch_size"] == RAW["workload"]["batch_size"]
    assert (two["ray"], two["spread"]) == (False, "torchrun")
    assert not {"spread", "generation_batch_size"} & {*one, *one["trainer_args"]}, "one process is what it was"
    assert (Spread.from_spec(one), Spread.from_spec(two), Spread.from_spec({"ray": True})) == (
        "alone",
        "torchrun",
        "ray",
    )


def on_gpus(options, accelerator="cuda", trainer="trl", **words):
    """The arguments of TRL, or of ms-swift, with transformers on two GPUs."""
    arm = RAW["arms"]["transformers"] | {"trainer": trainer, "options": options}
    workload = RAW["workload"] | {"gpus_per_node": 2} | words
    raw = copy.deepcopy(RAW) | {"arms": {"one": arm}, "baseline": "one", "workload": workload}
    plan = plan_runs(parse_config(raw), lambda _: StackFacts(trainer, "transformers", accelerator, "1.16.0", "0" * 12))
    return cast(dict[str, Any], plan.runs["one-s0"].spec["trainer_args"])


@pytest.mark.parametrize("trainer", ["trl", "swift"])
def test_fsdp_is_an_option_on_several_gpus(trainer):
    args = on_gpus({"fsdp": True, "fsdp_config.reshard_after_forward": False}, trainer=trainer)
    assert (args["fsdp"], args["fsdp_config"]) == (True, {"reshard_after_forward": False})


@pytest.mark.parametrize(
    ("options", "words", "says"),
    [
        ({"fsdp": True}, {"gpus_per_node": 1}, "one process"),
        ({"fsdp": True, "model_init_kwargs.dtype": "bfloat16"}, {}, "weights into float32"),
        # It leaves a reference without weights in all processes but one (TRL 1.16, models/utils.py, prepare_fsdp).
        ({"fsdp": True, "fsdp_config.cpu_ram_efficient_loading": True}, {}, "reshard_after_forward"),
    ],
)
def test_what_fsdp_cannot_do_is_refused(options, words, says):
    with pytest.raises(UserError, match=re.escape(says)):
        on_gpus(options, **words)


def served(stack="cuda", trainer="trl", **changes):
    """The specification of a run with vLLM's server beside its trainer."""
    options = {"vllm_mode": "server", **changes.pop("options", {})}
    raw = copy.deepcopy(RAW) | {"baseline": "vllm"}
    raw["arms"] = {"vllm": {"trainer": trainer, "engine": "vllm", "stack": "x", "options": options}}
    raw["workload"] |= {"batch_size": 24, "num_generations": 4, "micro_batch_size": None, **changes}
    plan = plan_runs(parse_config(raw), lambda _: StackFacts(trainer, "vllm", stack, "1.16.0", "0" * 12))
    return plan.runs["vllm-s0"].spec


@pytest.mark.parametrize("trainer", ["trl", "swift"])
@pytest.mark.parametrize(
    ("workload", "options", "gpus", "processes"),
    [
        ({"gpus_per_node": 4}, {}, 1, 3),
        ({"gpus_per_node": 4}, {"vllm_tensor_parallel_size": 2, "vllm_server_timeout": 60}, 2, 2),
        ({"gpus_per_node": 4, "nodes": 3}, {}, 4, 8),
    ],
)
def test_a_server_has_gpus_of_its_own(trainer, workload, options, gpus, processes):
    spec = served(trainer=trainer, options=options, **workload)
    args = spec["trainer_args"]
    patience_s = options.get("vllm_server_timeout", 1800.0)
    server = {"module": f"trainers.{trainer}.driver.serve", "gpus": gpus, "patience_s": patience_s}
    assert (spec["spread"], spec["ray"], spec["server"]) == ("server", False, server)
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * processes == 24
    assert (args["vllm_tensor_parallel_size"], args["vllm_gpu_memory_utilization"]) == (gpus, 0.9)
    assert not {"vllm_enable_sleep_mode", "sleep_level"} & args.keys()


@pytest.mark.parametrize(
    ("nodes", "options", "parallel"),
    [
        (1, {"vllm_data_parallel_size": 2}, (1, 2)),
        (1, {"vllm_tensor_parallel_size": 1, "vllm_data_parallel_size": 3}, (1, 3)),
        (3, {"vllm_data_parallel_size": 2}, (2, 2)),
    ],
)
def test_a_server_of_several_engines_has_the_gpus_of_all(nodes, options, parallel):
    spec = served(trainer="swift", options=options, gpus_per_node=4, nodes=nodes)
    args, gpus = spec["trainer_args"], parallel[0] * parallel[1]
    assert (args["vllm_tensor_parallel_size"], args["vllm_data_parallel_size"]) == parallel
    processes = 4 - gpus if nodes == 1 else 8
    assert spec["server"]["gpus"] == gpus
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * processes == 24


def test_a_server_on_a_cpu_has_none():
    spec = served("cpu", dtype="float32")
    assert spec["server"]["gpus"] == 0 and spec["trainer_args"]["per_device_train_batch_size"] == 24
    assert served("cpu", dtype="float32", nodes=3)["trainer_args"]["per_device_train_batch_size"] == 12


def test_an_adapter_is_turned_on_by_its_switch():
    words = {"use_peft": True, "lora_r": 8}
    assert served("cpu", dtype="float32", options=words)["trainer_args"].items() >= words.items()
    with pytest.raises(UserError, match=r"options\.lora_r is for a LoRA adapter; set options\.use_peft to true"):
        served("cpu", dtype="float32", options={"lora_r": 8})


def test_an_adapter_is_refused_where_nothing_merges_it():
    raw = copy.deepcopy(RAW) | {"baseline": "one"}
    raw["arms"] = {
        "one": {"trainer": "trl", "engine": "sglang", "stack": "x", "options": {"use_peft": True, "lora_r": 8}}
    }
    raw["workload"] |= {"gpus_per_node": 1}
    with pytest.raises(UserError, match=r"options\.use_peft cannot be used with engine sglang"):
        plan_runs(parse_config(raw), lambda _: StackFacts("trl", "sglang", "cuda", "1.16.0", "0" * 12))


@pytest.mark.parametrize(
    ("trainer", "workload", "options", "says"),
    [
        ("trl", {"gpus_per_node": 1}, {}, "needs GPUs that nothing trains on: .* may be none .got 1"),
        ("trl", {"gpus_per_node": 4}, {"vllm_tensor_parallel_size": 4}, "may be 1 to 3 .got 4"),
        ("trl", {"gpus_per_node": 4, "nodes": 2}, {"vllm_tensor_parallel_size": 8}, "last node, .* 1 to 4 .got 8"),
        (
            "swift",
            {"gpus_per_node": 4},
            {"vllm_tensor_parallel_size": 2, "vllm_data_parallel_size": 2},
            "1 to 3 .got 2 times 2",
        ),
    ],
)
def test_gpus_of_a_server_that_the_trainer_would_share_are_refused(trainer, workload, options, says):
    with pytest.raises(UserError, match=says):
        served(trainer=trainer, options=options, **workload)


@pytest.mark.parametrize(
    ("version", "options", "cpus"),
    [
        ("0.4.1", {}, 1 + 8),
        ("0.9.1", {}, 1 + 8 + 3 * 8),
        ("0.9.1", {"transfer_queue.backend.SimpleStorage.num_data_storage_units": 2}, 1 + 2 + 3 * 8),
        ("0.9.1", {"trainer.use_v1": False}, 1 + 3 * 8),
    ],
)
def test_what_verl_reserves_of_ray_is_known_before_it_starts(version, options, cpus):
    raw = copy.deepcopy(RAW)
    raw["arms"] = {"sglang": {"trainer": "verl", "engine": "sglang", "stack": "x", "options": options}}
    raw["baseline"] = "sglang"
    raw["workload"] |= {"gpus_per_node": 8, "dtype": "bfloat16"}
    plan = plan_runs(parse_config(raw), lambda _: StackFacts("verl", "sglang", "cuda", version, "0" * 12))
    assert {run.spec["least_cpus"] for run in plan.runs.values()} == {cpus}


def test_the_plan_is_the_same_after_a_journey_as_json():
    """As the rule `plan` hands the configuration to its command."""
    facts = cache(stack_facts)
    for file in [ROOT / "config.yaml", *sorted((ROOT / "experiments").glob("*.yaml"))]:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        one, same = (plan_runs(parse_config(some), facts) for some in (raw, json.loads(json.dumps(raw))))
        assert one.as_json() == same.as_json(), file


def test_a_model_without_weights_is_only_for_replays():
    with pytest.raises(UserError, match=r"builtin:phi4-shape has no weights to train; use it with trainer replay"):
        planned(workload=RAW["workload"] | {"model": {"source": "builtin:phi4-shape"}})


def test_a_checkpoint_that_cannot_be_resumed_from_is_refused():
    arms = copy.deepcopy(RAW["arms"])
    arms["vllm"]["options"] = {**arms["vllm"].get("options", {}), "save_only_model": True}
    with pytest.raises(UserError, match=r"options.save_only_model of an arm is not free"):
        planned(arms=arms)
