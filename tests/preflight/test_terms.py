"""Settings of different trainers are compared by what they mean, whatever they are called."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from common.findings import LedgerRow
from trainers.registry import trainer_named
from trainers.terms import ADAPTER_ONLY, ALL_WEIGHTS, GPUS_PER_COPY, TERMS, TRAINED_WEIGHTS, WEIGHTS_SENT
from workflow.preflight import PreflightResult
from workflow.preflight.cases import settings_id

from .plans import ACTOR, ARTICLE, EQUAL, ROLLOUT, cases, looked_at, planned

VERL = {"trainer": "verl", "engine": "vllm", "stack": "verl09-vllm"}
TRL = {"trainer": "trl", "engine": "vllm", "stack": "trl-gpu-vllm", "options": {"fsdp": True}}
# What TRL 1.16's own configuration adds to the plan's settings, as far as a term asks for it.
TRLS_OWN: dict[str, Any] = {
    **{"optim": "adamw_torch_fused", "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.0},
    **{"max_grad_norm": 1.0, "num_iterations": 1, "model_init_kwargs.dtype": "float32", "fp16": False, "epsilon": 0.2},
    **{"epsilon_high": None, "delta": None, "importance_sampling_level": "token", "scale_rewards": "group"},
    **{"sync_ref_model": False, "entropy_coef": 0.0, "mask_truncated_completions": False, "top_k": 0, "min_p": None},
    **{"repetition_penalty": 1.0},
}


def seen(verl: dict[str, Any] | None = None, workload: dict[str, Any] | None = None, **trl: Any) -> PreflightResult:
    """verl beside TRL with resolved settings, with these options of either."""
    arms = {"verl": {**VERL, "options": verl or {}}, "trl": TRL}
    words = {"rewards": [{"name": "accuracy"}, {"name": "format", "weight": 0.5}], "loss_type": "dapo"}
    plan = planned(EQUAL, arms=arms, **{**words, **(workload or {})})
    known = {
        settings_id(run): {
            "version": "1.16.0",
            "settings": {**TRLS_OWN, **run.spec["trainer_args"], **trl},
        }
        for run in plan.runs.values()
        if run.spec["arm"] == "trl"
    }
    return looked_at(plan, composed=known)


def terms(found: PreflightResult) -> dict[str, LedgerRow]:
    return {row.setting.removeprefix("term: "): row for row in found.ledger if row.setting.startswith("term: ")}


def test_equal_terms_in_other_words_are_equal() -> None:
    rows = terms(seen())
    assert list(rows) != [] and set(rows) == set(TERMS)
    uneven = {name: row.verdict for name, row in rows.items() if row.verdict != "equal"}
    assert uneven == {
        # verl clips them at 3, TRL not at all: without effect where a batch has one update.
        "dual-clip bound": "equivalent",
        "epsilon of that divisor": "different",
        "KL estimate": "different",
        "log-probabilities of the old policy": "different",
        "order of the prompts": "different",
    }
    assert rows["reward weights"].values == {"verl": "[1.0, 0.5]", "trl": "[1.0, 0.5]"}
    assert rows["top-k"].values == {"verl": "off", "trl": "off"}
    assert rows["loss"].values == {"verl": "dapo", "trl": "dapo"}


DIFFERENT: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("Adam's betas", {}, {"adam_beta2": 0.95}, "adam_beta2"),
    ("divisor of the advantages", {}, {"scale_rewards": "none"}, "scale_rewards"),
    ("loss", {}, {"loss_type": "bnpo"}, "loss_type"),
    ("reward weights", {}, {"reward_weights": [1.0, 1.0]}, "reward_weights"),
    ("truncated completions", {}, {"mask_truncated_completions": True}, "mask_truncated_completions"),
    ("top-k", {f"{ROLLOUT}.top_k": 50}, {}, "top_k"),
    ("number format of the weights", {}, {"model_init_kwargs.dtype": "bfloat16"}, "model_init_kwargs.dtype"),
    ("updates per batch", {}, {"num_iterations": 2}, "num_iterations"),
    (GPUS_PER_COPY, {}, {"fsdp": None}, "fsdp"),
    (GPUS_PER_COPY, {f"{ACTOR}.fsdp_config.fsdp_size": 4}, {}, f"{ACTOR}.fsdp_config.fsdp_size"),
]


@pytest.mark.parametrize(("name", "verl", "trl", "key"), DIFFERENT)
def test_a_term_that_differs_is_told_with_the_setting(
    name: str, verl: dict[str, Any], trl: dict[str, Any], key: str
) -> None:
    found = seen(verl, **trl)
    row = terms(found)[name]
    assert row.verdict == "different" and key in row.why
    (finding,) = [one for one in found.findings if one.code == "trainer-terms"]
    assert finding.level == "unequal" and f"{name} (" in finding.what and key in finding.change


def test_an_adapter_is_a_term_and_what_the_engine_gets_of_it() -> None:
    model = "actor_rollout_ref.model"
    verl = {f"{model}.lora_rank": 16, f"{model}.lora_alpha": 64, f"{model}.target_modules": ["v_proj", "q_proj"]}
    trl = {"use_peft": True, "lora_r": 16, "lora_alpha": 64, "lora_dropout": 0.0}
    trl["lora_target_modules"] = ["q_proj", "v_proj"]
    rows = terms(seen(verl, **trl))
    assert rows[TRAINED_WEIGHTS].verdict == "equal"
    assert rows[TRAINED_WEIGHTS].values["trl"] == "an adapter: rank 16, alpha 64, dropout 0, in q_proj, v_proj"
    assert rows[WEIGHTS_SENT].verdict == "different" and rows[WEIGHTS_SENT].values == {
        "verl": ADAPTER_ONLY,
        "trl": ALL_WEIGHTS,
    }
    merged = terms(seen(verl | {f"{model}.lora.merge": True}, **trl))
    assert merged[WEIGHTS_SENT].verdict == "equal"
    assert terms(seen(verl))[TRAINED_WEIGHTS].verdict == "different"


def test_clipping_matters_as_soon_as_a_batch_has_two_updates() -> None:
    found = seen({f"{ACTOR}.ppo_epochs": 2}, num_iterations=2)
    rows = terms(found)
    assert rows["updates per batch"].verdict == "equal"
    assert rows["dual-clip bound"].verdict == "different"
    # TRL's delta is verl's clip_ratio_c.
    rows = terms(seen({f"{ACTOR}.ppo_epochs": 2}, num_iterations=2, delta=3.0))
    assert rows["dual-clip bound"].verdict == "equal"


def imported(trainer: str, **settings: Any) -> dict[str, Any]:
    """What the settings of a run that has trained elsewhere come to."""
    (arm,) = cases(EQUAL, arms={"vllm": VERL if trainer == "verl" else TRL}).values()
    told = dataclasses.replace(arm.settings, values={**TRLS_OWN, **arm.settings.values, **settings})
    case = dataclasses.replace(arm, settings=told, imported=True)
    return {name: one.value for name, one in case.trainer.rules.terms(case).items()}


def test_mini_batches_are_updates_of_a_batch() -> None:
    verl = {"data.train_batch_size": 256, f"{ACTOR}.ppo_mini_batch_size": 64}
    assert imported("verl", **verl)["updates per batch"] == 4
    assert imported("verl", **verl, **{f"{ACTOR}.ppo_epochs": 2})["updates per batch"] == 8
    trl = {"num_iterations": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 8}
    assert imported("trl", **trl)["updates per batch"] == 4
    assert imported("trl", **trl | {"steps_per_generation": None})["updates per batch"] is None


def test_a_setting_that_is_no_number_is_not_told() -> None:
    """TRL takes null for the longest completion; DeepSpeed's word is auto."""
    odd = imported("trl", max_completion_length=None, gradient_accumulation_steps="auto", steps_per_generation=8)
    assert odd["longest completion"] is None and odd["updates per batch"] is None
    assert imported("verl", **{f"{ACTOR}.ppo_mini_batch_size": "auto"})["updates per batch"] is None


@pytest.mark.parametrize(
    ("trainer", "settings", "course"),
    [
        ("trl", {"warmup_steps": 5, "warmup_ratio": 0.1}, "constant after 5 steps"),
        ("trl", {"warmup_steps": 0, "warmup_ratio": 0.1}, "constant after 0.1 of all steps"),
        ("trl", {"warmup_steps": 0.1}, "constant after 0.1 of all steps"),
        ("verl", {"lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.1}, "constant after 0.1 of all steps"),
        ("verl", {"lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.0}, "constant"),
    ],
)
def test_a_warm_up_may_be_a_share_of_all_steps(trainer: str, settings: dict[str, Any], course: str) -> None:
    own = {f"{ACTOR}.optim.{name}": value for name, value in settings.items()} if trainer == "verl" else settings
    assert imported(trainer, **own)["learning rate schedule"] == course


def test_what_no_setting_makes_equal_is_told() -> None:
    (finding,) = [one for one in seen().findings if one.code == "trainer-ways"]
    assert "KL estimate (k3, at most 10 in verl; k3 in trl)" in finding.what
    assert "epsilon of that divisor (1e-06 in verl; 0.0001 in trl)" in finding.what
    without = [one.what for one in seen(workload={"beta": 0.0}).findings if one.code == "trainer-ways"]
    assert without and "KL estimate" not in without[0]
    named = seen(workload={"loss_type": "bnpo"})
    assert terms(named)["loss"].verdict == "different"
    assert "takes the mean over all tokens of the optimizer step" in terms(named)["loss"].values["verl"]


def test_what_is_not_resolved_yet_is_not_called_equal() -> None:
    plan = planned(EQUAL, arms={"verl": VERL, "trl": TRL})
    rows = terms(looked_at(plan))
    assert rows["Adam's betas"].verdict == "unverifiable" and rows["learning rate"].verdict == "equal"


def test_arms_of_one_trainer_are_compared_by_its_settings() -> None:
    assert terms(looked_at(planned(ARTICLE))) == {}


def test_every_driven_trainer_tells_every_term() -> None:
    one = cases(EQUAL)["vllm"]
    assert set(one.trainer.rules.terms(one)) == set(TERMS)
    for name in ("trl", "swift"):
        assert set(trainer_named(name).rules.terms(one)) == set(TERMS)
