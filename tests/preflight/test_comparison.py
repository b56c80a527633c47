"""What differs between arms is named: settings, releases, trainers, and options that only one engine has."""

from .plans import ARTICLE, EQUAL, ROLLOUT, codes, found, looked_at, planned

KWARGS = f"+{ROLLOUT}.engine_kwargs"


def test_arms_of_one_engine_may_differ_in_a_setting_and_it_is_said():
    options = {"actor_rollout_ref.actor.fsdp_config.param_offload": False}
    arm = {"trainer": "verl", "engine": "vllm", "stack": "verl09-vllm"}
    arms = {"offloaded": arm, "resident": {**arm, "options": options}}
    assert codes(EQUAL, "unequal", arms=arms) == ["settings"]
    assert "param_offload (True in offloaded; False in resident)" in found(EQUAL, arms=arms)["settings"].what


def test_an_engines_own_option_is_not_called_equivalent():
    def row(seen):
        return next(row for row in seen.ledger if row.setting.endswith("swap_space"))

    options = {f"{KWARGS}.vllm.swap_space": 8}
    seen = looked_at(planned(EQUAL, options=options))
    assert row(seen).verdict == "unverifiable" and "engine-options" in {one.code for one in seen.findings}
    arm = {"trainer": "verl", "engine": "vllm", "stack": "verl09-vllm"}
    seen = looked_at(planned(EQUAL, arms={"plain": arm, "more": {**arm, "options": options}}))
    assert row(seen).verdict == "different"


def test_an_option_that_verl_does_not_pass_on_is_another_finding():
    assert "engine-options" not in found(ARTICLE, options={f"{KWARGS}.sglang.kv_cache_dtype": "fp8_e5m2"})
    assert "engine-options" in found(ARTICLE, options={f"{KWARGS}.vllm.kv_cache_dtype": "fp8"})


def test_other_trainers_and_releases_are_unequal():
    arms = {
        "old": {"trainer": "verl", "engine": "vllm", "stack": "verl04-vllm"},
        "new": {"trainer": "verl", "engine": "vllm", "stack": "verl09-vllm"},
    }
    # What 0.4.1's configuration lacks and 0.9.1's has cannot be said to both in one way.
    both = {key: None for key in ARTICLE["shared"]["verl"]["options"] if key.startswith("+")}
    assert {"trainer-versions", "torch-versions"} <= set(found(ARTICLE, arms=arms, options=both))
    assert not {"trainer-versions", "torch-versions", "trainers"} & set(found(ARTICLE))
    arms["new"] = {"trainer": "trl", "engine": "vllm", "stack": "trl-gpu-vllm"}
    seen = found(
        ARTICLE,
        arms=arms,
        options={f"{ROLLOUT}.tensor_model_parallel_size": 1},
        num_generations=4,
        mini_batch_size=None,
        gpus_per_node=1,
        micro_batch_size=4,
    )
    assert seen["trainers"].level == "unequal"


def test_a_sweep_is_compared_point_by_point():
    seen = looked_at(planned(EQUAL | {"sweep": {"workload.temperature": [0.7, 1.0]}}))
    assert "settings" not in {finding.code for finding in seen.findings}
    row = next(row for row in seen.ledger if row.setting == "workload.temperature")
    assert (row.verdict, row.values["vllm"]) == ("equal", "0.7 | 1.0")
