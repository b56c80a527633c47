"""Reads a command of TRL or ms-swift, `--name value ...`, as an experiment: both take transformers' arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import yaml

from trainers.hf_arguments import BOOKKEEPING, HALF, OWNED
from trainers.launching import Argument, Launched, Left, Surroundings, as_count

STEPS, PROMPT_TOKENS = 20, 1024
# A float that YAML 1.1 takes for text.
_FLOAT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
# Settings that a word of the workload gives.
_BY_WORDS = frozenset(
    {
        *("max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps"),
        *("num_generations", "max_completion_length", "max_prompt_length", "temperature", "top_p", "learning_rate"),
        *("lr_scheduler_type", "warmup_steps", "warmup_ratio", "beta", "loss_type", "reward_weights", "bf16", "fp16"),
        *("seed", "save_strategy", "save_steps", "save_total_limit", "model", "model_name_or_path", "reward_funcs"),
        *("deepspeed", "config"),
    }
)
# Validation and logging: a run has none of its own, and logs every step.
_NOT_IN_A_RUN = frozenset(
    {
        *("eval_steps", "eval_strategy", "eval_on_start", "per_device_eval_batch_size", "do_eval", "push_to_hub"),
        *("logging_steps", "logging_strategy", "logging_first_step", "log_completions", "num_completions_to_print"),
        *("num_generations_eval", "split_dataset_ratio", "save_only_model", "dataset_num_proc"),
    }
)

# Settings whose words of the workload have another name, another number, or a source that may be missing here.
_OTHERWISE_NAMED = frozenset(
    {
        *("model", "model_name_or_path", "dataset", "dataset_name", "reward_funcs", "external_plugins", "config"),
        *("num_train_epochs", "max_prompt_length", "max_length", "gradient_accumulation_steps", "seed", "system"),
        *("warmup_ratio", "fp16", "rlhf_type", "dataset_config", "dataset_train_split", "model_revision", "fsdp"),
        *("deepspeed", "reward_weights"),
    }
)
# Without an engine beside the trainer they have no meaning.
_OF_THE_ENGINE = frozenset({"sleep_level", "offload_model", "offload_optimizer", "async_generate"})


class Given(NamedTuple):
    """A setting of the command, and the word that gives it."""

    value: Any
    line: int
    text: str
    unknown: tuple[str, ...] = ()


class Defaults(NamedTuple):
    """A trainer's own defaults of what the workload's words say."""

    values: Mapping[str, Any]
    unlike_ours: Mapping[str, Any]
    """Settings with another default than an experiment's; they become options."""


def options_begin(words: Sequence[str], command: tuple[str, str], own_programs: tuple[str, ...]) -> int | None:
    """Where the options of a command of two words begin, or of its own program; None in another command."""
    for place, (word, following) in enumerate(pairwise(words)):
        if (word.rpartition("/")[2], following) == command:
            return place + 2
    return next((place + 1 for place, word in enumerate(words) if word.endswith(own_programs)), None)


def given_arguments(words: Sequence[Argument], around: Surroundings) -> tuple[dict[str, Given], list[Left]]:
    """The command's settings by name; those of a `--config` file come first, as TRL has it."""
    found: dict[str, Given] = {}
    left: list[Left] = []
    name, start = "", None
    for word in words:
        if word.text.startswith("--"):
            name, equals, text = word.text[2:].partition("=")
            name, start = name.replace("-", "_"), word
            found[name] = Given(
                value_of(text) if equals else True, word.line, word.text, word.unknown if equals else ()
            )
        elif start is not None:
            before = found[name]
            fresh = before.text == start.text and "=" not in start.text
            values = [] if fresh else before.value if isinstance(before.value, list) else [before.value]
            joined = [*values, value_of(word.text)]
            value = joined if len(joined) > 1 else joined[0]
            found[name] = Given(value, before.line, f"{before.text} {word.text}", (*before.unknown, *word.unknown))
        else:
            left.append(Left(word.line, word.text, "not an option (--name value)", "give it by hand"))
    if (config := found.get("config")) is not None:
        content = around.files.get(str(config.value)) or around.read_file(str(config.value))
        try:
            read = yaml.safe_load(content) if content else None
        except yaml.YAMLError:
            read = None
        if isinstance(read, dict):
            settings = {str(k): Given(_number(v), config.line, f"{k}: {v}") for k, v in read.items()}
            found = settings | found
        else:
            left.append(Left(config.line, config.text, "this file cannot be read here as YAML", "add its settings"))
    return found, left


def value_of(text: str) -> Any:
    """A value of a command line: a number, true, false, JSON, or text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _FLOAT.fullmatch(text):
        return float(text)
    if re.fullmatch(r"[-+]?\d+(\.\d+)?|[\[{].*", text):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return text
    return text


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value


def launched(
    given: Mapping[str, Given],
    around: Surroundings,
    defaults: Defaults,
    *,
    engine: str,
    owned: frozenset[str],
    adapter: bool,
    server_gpus: int,
) -> Launched:
    """The experiment of a command's settings, without its rewards, model and data."""
    values = {**defaults.values, **{name: one.value for name, one in given.items()}}
    found = Launched(engine, seed=as_count(values.get("seed")))
    nodes = max(1, around.nodes)
    processes = around.processes or max(1, around.gpus_per_node * nodes - server_gpus)
    found.workload = _workload(values, processes)
    found.workload |= {"nodes": nodes, "gpus_per_node": max(1, -(-(processes + server_gpus) // nodes))}
    if server_gpus:
        why = f"{processes + server_gpus}: {processes} of the trainer, and {server_gpus} of the engine's server"
        found.left.append(Left(0, "GPUs", why, "give --gpus and --nodes if a node has fewer"))
    for name, one in given.items():
        if name in _BY_WORDS or name in owned:
            continue
        if one.unknown:
            found.left.append(Left(one.line, one.text, f"{', '.join(one.unknown)}: not set in the script", "add it"))
        elif name not in BOOKKEEPING | _NOT_IN_A_RUN | OWNED:
            of_engine = name in _OF_THE_ENGINE or name.startswith(f"{engine}_")
            target = found.engine_options.setdefault(engine, {}) if of_engine else found.options
            target[name] = one.value
    dropped = [one for name, one in given.items() if name in _NOT_IN_A_RUN or name in BOOKKEEPING]
    if dropped:
        names = ", ".join(dict.fromkeys(one.text.partition(" ")[0].partition("=")[0].rstrip(":") for one in dropped))
        found.left.append(Left(dropped[0].line, names, "names, trackers, logging and validation: the job sets its own"))
    found.options = {**defaults.unlike_ours, **found.options}
    found.left += _not_kept(given, values, found, processes, adapter)
    return found


def _workload(values: Mapping[str, Any], processes: int) -> dict[str, Any]:
    micro, passes = (
        as_count(values[name], 1) for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    steps = as_count(values.get("max_steps"))
    steps = steps if steps > 0 else STEPS
    warmup = values.get("warmup_steps") or values.get("warmup_ratio") or 0
    # Below 1 it is a share of the steps.
    warmup = int(warmup) if isinstance(warmup, int) or warmup >= 1 else int(warmup * steps)
    return {
        "steps": steps,
        "batch_size": micro * passes * processes,
        "num_generations": as_count(values["num_generations"], 8),
        "micro_batch_size": micro,
        "max_prompt_length": as_count(values.get("max_prompt_length")) or PROMPT_TOKENS,
        "max_response_length": as_count(values["max_completion_length"], 512),
        "temperature": values["temperature"],
        "top_p": values["top_p"],
        "learning_rate": values["learning_rate"],
        "lr_warmup_steps": warmup,
        "beta": values["beta"],
        "loss_type": values["loss_type"],
        "dtype": "bfloat16" if values["bf16"] else "float32",
        "save_steps": 0 if values.get("save_strategy") == "no" else as_count(values.get("save_steps"), 500),
    }


def _not_kept(
    given: Mapping[str, Given], values: Mapping[str, Any], found: Launched, processes: int, adapter: bool
) -> Iterator[Left]:
    steps = found.workload["steps"]
    if as_count(values.get("max_steps")) <= 0:
        epochs = values.get("num_train_epochs")
        text = f"num_train_epochs {epochs}: a comparison trains {steps} steps" if epochs else f"{steps} steps"
        yield Left(line_of(given, "num_train_epochs"), "num_train_epochs", text, "change workload.steps")
    scheduler = str(values.get("lr_scheduler_type") or "linear")
    if not scheduler.startswith("constant"):
        why = f"{scheduler}: the learning rate of an experiment is constant after its warm-up; no step takes longer"
        yield Left(line_of(given, "lr_scheduler_type"), "lr_scheduler_type", why)
    if "max_prompt_length" not in given:
        why = f"the script has none: {PROMPT_TOKENS} tokens"
        yield Left(0, "max_prompt_length", why, "change workload.max_prompt_length")
    sharded = next((name for name in ("deepspeed", "fsdp") if name in given and given[name].value), None)
    whole = processes == 1 or adapter
    if sharded and whole:
        found.options.pop("fsdp", None)
        why = (
            "one process needs no sharding" if processes == 1 else "with an adapter each GPU has the whole model (DDP)"
        )
        yield Left(line_of(given, sharded), given[sharded].text, why)
    elif sharded:
        yield from _sharded(given[sharded], given, found)
    for name in ("steps_per_generation", "generation_batch_size"):
        if name in given:
            yield Left(line_of(given, name), given[name].text, "an experiment generates once for each update")


def context(given: Mapping[str, Given], name: str, engine: str) -> Iterator[Left]:
    """That an engine's context is the longest sequence, where the command leaves it to the model."""
    if engine == "vllm" and name not in given:
        why = "prompt and response at their longest; the script's engine has the model's whole context"
        yield Left(0, name, why)


def _sharded(switch: Given, given: Mapping[str, Given], found: Launched) -> Iterator[Left]:
    """FSDP2 in the place of DeepSpeed or another FSDP, and what it does not take."""
    found.options["fsdp"] = True
    found.options.pop("fsdp_config", None)
    yield Left(switch.line, switch.text, "an experiment shards the model with FSDP2 (options.fsdp)")
    for options in (found.options, *found.engine_options.values()):
        for name in ("offload_model", "offload_optimizer"):
            if options.pop(name, False):
                do = "add it to the options to try it without fsdp"
                yield Left(line_of(given, name), name, "not tried with FSDP2", do)
        for name in ("torch_dtype", "dtype"):
            if options.pop(name, None) in HALF:
                why = "FSDP2 keeps float32 weights and computes in bfloat16, as DeepSpeed does"
                yield Left(line_of(given, name), name, why)


def compared_by_words(name: str) -> bool:
    """Whether a setting is compared by the workload's words: the batch has other factors, a length another name."""
    return name in _OTHERWISE_NAMED or name in _NOT_IN_A_RUN


def hub_or_path(source: str) -> str:
    """A source without ms-swift's prefix and number of rows (`hf::team/name#1000`)."""
    return re.sub(r"#\d+$", "", source).removeprefix("hf::").removeprefix("ms::")


def line_of(given: Mapping[str, Given], name: str) -> int:
    """The line of a setting; 0 without it."""
    return given[name].line if name in given else 0


def value_in(given: Mapping[str, Given], name: str, default: Any = None) -> Any:
    """The value of a setting; the default without it."""
    return given[name].value if name in given else default


def values_of(given: Mapping[str, Given], name: str) -> list[Any]:
    """The values of a setting that takes several; none without it."""
    value = value_in(given, name, [])
    return value if isinstance(value, list) else [value]


def rewards(given: Mapping[str, Given], found: Launched, own: Callable[[str], dict[str, Any] | None]) -> None:
    """The workload's rewards, of the names for which `own` has one."""
    weights, known = values_of(given, "reward_weights"), list[dict[str, Any]]()
    for place, name in enumerate(dict.fromkeys(map(str, values_of(given, "reward_funcs")))):
        if (reward := own(name)) is None:
            why = "an experiment has no reward of this name"
            do = "give your own under workload.rewards (docs/rewards.md)"
            found.left.append(Left(given["reward_funcs"].line, name, why, do))
            continue
        if place < len(weights) and weights[place] != 1:
            reward["weight"] = float(weights[place])
        known.append(reward)
    if not known:
        found.left.append(Left(0, "reward_funcs", "none that an experiment has: `accuracy` is used", "add yours"))
    found.workload["rewards"] = known or [{"name": "accuracy"}]


def server_settings(around: Surroundings, command: str, *names: str) -> list[int]:
    """Whole numbers of the engine's server in the same script; 1 each if it is started elsewhere."""
    for words in around.commands:
        texts = [word.text for word in words]
        if command in texts:
            given, _ = given_arguments(words[texts.index(command) + 1 :], around)
            return [as_count(given[name].value, 1) if name in given else 1 for name in names]
    return [1] * len(names)
