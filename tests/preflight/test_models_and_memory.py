"""Sizes of models and what they come to in memory; what is not known is said to be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.gpus import KNOWN_GPUS, gpu_of
from common.model_facts import facts_of, model_facts
from trainers.memory_estimate import MemoryEstimate
from workflow.preflight.checks.one_case import parts_text as told

from .plans import ACTOR, ARTICLE, EQUAL, ROLLOUT, looked_at, planned


@pytest.mark.parametrize(
    ("source", "billions", "context"),
    [
        ("microsoft/Phi-4-reasoning-plus", 14.66, 32768),
        ("microsoft/phi-4", 14.66, 16384),
        ("Qwen/Qwen2.5-0.5B", 0.494, 32768),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1.54, 32768),
        ("Qwen/Qwen2.5-7B", 7.61, 131072),
        ("meta-llama/Llama-3.1-8B", 8.03, 131072),
        ("meta-llama/Llama-3.1-70B", 70.55, 131072),
    ],
)
def test_known_models_have_the_parameters_of_their_cards(source: str, billions: float, context: int) -> None:
    facts = model_facts(source)
    assert facts is not None and facts.parameters is not None and facts.context == context
    assert facts.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert source in facts.source


def test_a_local_folder_is_read(tmp_path: Path) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 28,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = model_facts(str(tmp_path))
    assert facts is not None and facts.parameters is not None
    assert facts.parameters == pytest.approx(0.596e9, rel=0.005)
    # The head's width is the config's own, not hidden over heads.
    assert (facts.head_dim, facts.kv_bytes) == (128, 2 * 28 * 8 * 128 * 2)
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["MixtralForCausalLM"]}))
    experts = model_facts(str(tmp_path))
    assert experts is not None and experts.parameters is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"hidden_size": 0}', "\ufeff{"])
def test_a_folder_that_tells_nothing_is_unknown(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    assert model_facts(str(tmp_path)) is None
    assert model_facts("somebody/else") is None
    assert facts_of({}, "nowhere") is None


def test_the_builtin_model_is_known() -> None:
    facts = model_facts("builtin:tiny-qwen2")
    assert facts is not None and facts.parameters is not None and 500_000 < facts.parameters < 2_000_000


def test_gpus_are_found_by_name_in_any_case() -> None:
    gpu = gpu_of("h100-80gb")
    assert gpu is not None and gpu.memory_gib == 80
    assert gpu_of("H100") is None and gpu_of(None) is None
    assert all(
        0.9 < gpu.memory_gib / int(name.rpartition("-")[2].removesuffix("GB")) <= 1 and gpu.source
        for name, gpu in KNOWN_GPUS.items()
    )


def estimate(raw: dict[str, Any], arm: str = "vllm", **changes: Any) -> MemoryEstimate:
    return looked_at(planned(raw, **changes)).memory[arm]


def test_the_articles_estimate_is_shown_with_its_parts() -> None:
    one = estimate(ARTICLE)
    assert one.gib == 80 and 50 < MemoryEstimate.sum(one.update) < 75
    # bfloat16 by model_dtype, over 8 GPUs: 14.66e9 * 2 / 8.
    weights = next(part for part in one.update if part.name.startswith("weights"))
    assert weights.counted and weights.gib == pytest.approx(3.41, abs=0.02)
    assert one.rollout[0].gib == pytest.approx(13.65, abs=0.05)  # 14.66e9 * 2 over 2 GPUs
    assert one.kv_wanted == 4 * 32764 and one.kv_never_full
    assert "AdamW" in told(one.update) and "~" in told(one.update)


def test_sglangs_share_is_of_what_is_free() -> None:
    resident = {f"{ACTOR}.fsdp_config": {"param_offload": False, "optimizer_offload": False, "forward_prefetch": True}}
    free = estimate(ARTICLE, "sglang")
    full = estimate(ARTICLE, "sglang", options=resident)
    assert free.kv_tokens is not None and full.kv_tokens is not None and full.kv_tokens < free.kv_tokens
    assert estimate(EQUAL, options=resident).kv_tokens == estimate(EQUAL).kv_tokens


def test_vllm_of_0_4_1_pays_for_what_the_trainer_holds_in_its_process() -> None:
    """It counts all that is taken of the GPU, whoever has it; moments are not there yet when it does."""
    of = [
        {"param_offload": params, "optimizer_offload": moments, "forward_prefetch": True}
        for params, moments in [(True, True), (False, True), (True, False)]
    ]
    all_off, weights, moments = (estimate(ARTICLE, options={f"{ACTOR}.fsdp_config": one}).kv_tokens for one in of)
    assert all_off is not None and weights is not None
    # 14.66e9 parameters of 2 bytes over 8 GPUs, in tokens of 102400 bytes
    assert all_off - weights == pytest.approx(14_659_092_480 * 2 / 8 / 102_400, abs=1)
    assert moments == all_off


def test_the_room_is_what_vllm_leaves_by_hand() -> None:
    """0.7 of 80 GiB, less half of 27.3 GiB of weights, 3.87 GiB for a pass of 33792 tokens and 3 GiB of context."""
    tokens = estimate(ARTICLE).kv_tokens
    assert tokens == pytest.approx((56 - 13.652 - 3.867 - 3) * 2**30 / 102_400, rel=1e-3)


def test_a_cache_is_never_full_only_with_room_to_spare() -> None:
    full = replace(estimate(ARTICLE), kv_wanted=100, kv_tokens=119)
    assert not full.kv_never_full and replace(full, kv_tokens=120).kv_never_full


def test_what_waits_for_its_turn_holds_no_cache() -> None:
    many = {"batch_size": 4096, "num_generations": 8, "mini_batch_size": None, "micro_batch_size": 1}
    assert estimate(EQUAL, **many).kv_wanted == 256 * (1020 + 31744)
    assert estimate(ARTICLE, **many).kv_wanted == 1024 * (1020 + 31744)


def test_lora_has_no_reference_of_its_own() -> None:
    lora = {"actor_rollout_ref.model.lora_rank": 16, f"{ACTOR}.strategy": "fsdp"}
    assert not any("reference" in part.name for part in estimate(EQUAL, options=lora).update)
    assert any("reference" in part.name for part in estimate(EQUAL, options={f"{ACTOR}.strategy": "fsdp"}).update)
    assert any("stay with" in part.name for part in estimate(EQUAL, "sglang", options=lora).update)


def test_fsdp_shares_what_ddp_holds_in_each_process() -> None:
    arm = {"trainer": "trl", "engine": "vllm", "stack": "trl-gpu-vllm"}
    options = ({}, {"fsdp": True}, {"fsdp": True, "fsdp_config.reshard_after_forward": False})
    arms = {str(at): {**arm, "options": one} for at, one in enumerate(options)}
    ddp, fsdp, kept = (estimate(EQUAL, at, arms=arms).update for at in arms)
    assert fsdp[0].gib == pytest.approx(ddp[0].gib / 8)
    gathered = [part.gib for part in fsdp if "reference gathered" in part.name]
    assert gathered == [pytest.approx(ddp[0].gib / 2)], "TRL shards the reference as one unit"
    assert MemoryEstimate.sum(fsdp) + gathered[0] == pytest.approx(MemoryEstimate.sum(kept))
    assert MemoryEstimate.sum(kept) < MemoryEstimate.sum(ddp) / 2


def test_an_engine_that_stays_awake_costs_memory_in_0_9_1_only() -> None:
    awake = {f"{ROLLOUT}.free_cache_engine": False}
    assert MemoryEstimate.sum(estimate(EQUAL, options=awake).update) > MemoryEstimate.sum(estimate(EQUAL).update) + 50
    assert estimate(ARTICLE, options=awake).update == estimate(ARTICLE).update


def test_more_gpus_and_lora_need_less() -> None:
    whole = MemoryEstimate.sum(estimate(ARTICLE).update)
    assert MemoryEstimate.sum(estimate(ARTICLE, nodes=2).update) < whole
    assert MemoryEstimate.sum(estimate(ARTICLE, options={"actor_rollout_ref.model.lora_rank": 16}).update) < whole
    streamed = {f"{ACTOR}.fsdp_config.offload_policy": True}
    assert MemoryEstimate.sum(estimate(ARTICLE, options=streamed).update) < whole


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu": None}, "workload.gpu is not given; known: A10-24GB"),
        ({"gpu": "H100"}, "workload.gpu 'H100' is unknown"),
        ({"model": {"source": "somebody/else", "revision": "0" * 40}}, "sizes of model somebody/else are unknown"),
    ],
)
def test_what_is_not_known_is_said_and_not_guessed(changes: dict[str, Any], said: str) -> None:
    seen = looked_at(planned(ARTICLE, **changes))
    assert seen.memory == {}
    assert any(said in one for one in seen.unverifiable)
    assert not {"memory", "memory-cache"} & {finding.code for finding in seen.findings}


def test_an_unknown_release_of_verl_is_said() -> None:
    plan = planned(EQUAL)
    for run in plan.runs.values():
        run.spec["trainer_args"]["version"] = "0.7.0"
    seen = looked_at(plan)
    assert any("verl 0.7.0" in one for one in seen.unverifiable)
    assert "cuda-graphs" not in {finding.code for finding in seen.findings}
