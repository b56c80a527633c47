"""Reads a command of TRL, `trl grpo --config grpo.yaml ...`, as an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainers.hf_launch import Defaults, Given, by_words, context, given_arguments, hub_or_path, launched
from trainers.launching import Argument, Launch, Launched, Left, Surroundings, as_count

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
_REWARDS: Mapping[str, dict[str, Any]] = {
    "accuracy_reward": {"name": "accuracy"},
    "get_soft_overlong_punishment": {
        "name": "soft_overlong",
        "options": {"max_response_length": 1280, "cache_length": 256},
    },
}


def arguments(words: Sequence[str]) -> int | None:
    """Where the options of `trl grpo` begin."""
    names = [word.rpartition("/")[2] for word in words]
    for place, name in enumerate(names[:-1]):
        if name == "trl" and words[place + 1] == "grpo":
            return place + 2
    for place, word in enumerate(words):
        # The command's own program: trl/scripts/grpo.py, or -m trl.scripts.grpo.
        if word == "trl.scripts.grpo" or word.endswith("trl/scripts/grpo.py"):
            return place + 1
    return None


def settings(words: Sequence[Argument], around: Surroundings, version: str) -> Mapping[str, Any]:
    """The settings that the command itself gives."""
    return {name: one.value for name, one in given_arguments(words, around)[0].items()}


def launch(words: Sequence[Argument], around: Surroundings) -> Launched:
    """The experiment of the command."""
    given, left = given_arguments(words, around)
    engine = "vllm" if given.get("use_vllm", Given(False, 0, "")).value is True else "transformers"
    served = engine == "vllm" and given.get("vllm_mode", Given("colocate", 0, "")).value == "server"
    gpus = _server_gpus(around) if served else 0
    adapter = given.get("use_peft", Given(False, 0, "")).value is True
    found = launched(given, around, _DEFAULTS, engine=engine, owned=_OWNED, adapter=adapter, server_gpus=gpus)
    found.left = [*left, *found.left, *context(given, "vllm_max_model_length", engine)]
    if engine == "vllm" and not served:
        # TRL's default; an experiment's engine sleeps during the update.
        found.engine_options.setdefault(engine, {}).setdefault("vllm_enable_sleep_mode", False)
    if engine == "vllm":
        why = "off in an experiment, for all engines alike; the script has TRL's default, on"
        found.left.append(Left(0, "vllm_importance_sampling_correction, use_bias_correction_kl", why))
    if served and gpus:
        found.engine_options.setdefault(engine, {})["vllm_tensor_parallel_size"] = gpus
    _model(given, found)
    _data(given, found)
    _rewards(given, found)
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


def _rewards(given: Mapping[str, Given], found: Launched) -> None:
    names = given.get("reward_funcs")
    values = [] if names is None else names.value if isinstance(names.value, list) else [names.value]
    weights = given["reward_weights"].value if "reward_weights" in given else []
    weights = weights if isinstance(weights, list) else [weights]
    rewards: list[dict[str, Any]] = []
    for place, name in enumerate(map(str, values)):
        line = names.line if names else 0
        if name in _REWARDS:
            reward = dict(_REWARDS[name])
        elif "." in name:
            module, _, function = name.rpartition(".")
            reward = {"source": f"{module.replace('.', '/')}.py", "function": function, "signature": "trl"}
        else:
            why = "an experiment has no reward of this name"
            found.left.append(Left(line, name, why, "give your own function under workload.rewards (docs/rewards.md)"))
            continue
        if place < len(weights) and weights[place] != 1:
            reward["weight"] = float(weights[place])
        rewards.append(reward)
    if not rewards:
        found.left.append(Left(0, "reward_funcs", "none that an experiment has: `accuracy` is used", "add yours"))
    found.workload["rewards"] = rewards or [{"name": "accuracy"}]


def _server_gpus(around: Surroundings) -> int:
    """The GPUs of `trl vllm-serve` in the same script; 1 if it is started elsewhere."""
    for words in around.commands:
        texts = [word.text for word in words]
        if _SERVER in texts:
            given, _ = given_arguments(words[texts.index(_SERVER) + 1 :], around)
            return as_count(given.get("tensor_parallel_size", Given(1, 0, "")).value, 1)
    return 1


LAUNCH = Launch(arguments=arguments, read=launch, settings=settings, server=_SERVER, by_words=by_words)
