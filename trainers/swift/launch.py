"""Reads a command of ms-swift, `swift rlhf --rlhf_type grpo ...`, as an experiment; names of 3.x and of 4.x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.errors import UserError
from trainers.hf_launch import (
    Defaults,
    Given,
    compared_by_words,
    context,
    given_arguments,
    hub_or_path,
    launched,
    line_of,
    options_begin,
    rewards,
    server_settings,
    value_in,
    values_of,
)
from trainers.launching import Argument, Launch, Launched, Left, Surroundings, as_count

_SERVER = "rollout"
# ms-swift 4.6.0, arguments/rlhf_args.py, sft_args.py and rlhf_trainers/args_mixin.py.
_DEFAULTS = Defaults(
    {
        **{"per_device_train_batch_size": 1, "num_generations": 8, "max_completion_length": 512},
        **{"temperature": 0.9, "top_p": 1.0, "beta": 0.04, "loss_type": "grpo", "bf16": True, "seed": 42},
        **{"save_steps": 500, "num_train_epochs": 3, "lr_scheduler_type": "cosine"},
    },
    {"tuner_type": "lora", "torch_dtype": "bfloat16", "adam_beta2": 0.95, "weight_decay": 0.1}
    | {"dataloader_num_workers": 1},
)
_RENAMED = {"train_type": "tuner_type", "sft_type": "tuner_type"}
"""Name in 3.x -> name in 4.x."""
_GONE = frozenset({"num_infer_workers", "vllm_device", "gc_collect_after_offload", "move_model_batches", "gpu_memory"})
"""Arguments of 3.x without a place in 4.x."""
_NOT_HERE = {
    "model_type": "the model's own configuration says its type",
    "template": "prompts use the tokenizer's own chat template",
    "use_hf": "ids are those of the Hugging Face hub",
    "val_dataset": "validation is data.test_source with workload.test_steps",
    **dict.fromkeys(("cosine_max_len", "repetition_max_penalty"), "the built-in reward has no such option"),
}
_OWNED = frozenset(
    {
        *("rlhf_type", "dataset", "val_dataset", "dataset_num_proc", "external_plugins", "system", "max_length"),
        *("use_vllm", "vllm_server_host", "vllm_server_port", "vllm_server_base_url", "vllm_server_group_port"),
        *("model_type", "template", "add_version", "use_hf", "cosine_min_len_value_wrong", "soft_cache_length"),
        *("cosine_max_len_value_wrong", "cosine_min_len_value_correct", "cosine_max_len_value_correct"),
        *("cosine_max_len", "repetition_n_grams", "repetition_max_penalty", "soft_max_length"),
    }
)
# swift's reward -> ours, and its settings -> our options.
_REWARDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "accuracy": ("accuracy", {}),
    "format": ("format", {}),
    "cosine": (
        "cosine",
        {
            **{"cosine_min_len_value_correct": "correct_short", "cosine_max_len_value_correct": "correct_long"},
            **{"cosine_min_len_value_wrong": "wrong_short", "cosine_max_len_value_wrong": "wrong_long"},
        },
    ),
    "repetition": ("repetition", {"repetition_n_grams": "ngram"}),
    "soft_overlong": ("soft_overlong", {"soft_max_length": "max_response_length", "soft_cache_length": "cache_length"}),
}


def arguments(words: Sequence[str]) -> int | None:
    """Where the options of `swift rlhf` begin."""
    return options_begin(words, ("swift", "rlhf"), ("swift/cli/rlhf.py", "swift.cli.rlhf"))


def settings(words: Sequence[Argument], around: Surroundings, version: str) -> Mapping[str, Any]:
    """The settings that the command itself gives, by their names in 4.x."""
    given = given_arguments(words, around)[0]
    own = {_RENAMED.get(name, name): one.value for name, one in given.items() if name not in _GONE}
    return {name: value for name, value in own.items() if name not in _OWNED}


def launch(words: Sequence[Argument], around: Surroundings) -> Launched:
    """The experiment of the command; a `UserError` if it does not train with GRPO."""
    raw, left = given_arguments(words, around)
    kind = value_in(raw, "rlhf_type", "dpo")
    if kind != "grpo":
        raise UserError(
            f"the script trains with --rlhf_type {kind}, and an experiment compares GRPO; `rolloutbench ab` runs a "
            "script as it is"
        )
    given = {_RENAMED.get(name, name): one for name, one in raw.items() if name not in _GONE}
    engine = _engine(given)
    full = value_in(given, "tuner_type", "lora") == "full"
    # A batch of swift's is 16 sequences unless told otherwise (arguments/sft_args.py).
    micro = as_count(value_in(given, "per_device_train_batch_size", 1), 1)
    processes = max(1, around.processes)
    passes = max(1, -(-16 // micro // processes))
    rate = 1e-5 if full else 1e-4
    values = {**_DEFAULTS.values, "gradient_accumulation_steps": passes, "learning_rate": rate}
    defaults = _DEFAULTS._replace(values=values)
    workers = as_count(value_in(raw, "num_infer_workers"))
    apart = engine == "vllm" and 0 < workers < processes
    served = value_in(given, "vllm_mode") == "server" or "vllm_server_host" in given or apart
    sizes = server_settings(around, _SERVER, "vllm_tensor_parallel_size", "vllm_data_parallel_size")
    tensor, data = (1, workers) if apart else sizes
    gpus = tensor * data if engine == "vllm" and served else 0
    found = launched(given, around, defaults, engine=engine, owned=_OWNED, adapter=not full, server_gpus=gpus)
    found.left = [*left, *found.left, *context(given, "vllm_max_model_len", engine)]
    if engine == "vllm":
        _engine_settings(given, found, (tensor, data) if gpus else None)
    for name in _GONE & raw.keys():
        why = "ms-swift 4 has no such setting"
        why += f": a server has {gpus} of the GPUs" if name == "num_infer_workers" and apart else ""
        found.left.append(Left(raw[name].line, raw[name].text, why))
    _lengths(given, found)
    found.workload["model"] = {"source": str(value_in(given, "model", ""))}
    _data(given, around, found)
    rewards(given, found, lambda name: _reward(name, given))
    why = "the experiment's differs on purpose (docs/rewards.md)"
    named = values_of(given, "reward_funcs")
    found.left += [Left(given["reward_funcs"].line, name, why) for name in ("cosine", "repetition") if name in named]
    found.left += [Left(given[name].line, given[name].text, why) for name, why in _NOT_HERE.items() if name in given]
    return found


def _engine_settings(given: Mapping[str, Given], found: Launched, server: tuple[int, int] | None) -> None:
    """What ms-swift and an experiment make of vLLM by default; a `server` has GPUs for each engine, and engines."""
    own = found.engine_options.setdefault("vllm", {})
    if server is None:
        # ms-swift's default; an experiment's engine sleeps during the update.
        own.setdefault("sleep_level", 0)
    else:
        tensor, data = server
        own |= {"vllm_mode": "server", "vllm_tensor_parallel_size": tensor, "vllm_data_parallel_size": data}
        own.pop("sleep_level", None)
        if "vllm_max_num_seqs" not in given:
            found.left.append(Left(0, "vllm_max_num_seqs", "a server takes the whole step at once in an experiment"))
    own.setdefault("vllm_engine_kwargs", {})


def _engine(given: Mapping[str, Given]) -> str:
    for name, engine in (("use_vllm", "vllm"), ("use_lmdeploy", "lmdeploy")):
        if name in given and given[name].value is True:
            return engine
    return "transformers"


def _lengths(given: Mapping[str, Given], found: Launched) -> None:
    """swift's `max_length` limits the prompt."""
    if "max_length" in given:
        found.workload["max_prompt_length"] = as_count(given["max_length"].value, found.workload["max_prompt_length"])
        found.left = [one for one in found.left if one.what != "max_prompt_length"]


def _data(given: Mapping[str, Given], around: Surroundings, found: Launched) -> None:
    sources, line = values_of(given, "dataset"), line_of(given, "dataset")
    first = str(sources[0]) if sources else ""
    data: dict[str, Any] = {"source": hub_or_path(first)}
    if "#" in first and first.rpartition("#")[2].isdigit():
        data["rows"] = int(first.rpartition("#")[2])
    if "system" in given:
        system = str(given["system"].value)
        # swift reads the text from such a file.
        text = around.read_file(system) if system.endswith(".txt") else system
        if text is None:
            found.left.append(Left(given["system"].line, system, "no such file here", "write data.system_prompt"))
        else:
            data["system_prompt"] = text.strip()
    if len(sources) > 1:
        found.left.append(Left(line, " ".join(map(str, sources[1:])), "only the first dataset is used", "join them"))
    if "dataset" in given:
        why = "prompts use the tokenizer's own chat template, without swift's dataset and template preprocessing"
        found.left.append(
            Left(line, "template, template_backend, dataset", why, "check data.prompt_column and answer_column")
        )
    found.workload["data"] = data


def _reward(name: str, given: Mapping[str, Given]) -> dict[str, Any] | None:
    plugins = values_of(given, "external_plugins")
    if name not in _REWARDS:
        return {"source": str(plugins[0]), "function": name, "signature": "swift"} if plugins else None
    ours, settings = _REWARDS[name]
    options = {ours: given[theirs].value for theirs, ours in settings.items() if theirs in given}
    return {"name": ours, **({"options": options} if options else {})}


LAUNCH = Launch(arguments=arguments, read=launch, settings=settings, server=_SERVER, not_compared=compared_by_words)
