"""Reads a command of TRL, `trl grpo --config grpo.yaml ...`, as an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainers.hf_launch import (
    Defaults,
    Given,
    compared_by_words,
    context,
    given_arguments,
    hub_or_path,
    launched,
    options_begin,
    rewards,
    server_settings,
    value_in,
)
from trainers.launching import Argument, Launch, Launched, Left, Surroundings

_SERVER = "vllm-serve"
# GRPOConfig of TRL 1.16, and TrainingArguments.
_DEFAULTS = Defaults(
    {
        **{"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8},
        **{"max_completion_length": 512, "temperature": 1.0, "top_p": 1.0, "learning_rate": 1e-6, "beta": 0.0},
        **{"loss_type": "dapo", "bf16": True, "save_steps": 500, "seed": 42, "num_train_epochs": 3},
    },
    # An experiment turns off what TRL does for vLLM only.
    {},
)
# Of the command's script and of ModelConfig, and what the job sets.
_OWNED = frozenset(
    {
        *("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming"),
        *("reward_model_name_or_path", "model_revision", "attn_implementation", "dtype", "torch_dtype"),
        *("use_vllm", "vllm_server_host", "vllm_server_port", "vllm_server_base_url", "vllm_group_port"),
        *("vllm_importance_sampling_correction", "use_bias_correction_kl", "gradient_checkpointing_kwargs"),
    }
)
_NOT_HERE = {
    "reward_model_name_or_path": "rewards are functions; a reward model is one, too (docs/rewards.md)",
    "dataset_test_split": "validation is data.test_source with workload.test_steps",
    "dataset_streaming": "the data is read as a whole",
}
_REWARDS: Mapping[str, dict[str, Any]] = {
    "accuracy_reward": {"name": "accuracy"},
    "get_soft_overlong_punishment": {
        "name": "soft_overlong",
        "options": {"max_response_length": 1280, "cache_length": 256},
    },
}


def arguments(words: Sequence[str]) -> int | None:
    """Where the options of `trl grpo` begin."""
    return options_begin(words, ("trl", "grpo"), ("trl.scripts.grpo", "trl/scripts/grpo.py"))


def settings(words: Sequence[Argument], around: Surroundings, version: str) -> Mapping[str, Any]:
    """The settings that the command itself gives."""
    return {name: one.value for name, one in given_arguments(words, around)[0].items()}


def launch(words: Sequence[Argument], around: Surroundings) -> Launched:
    """The experiment of the command."""
    given, left = given_arguments(words, around)
    engine = "vllm" if value_in(given, "use_vllm") is True else "transformers"
    served = engine == "vllm" and value_in(given, "vllm_mode", "colocate") == "server"
    tensor, data = server_settings(around, _SERVER, "tensor_parallel_size", "data_parallel_size")
    gpus = tensor if served else 0
    adapter = value_in(given, "use_peft") is True
    found = launched(given, around, _DEFAULTS, engine=engine, owned=_OWNED, adapter=adapter, server_gpus=gpus)
    found.left = [*left, *found.left, *context(given, "vllm_max_model_length", engine)]
    if engine == "vllm" and not served:
        # TRL's default; an experiment's engine sleeps during the update.
        found.engine_options.setdefault(engine, {}).setdefault("vllm_enable_sleep_mode", False)
    if engine == "vllm":
        why = "off in an experiment, for all engines alike; the script has TRL's default, on"
        found.left.append(Left(0, "vllm_importance_sampling_correction, use_bias_correction_kl", why))
    if served:
        found.engine_options.setdefault(engine, {})["vllm_tensor_parallel_size"] = gpus
    if served and data > 1:
        why = "TRL's server has one engine in an experiment"
        found.left.append(Left(0, f"trl {_SERVER} --data_parallel_size {data}", why))
    _model(given, found)
    _data(given, found)
    rewards(given, found, _reward)
    found.left += [Left(given[name].line, given[name].text, why) for name, why in _NOT_HERE.items() if name in given]
    if value_in(given, "use_cpu") is True:
        found.workload |= {"gpus_per_node": 0, "dtype": "float32"}
    return found


def _model(given: Mapping[str, Given], found: Launched) -> None:
    source = given.get("model_name_or_path") or given.get("model")
    revision = given.get("model_revision")
    found.workload["model"] = {"source": str(source.value) if source else ""}
    if revision is not None and str(revision.value) != "main":
        found.workload["model"]["revision"] = str(revision.value)
    init = dict(found.options.get("model_init_kwargs") or {})
    for name, key in (("attn_implementation", "attn_implementation"), ("dtype", "dtype"), ("torch_dtype", "dtype")):
        if name in given and given[name].value not in ("auto", None):
            init[key] = given[name].value
    if init:
        found.options["model_init_kwargs"] = init


def _data(given: Mapping[str, Given], found: Launched) -> None:
    source = given.get("dataset_name")
    data: dict[str, Any] = {"source": hub_or_path(str(source.value)) if source else ""}
    for name, key in (("dataset_config", "subset"), ("dataset_train_split", "split")):
        if name in given:
            data[key] = str(given[name].value)
    found.workload["data"] = data


def _reward(name: str) -> dict[str, Any] | None:
    if name in _REWARDS or "." not in name:
        return dict(_REWARDS[name]) if name in _REWARDS else None
    module, _, function = name.rpartition(".")
    return {"source": f"{module.replace('.', '/')}.py", "function": function, "signature": "trl"}


LAUNCH = Launch(arguments=arguments, read=launch, settings=settings, server=_SERVER, not_compared=compared_by_words)
